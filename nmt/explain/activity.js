const keyOf = ({ kind, layer, name }) => `${kind} ${layer}: ${name}`;

function showActivity() {
  const keys = [
    ...new Set(models.flatMap((model) => sentenceOf(model).activity.map((each) => keyOf(each)))),
  ].sort((one, two) => two.startsWith("encoder") - one.startsWith("encoder"));
  if (!keys.includes(state.activity)) state.activity = keys[keys.length - 1] || "";
  options(
    $("activity-layer"),
    keys.map((key) => [key, key]),
    state.activity,
  );
  for (const model of models) {
    const { activity } = sentenceOf(model);
    if (!showColumn(model, "activity", activity.length)) continue;
    const chosen = activity.find((each) => keyOf(each) === state.activity);
    model.parts["activity-note"].textContent = chosen
      ? meaning(chosen)
      : "This model has no such layer.";
    model.parts.activity.replaceChildren(...(chosen ? heatsOf(model, chosen) : []));
  }
}

function meaning({ kind, name, reach }) {
  const side = kind === "encoder" ? "source" : "translation so far";
  const text = {
    gate: reach
      ? "The gates of the convolution: 1 lets all of a feature through, 0 nothing. The bars are means."
      : "How much of its state the recurrence keeps at each token: 1 is all, 0 nothing. The bars are means.",
    state: reach
      ? "What the convolution adds to the stream. The bars are norms."
      : "The state of the recurrence after each token. The bars are norms.",
  }[name];
  return reach
    ? `${text} Position n depends on the ${side} from ${reach[0]} positions before n to ${reach[1]} after n.`
    : text;
}

/** Gates say little by their similarity: all of them are near each other. */
function heatsOf(model, { kind, name, mean: means, norm, features, similarity }) {
  const { source, target } = sentenceOf(model);
  const labels = kind === "encoder" ? source.pieces : ["<s>", ...target.pieces.slice(0, -1)];
  const rows = unpack(features);
  const title = `${name} in ${rows[0].length} columns`;
  if (name === "gate") return [heat(title, rows, labels, unpack(means), 1)];
  return [
    heat(title, rows, labels, unpack(norm)),
    heat("similarity of two tokens, as a cosine", unpack(similarity), labels),
  ];
}
