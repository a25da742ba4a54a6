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
  query: null,
  step: 0,
};
let unpacked = new Map();

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

const sentence = () => data.sentences[state.sentence];

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

function ends(kind) {
  const { source, target } = sentence();
  if (kind === "encoder") return [units(source), units(source)];
  return kind === "decoder"
    ? [units(target, true), units(target, true)]
    : [units(target), units(source)];
}

const layers = () => sentence().attention.filter((layer) => layer.kind === state.kind);
const masked = (query, key) => state.kind === "decoder" && key > query;
const merge = (weights, [queries, keys]) =>
  queries.map((query) =>
    keys.map((key) => mean(query.members.map((q) => sum(key.members.map((k) => weights[q][k]))))),
  );
const average = (matrices) =>
  matrices[0].map((row, q) => row.map((_, k) => mean(matrices.map((matrix) => matrix[q][k]))));

/** The weights [H][Q][S] of a layer; without the scaling on request. */
function weightsOf(layer) {
  if (state.scaled || !layer.scores) return unpack(layer.weights);
  return unpack(layer.scores).map((head) => head.map((row, q) => softmax(row, q)));
}

function softmax(row, query) {
  const most = Math.max(...row.filter((_, key) => !masked(query, key)));
  const powers = row.map((score, key) => (masked(query, key) ? 0 : Math.exp(score - most)));
  return powers.map((power) => power / sum(powers));
}

/** The matrices to draw: a name, a colour, and weights of units to units. */
function drawn(pair) {
  if (state.layer === "rollout")
    return [
      {
        name: "rollout",
        colour: COLOURS[0],
        weights: merge(unpack(sentence().rollout[state.kind]), pair),
      },
    ];
  const all = layers().map(weightsOf);
  const heads =
    state.layer === "mean"
      ? all[0].map((_, head) => average(all.map((layer) => layer[head])))
      : all[state.layer - 1];
  const chosen = heads
    .map((weights, head) => ({ head, weights }))
    .filter(({ head }) => state.heads.has(head));
  if (!chosen.length) return [];
  if (state.mean)
    return [
      {
        name: "mean",
        colour: "var(--accent)",
        weights: merge(average(chosen.map(({ weights }) => weights)), pair),
      },
    ];
  return chosen.map(({ head, weights }) => ({
    name: `head ${head + 1}`,
    colour: COLOURS[head % COLOURS.length],
    weights: merge(weights, pair),
  }));
}

function showAttention() {
  const kinds = Object.keys(KINDS).filter((kind) =>
    sentence().attention.some((layer) => layer.kind === kind),
  );
  $("attention-controls").hidden = $("heads").hidden = !kinds.length;
  $("picture").replaceChildren();
  $("detail").replaceChildren();
  if (!kinds.length)
    return void ($("attention-note").textContent = "This model has no attention." + reach());
  if (!kinds.includes(state.kind)) state.kind = kinds[kinds.length - 1];
  const numbers = layers().map((layer) => String(layer.layer));
  const choices = numbers.map((name) => [name, name]);
  if (numbers.length > 1) choices.push(["mean", "mean of all"]);
  if (sentence().rollout[state.kind]) choices.push(["rollout", "rollout through all"]);
  if (!choices.some(([value]) => value === state.layer)) state.layer = numbers[numbers.length - 1];
  options(
    $("kind"),
    kinds.map((kind) => [kind, KINDS[kind]]),
    state.kind,
  );
  options($("layer"), choices, state.layer);
  const count = layers()[0].weights.shape[0];
  if (!state.heads) state.heads = new Set(Array(count).keys());
  const rolled = state.layer === "rollout";
  $("heads").hidden = rolled || count === 1;
  $("heads").replaceChildren(
    html("legend", {}, "Heads"),
    ...Array.from({ length: count }, (_, head) => headBox(head)),
    ...headButtons(count),
  );
  const scored = !rolled && layers()[0].scores;
  $("scaled-label").hidden = !scored;
  $("attention-note").textContent = note(scored);
  drawPicture();
}

function reach() {
  const reach = sentence().reach;
  return reach
    ? ` Step n can depend on the source from ${reach[0]} positions before n to ${reach[1]} after n, through its convolutions.`
    : "";
}

const refresh = (id) => () => {
  showAttention();
  if ($(id)) $(id).focus();
};

function headBox(head) {
  const toggle = (event) => {
    if (event.target.checked) state.heads.add(head);
    else state.heads.delete(head);
    drawPicture();
  };
  const colour = COLOURS[head % COLOURS.length];
  return html(
    "label",
    { class: "head", style: `border-color:${colour};color:${colour}` },
    html("input", {
      type: "checkbox",
      id: `head-${head + 1}`,
      checked: state.heads.has(head),
      onchange: toggle,
      "aria-label": `head ${head + 1}`,
    }),
    html("span", { "aria-hidden": "true" }, head + 1),
  );
}

function headButtons(count) {
  const choose = (heads, id) => () => {
    state.heads = new Set(heads);
    refresh(id)();
  };
  return [
    html(
      "button",
      { type: "button", id: "all-heads", onclick: choose(Array(count).keys(), "all-heads") },
      "all",
    ),
    html("button", { type: "button", id: "no-heads", onclick: choose([], "no-heads") }, "none"),
    html(
      "label",
      {},
      html("input", {
        type: "checkbox",
        id: "mean",
        checked: state.mean,
        onchange: (event) => {
          state.mean = event.target.checked;
          drawPicture();
        },
      }),
      "mean of them",
    ),
  ];
}

function note(scored) {
  if (state.layer === "rollout")
    return (
      "Rollout follows attention through all layers; half of each step passes on unchanged." +
      (state.kind === "encoder"
        ? ""
        : " The weights on the source and on the translation so far sum to 1 together.")
    );
  let text = {
    encoder: "Rows are source tokens, which attend to source tokens.",
    decoder: "Rows are the tokens that the decoder has read; later ones are masked (hatched).",
    cross: "Rows are the tokens that are predicted; they attend to source tokens.",
  }[state.kind];
  if (scored && !state.scaled)
    text += ` These weights are not the model's: without the division by √${layers()[0].key_width}, a few scores take nearly all the weight.`;
  return text;
}

function drawPicture() {
  const pair = ends(state.kind);
  const matrices = drawn(pair);
  if (state.query != null && state.query >= pair[0].length) state.query = null;
  $("picture").replaceChildren(
    !matrices.length
      ? "Choose a head."
      : state.view === "lines"
        ? lines(pair, matrices)
        : grids(pair, matrices),
  );
  $("detail").replaceChildren();
  select(state.query, pair, matrices);
}

/** A label that selects a query when it is pointed at or focused. */
function word(unit, at, x, y, width, anchor, choose) {
  const text = svg(
    "text",
    { x: anchor === "end" ? x + width - 4 : x + 4, y: y + 15, "text-anchor": anchor },
    cut(unit.label, Math.floor(width / 8.7)),
  );
  const box = svg("rect", { x, y, width, height: 20, rx: 4 });
  if (!choose) return svg("g", {}, text, svg("title", {}, unit.label));
  const pick = () => choose(at);
  return svg(
    "g",
    {
      class: "word",
      "data-query": at,
      tabindex: 0,
      role: "button",
      "aria-label": unit.label,
      onfocus: pick,
      onmouseenter: pick,
      onclick: pick,
    },
    box,
    text,
  );
}

const labelWidth = (found, most) =>
  Math.min(most, 12 + 8.5 * Math.max(...found.map((unit) => unit.label.length)));

function lines([queries, keys], matrices) {
  const room = Math.max(280, Math.min(620, $("picture").clientWidth || 340));
  const left = labelWidth(queries, room * 0.36),
    right = room - labelWidth(keys, room * 0.36);
  const height = 24 * Math.max(queries.length, keys.length) + 4;
  const choose = (at) => select(at, [queries, keys], matrices);
  const rows = queries.map((_, q) =>
    svg(
      "g",
      { "data-lines": q },
      ...matrices.flatMap(({ weights, colour }) =>
        weights[q].flatMap((weight, k) =>
          weight < LEAST
            ? []
            : [
                svg("line", {
                  x1: left,
                  y1: 24 * q + 12,
                  x2: right,
                  y2: 24 * k + 12,
                  "stroke-width": number(1 + 6 * weight),
                  "stroke-opacity": number(0.15 + 0.75 * weight),
                  style: `stroke:${colour}`,
                }),
              ],
        ),
      ),
    ),
  );
  const labels = queries.map((unit, at) => word(unit, at, 0, 24 * at + 2, left - 2, "end", choose));
  return svg(
    "svg",
    {
      width: room,
      height,
      role: "group",
      "aria-label": "Lines from each token to those it attends to",
    },
    ...rows,
    ...labels,
    ...keys.map((unit, at) => word(unit, at, right + 2, 24 * at + 2, room - right - 2, "start")),
  );
}

function grids(pair, matrices) {
  return html(
    "div",
    { class: "matrices" },
    ...matrices.map((matrix) =>
      html("figure", {}, html("figcaption", {}, matrix.name), grid(pair, matrix, matrices)),
    ),
  );
}

function grid([queries, keys], { weights, colour, name }, matrices) {
  const alone = matrices.length === 1;
  const room = Math.max(280, $("picture").clientWidth || 340);
  const left = alone ? labelWidth(queries, room * 0.3) : 0;
  const top = alone ? labelWidth(keys, 120) : 0;
  const size = alone
    ? Math.max(18, Math.min(26, (room - left) / keys.length))
    : Math.max(4, Math.min(12, 168 / keys.length));
  const choose = (at) => select(at, [queries, keys], matrices);
  const cells = weights.flatMap((row, q) => [
    ...row.flatMap((weight, k) =>
      weight < 0.004 || masked(q, k)
        ? []
        : [
            svg("rect", {
              x: left + size * k,
              y: top + size * q,
              width: size,
              height: size,
              "fill-opacity": number(weight, 3),
              style: `fill:${colour}`,
            }),
          ],
    ),
    masked(q, q + 1) && q + 1 < keys.length
      ? svg("rect", {
          x: left + size * (q + 1),
          y: top + size * q,
          width: size * (keys.length - q - 1),
          height: size,
          fill: "url(#hatched)",
        })
      : null,
  ]);
  const columns = alone
    ? keys.map((unit, k) =>
        svg(
          "text",
          {
            class: "soft",
            transform: `translate(${left + size * (k + 0.5) + 4} ${top - 4}) rotate(-90)`,
          },
          cut(unit.label, 14),
        ),
      )
    : [];
  const labels = alone
    ? queries.map((unit, q) =>
        word(unit, q, 0, top + size * (q + 0.5) - 10, left - 2, "end", choose),
      )
    : [];
  const hatching = svg(
    "pattern",
    {
      id: "hatched",
      width: 5,
      height: 5,
      patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)",
    },
    svg("line", {
      x1: 0,
      y1: 0,
      x2: 0,
      y2: 5,
      style: "stroke:var(--soft)",
      "stroke-opacity": 0.45,
      "stroke-width": 1.5,
    }),
  );
  const frame = svg("rect", {
    x: left,
    y: top,
    width: size * keys.length,
    height: size * queries.length,
    style: "fill:none;stroke:var(--line)",
  });
  const marker = svg("rect", {
    class: "marker",
    x: left,
    width: size * keys.length,
    height: size,
    "data-top": top,
    "data-size": size,
    style: "fill:none;stroke:var(--ink)",
    visibility: "hidden",
  });
  const point = (event) => {
    const at = Math.floor(
      (event.clientY - event.currentTarget.getBoundingClientRect().top - top) / size,
    );
    if (at >= 0 && at < queries.length) choose(at);
  };
  return svg(
    "svg",
    {
      width: left + size * keys.length + 2,
      height: top + size * queries.length + 2,
      role: "group",
      "aria-label": `Matrix of ${name}`,
      onmousemove: point,
      onclick: point,
    },
    svg("defs", {}, hatching),
    frame,
    ...cells,
    marker,
    ...columns,
    ...labels,
  );
}

/** Show one query alone, or all of them (null). */
function select(query, pair, matrices) {
  state.query = query;
  for (const node of $("picture").querySelectorAll("[data-lines]"))
    node.style.display = query == null || +node.dataset.lines === query ? "" : "none";
  for (const node of $("picture").querySelectorAll("[data-query]"))
    node.classList.toggle("on", +node.dataset.query === query);
  for (const node of $("picture").querySelectorAll(".marker")) {
    node.setAttribute("y", +node.dataset.top + node.dataset.size * (query || 0));
    node.setAttribute("visibility", query == null ? "hidden" : "visible");
  }
  if (!matrices.length) return;
  if (query == null)
    return void $("detail").replaceChildren(
      html(
        "p",
        { class: "hint" },
        state.view === "lines"
          ? "Point at a word of the left column, or move there with Tab, to see its weights."
          : "Point at a row, or choose one by the arrow keys, to see its weights.",
      ),
    );
  const [queries, keys] = pair;
  const order = keys
    .map((_, key) => key)
    .filter((key) => !masked(query, key))
    .sort((one, other) =>
      mean(matrices.map((matrix) => matrix.weights[query][other] - matrix.weights[query][one])),
    );
  const columns = columnsOf(query, pair, matrices);
  const rows = order
    .slice(0, 12)
    .map((key) =>
      html(
        "tr",
        {},
        html("th", { class: "text", scope: "row" }, keys[key].label),
        ...columns.map((column) => html("td", {}, column.value(key))),
      ),
    );
  const head = html(
    "tr",
    {},
    html("th", { class: "text", scope: "col" }, "to"),
    ...columns.map((column) =>
      html(
        "th",
        { scope: "col", style: column.colour ? `color:${column.colour}` : null },
        column.name,
      ),
    ),
  );
  const all = html(
    "button",
    { type: "button", onclick: () => select(null, pair, matrices) },
    "show all words",
  );
  $("detail").replaceChildren(
    html(
      "div",
      { class: "scroll" },
      html(
        "table",
        {},
        html("caption", {}, `Weights of “${queries[query].label}”`),
        html("thead", {}, head),
        html("tbody", {}, ...rows),
      ),
    ),
    html("p", {}, all),
  );
}

/** One column of weights for each head; for a single head with scores, how its weights come about. */
function columnsOf(query, [queries, keys], matrices) {
  const layer = layers()[state.layer - 1];
  if (
    matrices.length === 1 &&
    !state.mean &&
    layer &&
    layer.scores &&
    queries[query].members.length === 1 &&
    keys.every((key) => key.members.length === 1)
  ) {
    const head = [...state.heads][0];
    const row = unpack(layer.scores)[head][queries[query].members[0]];
    const scale = Math.sqrt(layer.key_width);
    const unscaled = softmax(row, query);
    return [
      { name: "q·k", value: (key) => number(row[key]) },
      { name: `÷ √${layer.key_width}`, value: (key) => number(row[key] / scale) },
      {
        name: "weight",
        value: (key) => number(unpack(layer.weights)[head][queries[query].members[0]][key], 3),
      },
      { name: "unscaled", value: (key) => number(unscaled[key], 3) },
    ];
  }
  return matrices.map(({ name, colour, weights }) => ({
    name: name.replace("head ", ""),
    colour,
    value: (key) => number(weights[query][key], 3),
  }));
}

function showTranslation() {
  const { source, target, alignment } = sentence();
  const sides = { source, target };
  const mark = (name, word) => {
    const at = name === "source" ? 0 : 1;
    const linked = new Set(
      alignment.filter((pair) => pair[at] === word).map((pair) => pair[1 - at]),
    );
    for (const side of ["source", "target"])
      for (const item of $(side).children)
        item.classList.toggle(
          "on",
          side === name ? +item.dataset.word === word : linked.has(+item.dataset.word),
        );
  };
  for (const [name, side] of Object.entries(sides)) {
    const items = units(side).map((unit) => {
      const show = () => mark(name, unit.word);
      return html(
        "li",
        { class: "token", tabindex: 0, "data-word": unit.word, onmouseenter: show, onfocus: show },
        unit.label,
        html("small", {}, unit.members.map((at) => side.ids[at]).join(" ")),
      );
    });
    $(name).replaceChildren(...items);
  }
}

function showSteps() {
  const { steps, target } = sentence();
  const buttons = steps.map((step, at) =>
    html(
      "li",
      {},
      html(
        "button",
        {
          type: "button",
          class: "token",
          "aria-pressed": String(at === state.step),
          onclick: () => choose(at),
        },
        shown(target.pieces[at]),
        html("small", {}, percent(step.log_probability)),
      ),
    ),
  );
  const choose = (at) => {
    state.step = at;
    buttons.forEach((item, other) =>
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
    $("step").replaceChildren(
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
  };
  $("steps").replaceChildren(...buttons);
  choose(state.step < steps.length ? state.step : 0);
}

function showSearch() {
  const { beam, hypotheses } = sentence();
  $("beam-section").hidden = !beam.length;
  if (!beam.length) return;
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
  $("beam").replaceChildren(
    svg(
      "svg",
      {
        width: width * steps,
        height: height * Math.max(...Object.values(counts)) + 4,
        role: "img",
        "aria-label": `${beam.length} hypotheses kept in ${steps} steps; the table below has those at the end`,
      },
      ...strokes,
      ...nodes,
    ),
  );
  const first = hypotheses.find((each) => each.rank_by_log_probability === 1);
  $("beam-note").textContent =
    `A column for each step, with the score of each hypothesis that was kept. The blue path is the translation. ${first === hypotheses[0] ? "By log-probability alone, the same hypothesis would be first." : `By log-probability alone, “${first.text}” would be first.`}`;
  const names = [
    "rank",
    "hypothesis",
    "pieces",
    "log-probability",
    "÷ penalty",
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
        each.score ? number(each.log_probability / each.score, 3) : "",
        number(each.score, 3),
        each.rank_by_log_probability,
      ].map((value, column) => html("td", { class: column === 1 ? "text wrap" : null }, value)),
    ),
  );
  $("hypotheses").replaceChildren(
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

function showEmbeddings() {
  const { embeddings, source, target } = sentence();
  const names = {
    source: ["Source embeddings", source.pieces],
    target: ["Target embeddings", ["<s>", ...target.pieces.slice(0, -1)]],
    positions: ["Position encodings", null],
  };
  const shown = Object.entries(names).filter(([name]) => embeddings[name]);
  $("embeddings-section").hidden = !shown.length;
  $("embeddings").replaceChildren(
    ...shown.map(([name, [title, labels]]) => heat(title, unpack(embeddings[name]), labels)),
  );
}

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
    html(
      "figcaption",
      {},
      `${title}, ${columns} features, from −${number(most)} to ${number(most)}`,
    ),
    html("div", { class: "rows" }, names, canvas),
  );
}

function showSummary() {
  const { heads } = data;
  $("summary-section").hidden = !heads.length;
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
  $("summary").replaceChildren(
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
  $("summary-note").textContent =
    (near.length
      ? `Of ${near.length} heads of self-attention, more than half of the weight goes in ${counts.join(", ")}. `
      : "") + "Entropy is 0 where all weight is on one token.";
}

function show() {
  showTranslation();
  showAttention();
  showSteps();
  showSearch();
  showEmbeddings();
}

options(
  $("sentence"),
  data.sentences.map((each, at) => [String(at), `${at + 1}. ${cut(each.source.text, 80)}`]),
  "0",
);
$("facts").textContent =
  `${data.architecture}, ${data.languages.join(" to ")}, after update ${data.update}`;
["source", "target"].forEach(
  (side, at) => data.languages[at] && $(side).setAttribute("lang", data.languages[at]),
);
for (const name of ["sentence", "units", "kind", "layer", "view"])
  $(name).addEventListener("change", (event) => {
    state[name] = name === "sentence" ? +event.target.value : event.target.value;
    state.query = null;
    if (name === "sentence") {
      state.step = 0;
      unpacked = new Map();
    }
    if (name === "kind" || name === "layer") state.heads = name === "kind" ? null : state.heads;
    if (name === "sentence" || name === "units") show();
    else showAttention();
  });
$("scaled").addEventListener("change", (event) => {
  state.scaled = event.target.checked;
  showAttention();
});
$("picture").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const pair = ends(state.kind);
  if (!step || event.target !== $("picture")) return;
  event.preventDefault();
  const at = state.query == null ? 0 : state.query + step;
  select(Math.max(0, Math.min(pair[0].length - 1, at)), pair, drawn(pair));
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) {
    width = innerWidth;
    if (sentence().attention.length) drawPicture();
  }
});
show();
showSummary();
