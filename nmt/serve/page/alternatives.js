// The menu of alternatives for a word.
import { problem } from "./server.js";

export class Alternatives {
  #pane;
  #menu = null;
  #word = null;
  #request = null;

  constructor(pane) {
    this.#pane = pane;
    document.addEventListener("pointerdown", (event) => {
      if (this.#menu && !this.#menu.contains(event.target)) this.close();
    });
  }

  /** Ask for the alternatives of a word and offer them; `choose(alternative)` when one is chosen. */
  async open(node, word, before, find, choose) {
    this.close();
    const { signal } = (this.#request = new AbortController());
    this.#word = node;
    node.setAttribute("aria-expanded", "true");
    this.#menu = this.#box(word);
    this.#say("Searching…");
    try {
      const found = await find(signal);
      const others = found.filter(({ next }) => next !== word.text);
      if (signal.aborted) return;
      if (!others.length) this.#say("No other word is likely here.");
      else this.#offer(found, word, before, choose);
    } catch (error) {
      if (!signal.aborted) this.#say(problem(error));
    }
  }

  /** Remove the menu, and stop what it asks for. */
  close(returnsFocus = false) {
    this.#request?.abort();
    this.#word?.removeAttribute("aria-expanded");
    const menu = this.#menu;
    this.#menu = null; // before the focus leaves it, which would close it again
    if (returnsFocus) this.#word?.focus();
    menu?.remove();
  }

  #box(word) {
    const box = document.createElement("div");
    box.className = "menu";
    box.addEventListener("keydown", (event) => this.#move(event));
    box.addEventListener("focusout", (event) => {
      if (this.#menu === box && !box.contains(event.relatedTarget) && event.relatedTarget !== this.#word) this.close();
    });
    this.#word.addEventListener("keydown", (event) => event.key === "Escape" && this.close(true), { signal: this.#request.signal });
    this.#pane.after(box);
    box.setAttribute("aria-label", `Alternatives for “${word.text}”`);
    return box;
  }

  #say(message) {
    const line = document.createElement("p");
    line.setAttribute("role", "status");
    this.#menu.replaceChildren(line);
    this.#place();
    line.textContent = message;
  }

  #offer(found, word, before, choose) {
    this.#menu.setAttribute("role", "menu");
    this.#menu.lang = this.#pane.lang;
    this.#menu.replaceChildren(...found.map((alternative) => {
      const item = document.createElement("div");
      const name = document.createElement("b");
      const rest = document.createElement("small");
      name.textContent = alternative.next;
      rest.textContent = alternative.text.slice(before.length).trimStart().slice(alternative.next.length);
      item.append(name, rest);
      item.tabIndex = -1;
      item.setAttribute("role", "menuitemradio");
      item.setAttribute("aria-checked", alternative.next === word.text);
      item.addEventListener("click", () => {
        this.close(true);
        choose(alternative);
      });
      return item;
    }));
    this.#place();
    this.#menu.firstElementChild.focus();
  }

  /** Put the menu below its word, within the pane. */
  #place() {
    const home = this.#menu.offsetParent.getBoundingClientRect();
    const word = this.#word.getBoundingClientRect();
    this.#menu.style.left = "0"; // where it may be as wide as it wants
    const most = home.width - this.#menu.offsetWidth - 8;
    this.#menu.style.top = `${word.bottom - home.top + 4}px`;
    this.#menu.style.left = `${Math.max(8, Math.min(word.left - home.left, most))}px`;
  }

  #move(event) {
    const items = [...this.#menu.children];
    const at = items.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (to !== undefined) items.at(to % items.length)?.focus();
    else if (event.key === "Enter" || event.key === " ") items[at]?.click();
    else if (event.key === "Escape") this.close(true);
    else return;
    event.preventDefault();
  }
}
