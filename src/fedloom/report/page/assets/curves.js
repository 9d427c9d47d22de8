// Lines over rounds: learning curves, norms, alignment, drift, selectors; with bands over seeds.
const XS = [["round", "round"], ["seconds", "seconds"], ["bytes", "traffic"]];
const XNAME = { round: "round", seconds: "training time", bytes: "traffic" };
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
  const traces = [], base = color(i), [low, high] = style.limits || [-Infinity, Infinity];
  if (found.count > 1) traces.push({ type: "scatter", mode: "lines", name: `${name}, ± standard deviation`, x: [...found.x, ...found.x.slice().reverse()],
    y: [...found.y.map((v, k) => Math.min(high, v + found.sd[k])), ...found.y.map((v, k) => Math.max(low, v - found.sd[k])).reverse()], fill: "toself", fillcolor: faded(base, style.dash ? .09 : .16), line: { width: 0 }, hoverinfo: "skip" });
  traces.push({ type: "scatter", mode: found.x.length < 3 ? "lines+markers" : "lines", name, x: found.x, y: found.y, line: { color: base, width: 2, dash: style.dash || dash(i) },
    customdata: found.rounds.map((r, k) => [r, found.sd[k]]), hovertemplate: `${plain(name)}<br>round %{customdata[0]}: %{y:.4g}${found.count > 1 ? " ± %{customdata[1]:.2g}" : ""}<extra></extra>` });
  return traces;
}

const curvesOf = m => [["test", "global"], ["validation", "validation"], ["client", "client"], ["personal", "own models'"]].map(([kind, word]) => [`${kind}_${m.name}`, `${word} ${m.title}`, scaleOf(m)]);

section("curves", "Learning curves", {
  nav: "Curves",
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
    const most = Math.max(...DATA.series.map(s => s.runs.length)), spreadText = !many ? "" : seeds === "each" ? ", every seed" : `, mean ± standard deviation over ${most} seeds`;
    const draw = async (id, [name, title, scale]) => {
      const of = run => ({ round: run.curves.round, y: (run.curves[name] || []).map(v => known(v) ? scale * v : null) });
      const traces = shown().flatMap(([s, i]) => {
        const sets = seeds === "each" ? s.runs.map(r => [[r], `${s.label}, seed ${r.seed}`]) : [[s.runs, s.label]];
        return sets.flatMap(([runs, label]) => { const found = band(runs, of, xOf); return found && found.x.length ? bandTraces(found, i, label, { limits: scale === 100 ? [0, 100] : undefined }) : []; });
      });
      await figure(root, id, traces, { height: 400, xaxis: { title: XTITLE[x] }, yaxis: { title: title + (scale === 100 ? " in %" : "") } }, `${capital(title)} by ${XNAME[x]}${spreadText}`, seriesKey(shown()));
    };
    await draw("curves", metrics.find(m => m[0] === name));
    if (DATA.export) for (const m of DATA.metrics.slice(1)) // for papers, every metric has its figure
      if (there(curvesOf(m)[0])) await draw(`curves-${m.name}`, curvesOf(m)[0]);
  },
});

// quantities of `fedloom analyze`: [name, title, unit, what it is, [[key, what, dash], ...]]
const SEEN_UNSEEN = group => [[`${group}_seen`, "seen classes", "solid"], [`${group}_unseen`, "unseen classes", "dash"]];
const THREE = (group, global, rest) => [[`${group}.${global}`, "global model", "dot"], [`${group}.${rest}seen`, "local, seen classes", "solid"], [`${group}.${rest}unseen`, "local, unseen classes", "dash"]];
const QUANTITIES = {
  norms: [["features", "feature norm", "", "Mean length of features, the inputs of the classifier.", THREE("norms", "feature_global", "feature_")],
    ["weights", "classifier norm", "", "Mean length of the classifier's rows, one per class.", THREE("norms", "weight_global", "weight_")]],
  alignment: [["alignment", "alignment", "cosine", "Cosine of a feature and the classifier's row of its class.", THREE("alignment", "global", "")],
    ["gap", "alignment gap", "", "Change of the alignment in local training; below 0, local training makes it worse.", SEEN_UNSEEN("alignment.gap")],
    ["distance", "feature distance", "", "Distance of a feature after local training from the same sample's feature before.", SEEN_UNSEEN("alignment.distance")],
    ["angle", "feature angle", "degrees", "Angle of a feature after local training to the same sample's feature before.", SEEN_UNSEEN("alignment.angle")]],
  drift: [["norm", "length of updates", "", "Length of the clients' updates, of their mean, and their distance to it.", [["drift.norm", "of a client, mean", "solid"], ["drift.mean_norm", "of the mean update", "dash"], ["drift.to_mean", "distance to the mean", "dot"]]],
    ["cosine", "direction of updates", "cosine", "Cosine of a client's update to the mean update, and to another client's.", [["drift.cosine_to_mean", "to the mean update", "solid"], ["drift.cosine_pairwise", "between clients", "dash"]]]],
  factors: [["factors", "factor", "cosine", "The numbers of the section on the four factors.", [["factors.weight_similarity", "weight similarity", "dot"], ["factors.inter_class", "inter-class", "dash"], ["factors.intra_class", "intra-class", "solid"], ["factors.prototype_weight", "prototype–weight", "dashdot"]]]],
};

async function quantity(root, redraw, group, title) {
  const inRounds = DATA.series.some(s => s.runs.some(r => r.analysis?.rounds && Object.keys(r.analysis.rounds).some(n => n.startsWith(group + "."))));
  const options = QUANTITIES[group].map(q => [q[0], q[1]]), now = choose(group, options), [, name, unit, what, lines] = QUANTITIES[group].find(q => q[0] === now);
  const part = el("div", {}), axis = unit ? `${name}, ${unit}` : name;
  root.append(part);
  part.append(el("h3", {}, title), el("p", { class: "about" }, what));
  if (options.length > 1) part.append(switches(switcher(group, "show", options, redraw)));
  if (inRounds) {
    const drawn = new Set(), traces = shown().flatMap(([s, i]) => lines.flatMap(([key, text, stroke]) => {
      const found = band(s.runs, r => r.analysis?.rounds?.[key] ? { round: r.analysis.rounds.round, y: r.analysis.rounds[key] } : null);
      if (!found || !found.x.length) return [];
      drawn.add(i);
      return bandTraces(found, i, `${s.label}, ${text}`, { dash: stroke });
    }));
    const key = seriesKey(shown().filter(([, i]) => drawn.has(i))).map(k => ({ ...k, line: { ...k.line, dash: "solid", width: 4 } })); // a bar of color: styles have entries of their own
    await figure(part, group, traces, { height: 300, xaxis: { title: "round" }, yaxis: { title: axis } }, `${capital(name)} by round`, [...key, ...styleKey(lines.map(([, text, stroke]) => [text, stroke]))]);
  } else { // only the end of the run was analyzed
    const value = (run, key) => { const [g, n] = key.split("."); return run.analysis?.summary?.[g]?.[n]; };
    const traces = shown().map(([s, i]) => {
      const found = lines.map(([key]) => s.runs.map(r => value(r, key)).filter(known));
      return { type: "bar", name: s.label, x: lines.map(l => l[1]), y: found.map(v => v.length ? mean(v) : null), marker: { color: color(i) },
        error_y: { type: "data", array: found.map(v => deviation(v)), visible: found.some(v => v.length > 1), color: css("--soft"), thickness: 1 }, hovertemplate: `${plain(s.label)}<br>%{x}: %{y:.4g}<extra></extra>` };
    }).filter(t => t.y.some(known));
    await figure(part, group, traces, { height: 300, barmode: "group", yaxis: { title: axis }, xaxis: { tickangle: 0 } }, `${capital(name)} after the last round`);
  }
}
const analyzed = group => DATA.series.some(s => s.runs.some(r => r.analysis?.summary?.[group] || (r.analysis?.rounds && Object.keys(r.analysis.rounds).some(n => n.startsWith(group + ".")))));

section("norms", "Norms, alignment and drift of local models", {
  nav: "Norms and drift",
  has: () => ["norms", "alignment", "drift", "factors"].some(analyzed),
  hint: ["Norms, alignment and drift of features and classifiers: ", "fedloom analyze RUN", ", or over rounds with fedloom run … --analyze-every 5."],
  async draw(root, redraw) {
    root.append(el("p", { class: "about" }, "Colors are series, line styles are models and classes. A client has seen the classes of its training samples; bands are standard deviations over seeds. Test samples, used for measurement only."));
    const grid = el("div", { class: "grid" });
    root.append(grid);
    for (const [group, title] of [["norms", "Norms"], ["alignment", "Alignment"], ["drift", "Client drift"], ["factors", "The four factors over rounds"]])
      if (analyzed(group)) await quantity(grid, redraw, group, title);
  },
});

section("selectors", "Shares of adaptive normalizers", {
  nav: "Normalizers",
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
    const plan = panels(layers.length, over(root), 250, 150, { x: 50, y: 60 }), traces = [], layout = { height: plan.height + 90, annotations: [], margin: { l: 44, r: 16, t: 30, b: 44 } };
    layers.forEach((layer, k) => {
      const axis = k ? String(k + 1) : "", at = plan.domain(k);
      range(width).forEach(c => traces.push({ type: "scatter", mode: "lines", stackgroup: `s${k}`, name: names[c], showlegend: k === 0, x: run.curves.round, y: run.curves.selectors[layer].map(v => v[c] ?? null),
        xaxis: `x${axis}`, yaxis: `y${axis}`, line: { width: .5, color: keyColor(c) }, fillcolor: faded(keyColor(c), .55), hovertemplate: `round %{x}<br>${names[c]}: %{y:.3f}<extra>${plain(layer)}</extra>` }));
      layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, nticks: 5, title: k + plan.columns >= layers.length ? "round" : undefined };
      layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, range: [0, 1], nticks: 3, title: k % plan.columns ? undefined : "share" };
      layout.annotations.push({ text: plain(short(layer, 34)), x: at.x[0], y: at.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { color: css("--ink") } });
    });
    blank.append(el("p", { class: "about" }, "Share of each normalizer in a layer, over rounds, of ", el("b", {}, DATA.series[now].label), `, seed ${run.seed}.`));
    await figure(root, "selectors", traces, layout, "Share by layer and round");
  },
});
