// Lines over rounds: learning curves, norms, alignment, drift, selectors; with bands over seeds.
const XS = [["round", "round"], ["seconds", "seconds"], ["bytes", "traffic"]];
const XTITLE = { round: "round", seconds: "seconds of training", bytes: "MB sent, down and up" };

function band(runs, of, xOf) { // mean and deviation at every round that all runs have; x is the mean over runs
  const tables = runs.map(run => {
    const values = of(run) || {}, rows = new Map();
    (values.round || []).forEach((round, k) => { if (known(values.y[k])) rows.set(round, [xOf ? xOf(run, round) : round, values.y[k]]); });
    return rows;
  }).filter(rows => rows.size);
  if (!tables.length) return null;
  const rounds = [...tables[0].keys()].filter(r => tables.every(t => t.has(r)));
  const columns = rounds.map(r => tables.map(t => t.get(r)));
  return { rounds, x: columns.map(c => mean(c.map(v => v[0]))), y: columns.map(c => mean(c.map(v => v[1]))), sd: columns.map(c => deviation(c.map(v => v[1]))), count: tables.length };
}
function bandTraces(found, i, name, style = {}) {
  const traces = [], base = style.color || color(i);
  if (found.count > 1 && style.band !== false) traces.push({ type: "scatter", mode: "lines", x: [...found.x, ...found.x.slice().reverse()],
    y: [...found.y.map((v, k) => v + found.sd[k]), ...found.y.map((v, k) => v - found.sd[k]).reverse()], fill: "toself", fillcolor: faded(base, .16), line: { width: 0 }, hoverinfo: "skip", showlegend: false });
  traces.push({ type: "scatter", mode: found.x.length < 3 ? "lines+markers" : "lines", name: plain(name), x: found.x, y: found.y, line: { color: base, width: 2, dash: style.dash || dash(i) },
    customdata: found.rounds.map((r, k) => [r, found.sd[k]]), hovertemplate: `${plain(name)}<br>round %{customdata[0]}: %{y:.4g}${found.count > 1 ? " ± %{customdata[1]:.2g}" : ""}<extra></extra>` });
  return traces;
}

const curvesOf = m => [["test", "global"], ["validation", "validation"], ["client", "client"], ["personal", "own models'"]].map(([kind, word]) => [`${kind}_${m.name}`, `${word} ${m.title}`, scaleOf(m)]);

section("curves", "Learning curves", {
  has: () => DATA.series.some(s => s.runs.some(r => r.done)),
  hint: ["No round is done yet.", "", ""],
  async draw(root, redraw) {
    const there = ([name]) => DATA.series.some(s => s.runs.some(r => (r.curves[name] || []).some(known)));
    const metrics = [...curvesOf(metric()), ["train_loss", "training loss", 1], ["lr", "learning rate", 1]].filter(there), first = `test_${metric().name}`;
    const options = metrics.map(m => [m[0], m[1]]), x = choose("x", XS, "round"), name = choose("metric", options, first);
    const many = DATA.series.some(s => s.runs.length > 1), seeds = choose("seeds", [["band", ""], ["each", ""]], "band");
    root.append(switches(metricSwitch(), switcher("metric", "show", options, redraw, first), switcher("x", "against", XS, redraw, "round"),
      many ? switcher("seeds", "seeds", [["band", "mean ± std"], ["each", "each"]], redraw, "band") : null));
    const xOf = x === "round" ? null : (run, round) => run.curves[x][run.curves.round.indexOf(round)] / (x === "bytes" ? 1e6 : 1);
    const draw = async (id, [name, title, scale]) => {
      const of = run => ({ round: run.curves.round, y: (run.curves[name] || []).map(v => known(v) ? scale * v : null) });
      const traces = shown().flatMap(([s, i]) => {
        const sets = seeds === "each" ? s.runs.map(r => [[r], `${s.label}, seed ${r.seed}`]) : [[s.runs, s.label]];
        return sets.flatMap(([runs, label]) => { const found = band(runs, of, xOf); return found && found.x.length ? bandTraces(found, i, label) : []; });
      });
      await figure(root, id, traces, { height: 430, xaxis: { title: XTITLE[x] }, yaxis: { title: title + (scale === 100 ? " in %" : "") } });
    };
    await draw("curves", metrics.find(m => m[0] === name));
    if (DATA.export) for (const m of DATA.metrics.slice(1)) // for papers, every metric has its figure
      if (there(curvesOf(m)[0])) await draw(`curves-${m.name}`, curvesOf(m)[0]);
  },
});

// quantities of `fedloom analyze`: [title, unit, [[name, what, dash], ...]]
const QUANTITIES = {
  norms: [["features", "feature norm", "", [["norms.feature_global", "global model", "dot"], ["norms.feature_seen", "local, seen classes", "solid"], ["norms.feature_unseen", "local, unseen classes", "dash"]]],
    ["weights", "classifier norm", "", [["norms.weight_global", "global model", "dot"], ["norms.weight_seen", "local, seen classes", "solid"], ["norms.weight_unseen", "local, unseen classes", "dash"]]]],
  alignment: [["alignment", "alignment", "cosine", [["alignment.global", "global model", "dot"], ["alignment.seen", "local, seen classes", "solid"], ["alignment.unseen", "local, unseen classes", "dash"]]],
    ["gap", "alignment gap", "", [["alignment.gap_seen", "seen classes", "solid"], ["alignment.gap_unseen", "unseen classes", "dash"]]],
    ["distance", "feature distance", "", [["alignment.distance_seen", "seen classes", "solid"], ["alignment.distance_unseen", "unseen classes", "dash"]]],
    ["angle", "feature angle", "degrees", [["alignment.angle_seen", "seen classes", "solid"], ["alignment.angle_unseen", "unseen classes", "dash"]]]],
  drift: [["norm", "size of updates", "", [["drift.norm", "of a client, mean", "solid"], ["drift.mean_norm", "of the mean update", "dash"], ["drift.to_mean", "distance to the mean", "dot"]]],
    ["cosine", "direction of updates", "cosine", [["drift.cosine_to_mean", "to the mean update", "solid"], ["drift.cosine_pairwise", "between clients", "dash"]]]],
  factors: [["factors", "four factors", "cosine", [["factors.weight_similarity", "weight similarity", "dot"], ["factors.inter_class", "inter-class", "dash"], ["factors.intra_class", "intra-class", "solid"], ["factors.prototype_weight", "prototype–weight", "dashdot"]]]],
};
const DOTS = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };
const strokes = lines => lines.map(([, text, kind]) => { // a legend of line styles, as parts of a title
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(svg.namespaceURI, "line");
  for (const [name, value] of Object.entries({ width: 28, height: 8 })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, x2: 28, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": DOTS[kind] })) line.setAttribute(name, value);
  svg.append(line);
  return el("span", { class: "stroke" }, svg, text);
});

async function quantity(root, redraw, group, title) {
  const inRounds = DATA.series.some(s => s.runs.some(r => r.analysis?.rounds && Object.keys(r.analysis.rounds).some(n => n.startsWith(group + "."))));
  const options = QUANTITIES[group].map(q => [q[0], q[1]]), now = choose(group, options), [, name, unit, lines] = QUANTITIES[group].find(q => q[0] === now);
  const card = el("div", {});
  root.append(card);
  card.append(el("h3", {}, title));
  if (options.length > 1) card.append(switches(switcher(group, "show", options, redraw)));
  if (inRounds) {
    const traces = shown().flatMap(([s, i]) => lines.flatMap(([key, what, stroke]) => {
      const found = band(s.runs, r => r.analysis?.rounds?.[key] ? { round: r.analysis.rounds.round, y: r.analysis.rounds[key] } : null);
      return found && found.x.length ? bandTraces(found, i, `${s.label}, ${what}`, { dash: stroke }) : [];
    }));
    await figure(card, group, traces, { height: 320, xaxis: { title: "round" }, yaxis: { title: unit ? `${name}, ${unit}` : name } }, strokes(lines));
  } else { // only the end of the run was analyzed
    const value = (run, key) => { const [g, n] = key.split("."); return run.analysis?.summary?.[g]?.[n]; };
    const traces = shown().map(([s, i]) => {
      const found = lines.map(([key]) => s.runs.map(r => value(r, key)).filter(known));
      return { type: "bar", name: plain(s.label), x: lines.map(l => l[1]), y: found.map(v => v.length ? mean(v) : null), marker: { color: color(i) },
        error_y: { type: "data", array: found.map(v => deviation(v)), visible: found.some(v => v.length > 1), color: css("--soft"), thickness: 1 }, hovertemplate: `${plain(s.label)}<br>%{x}: %{y:.4g}<extra></extra>` };
    });
    await figure(card, group, traces, { height: 320, barmode: "group", yaxis: { title: unit ? `${name}, ${unit}` : name }, xaxis: { tickangle: 0 } }, `${name}, after the last round`);
  }
}
const analyzed = group => DATA.series.some(s => s.runs.some(r => r.analysis?.summary?.[group] || (r.analysis?.rounds && Object.keys(r.analysis.rounds).some(n => n.startsWith(group + ".")))));

section("norms", "Norms, alignment and drift", {
  has: () => ["norms", "alignment", "drift", "factors"].some(analyzed),
  hint: ["Norms, alignment and drift of features and classifiers: ", "fedloom analyze RUN", ", or over rounds with fedloom run … --analyze-every 5."],
  async draw(root, redraw) {
    root.append(el("p", { class: "about" }, "Colors are series, line styles are models and classes. A class is seen by a client that has training images of it."));
    const grid = el("div", { class: "grid" });
    root.append(grid);
    for (const [group, title] of [["norms", "Norms"], ["alignment", "Alignment"], ["drift", "Client drift"], ["factors", "The four factors as numbers"]])
      if (analyzed(group)) await quantity(grid, redraw, group, title);
  },
});

section("selectors", "Adaptive normalizers", {
  has: () => DATA.series.some(s => s.runs.some(r => r.curves.selectors)),
  hint: ["Selectors of adaptive normalizers are logged by methods that have them, for instance ", "fedloom run --method fednn", "."],
  async draw(root, redraw) {
    const having = DATA.series.map((s, i) => [s, i]).filter(([s]) => s.runs.some(r => r.curves.selectors));
    const options = having.map(([s, i]) => [i, s.label]), now = choose("selectors", options);
    if (options.length > 1) root.append(switches(switcher("selectors", "series", options, redraw)));
    const run = DATA.series[now].runs.find(r => r.curves.selectors), layers = Object.keys(run.curves.selectors);
    const width = Math.max(...layers.flatMap(l => run.curves.selectors[l].map(v => v.length)));
    const names = width === 2 ? ["batch", "group"] : width === 3 ? ["instance", "layer", "batch"] : range(width).map(k => `choice ${k + 1}`);
    const blank = el("div", {});
    root.append(blank);
    const plan = panels(layers.length, over(root), 250, 150), traces = [], layout = { height: plan.height + 90, annotations: [], margin: { l: 44, r: 16, t: 30, b: 44 } };
    layers.forEach((layer, k) => {
      const axis = k ? String(k + 1) : "", at = plan.domain(k);
      range(width).forEach(c => traces.push({ type: "scatter", mode: "lines", stackgroup: `s${k}`, name: names[c], x: run.curves.round, y: run.curves.selectors[layer].map(v => v[c] ?? null),
        xaxis: `x${axis}`, yaxis: `y${axis}`, line: { width: .5, color: color(c) }, fillcolor: faded(color(c), .55), hovertemplate: `round %{x}<br>${names[c]}: %{y:.3f}<extra>${plain(layer)}</extra>` }));
      layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, nticks: 5 };
      layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, range: [0, 1], nticks: 3 };
      layout.annotations.push({ text: plain(short(layer, 34)), x: at.x[0], y: at.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { color: css("--ink") } });
    });
    blank.append(el("p", { class: "about" }, "Share of each normalizer in a layer, over rounds, of ", el("b", {}, DATA.series[now].label), `, seed ${run.seed}: `,
      names.map((n, c) => el("span", { style: "margin-right:1rem;white-space:nowrap" }, el("i", { class: "dot", style: `display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.35rem;background:${color(c)}` }), n))));
    await figure(root, "selectors", traces, layout);
  },
});
