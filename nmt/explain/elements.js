"use strict";
// All text reaches the page as text nodes and attributes, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const COLOURS = [
  "#d9480f",
  "#1c7ed6",
  "#2f9e44",
  "#9c36b5",
  "#c08a00",
  "#0c8599",
  "#e03131",
  "#6741d9",
  "#5c940d",
  "#c2255c",
  "#495057",
  "#8d5524",
  "#1098ad",
  "#a61e4d",
  "#3b5bdb",
  "#087f5b",
];
const KINDS = { encoder: "encoder, self", decoder: "decoder, self", cross: "decoder to source" };
const LEAST = 0.02; // weights below are not drawn
const state = {
  sentence: 0,
  units: "pieces",
  kind: "",
  layer: "",
  view: "lines",
  scaled: true,
  heads: null,
  mean: false,
};
let unpacked = new Map();
/** Models side by side; an ensemble is followed by its members. */
const models = data.models.map((model, at) => ({ ...model, at, query: null, step: 0, parts: {} }));

function make(space, name, attributes, children) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(
    ...children
      .filter((child) => child != null)
      .map((child) => (child instanceof Node ? child : String(child))),
  );
  return node;
}
const html = (name, attributes, ...children) => make(null, name, attributes, children);
const svg = (name, attributes, ...children) =>
  make("http://www.w3.org/2000/svg", name, attributes, children);
const options = (select, pairs, chosen) =>
  select.replaceChildren(
    ...pairs.map(([value, text]) => html("option", { value, selected: value === chosen }, text)),
  );
const number = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
const percent = (log) =>
  Math.exp(log) < 0.0005 ? "< 0.1 %" : `${number(100 * Math.exp(log), 1)} %`;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;
const shown = (piece) => piece.replaceAll("▁", "_"); // the block is wide and heavy in most fonts
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

/** The nested lists of a packed tensor. */
function unpack(tensor) {
  if (!unpacked.has(tensor)) {
    const bytes = Uint8Array.from(atob(tensor.data), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const step = (tensor.high - tensor.low) / 65535;
    let at = 0;
    const nest = ([size, ...rest]) =>
      Array.from({ length: size }, () =>
        rest.length ? nest(rest) : tensor.low + step * view.getUint16(2 * at++, true),
      );
    unpacked.set(tensor, nest(tensor.shape));
  }
  return unpacked.get(tensor);
}

const sentenceOf = (model) => model.sentences[state.sentence];
const textOf = (units) => units.map((unit) => unit.label).join(" ");

/** Give each section a column for every model, made from the section's template. */
function makeColumns() {
  document.body.classList.toggle("several", models.length > 1);
  for (const place of document.querySelectorAll(".models"))
    for (const model of models) {
      const column = html("div", { class: "model", "data-model": model.at });
      if (models.length > 1) column.append(html("h3", {}, model.model));
      column.append(place.querySelector("template").content.cloneNode(true));
      for (const node of column.querySelectorAll("[data-part]"))
        model.parts[node.dataset.part] = node;
      place.append(column);
    }
}

/** Show the column of a model in the section of a part, or hide it if there is nothing to show. */
function showColumn(model, part, something) {
  const column = model.parts[part].closest(".model");
  column.hidden = !something;
  const columns = [...column.parentNode.querySelectorAll(".model")];
  column.closest("section").hidden = columns.every((each) => each.hidden);
  return something;
}

/** The pieces or words of a side: a label and the positions of each; shifted for what the decoder reads. */
function units(side, shifted) {
  const pieces = shifted ? ["<s>", ...side.pieces.slice(0, -1)] : side.pieces;
  const words = shifted ? [-1, ...side.words.slice(0, -1)] : side.words;
  const found = [];
  pieces.forEach((piece, at) => {
    const last = found[found.length - 1];
    if (state.units === "words" && last && last.word === words[at]) {
      last.label += piece.replace("▁", "");
      last.members.push(at);
    } else
      found.push({
        label: state.units === "words" ? piece.replace("▁", "") : shown(piece),
        members: [at],
        word: words[at],
      });
  });
  return found;
}

