"use strict";
/** Queries and keys of the chosen attention. */
function ends(model) {
  const { source, target } = sentenceOf(model);
  const { kind } = state;
  if (kind === "encoder") return [units(source), units(source)];
  return kind === "decoder"
    ? [units(target, true), units(target, true)]
    : [units(target), units(source)];
}

const layersOf = (model) =>
  sentenceOf(model).attention.filter((layer) => layer.kind === state.kind);
const layerOf = (model) => layersOf(model).find((layer) => String(layer.layer) === state.layer);
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
  const total = sum(powers);
  return powers.map((power) => power / total);
}

/** The matrices to draw: a name, a colour, and weights of units to units. */
function drawn(model, pair) {
  if (state.layer === "rollout") {
    const rolled = sentenceOf(model).rollout[state.kind];
    if (!rolled) return [];
    return [{ name: "rollout", colour: COLOURS[0], weights: merge(unpack(rolled), pair) }];
  }
  const chosen = headsOf(model)
    .map((weights, head) => ({ head, weights }))
    .filter(({ head }) => state.heads.has(head));
  if (!chosen.length) return [];
  if (state.mean) {
    const weights = merge(average(chosen.map(({ weights }) => weights)), pair);
    return [{ name: "mean", colour: "var(--accent)", weights }];
  }
  return chosen.map(({ head, weights }) => ({
    name: `head ${head + 1}`,
    head,
    colour: COLOURS[head % COLOURS.length],
    weights: merge(weights, pair),
  }));
}

/** The weights of every head in the chosen layer, or the means over all layers. */
function headsOf(model) {
  if (state.layer !== "mean") return layerOf(model) ? weightsOf(layerOf(model)) : [];
  const [first, ...others] = layersOf(model).map(weightsOf);
  return (first || []).map((_, head) => average([first, ...others].map((layer) => layer[head])));
}

function showAttention() {
  const kinds = Object.keys(KINDS).filter((kind) =>
    models.some((model) => sentenceOf(model).attention.some((layer) => layer.kind === kind)),
  );
  $("attention-controls").hidden = $("heads").hidden = !kinds.length;
  if (!kinds.includes(state.kind)) state.kind = kinds[kinds.length - 1] || "";
  const all = models.flatMap(layersOf);
  const numbers = [...new Set(all.map((layer) => layer.layer))].sort((one, two) => one - two);
  const choices = numbers.map((name) => [String(name), String(name)]);
  if (numbers.length > 1) choices.push(["mean", "mean of all"]);
  if (models.some((model) => sentenceOf(model).rollout[state.kind]))
    choices.push(["rollout", "rollout through all"]);
  if (!choices.some(([value]) => value === state.layer))
    state.layer = String(numbers[numbers.length - 1]);
  options(
    $("kind"),
    kinds.map((kind) => [kind, KINDS[kind]]),
    state.kind,
  );
  options($("layer"), choices, state.layer);
  const count = Math.max(0, ...all.map((layer) => layer.weights.shape[0]));
  if (!state.heads) state.heads = new Set(Array(count).keys());
  const rolled = state.layer === "rollout";
  $("heads").hidden = rolled || count < 2;
  $("heads").replaceChildren(
    html("legend", {}, "Heads"),
    ...Array.from({ length: count }, (_, head) => headBox(head)),
    ...headButtons(count),
  );
  const scored = rolled ? undefined : all.find((layer) => layer.scores);
  $("scaled-label").hidden = !scored;
  $("attention-note").textContent = kinds.length ? note(scored) : "";
  drawPictures();
}

/** Why a model has no picture. */
function missing(model, matrices) {
  const { attention } = sentenceOf(model);
  if (attention.length && matrices.length) return "";
  if (attention.length)
    return state.layer !== "rollout" && headsOf(model).length
      ? "Choose a head that this model has."
      : "This model has no such attention.";
  return "This model has no attention.";
}

const refresh = (id) => () => {
  showAttention();
  if ($(id)) $(id).focus();
};

function headBox(head) {
  const toggle = (event) => {
    if (event.target.checked) state.heads.add(head);
    else state.heads.delete(head);
    drawPictures();
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
          drawPictures();
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
    text += ` These weights are not the model's: without the division by √${scored.key_width}, a few scores take nearly all the weight.`;
  return text;
}

function drawPictures() {
  for (const model of models) {
    const pair = ends(model);
    const { missing: reason, picture } = model.parts;
    const isEnsemble = model.update == null; // whose members attend
    if (!showColumn(model, "picture", !isEnsemble)) continue;
    const matrices = drawn(model, pair);
    if (model.query != null && model.query >= pair[0].length) model.query = null;
    reason.textContent = missing(model, matrices);
    reason.hidden = !reason.textContent;
    picture.hidden = !matrices.length;
    picture.replaceChildren();
    if (matrices.length)
      picture.append((state.view === "lines" ? lines : grids)(model, pair, matrices));
    mark(model, pair, matrices);
  }
}

/** Choose a query of a model, and of the models next to it with the same queries; null for all. */
function select(query, chosen) {
  const queries = textOf(ends(chosen)[0]);
  for (const model of models) {
    const pair = ends(model);
    const same = model === chosen || textOf(pair[0]) === queries;
    model.query = same ? query : null;
    mark(model, pair, drawn(model, pair));
  }
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

function lines(model, [queries, keys], matrices) {
  const room = Math.max(280, Math.min(620, model.parts.picture.clientWidth || 340));
  const left = labelWidth(queries, room * 0.36),
    right = room - labelWidth(keys, room * 0.36);
  const height = 24 * Math.max(queries.length, keys.length) + 4;
  const choose = (at) => select(at, model);
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
      "aria-label": "Lines from each token to the tokens it attends to",
    },
    ...rows,
    ...labels,
    ...keys.map((unit, at) => word(unit, at, right + 2, 24 * at + 2, room - right - 2, "start")),
  );
}

function grids(model, pair, matrices) {
  return html(
    "div",
    { class: matrices.length > 1 ? "matrices small" : "matrices" },
    ...matrices.map((matrix) =>
      html("figure", {}, html("figcaption", {}, matrix.name), grid(model, pair, matrix, matrices)),
    ),
  );
}

function grid(model, [queries, keys], { weights, colour, name }, matrices) {
  const alone = matrices.length === 1;
  const room = Math.max(280, model.parts.picture.clientWidth || 340);
  const left = labelWidth(queries, room * 0.3);
  const top = labelWidth(keys, 120);
  const size = alone ? Math.max(18, Math.min(26, (room - left) / keys.length)) : 12;
  const choose = (at) => select(at, model);
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
  const columns = keys.map((unit, k) =>
    svg(
      "text",
      {
        class: "soft",
        transform: `translate(${left + size * (k + 0.5) + 4} ${top - 4}) rotate(-90)`,
      },
      cut(unit.label, 14),
    ),
  );
  // Among several matrices the arrow keys choose a row: a stop of Tab for each word is too many.
  const labels = queries.map((unit, q) =>
    word(unit, q, 0, top + size * (q + 0.5) - 10, left - 2, "end", alone && choose),
  );
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

/** Show the chosen query of a model alone, with its weights, or all of them. */
function mark(model, pair, matrices) {
  const { query } = model;
  const { picture, detail } = model.parts;
  for (const node of picture.querySelectorAll("[data-lines]"))
    node.style.display = query == null || +node.dataset.lines === query ? "" : "none";
  for (const node of picture.querySelectorAll("[data-query]"))
    node.classList.toggle("on", +node.dataset.query === query);
  for (const node of picture.querySelectorAll(".marker")) {
    node.setAttribute("y", +node.dataset.top + node.dataset.size * (query || 0));
    node.setAttribute("visibility", query == null ? "hidden" : "visible");
  }
  if (!matrices.length) return detail.replaceChildren();
  if (query == null)
    return detail.replaceChildren(
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
  const columns = columnsOf(model, pair, matrices);
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
    { type: "button", onclick: () => select(null, model) },
    "show all words",
  );
  detail.replaceChildren(
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
function columnsOf(model, [queries, keys], matrices) {
  const { query } = model;
  const layer = layerOf(model);
  if (
    matrices.length === 1 &&
    !state.mean &&
    layer &&
    layer.scores &&
    queries[query].members.length === 1 &&
    keys.every((key) => key.members.length === 1)
  ) {
    const head = matrices[0].head;
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

