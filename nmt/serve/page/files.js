// Translation of files: text line by line, HTML with its markup.
import { askPatiently } from "./server.js";

const PARTS = 128; // of a request
const CHARACTERS = 100_000; // of a request
const FRAGMENT = 2000; // characters of HTML that are translated together, at most
const VERBATIM = "pre, textarea"; // kept here; the server keeps what else is not for translation
const KEPT = `script, style, code, kbd, samp, math, svg, [translate=no], .notranslate, ${VERBATIM}`;

/** Return the translation of a file as a file; `progress(done, all)` counts its lines or fragments. */
export async function translateFile(file, pair, limits, signal, progress, tell) {
  const content = await file.text();
  const isHtml = /\.x?html?$/i.test(file.name) || file.type === "text/html";
  const translate = async (parts, markup) => {
    const translated = [...parts];
    const wanted = parts.flatMap((part, at) => (part.trim() ? [at] : []));
    for (let done = 0; done < wanted.length; ) {
      const some = batch(wanted.slice(done), parts, limits.max_lines);
      const values = { source_lang: pair.source, target_lang: pair.target, lines: some.map((at) => parts[at]), ...markup };
      const { translations } = await askPatiently("v1/translate", values, signal, tell);
      some.forEach((at, number) => (translated[at] = translations[number][0].text));
      progress((done += some.length), wanted.length);
    }
    return translated;
  };
  const translated = isHtml ? await html(content, pair, limits, translate) : await plain(content, translate);
  return new File([translated], renamed(file.name, pair.target), { type: isHtml ? "text/html" : "text/plain" });
}

/** Return the first parts, as many as a request may have. */
function batch(wanted, parts, most) {
  let characters = 0;
  const end = wanted.findIndex((at, number) => (characters += parts[at].length) > CHARACTERS && number > 0);
  return wanted.slice(0, Math.min(end < 0 ? wanted.length : end, PARTS, most));
}

async function plain(content, translate) {
  const ends = content.match(/\r?\n/g) ?? [];
  const lines = await translate(content.split(/\r?\n/), {});
  return lines.map((line, at) => line + (ends[at] ?? "")).join("");
}

/** Translate a page; its document is parsed apart from this page: nothing in it is loaded or run. */
async function html(content, pair, limits, translate) {
  const parsed = new DOMParser().parseFromString(content, "text/html");
  const most = Math.min(FRAGMENT, limits.max_characters);
  const places = [...fragments(parsed.documentElement, most)];
  const translated = await translate(places.map(({ read }) => read()), { markup: "html" });
  places.forEach(({ write }, at) => write(translated[at]));
  parsed.documentElement.lang = pair.target;
  const doctype = parsed.doctype ? `${new XMLSerializer().serializeToString(parsed.doctype)}\n` : "";
  return doctype + parsed.documentElement.outerHTML + "\n";
}

/** Yield the largest parts of an element that are short enough: how to read and to write each. */
function* fragments(element, most) {
  if (element.matches(KEPT) || !element.textContent.trim()) return;
  const isWhole = element.innerHTML.length <= most && !element.querySelector(VERBATIM);
  if (element.localName === "title" || (element.closest("body") && isWhole)) {
    yield { read: () => element.innerHTML, write: (markup) => (element.innerHTML = markup) };
    return;
  }
  for (const node of [...element.childNodes]) {
    if (node.nodeType === Node.ELEMENT_NODE) yield* fragments(node, most);
    else if (node.nodeType === Node.TEXT_NODE && node.data.trim() && element.closest("body")) {
      yield { read: () => escaped(node.data), write: (markup) => node.replaceWith(unescaped(node, markup)) };
    }
  }
}

const escaped = (characters) => characters.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function unescaped(node, markup) {
  const holder = node.ownerDocument.createElement("div");
  holder.innerHTML = markup;
  return holder.textContent;
}

const renamed = (name, language) => name.replace(/(\.[^.]*)?$/, (ending) => `.${language}${ending}`);
