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
