"use strict";
// State, elements, switches, colors, figures. Text from runs only becomes text nodes.
let DATA = JSON.parse(document.getElementById("data").textContent);
const CHOICE = {}, HIDDEN = new Set(), SECTIONS = [];
// Series: colors of Okabe and Ito, which color-blind readers can tell apart, and a symbol each.
const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#3c434a"];
const DARK = ["#4ea3e0", "#f07f35", "#22c397", "#e6a3cb", "#f5c242", "#a6dcff", "#d5dadd"];
const DASHES = ["solid", "dash", "dot", "dashdot"], SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "x"];
// Classes, clients and kinds of normalizers: other colors (Tol's muted ones), so that none of them is taken for a series.
const KEYS_LIGHT = ["#332288", "#ddaa33", "#44aa99", "#882255", "#88ccee", "#117733", "#cc6677", "#999933", "#aa4499", "#777777"];
const KEYS_DARK = ["#8f86e8", "#e8c05a", "#44c2ae", "#d0629a", "#9fd8f5", "#4fbf74", "#e88f9d", "#c4c45a", "#cf7bc8", "#b8bec3"];
const LISTED = 40; // entries of a legend, at most

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
const keyColor = i => (dark() ? KEYS_DARK : KEYS_LIGHT)[i % KEYS_LIGHT.length];
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
const short = (text, length) => { // the end stays: labels often differ there
  if (text.length <= length) return text;
  const tail = Math.floor((length - 1) * .4);
  return `${text.slice(0, Math.max(1, length - 1 - tail))}…${tail > 0 ? text.slice(-tail) : ""}`;
};
const distinct = texts => texts.map((text, i) => texts.indexOf(text) === i ? text : `${text} (${i + 1})`); // on an axis, equal names would be one place
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

const limits = m => m.format === "percent" ? [0, 100] : [-Infinity, Infinity]; // where an interval ends
function errorBars(means, spreads, m) { // mean ± deviation, within the limits of the metric
  const [low, high] = limits(m), there = means.map((v, k) => known(v) && known(spreads[k]));
  return { type: "data", symmetric: false, visible: spreads.some(s => s > 0), color: css("--soft"), thickness: 1.2, width: 3,
    array: means.map((v, k) => there[k] ? Math.min(spreads[k], high - v) : 0), arrayminus: means.map((v, k) => there[k] ? Math.min(spreads[k], v - low) : 0) };
}

// Legends. `key` lists what the legend shows where one entry per trace would be too much: series by color, then what line styles or symbols mean.
const seriesKey = (list, mode = "lines") => list.map(([s, i]) => ({ name: s.label, mode, line: { color: color(i), width: 2.5, dash: dash(i) }, marker: { color: color(i), symbol: SYMBOLS[i % SYMBOLS.length], size: 9 } }));
const styleKey = styles => styles.map(([text, stroke]) => ({ name: text, mode: "lines", line: { color: css("--soft"), width: 2, dash: stroke } }));
function legendOf(names, width) { // entries of equal width, so that the height of the legend is known before it is drawn
  const room = Math.max(140, width - 110), most = Math.floor((room - 44) / 6.4), shownAs = names.map(n => short(n, most));
  const entry = Math.ceil(6.4 * Math.max(...shownAs.map(n => n.length))) + 6, columns = Math.max(1, Math.floor(room / (entry + 40)));
  return { names: shownAs, entry, height: 20 * Math.ceil(names.length / columns) + 12 };
}
function withLegend(traces, layout, key, width) {
  const entries = key || traces.filter(t => t.showlegend !== false && t.type !== "heatmap");
  if (entries.length < 2) return { traces: traces.map(t => ({ ...t, showlegend: false })), layout };
  const made = legendOf(entries.map(t => t.name), width), margin = { ...MARGIN, ...layout.margin };
  const fitted = entries.map((t, n) => ({ ...t, showlegend: true, name: made.names[n] }));
  const all = key ? [...traces.map(t => ({ ...t, showlegend: false })), ...fitted.map(t => ({ type: "scatter", x: [null], y: [null], hoverinfo: "skip", ...t }))]
    : traces.map(t => fitted[entries.indexOf(t)] || t);
  return { traces: all, layout: { ...layout, height: (layout.height || 360) + made.height, margin: { ...margin, t: margin.t + made.height }, showlegend: true,
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1, yref: "container", yanchor: "top", entrywidth: made.entry, entrywidthmode: "pixels", maxheight: made.height + 60, font: { color: css("--ink"), size: 12 }, ...(key ? { itemclick: false, itemdoubleclick: false } : {}) } } };
}

function wholeRounds(traces, layout, width) { // no tick between two rounds
  const axes = Object.keys(layout).filter(k => /^xaxis\d*$/.test(k)), at = traces.flatMap(t => t.x || []).filter(known);
  if (!axes.some(a => layout[a].title === "round") || Math.max(...at) - Math.min(...at) > (width < 640 ? 8 : 12)) return layout;
  return { ...layout, ...Object.fromEntries(axes.map(a => [a, { ...layout[a], dtick: 1 }])) };
}

const MARGIN = { l: 52, r: 16, t: 14, b: 44 };
const pointer = matchMedia("(hover: hover)").matches; // without one, as on a phone, a finger on a figure scrolls the page
function themed(layout) {
  const grid = { gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line"), automargin: true, title: { standoff: 10 } };
  const base = {
    font: { family: css("--font"), size: 12.5, color: css(DATA.export ? "--ink" : "--soft") }, paper_bgcolor: css("--card"), plot_bgcolor: css("--card"),
    margin: MARGIN, showlegend: false, hovermode: "closest", dragmode: pointer ? "zoom" : false, colorway: dark() ? DARK : LIGHT,
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
async function figure(root, id, given, base, title, key) { // drawn when it comes near the viewport, so that a page of many runs opens fast
  const place = el("div", { class: "figure", id: `figure-${id}`, "data-figure": id });
  root.append(el("div", { class: "card" }, title ? el("h3", {}, title) : null, place));
  const { traces, layout } = withLegend(given.map(t => ({ name: id, ...t })), wholeRounds(given, base, place.clientWidth), key, place.clientWidth || 800);
  traces.forEach(t => { t.name = plain(t.name); });
  place.style.height = `${layout.height || 360}px`;
  place.pending = () => Plotly.newPlot(place, traces, themed(layout), {
    responsive: true, displaylogo: false, displayModeBar: pointer ? "hover" : false,
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
  const fitting = Math.max(1, Math.min(count, Math.floor((width + gap.x) / (least + gap.x))));
  const rows = Math.ceil(count / fitting), columns = Math.ceil(count / rows), whole = rows * height + (rows - 1) * gap.y, w = (width - (columns - 1) * gap.x) / columns;
  return { columns, rows, height: whole, width: w, domain: i => {
    const left = (i % columns) * (w + gap.x), top = Math.floor(i / columns) * (height + gap.y);
    return { x: [left / width, Math.min(1, (left + w) / width)], y: [Math.max(0, 1 - (top + height) / whole), 1 - top / whole] };
  } };
}
function over(root) { return Math.max(240, (root.clientWidth || 800) - 70); }
