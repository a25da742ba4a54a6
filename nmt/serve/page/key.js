// The form for the key of the server.
import { key } from "./server.js";

export class KeyForm {
  #form;

  /** Call `entered()` when the reader has entered a key. */
  constructor(form, entered) {
    this.#form = form;
    const field = form.querySelector("input");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      key.set(field.value.trim());
      field.value = "";
      form.hidden = true;
      entered();
    });
  }

  show() {
    this.#form.hidden = false;
    this.#form.querySelector("input").focus();
  }
}
