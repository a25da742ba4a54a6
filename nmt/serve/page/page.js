// The page: puts the parts together.
import { Alternatives } from "./alternatives.js";
import { Lines } from "./lines.js";
import { ask, problem, settings as load } from "./server.js";
import { Source } from "./source.js";
import { description, Words } from "./words.js";

const PAUSE = 200; // ms without a change before the text is translated
const CALM = 1200; // ms without a change before the translation is read out

const $ = (id) => document.getElementById(id);
const settings = await load();
const lines = new Lines();
const source = new Source($("source"), $("mirror"), edited, moved);
const words = new Words($("target"), choose, point);
const alternatives = new Alternatives($("target"));
const prefixes = new Map(); // of sentences whose words were chosen
const timers = {};
let pair = settings.pairs[0];
let shown = null; // translations of the lines

function later(name, milliseconds, action) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(action, milliseconds);
}

// Translation

/** Translate the text as it is now. */
async function translate() {
  clearTimeout(timers.typing);
  if (source.isBlank) {
    lines.stop();
    return show(null);
  }
  $("target").classList.add("waiting");
  try {
    const wait = (seconds) => tell(seconds ? `The server is busy. Trying again in ${seconds} s.` : "");
    const results = await lines.translate(pair, source.lines, prefixes, wait);
    if (results) show(results); // else newer ones are on their way
  } catch (error) {
    $("target").classList.remove("waiting");
    tell(problem(error));
  }
}

function show(results) {
  const fresh = (results ?? []).filter((line, at) => line !== shown?.[at]).map((line) => line.text);
  shown = results;
  alternatives.close();
  $("target").classList.remove("waiting");
  words.show(results, pair.target);
  tell("");
  later("reading", CALM, () => fresh.length && announce(fresh.join("\n")));
  update();
}

function announce(message, language = pair.target) {
  $("announced").lang = language;
  $("announced").textContent = message;
}

const tell = (message) => ($("problem").textContent = message);

/** Bring what depends on text and translation up to date. */
function update() {
  const count = Math.max(...source.lines.map((line) => line.length));
  const most = settings.max_characters;
  $("count").textContent = count > most / 2 ? `${count} of ${most} characters in the longest line` : "";
  $("restore").hidden = !sentences().some((sentence) => prefixes.has(sentence));
  $("copy").disabled = !shown;
}

/** Return the sentences of the source whose translations are shown. */
function sentences() {
  return (shown ?? []).flatMap((line) => line.sentences.map(([sentence]) => sentence.trim()));
}

// The source

function edited() {
  later("typing", PAUSE, translate);
  update();
}

/** Light up the translation of the source word at the caret. */
function moved(line, column) {
  const number = shown?.[line]?.sources.findIndex(({ start, end }) => start <= column && column <= end) ?? -1;
  words.light((at, word) => at === line && word.sources.includes(number));
}

// Words of the translation

/** Light up what belongs to a word; none for null. */
function point(place) {
  const line = shown?.[place?.line];
  const word = line?.words[place.word];
  $("detail").textContent = word ? `${word.text}: ${description(line, word)}` : "";
  words.light((at, one) => at === place?.line && one === word);
  const isThere = word && source.lines[place.line] === line.line;
  const from = isThere ? word.sources.map((at) => line.sources[at]) : [];
  source.mark(from.sort((one, other) => one.start - other.start), place?.line);
}

/** Offer alternatives for a word. */
function choose(place) {
  const line = shown[place.line];
  const word = line.words[place.word];
  let start = 0, number = 0;
  while (start + line.sentences[number][1].length <= word.start) start += line.sentences[number++][1].length;
  const sentence = line.sentences[number][0].trim();
  const before = line.text.slice(start, word.start).trimStart();
  const values = { source_lang: pair.source, target_lang: pair.target, line: sentence, prefix: before };
  const find = async (signal) => (await ask("v1/alternatives", values, signal)).alternatives;
  alternatives.open(words.node(place), word, before, find, (alternative) => {
    prefixes.set(sentence, alternative.text);
    translate();
  });
}

function restore() {
  for (const sentence of sentences()) prefixes.delete(sentence);
  source.focus();
  translate();
}

async function copy() {
  const translation = shown.map((line) => line.text).join("\n");
  try {
    await navigator.clipboard.writeText(translation);
  } catch { // without https there is no clipboard, but a selection can be copied
    getSelection().selectAllChildren($("target"));
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  announce("Copied", document.documentElement.lang);
  later("copied", 2000, () => ($("copy").textContent = "Copy"));
}

// Languages

const names = new Intl.DisplayNames(["en"], { type: "language" });

/** Return the name of a language; a code that no one knows is its own name. */
function languageName(code) {
  try {
    return names.of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}

const pairOf = (from, to) => settings.pairs.find((one) => one.source === from && one.target === to);

function offerLanguages() {
  const offer = (select, codes, chosen) =>
    select.replaceChildren(...codes.map((code) => new Option(languageName(code), code, false, code === chosen)));
  const targets = settings.pairs.filter((one) => one.source === pair.source);
  offer($("from"), [...new Set(settings.pairs.map((one) => one.source))], pair.source);
  offer($("to"), targets.map((one) => one.target), pair.target);
  $("swap").hidden = !pairOf(pair.target, pair.source);
  source.lang = pair.source;
}

function change(next) {
  pair = next;
  prefixes.clear();
  offerLanguages();
  show(null);
  translate();
}

function swap() {
  const translation = shown?.map((line) => line.text).join("\n");
  if (translation) source.text = translation;
  change(pairOf(pair.target, pair.source));
}

$("from").addEventListener("change", ({ target: { value } }) =>
  change(pairOf(value, pair.target) ?? settings.pairs.find((one) => one.source === value)));
$("to").addEventListener("change", ({ target: { value } }) => change(pairOf(pair.source, value)));
$("swap").addEventListener("click", swap);
$("clear").addEventListener("click", () => {
  source.text = "";
  source.focus();
  translate();
});
$("copy").addEventListener("click", copy);
$("restore").addEventListener("click", restore);
$("shade").addEventListener("change", ({ target }) => $("target").classList.toggle("shaded", target.checked));
offerLanguages();
translate();
