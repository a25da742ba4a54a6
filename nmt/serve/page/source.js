// The text to translate: a text field, and under it a copy of its text, in which words light up.
export class Source {
  #field;
  #mirror;

  /** Call `edited()` when the text changes, and `moved(line, column)` when the caret moves. */
  constructor(field, mirror, edited, moved) {
    this.#field = field;
    this.#mirror = mirror;
    field.addEventListener("input", () => {
      this.mark([]);
      edited();
    });
    document.addEventListener("selectionchange", () => {
      if (document.activeElement !== field) return;
      const before = field.value.slice(0, field.selectionStart).split("\n");
      moved(before.length - 1, before.at(-1).length);
    });
    this.mark([]); // browsers keep the text when a page is loaded again
  }

  get text() {
    return this.#field.value;
  }

  set text(value) {
    this.#field.value = value;
    this.#field.dispatchEvent(new Event("input"));
  }

  set lang(code) {
    this.#field.lang = code;
  }

  get lines() {
    return this.text.replace(/\n+$/, "").split("\n");
  }

  get isBlank() {
    return !this.text.trim();
  }

  focus() {
    this.#field.focus();
  }

  /** Light up words of a line, in the order of the text. */
  mark(words, line = 0) {
    const lineStart = this.lines.slice(0, line).reduce((sum, before) => sum + before.length + 1, 0);
    const parts = [];
    let end = 0;
    for (const word of words) {
      const node = document.createElement("mark");
      node.textContent = this.text.slice(lineStart + word.start, lineStart + word.end);
      parts.push(this.text.slice(end, lineStart + word.start), node);
      end = lineStart + word.end;
    }
    this.#mirror.replaceChildren(...parts, `${this.text.slice(end)}\n`);
  }
}
