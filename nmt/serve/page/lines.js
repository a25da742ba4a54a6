// Translations of the lines of a text; known translations are not requested again.
import { askPatiently } from "./server.js";

const MOST_KNOWN = 2000;
const LINES = 64; // of a request

/** Fields to ask for, from many to none: models may lack attention. */
const FORMS = [(unit) => ({ alignments: unit }), () => ({ scores: true }), () => ({})];

export class Lines {
  #known = new Map();
  #forms = new Map();
  #current = null;

  /** Return the translation of each line, or null if another call came meanwhile; `prefixes` by line. */
  async translate(pair, lines, prefixes, tell) {
    this.#current?.abort();
    const { signal } = (this.#current = new AbortController());
    const name = (line) => JSON.stringify([pair.source, pair.target, prefixes.get(line) ?? "", line]);
    const unknown = [...new Set(lines)].filter((line) => line.trim() && !this.#known.has(name(line)));
    try {
      for (let at = 0; at < unknown.length; at += LINES) {
        const some = unknown.slice(at, at + LINES);
        const answer = await this.#ask(pair, some, prefixes, signal, tell);
        some.forEach((line, number) => this.#known.set(name(line), translation(line, answer[number][0], pair.unit)));
      }
    } catch (error) {
      if (signal.aborted) return null;
      throw error;
    }
    const results = lines.map((line) => this.#known.get(name(line)) ?? translation(line, { text: "" }));
    if (this.#known.size > MOST_KNOWN) this.#known = new Map([...this.#known].slice(-MOST_KNOWN / 2));
    return signal.aborted ? null : results;
  }

  /** End what is under way. */
  stop() {
    this.#current?.abort();
  }

  async #ask(pair, lines, prefixes, signal, tell) {
    const requests = lines.map((line) => (prefixes.has(line) ? { text: line, prefix: prefixes.get(line) } : line));
    const wanted = { source_lang: pair.source, target_lang: pair.target, lines: requests };
    for (let form = this.#forms.get(pair) ?? 0; ; form++) {
      try {
        const values = { ...wanted, ...FORMS[form](pair.unit) };
        const { translations } = await askPatiently("v1/translate", values, signal, tell);
        this.#forms.set(pair, form);
        return translations;
      } catch (error) {
        if (error.status !== 400 || form + 1 === FORMS.length) throw error;
      }
    }
  }
}

/** Return a line with its translation, both in words: where they are, how likely, and the source words of each. */
function translation(line, fields, unit) {
  const target = placed(fields.text, fields[unit] ?? fields.text.split(/\s+/).filter(Boolean));
  const likely = probabilities(fields, target);
  const words = target.map((word, at) => ({ ...word, probability: likely?.[at], sources: [] }));
  for (const [source, at] of fields.alignment ?? []) words[at]?.sources.push(source);
  return { line, text: fields.text, words, sources: placed(line, fields[`source_${unit}`] ?? []) };
}

/** Return where in a text its words are. */
function placed(text, words) {
  let end = 0;
  return words.map((word) => {
    const start = text.indexOf(word, end);
    end = start + word.length;
    return { text: word, start, end };
  });
}

/** Return the probability of each word: the product of its pieces'. None if the pieces do not spell the text. */
function probabilities({ text, tokens = [], finished, token_log_probabilities: logs }, words) {
  const letters = (part) => part.replace(/[\s▁]/gu, "");
  const pieces = finished ? tokens.slice(0, -1) : tokens; // without the end of sentence
  if (!words.length || letters(pieces.join("")) !== letters(text)) return null;
  const sums = words.map(() => 0);
  let word = 0, end = letters(words[0].text).length, start = 0;
  pieces.forEach((piece, number) => {
    while (start >= end && word + 1 < words.length) end += letters(words[++word].text).length;
    sums[word] += logs[number];
    start += letters(piece).length;
  });
  return sums.map(Math.exp);
}
