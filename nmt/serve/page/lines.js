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

  /** Return the translation of each line, or null if another call came meanwhile; `prefixes` by sentence. */
  async translate(pair, lines, prefixes, tell) {
    this.#current?.abort();
    const { signal } = (this.#current = new AbortController());
    const name = (...texts) => JSON.stringify([pair.source, pair.target, ...texts]);
    /** Ask for the translations of lines or sentences, each a text and a prefix, that are not known. */
    const learn = async (requests) => {
      const wanted = requests.filter((request) => request[0].trim() && !this.#known.has(name(...request)));
      const unknown = [...new Map(wanted.map((request) => [name(...request), request])).values()];
      for (let at = 0; at < unknown.length; at += LINES) {
        const some = unknown.slice(at, at + LINES);
        const answer = await this.#ask(pair, some, signal, tell);
        some.forEach((request, number) =>
          this.#known.set(name(...request), translation(request[0], answer[number][0], pair.unit)));
      }
    };
    const whole = (line) => this.#known.get(name(line, "")) ?? translation(line, { text: "" });
    /** Return the sentences of a line, each with its prefix; none if no word was chosen. */
    const chosen = (line) => {
      const sentences = whole(line).sentences.map(([sentence]) => sentence.trim());
      return sentences.some((sentence) => prefixes.has(sentence))
        ? sentences.map((sentence) => [sentence, prefixes.get(sentence) ?? ""])
        : [];
    };
    try {
      await learn(lines.map((line) => [line, ""]));
      await learn(lines.flatMap(chosen));
    } catch (error) {
      if (signal.aborted) return null;
      throw error;
    }
    const results = lines.map((line) => {
      const sentences = chosen(line);
      if (!sentences.length) return whole(line);
      const key = name(line, ...sentences.flat());
      const parts = sentences.map((request) => this.#known.get(name(...request)));
      if (!this.#known.has(key)) this.#known.set(key, joined(whole(line), parts));
      return this.#known.get(key);
    });
    if (this.#known.size > MOST_KNOWN) this.#known = new Map([...this.#known].slice(-MOST_KNOWN / 2));
    return signal.aborted ? null : results;
  }

  /** End what is under way. */
  stop() {
    this.#current?.abort();
  }

  async #ask(pair, texts, signal, tell) {
    const requests = texts.map(([text, prefix]) => (prefix ? { text, prefix } : text));
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
  const sources = placed(line, fields[`source_${unit}`] ?? []);
  return { line, text: fields.text, words, sources, sentences: fields.sentences ?? [[line, fields.text]] };
}

/** Return a line with other translations of its sentences. */
function joined({ line, sentences }, translations) {
  const all = { line, text: "", words: [], sources: [], sentences: [] };
  const moved = (words, by) => words.map((word) => ({ ...word, start: word.start + by, end: word.end + by }));
  let begin = 0;
  translations.forEach((one, number) => {
    const [source, target] = sentences[number];
    const before = all.text + target.match(/^\s*/)[0];
    const known = all.sources.length;
    all.sources.push(...moved(one.sources, begin + source.match(/^\s*/)[0].length));
    const words = moved(one.words, before.length);
    all.words.push(...words.map((word) => ({ ...word, sources: word.sources.map((at) => known + at) })));
    all.sentences.push([source, before.slice(all.text.length) + one.text]);
    all.text = before + one.text;
    begin += source.length;
  });
  return all;
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
function probabilities({ text, tokens = [], token_log_probabilities: logs }, words) {
  const letters = (part) => part.replace(/[\s▁]/gu, "");
  // Without the end of each sentence.
  const pieces = tokens.map((piece, at) => ({ piece, log: logs[at] })).filter(({ piece }) => piece !== "</s>");
  if (!words.length || letters(pieces.map(({ piece }) => piece).join("")) !== letters(text)) return null;
  const sums = words.map(() => 0);
  let word = 0, end = letters(words[0].text).length, start = 0;
  pieces.forEach(({ piece, log }) => {
    while (start >= end && word + 1 < words.length) end += letters(words[++word].text).length;
    sums[word] += log;
    start += letters(piece).length;
  });
  return sums.map(Math.exp);
}
