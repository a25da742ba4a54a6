// The translation as words: where they come from, how sure the model is, and moving among them by keyboard.

const DOUBTS = [0.7, 0.4, 0.15]; // probabilities below which a word is marked, ever more strongly

export class Words {
  #pane;
  #lines = [];
  #lit = [];

  /** Show translations in a pane; `choose(place)` when a word is chosen, `point(place)` when one is pointed at, or none. */
  constructor(pane, choose, point) {
    this.#pane = pane;
    pane.addEventListener("pointerover", (event) => point(this.#place(event.target)));
    pane.addEventListener("pointerleave", () => point(this.#place(document.activeElement)));
    pane.addEventListener("focusin", (event) => {
      const place = this.#place(event.target);
      if (place) this.#enter(place);
      point(place);
    });
    pane.addEventListener("focusout", (event) => {
      if (!event.relatedTarget?.closest(".menu")) point(null);
    });
    pane.addEventListener("click", (event) => {
      const place = this.#place(event.target);
      if (place && getSelection().isCollapsed) choose(place);
    });
    pane.addEventListener("keydown", (event) => this.#move(event, choose));
  }

  /** Show the translations of lines; null for none. */
  show(lines, language) {
    const before = this.#lines;
    this.#lines = lines ?? [];
    this.#pane.classList.toggle("empty", !lines);
    this.#pane.lang = lines ? language : "";
    this.#pane.dir = lines ? "auto" : "";
    if (!lines) return this.#pane.replaceChildren("The translation appears here.");
    const focused = this.#place(document.activeElement);
    const shown = before.length ? [...this.#pane.querySelectorAll("p")] : [];
    this.#pane.replaceChildren(
      ...lines.map((line, number) => (line === before[number] && shown[number]) || paragraph(line)),
    );
    this.#enter(this.#first());
    if (focused) this.focus(focused);
  }

  /** Light up the words that come from a word of the source, or a word itself. */
  light(isLit) {
    for (const node of this.#lit) node.classList.remove("lit");
    this.#lit = [];
    this.#lines.forEach((line, number) =>
      line.words.forEach((word, at) => {
        if (isLit(number, word, at)) this.#lit.push(this.node({ line: number, word: at }));
      }),
    );
    for (const node of this.#lit) node.classList.add("lit");
  }

  /** Return the element of a word. */
  node({ line, word }) {
    return this.#pane.children[line]?.querySelectorAll(".word")[word];
  }

  focus(place) {
    (this.node(place) ?? this.#pane.querySelector(".word"))?.focus();
  }

  #place(node) {
    const word = node?.closest?.(".word");
    if (!word || !this.#pane.contains(word)) return null;
    const line = word.closest("p");
    return { line: [...this.#pane.children].indexOf(line), word: [...line.querySelectorAll(".word")].indexOf(word) };
  }

  #first() {
    const line = this.#lines.findIndex((one) => one.words.length);
    return line < 0 ? null : { line, word: 0 };
  }

  /** Let Tab lead to one word, the last that had the focus. */
  #enter(place) {
    for (const node of this.#pane.querySelectorAll("[tabindex='0']")) node.tabIndex = -1;
    const node = place && this.node(place);
    if (node) node.tabIndex = 0;
  }

  #move(event, choose) {
    const place = this.#place(event.target);
    if (!place || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(place);
      return;
    }
    const all = [...this.#pane.querySelectorAll(".word")];
    const at = all.indexOf(this.node(place));
    const lineStart = (number, step) => {
      while (this.#lines[number] && !this.#lines[number].words.length) number += step;
      return this.#lines[number] ? this.node({ line: number, word: 0 }) : null;
    };
    const to = {
      ArrowRight: () => all[at + 1],
      ArrowLeft: () => all[at - 1],
      ArrowDown: () => lineStart(place.line + 1, 1),
      ArrowUp: () => lineStart(place.line - 1, -1),
      Home: () => all[0],
      End: () => all.at(-1),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    to()?.focus();
  }
}

/** Return what is said of a word: its source words, and its probability. */
export function description(line, word) {
  const from = word.sources.map((at) => line.sources[at]?.text).join(" ");
  return [
    from && `from “${from}”`,
    word.probability !== undefined && `probability ${Math.round(100 * word.probability)}%`,
  ].filter(Boolean).join(", ");
}

function paragraph(line) {
  const node = document.createElement("p");
  let end = 0;
  for (const word of line.words) {
    node.append(line.text.slice(end, word.start), element(line, word));
    end = word.end;
  }
  node.append(line.text.slice(end));
  return node;
}

function element(line, word) {
  const node = document.createElement("span");
  node.textContent = word.text;
  node.className = "word";
  node.tabIndex = -1;
  node.setAttribute("role", "button");
  node.setAttribute("aria-haspopup", "menu");
  node.setAttribute("aria-description", description(line, word));
  const doubt = DOUBTS.filter((limit) => word.probability < limit).length;
  if (doubt) node.dataset.doubt = doubt;
  return node;
}
