// Distributions, heat maps and scatter plots: splits, clients, factors, classes, layers, embeddings.
const counts = () => dark() ? [[0, "#1b2126"], [.02, "#21384f"], [.4, "#2f6fae"], [1, "#b5d8f7"]] : [[0, "#ffffff"], [.02, "#e3eef8"], [.4, "#6fa5d6"], [1, "#0f3d70"]];
const cosines = () => dark() ? [[0, "#e08a5a"], [.5, "#1b2126"], [1, "#6fa8e6"]] : [[0, "#b5501f"], [.5, "#ffffff"], [1, "#1d5796"]];

section("split", "Data split", {
  has: () => DATA.splits.length > 0,
  hint: ["This run folder has no labels: those of a deployed run stay at its sites. See ", "fedloom split", "."],
  async draw(root, redraw) {
    const options = DATA.splits.map((s, i) => [i, s.label]), now = choose("split", options, 0), split = DATA.splits[now];
    if (options.length > 1) root.append(switches(switcher("split", "split", options, redraw, 0)));
    const [least, q1, median, q3, most] = split.sizes, part = split.counts.length < split.clients ? ` (the first ${split.counts.length} are shown)` : "";
    root.append(el("p", { class: "about" }, `Training images by class and client, of ${split.clients} clients${part}. A client has ${least} to ${most} images; median ${median}, quartiles ${q1} and ${q3}.`));
    const classes = range(split.counts[0].length), tall = split.counts.length > 60 && root.clientWidth < 640;
    const z = tall ? split.counts : classes.map(c => split.counts.map(row => row[c]));
    await figure(root, "split", [{ type: "heatmap", z, colorscale: counts(), zmin: 0, xgap: split.counts.length > 60 ? 0 : 1, ygap: classes.length > 40 ? 0 : 1,
      colorbar: { thickness: 10, len: .9, outlinewidth: 0, title: { text: "images", side: "right" } }, hovertemplate: tall ? "client %{y}, class %{x}: %{z}<extra></extra>" : "client %{x}, class %{y}: %{z}<extra></extra>" }],
      { height: tall ? 520 : Math.min(620, 120 + Math.max(180, classes.length * 22)), xaxis: { title: tall ? "class" : "client", showgrid: false, constrain: "domain" }, yaxis: { title: tall ? "client" : "class", showgrid: false, zeroline: false, dtick: !tall && classes.length <= 12 ? 1 : undefined } });
  },
});

section("clients", "Clients", {
  has: () => DATA.series.some(s => s.runs.some(r => r.clients)),
  hint: ["Every client is evaluated after the last round, or earlier with ", "--set eval_clients=5", "."],
  async draw(root, redraw) {
    const m = metric(), lower = m.better === "lower", scale = scaleOf(m);
    const kinds = [[m.name, "global model"], [`personal_${m.name}`, "own models"]].filter(([k]) => DATA.series.some(s => s.runs.some(r => r.clients?.[k])));
    root.append(switches(metricSwitch(), kinds.length > 1 ? switcher("clients", "model", kinds, redraw) : null));
    if (!kinds.length) { root.append(el("p", { class: "about" }, `${capital(m.title)} is undefined for every client.`)); return; }
    const kind = choose("clients", kinds);
    root.append(el("p", { class: "about" }, `${capital(m.title)} of the ${kind === m.name ? "global model" : "client's own model"} on each client's own test samples, all seeds together.`));
    const list = shown(), traces = list.map(([s, i]) => {
      const values = s.runs.flatMap(r => r.clients?.[kind]?.values || []).map(v => scale * v);
      return { type: "box", x: values, y: values.map(() => short(s.label, root.clientWidth < 640 ? 16 : 38)), orientation: "h", name: plain(s.label), marker: { color: color(i), size: 4, opacity: .55 }, line: { width: 1.5 },
        boxpoints: values.length <= 1500 ? "all" : "outliers", jitter: .6, pointpos: 0, fillcolor: faded(color(i), .12), hoverinfo: "x" };
    }).filter(t => t.x.length);
    await figure(root, "clients", traces, { height: 110 + 64 * traces.length, xaxis: { title: heading(m), range: scale === 100 ? [-2, 102] : undefined }, yaxis: { autorange: "reversed" }, margin: { l: 20, r: 16, t: 10, b: 44 } });
    const rows = DATA.series.map((s, i) => {
      const all = s.runs.flatMap(r => (r.clients?.[kind]?.worst || []).map(w => ({ ...w, seed: r.seed }))).sort((a, b) => (lower ? -1 : 1) * (a.value - b.value)).slice(0, 5);
      return { cells: [{ text: s.label, dot: i }, all.map(w => `client ${w.client}${s.runs.length > 1 ? ` (seed ${w.seed})` : ""}: ${showOf(m)(w.value)}`).join(" · ")] };
    });
    root.append(el("h3", {}, "Worst clients"), table([{ title: "series", word: true }, { title: `client and ${heading(m)}, ${lower ? "highest" : "lowest"} first`, word: true }], rows, "worst-clients"));
  },
});

section("byclass", "By class", {
  has: () => DATA.series.some(s => s.runs.some(r => DATA.metrics.some(m => r.summary[`class_${m.name}`]))),
  hint: ["Metrics of the global model by class are computed where a recipe has more than accuracy: ", "--metrics accuracy,macro_f1", "."],
  async draw(root) {
    const m = metric(), scale = scaleOf(m), values = s => s.runs.map(r => r.summary[`class_${m.name}`]).filter(Boolean);
    const classes = [...new Set(DATA.series.flatMap(s => values(s).flatMap(v => Object.keys(v))))].sort((a, b) => (+a - +b) || (a < b ? -1 : a > b ? 1 : 0));
    if (DATA.metrics.length > 1) root.append(switches(metricSwitch()));
    root.append(el("p", { class: "about" }, `${capital(heading(m))} of the global model after the last round, by class of the pooled test set, mean over seeds. F1 and AUROC are of the class against the rest; other metrics are of the class's own samples.`));
    const traces = shown().filter(([s]) => values(s).length).map(([s, i]) => {
      const of = c => values(s).map(v => v[c]).filter(known), sets = classes.map(of);
      return { type: classes.length > 30 ? "scatter" : "bar", mode: classes.length > 30 ? "lines" : undefined, name: plain(s.label), x: classes.map(c => plain(short(c, 18))), y: sets.map(v => v.length ? scale * mean(v) : null), marker: { color: color(i) },
        error_y: { type: "data", array: sets.map(v => scale * deviation(v)), visible: sets.some(v => v.length > 1), color: css("--soft"), thickness: 1 }, hovertemplate: `${plain(s.label)}<br>class %{x}: %{y:.4g}<extra></extra>` };
    });
    await figure(root, "by-class", traces, { height: 330, barmode: "group", xaxis: { title: "class", type: "category" }, yaxis: { title: heading(m) } });
  },
});

const FACTORS = [["weight_similarity", "weight similarity", "classifier rows c and k"], ["inter_class", "inter-class similarity", "prototypes of classes c and k"],
  ["intra_class", "intra-class similarity", "features of class c to prototype k"], ["prototype_weight", "prototype–weight alignment", "prototype c, classifier row k"]];
section("factors", "The four factors", {
  has: () => DATA.series.some(s => s.runs.some(r => r.analysis?.factors)),
  hint: ["Matrices of weight similarity, inter- and intra-class similarity and prototype–weight alignment: ", "fedloom analyze RUN --what factors", "."],
  async draw(root, redraw) {
    const options = [["all", "all four"], ...FACTORS.map(f => [f[0], f[1]])], now = choose("factor", options, "all");
    root.append(switches(switcher("factor", "show", options, redraw, "all")));
    root.append(el("p", { class: "about" }, "Cosines of the global model's features and classifier rows, class by class. The number is the paper's factor: mean off the diagonal for the first two, of the diagonal for the others."));
    const having = shown().map(([s, i]) => [s, i, s.runs.find(r => r.analysis?.factors)]).filter(h => h[2]);
    const grid = el("div", { class: now === "all" ? "grid" : "" });
    root.append(grid);
    for (const [key, title, what] of FACTORS.filter(f => now === "all" || f[0] === now)) {
      const inner = now === "all" && root.clientWidth > 900 ? root.clientWidth / 2 : root.clientWidth;
      const plan = panels(having.length, Math.max(220, inner - 60), 150, 170, { x: 26, y: 46 });
      const side = Math.min(plan.width, 260), layout = { annotations: [], margin: { l: 26, r: 8, t: 34, b: 22 }, height: 0 };
      const again = panels(having.length, Math.max(220, inner - 60), 150, side, { x: 26, y: 46 });
      layout.height = again.height + 60;
      const traces = having.map(([s, , run], k) => {
        const axis = k ? String(k + 1) : "", at = again.domain(k), scalar = run.analysis.summary?.factors?.[key];
        const few = run.analysis.factors[key].length <= 12;
        layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, showgrid: false, zeroline: false, constrain: "domain", nticks: few ? 10 : 5, tickfont: { size: 10 } };
        layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, showgrid: false, zeroline: false, autorange: "reversed", scaleanchor: `x${axis}`, constrain: "domain", nticks: few ? 10 : 5, tickfont: { size: 10 } };
        layout.annotations.push({ text: plain(short(s.label, Math.floor(again.width / 8) - (known(scalar) ? 6 : 0))) + (known(scalar) ? `  <b>${fixed(scalar, 2)}</b>` : ""), x: (at.x[0] + at.x[1]) / 2, y: at.y[1], xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", yshift: 3, showarrow: false, font: { color: css("--ink") } });
        return { type: "heatmap", z: run.analysis.factors[key].map(row => row.map(v => known(v) ? v / 100 : null)), xaxis: `x${axis}`, yaxis: `y${axis}`, zmin: -1, zmax: 1, colorscale: cosines(), showscale: false,
          hovertemplate: `c %{y}, k %{x}: %{z:.2f}<extra>${plain(s.label)}</extra>` };
      });
      await figure(grid, `factor-${key}`, traces, layout, `${title}: ${what}`);
    }
  },
});

section("inside", "Classes, layers and dimensions", {
  has: () => DATA.series.some(s => s.runs.some(r => r.analysis?.layers || r.analysis?.spectrum || r.analysis?.summary?.refinement)),
  hint: ["Accuracy by class before and after local training, consistency of layers, singular values of features: ", "fedloom analyze RUN", "."],
  async draw(root) {
    const grid = el("div", { class: "grid" });
    root.append(grid);
    const pick = name => shown().map(([s, i]) => [s, i, s.runs.map(r => r.analysis?.[name] ?? r.analysis?.summary?.[name]).find(Boolean)]).filter(h => h[2]);
    const classes = pick("refinement");
    if (classes.length) {
      const stages = [["start", "dot", "before local training"], ["local", "solid", "after local training"], ["refined", "dash", "after refinement"]].filter(([k]) => classes.some(c => c[2][k]));
      await figure(grid, "classes", classes.flatMap(([s, i, v]) => stages.filter(([k]) => v[k]).map(([k, stroke, text]) => ({ type: "scatter", mode: "lines+markers", marker: { size: 5, symbol: k === "start" ? "circle-open" : "circle" }, name: plain(`${s.label}, ${text}`), x: range(v[k].length), y: v[k].map(a => known(a) ? 100 * a : null),
        line: { color: color(i), width: 1.6, dash: stroke }, hovertemplate: `${plain(s.label)}, ${text}<br>class %{x}: %{y:.1f} %<extra></extra>` }))),
        { height: 320, xaxis: { title: "class", dtick: classes[0][2].local?.length <= 12 ? 1 : undefined }, yaxis: { title: "accuracy in %, mean over clients" } }, ["Accuracy by class ", ...strokes(stages.map(([, stroke, text]) => [0, text, stroke]))]);
    }
    const spectrum = pick("spectrum");
    const top = Math.log10(Math.max(1e-9, ...spectrum.flatMap(([, , v]) => Object.values(v).flat().filter(known))));
    if (spectrum.length) await figure(grid, "spectrum", spectrum.flatMap(([s, i, v]) => [["global", "solid"], ["local", "dash"]].filter(([k]) => v[k]).map(([k, stroke]) => ({ type: "scatter", mode: "lines", name: plain(`${s.label}, ${k}`), x: range(v[k].length).map(n => n + 1), y: v[k],
      line: { color: color(i), width: 1.8, dash: stroke }, hovertemplate: `${plain(s.label)}, ${k}<br>value %{x}: %{y:.3g}<extra></extra>` }))),
      { height: 320, xaxis: { title: "index" }, yaxis: { title: "singular value", type: "log", exponentformat: "power", nticks: 6, range: [top - 6, top + .3] } }, ["Singular values of features ", ...strokes([[0, "global", "solid"], [0, "local, mean", "dash"]])]);
    const layers = pick("layers");
    for (const [what, title] of [["weight", "Weight consistency by layer"], ["activation", "Activation consistency by layer"]]) {
      if (!layers.some(l => l[2][`${what}_clients`].some(known))) continue;
      await figure(grid, `layers-${what}`, layers.flatMap(([s, i, v]) => [["clients", "solid"], ["global", "dash"]].filter(([k]) => v[`${what}_${k}`].some(known)).map(([k, stroke]) => ({ type: "scatter", mode: "lines+markers", marker: { size: 5 }, name: plain(`${s.label}, ${k}`), x: v.layer.map(l => short(l, 16)), y: v[`${what}_${k}`],
        line: { color: color(i), width: 1.8, dash: stroke }, hovertemplate: `${plain(s.label)}, ${k}<br>%{x}: %{y:.3g}<extra></extra>` }))),
        { height: 340, margin: { l: 52, r: 16, t: 14, b: 80 }, xaxis: { tickangle: -40 }, yaxis: { title: "consistency" } }, [`${title} `, ...strokes([[0, "clients", "solid"], [0, "global model", "dash"]])]);
    }
  },
});

section("embedding", "Features in two dimensions", {
  has: () => DATA.series.some(s => s.runs.some(r => r.analysis?.embedding)),
  hint: ["Embeddings of features by class and by client: ", "fedloom analyze RUN --what embedding", "."],
  async draw(root, redraw) {
    const having = shown().map(([s, i]) => [s, i, s.runs.map(r => r.analysis?.embedding).find(Boolean)]).filter(h => h[2]);
    if (!having.length) return;
    const stages = [["global", "global model"], ["local", "local models"]].filter(([k]) => having.some(h => h[2].stage.includes(k))), stage = choose("stage", stages);
    const bys = [["class", "class"], ...(stage === "local" ? [["client", "client"]] : [["holder", "client that has the image"]])], by = choose("by", bys, "class");
    root.append(switches(switcher("stage", "of the", stages, redraw), switcher("by", "colored by", bys, redraw, "class")));
    const kind = having[0][2].kind[0];
    root.append(el("p", { class: "about" }, `${kind === "tsne" ? "t-SNE" : kind.toUpperCase()} of features of test images; distances between distant groups mean little.`));
    const plan = panels(having.length, over(root), 280, 280, { x: 20, y: 40 }), traces = [], layout = { height: plan.height + 60, annotations: [], margin: { l: 10, r: 10, t: 34, b: 12 } };
    const values = [...new Set(having.flatMap(h => h[2][by]))].filter(v => v !== null).sort((a, b) => a - b);
    const shade = v => values.length <= 10 ? color(values.indexOf(v)) : `hsl(${(360 * values.indexOf(v)) / values.length},60%,${dark() ? 62 : 46}%)`;
    having.forEach(([s, , points], k) => {
      const axis = k ? String(k + 1) : "", at = plan.domain(k), bare = { showgrid: false, zeroline: false, showticklabels: false, ticks: "" };
      layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, ...bare, mirror: true, showline: true };
      layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, ...bare, mirror: true, showline: true };
      layout.annotations.push({ text: plain(short(s.label, Math.floor(plan.width / 8))), x: at.x[0], y: at.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", yshift: 3, showarrow: false, font: { color: css("--ink") } });
      const keep = range(points.x.length).filter(n => points.stage[n] === stage);
      traces.push({ type: "scatter", mode: "markers", name: plain(s.label), showlegend: false, xaxis: `x${axis}`, yaxis: `y${axis}`, x: keep.map(n => points.x[n]), y: keep.map(n => points.y[n]),
        marker: { size: 5, opacity: .8, color: keep.map(n => points[by][n] === null ? css("--soft") : shade(points[by][n])) },
        text: keep.map(n => `class ${points.class[n]}${points.client[n] !== null ? `, client ${points.client[n]}` : points.holder[n] !== null ? `, of client ${points.holder[n]}` : ""}`), hovertemplate: `%{text}<extra>${plain(s.label)}</extra>` });
    });
    if (values.length <= 20) for (const v of values) // legend entries only: the points of a series have many colors
      traces.push({ type: "scatter", mode: "markers", name: `${by === "class" ? "class" : "client"} ${v}`, x: [null], y: [null], marker: { size: 8, color: shade(v) }, hoverinfo: "skip" });
    await figure(root, "embedding", traces, layout);
  },
});
