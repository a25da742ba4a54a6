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

/** Choose a step of a model, and of those beside it that have the same translation. */
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
        "aria-label": `${beam.length} hypotheses kept in ${steps} steps; the table below has those at the end`,
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

