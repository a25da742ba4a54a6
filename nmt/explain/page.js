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

function showTranslation(model) {
  const { source, target, alignment } = sentenceOf(model);
  const sides = { source, target };
  const link = (name, word) => {
    const at = name === "source" ? 0 : 1;
    const linked = new Set(
      alignment.filter((pair) => pair[at] === word).map((pair) => pair[1 - at]),
    );
    for (const side of ["source", "target"])
      for (const item of model.parts[side].children)
        item.classList.toggle(
          "on",
          side === name ? +item.dataset.word === word : linked.has(+item.dataset.word),
        );
  };
  for (const [at, [name, side]] of Object.entries(sides).entries()) {
    const items = units(side).map((unit) => {
      const show = () => link(name, unit.word);
      return html(
        "li",
        { class: "token", tabindex: 0, "data-word": unit.word, onmouseenter: show, onfocus: show },
        unit.label,
        html("small", {}, unit.members.map((at) => side.ids[at]).join(" ")),
      );
    });
    model.parts[name].replaceChildren(...items);
    if (model.languages[at]) model.parts[name].setAttribute("lang", model.languages[at]);
  }
}

function showSteps(model) {
  const { steps, target } = sentenceOf(model);
  const buttons = steps.map((step, at) =>
    html(
      "li",
      {},
      html(
        "button",
        { type: "button", class: "token", onclick: () => chooseStep(at, model) },
        shown(target.pieces[at]),
        html("small", {}, percent(step.log_probability)),
      ),
    ),
  );
  model.parts.steps.replaceChildren(...buttons);
  if (model.step >= steps.length) model.step = 0;
  showStep(model);
}

/** Choose a step of a model, and of the models next to it with the same translation. */
function chooseStep(at, chosen) {
  const pieces = (model) => sentenceOf(model).target.pieces.join(" ");
  for (const model of models)
    if (pieces(model) === pieces(chosen)) {
      model.step = at;
      showStep(model);
    }
}

function showStep(model) {
  const { steps, target } = sentenceOf(model);
  const { steps: list, step: detail } = model.parts;
  const at = model.step;
  [...list.children].forEach((item, other) =>
    item.firstChild.setAttribute("aria-pressed", String(at === other)),
  );
  const step = steps[at];
  const rows = step.likeliest.map((next, rank) =>
    html(
      "tr",
      { class: next.id === target.ids[at] ? "chosen" : null },
      html("td", {}, rank + 1),
      html("td", { class: "text" }, shown(next.piece)),
      html("td", {}, next.id),
      html(
        "td",
        { class: "text" },
        html("span", { class: "bar", style: `width:${6 * Math.exp(next.log_probability)}rem` }),
        percent(next.log_probability),
      ),
    ),
  );
  const names = [["rank"], ["piece", "text"], ["id"], ["probability", "text"]].map(
    ([name, kind]) => html("th", { scope: "col", class: kind }, name),
  );
  detail.replaceChildren(
    html(
      "div",
      { class: "scroll" },
      html(
        "table",
        {},
        html(
          "caption",
          {},
          `Step ${at + 1}: “${shown(target.pieces[at])}” has rank ${step.rank}, ${percent(step.log_probability)}`,
        ),
        html("thead", {}, html("tr", {}, ...names)),
        html("tbody", {}, ...rows),
      ),
    ),
  );
}

function showSearch(model) {
  const { beam, hypotheses } = sentenceOf(model);
  const { "beam-note": comment, beam: place, hypotheses: end } = model.parts;
  if (!showColumn(model, "beam", beam.length)) return;
  const width = 100,
    height = 40,
    places = [],
    counts = {};
  beam
    .map((_, at) => at)
    .sort(
      (one, other) =>
        beam[one].step - beam[other].step ||
        beam[other].log_probability - beam[one].log_probability,
    )
    .forEach((at) => {
      const { step } = beam[at];
      counts[step] = (counts[step] || 0) + 1;
      places[at] = [width * (step - 1) + 4, height * (counts[step] - 1) + 4];
    });
  const strokes = beam.flatMap(({ parent, is_best }, at) =>
    parent == null
      ? []
      : [
          svg("line", {
            x1: places[parent][0] + width - 20,
            y1: places[parent][1] + 15,
            x2: places[at][0] - 2,
            y2: places[at][1] + 15,
            style: `stroke:var(--${is_best ? "accent" : "soft"})`,
            "stroke-width": is_best ? 2.5 : 1,
          }),
        ],
  );
  const nodes = beam.map((node, at) =>
    svg(
      "g",
      {},
      svg(
        "title",
        {},
        `${shown(node.piece)}: log-probability ${number(node.log_probability)}, score ${number(node.score)}`,
      ),
      svg("rect", {
        x: places[at][0],
        y: places[at][1],
        width: width - 20,
        height: 32,
        rx: 5,
        style: `fill:var(--panel);stroke:var(--${node.is_best ? "accent" : "line"})`,
        "stroke-width": node.is_best ? 2 : 1,
      }),
      svg("text", { x: places[at][0] + 5, y: places[at][1] + 14 }, cut(shown(node.piece), 9)),
      svg(
        "text",
        { class: "soft", x: places[at][0] + 5, y: places[at][1] + 27 },
        number(node.score),
      ),
    ),
  );
  const steps = Math.max(...beam.map((node) => node.step));
  place.replaceChildren(
    svg(
      "svg",
      {
        width: width * steps,
        height: height * Math.max(...Object.values(counts)) + 4,
        role: "img",
        "aria-label": `${beam.length} hypotheses kept in ${steps} steps; the table below has the hypotheses at the end`,
      },
      ...strokes,
      ...nodes,
    ),
  );
  const first = hypotheses.find((each) => each.rank_by_log_probability === 1);
  comment.textContent =
    `A column for each step, with the score of each hypothesis that was kept. The blue path is the translation. ${first === hypotheses[0] ? "By log-probability alone, the same hypothesis would be first." : `By log-probability alone, “${first.text}” would be first.`}`;
  const hasPenalty = hypotheses.some((each) => each.length_penalty != null);
  const names = [
    "rank",
    "hypothesis",
    "pieces",
    "log-probability",
    ...(hasPenalty ? ["÷ penalty"] : []),
    "score",
    "rank without",
  ];
  const rows = hypotheses.map((each, at) =>
    html(
      "tr",
      {},
      ...[
        at + 1,
        each.text,
        each.length,
        number(each.log_probability, 3),
        ...(hasPenalty
          ? [each.length_penalty == null ? "" : number(each.length_penalty, 3)]
          : []),
        number(each.score, 3),
        each.rank_by_log_probability,
      ].map((value, column) => html("td", { class: column === 1 ? "text wrap" : null }, value)),
    ),
  );
  end.replaceChildren(
    html(
      "table",
      {},
      html("caption", {}, "Hypotheses at the end"),
      html(
        "thead",
        {},
        html(
          "tr",
          {},
          ...names.map((name, column) =>
            html("th", { scope: "col", class: column === 1 ? "text" : null }, name),
          ),
        ),
      ),
      html("tbody", {}, ...rows),
    ),
  );
}

function showEmbeddings(model) {
  const { embeddings, source, target } = sentenceOf(model);
  const names = {
    source: ["Source embeddings", source.pieces],
    target: ["Target embeddings", ["<s>", ...target.pieces.slice(0, -1)]],
    positions: ["Position encodings", null],
  };
  const shown = Object.entries(names).filter(([name]) => embeddings[name]);
  if (!showColumn(model, "embeddings", shown.length)) return;
  model.parts.embeddings.replaceChildren(
    ...shown.map(([name, [title, labels]]) => {
      const rows = unpack(embeddings[name]);
      return heat(`${title}, ${rows[0].length} features`, rows, labels);
    }),
  );
}

/** A heat map: a row for each label. The range is around 0. */
function heat(title, rows, labels) {
  const columns = rows[0].length;
  const canvas = html("canvas", {
    width: columns,
    height: rows.length,
    role: "img",
    "aria-label": `${title}: ${rows.length} rows of ${columns} features`,
    style: `height:${18 * rows.length}px`,
  });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows.length);
  const most = Math.max(...rows.map((row) => Math.max(...row.map(Math.abs)))) || 1;
  const digits = most < 0.1 ? 4 : 2;
  const range = `from ${number(-most, digits)} to ${number(most, digits)}`;
  rows
    .flat()
    .forEach((value, at) =>
      image.data.set(
        [
          value > 0 ? 224 : 28,
          value > 0 ? 49 : 126,
          value > 0 ? 49 : 214,
          255 * Math.sqrt(Math.abs(value) / most),
        ],
        4 * at,
      ),
    );
  context.putImageData(image, 0, 0);
  const names = html(
    "div",
    { class: "names" },
    ...rows.map((_, at) => html("div", {}, labels ? shown(labels[at]) : at)),
  );
  return html(
    "figure",
    { class: "heat" },
    html("figcaption", {}, `${title}, ${range}`),
    html("div", { class: "rows" }, names, canvas),
  );
}

function showSummary(model) {
  const { heads } = model;
  if (!showColumn(model, "summary", heads.length)) return;
  const share = (value) =>
    value == null
      ? ""
      : html(
          "span",
          {},
          html("span", { class: "bar", style: `width:${4 * value}rem` }),
          number(value),
        );
  const rows = heads.map((head) =>
    html(
      "tr",
      {},
      ...[
        KINDS[head.kind],
        head.layer,
        head.head,
        number(head.entropy),
        share(head.previous),
        share(head.same),
        share(head.next),
      ].map((value, column) =>
        html("td", { class: column === 0 || column > 3 ? "text" : null }, value),
      ),
    ),
  );
  const names = ["attention", "layer", "head", "entropy, bits", "previous", "same", "next"];
  model.parts.summary.replaceChildren(
    html(
      "table",
      {},
      html(
        "thead",
        {},
        html(
          "tr",
          {},
          ...names.map((name, column) =>
            html("th", { scope: "col", class: column === 0 || column > 3 ? "text" : null }, name),
          ),
        ),
      ),
      html("tbody", {}, ...rows),
    ),
  );
  const near = heads.filter((head) => head.kind !== "cross");
  const counts = ["previous", "same", "next"].map(
    (place) => `${near.filter((head) => head.attends_to === place).length} to the ${place} token`,
  );
  model.parts["summary-note"].textContent =
    (near.length
      ? `Of ${near.length} heads of self-attention, more than half of the weight goes in ${counts.join(", ")}. `
      : "") + "Entropy is 0 where all weight is on one token.";
}

function show() {
  models.forEach(showTranslation);
  showAttention();
  models.forEach(showSteps);
  models.forEach(showSearch);
  models.forEach(showEmbeddings);
}

makeColumns();
options(
  $("sentence"),
  models[0].sentences.map((each, at) => [String(at), `${at + 1}. ${cut(each.source.text, 80)}`]),
  "0",
);
$("facts").textContent = models
  .filter(({ update }) => update != null)
  .map(({ architecture, languages, update }) =>
    [architecture, languages.join(" to "), `after update ${update}`].join(", "),
  )
  .join("; ");
for (const name of ["sentence", "units", "kind", "layer", "view"])
  $(name).addEventListener("change", (event) => {
    state[name] = name === "sentence" ? +event.target.value : event.target.value;
    for (const model of models) {
      model.query = null;
      if (name === "sentence") model.step = 0;
    }
    if (name === "sentence") unpacked = new Map();
    if (name === "kind") state.heads = null;
    if (name === "sentence" || name === "units") show();
    else showAttention();
  });
$("scaled").addEventListener("change", (event) => {
  state.scaled = event.target.checked;
  showAttention();
});
for (const model of models)
  model.parts.picture.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target !== model.parts.picture) return;
    event.preventDefault();
    const last = ends(model)[0].length - 1;
    const at = model.query == null ? 0 : model.query + step;
    select(Math.max(0, Math.min(last, at)), model);
  });
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  drawPictures();
});
show();
models.forEach(showSummary);
