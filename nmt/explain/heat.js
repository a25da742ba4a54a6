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

