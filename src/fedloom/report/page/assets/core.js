"use strict";
// State, elements, switches, colors, figures. Text from runs only becomes text nodes.
let DATA = JSON.parse(document.getElementById("data").textContent);
const CHOICE = {}, HIDDEN = new Set(), SECTIONS = [];
const LIGHT = ["#2563a8", "#d1602b", "#2f8f5b", "#8a4fb0", "#c23b5a", "#16889b", "#a57c12", "#5b6b7d", "#cf62a3", "#6a8f2f"];
const DARK = ["#6fa8e6", "#f0905c", "#5fc48c", "#bd8ae0", "#ee7a94", "#4cc3d6", "#dcb344", "#a3b1c0", "#eb94c8", "#a5c961"];
const DASHES = ["solid", "dash", "dot", "dashdot"];

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === false || value === null) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter(c => c !== null && c !== undefined));
  return made;
}

const dark = () => document.documentElement.dataset.theme === "dark";
const color = i => (dark() ? DARK : LIGHT)[i % LIGHT.length];
const dash = i => DASHES[Math.floor(i / LIGHT.length) % DASHES.length];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function faded(hex, alpha) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${alpha})`;
}
const known = v => v !== null && v !== undefined && Number.isFinite(v);
const shown = () => DATA.series.map((s, i) => [s, i]).filter(([s]) => !HIDDEN.has(s.label));
const range = n => [...Array(n).keys()];

function mean(values) { return values.reduce((a, b) => a + b, 0) / values.length; }
function deviation(values) {
  if (values.length < 2) return 0;
  const m = mean(values);
  return Math.sqrt(values.reduce((a, v) => a + (v - m) ** 2, 0) / (values.length - 1));
}
function fixed(value, digits) { // ties to even, as the command line prints them
  const scaled = value * 10 ** digits, low = Math.floor(scaled);
  if (scaled - low === 0.5) return ((low % 2 ? low + 1 : low) / 10 ** digits).toFixed(digits);
  return value.toFixed(digits);
}
const percent = v => fixed(100 * v, 1);
function spread(values, show = percent) {
  const all = values.filter(known);
  if (!all.length) return "–";
  return show(mean(all)) + (all.length > 1 ? ` ± ${show(deviation(all))}` : "");
}
function size(bytes) {
  let count = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000 || unit === "GB") return unit === "B" ? `${fixed(count, 0)} B` : `${fixed(count, 2)} ${unit}`;
    count /= 1000;
  }
}
function duration(seconds) {
  if (seconds < 100) return `${fixed(seconds, 1)} s`;
  const minutes = seconds / 60;
  return minutes < 100 ? `${fixed(minutes, 1)} min` : `${fixed(minutes / 60, 1)} h`;
}
// the chosen metric: its numbers are fractions, or plain numbers; one choice for all sections
const metric = () => DATA.metrics.find(m => m.name === CHOICE.measure) || DATA.metrics[0] || { name: "accuracy", title: "accuracy", better: "higher", format: "percent" };
const scaleOf = m => m.format === "percent" ? 100 : 1;
const heading = m => m.format === "percent" ? `${m.title} in %` : m.title;
const capital = text => text.charAt(0).toUpperCase() + text.slice(1);
const showOf = m => m.format === "percent" ? percent : v => fixed(v, 3);
const bestOf = (m, values) => m.better === "lower" ? Math.min(...values) : Math.max(...values);
function metricSwitch() {
  if (DATA.metrics.length < 2) return null;
  const before = metric().name;
  return switcher("measure", "metric", DATA.metrics.map(m => [m.name, m.title]), () => {
    for (const name of ["metric", "clients"]) // the same curve and the same models, of the other metric
      if (typeof CHOICE[name] === "string" && (CHOICE[name] === before || CHOICE[name].endsWith(`_${before}`))) CHOICE[name] = CHOICE[name].slice(0, -before.length) + CHOICE.measure;
    render();
  }, before);
}
const short = (text, length) => text.length > length ? text.slice(0, length - 1) + "…" : text;
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // Plotly reads a little HTML

function section(id, title, parts) { SECTIONS.push({ id, title, ...parts }); }

function choose(name, options, fallback) { // the chosen value, if it is still on offer
  const values = options.map(o => o[0]);
  return values.includes(CHOICE[name]) ? CHOICE[name] : values.includes(fallback) ? fallback : values[0];
}
function switcher(name, label, options, redraw, fallback) {
  const now = choose(name, options, fallback);
  const pick = value => { CHOICE[name] = value; redraw(); };
  if (options.length > 5) {
    const list = el("select", { "data-switch": name, "aria-label": label, onchange: e => pick(options[e.target.selectedIndex][0]) },
      options.map(([value, text]) => el("option", { value: String(value), selected: value === now ? "" : undefined }, text)));
    return el("label", { class: "switch" }, label, list);
  }
  return el("span", { class: "switch" }, label, el("span", { class: "choices", role: "group", "aria-label": label, "data-switch": name },
    options.map(([value, text]) => el("button", { type: "button", "data-value": String(value), "aria-pressed": String(value === now), onclick: () => pick(value) }, text))));
}
const switches = (...made) => el("div", { class: "switches" }, made);

function themed(layout) {
  const grid = { gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line"), automargin: true, title: { standoff: 10 } };
  const base = {
    font: { family: css("--font"), size: 12.5, color: css(DATA.export ? "--ink" : "--soft") }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 52, r: 16, t: 14, b: 44 }, showlegend: DATA.export, legend: { orientation: "h", y: -0.22, font: { color: css("--ink") } }, hovermode: "closest", colorway: dark() ? DARK : LIGHT,
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), family: css("--font") } },
  };
  const all = { ...base, ...layout };
  for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(k => /^[xy]axis\d*$/.test(k))])) {
    const own = layout[name] || {};
    all[name] = { ...grid, ...own, title: typeof own.title === "string" ? { text: own.title, standoff: 10 } : own.title || grid.title };
  }
  return all;
}
const SEEN = new IntersectionObserver(all => all.filter(e => e.isIntersecting).forEach(e => paint(e.target)), { rootMargin: "600px 0px" });
async function figure(root, id, traces, layout, title) { // drawn when it comes near the viewport, so that a page of many runs opens fast
  const place = el("div", { class: "figure", id: `figure-${id}`, "data-figure": id, style: `height:${layout.height || 360}px` });
  root.append(el("div", { class: "card" }, title ? el("h3", {}, title) : null, place));
  place.pending = () => Plotly.newPlot(place, traces, themed(layout), {
    responsive: true, displaylogo: false, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "svg", filename: id },
  });
  SEEN.observe(place);
  return place;
}
async function paint(place) {
  SEEN.unobserve(place);
  const draw = place.pending;
  place.pending = null;
  if (draw) place.drawn = draw();
  await place.drawn;
}
const drawAll = () => Promise.all([...document.querySelectorAll(".figure")].map(paint));
function panels(count, width, least, height, gap = { x: 34, y: 52 }) { // a wrapped row of subplots
  const columns = Math.max(1, Math.min(count, Math.floor((width + gap.x) / (least + gap.x))));
  const rows = Math.ceil(count / columns), whole = rows * height + (rows - 1) * gap.y, w = (width - (columns - 1) * gap.x) / columns;
  return { columns, rows, height: whole, width: w, domain: i => {
    const left = (i % columns) * (w + gap.x), top = Math.floor(i / columns) * (height + gap.y);
    return { x: [left / width, Math.min(1, (left + w) / width)], y: [Math.max(0, 1 - (top + height) / whole), 1 - top / whole] };
  } };
}
function over(root) { return Math.max(240, (root.clientWidth || 800) - 70); }
