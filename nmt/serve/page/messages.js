// Texts of the page, in the language that the browser or the reader chose.
const table = await (await fetch(new URL("messages.json", import.meta.url))).json();
const usual = navigator.languages.map((code) => code.slice(0, 2)).find((code) => code in table);
let language = sessionStorage.getItem("language") in table ? sessionStorage.getItem("language") : usual ?? "en";

/** Return a message; `{name}` stands for a value. */
export function text(key, values = {}) {
  return table[language][key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Return the name of a language in the language of the page; a code that no one knows is its own name. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames([language], { type: "language" }).of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}

export const percent = (share) =>
  new Intl.NumberFormat(language, { style: "percent" }).format(share);

/** Write the messages into the elements that name one, now and whenever the reader chooses another language. */
export function speak(select, changed) {
  for (const code in table) select.append(new Option(table[code].name, code, false, code === language));
  for (const option of select.options) option.lang = option.value;
  const write = () => {
    document.documentElement.lang = language;
    document.title = `${text("title")} – nmt`;
    for (const node of document.querySelectorAll("[data-text]")) node.textContent = text(node.dataset.text);
    for (const node of document.querySelectorAll("[data-label]")) {
      node.setAttribute("aria-label", text(node.dataset.label));
      if (node.localName === "button") node.title = text(node.dataset.label);
    }
    for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = text(node.dataset.placeholder);
    changed();
  };
  select.addEventListener("change", () => {
    language = select.value;
    sessionStorage.setItem("language", language);
    write();
  });
  write();
}
