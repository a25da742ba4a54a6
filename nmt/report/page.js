"use strict";
// Reads values off the charts: at the pointer, or with the arrow keys.
const data = JSON.parse(document.getElementById("data").textContent);
const [left, bottom, width, height] = data.frame;
const kinds = {train: "training", validation: "validation"};

function nearest(places, x) {
  let low = 0, high = places.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (places[middle] > x) high = middle; else low = middle;
  }
  return x - places[low] <= places[high] - x ? low : high;
}

function number(value) {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

function isShown(run) {
  return document.getElementById("run-" + data.colours[run]).checked;
}

function show(chart, x) {
  const {panel, axis} = chart.dataset, last = Number(chart.dataset.last);
  x = Math.min(Math.max(x, 0), last);
  const said = [], all = Object.entries(data.curves[panel]);
  for (const [kind, runs] of all)
    for (const [run, curve] of Object.entries(runs)) {
      if (!isShown(run)) continue;
      const at = nearest(curve[axis], x);
      const names = [data.runs.length > 1 && run, all.length > 1 && kinds[kind]].filter(Boolean);
      said.push(`${[...names, ""].join(" ")}${number(curve.values[at])} (update ${number(curve.update[at])})`);
    }
  const unit = axis === "update" ? `update ${number(x)}` : `${number(x)} minutes`;
  chart.parentElement.querySelector("output").textContent = `${unit}: ${said.join("; ")}`;
  chart.dataset.x = x;
  let cursor = chart.querySelector(".cursor");
  if (!cursor) {
    cursor = chart.appendChild(document.createElement("div"));
    cursor.className = "cursor";
  }
  cursor.style.left = 100 * (left + width * x / last) + "%";
  cursor.style.top = 100 * (1 - bottom - height) + "%";
  cursor.style.height = 100 * height + "%";
}

for (const chart of document.querySelectorAll(".chart")) {
  const last = Number(chart.dataset.last);
  chart.addEventListener("pointermove", event => {
    const box = chart.getBoundingClientRect();
    show(chart, ((event.clientX - box.left) / box.width - left) / width * last);
  });
  chart.addEventListener("keydown", event => {
    const step = {ArrowLeft: -0.02, ArrowRight: 0.02, Home: -1, End: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    show(chart, Number(chart.dataset.x || 0) + step * last);
  });
  chart.addEventListener("focus", () => show(chart, Number(chart.dataset.x || last)));
}
