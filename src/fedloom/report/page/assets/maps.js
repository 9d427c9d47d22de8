// Distributions, heat maps and scatter plots: splits, clients, factors, classes, layers, embeddings.
const counts = () => dark() ? [[0, "#1b2126"], [.02, "#21384f"], [.4, "#2f6fae"], [1, "#b5d8f7"]] : [[0, "#ffffff"], [.02, "#e3eef8"], [.4, "#6fa5d6"], [1, "#0f3d70"]];
const cosines = () => dark() ? [[0, "#e08a5a"], [.5, "#1b2126"], [1, "#6fa8e6"]] : [[0, "#b5501f"], [.5, "#ffffff"], [1, "#1d5796"]];
const narrow = root => root.clientWidth < 640;
const colorbar = (text, more) => ({ thickness: 10, len: .9, outlinewidth: 0, title: { text, side: "right" }, ...more });
const classNames = run => c => run?.classes?.[c] ?? String(c);
const clientName = run => k => run?.names?.[k] ?? `client ${k}`;
const byNumber = (a, b) => (+a - +b) || (a < b ? -1 : a > b ? 1 : 0);

section("split", "Data split: training samples by client and class", {
  nav: "Split",
  has: () => DATA.splits.length > 0,
  hint: ["This run folder has no labels: those of a deployed run stay at its sites. See ", "fedloom split", "."],
  async draw(root, redraw) { // clients are rows, as in `fedloom split`
    const options = DATA.splits.map((s, i) => [i, s.label]), now = choose("split", options, 0), split = DATA.splits[now];
    if (options.length > 1) root.append(switches(switcher("split", "split", options, redraw, 0)));
    const [least, q1, median, q3, most] = split.sizes, part = split.counts.length < split.clients ? ` (the first ${split.counts.length} are shown)` : "";
    root.append(el("p", { class: "about" }, `${split.clients} clients${part}. A client has ${least} to ${most} samples; median ${median}, quartiles ${q1} and ${q3}.`));
    const rows = split.counts.length, classes = range(split.counts[0].length), named = classes.length <= 20, names = classes.map(c => split.classes[c] ?? String(c));
    const of = names.map(n => n === String(+n) ? `class ${n}` : plain(n)), hover = split.counts.map((row, k) => row.map((v, c) => `${plain(clientName(split)(k))}, ${of[c]}: ${v}`));
    const clients = { title: "client", showgrid: false, zeroline: false, autorange: "reversed", ...(split.names?.length && rows <= 30 ? { tickvals: range(rows), ticktext: split.names.map(n => plain(short(n, narrow(root) ? 12 : 24))) } : { dtick: rows <= 30 ? 1 : undefined }) };
    await figure(root, "split", [
      { type: "heatmap", name: "samples by class", z: split.counts, text: hover, hovertemplate: "%{text}<extra></extra>", colorscale: counts(), zmin: 0, xgap: classes.length > 40 ? 0 : 1, ygap: rows > 60 ? 0 : 1, colorbar: colorbar("samples") },
      { type: "bar", name: "samples of a client", orientation: "h", showlegend: false, x: split.counts.map(row => row.reduce((a, b) => a + b, 0)), y: range(rows), text: range(rows).map(k => plain(clientName(split)(k))), textposition: "none", xaxis: "x2", marker: { color: dark() ? "#2f6fae" : "#6fa5d6" }, hovertemplate: "%{text}: %{x}<extra></extra>" },
    ], { height: Math.min(640, 110 + Math.max(150, rows * 17)), bargap: .15, yaxis: clients,
      xaxis: { title: "class", showgrid: false, zeroline: false, domain: [0, .68], ...(named ? { tickvals: classes, ticktext: names.map(n => plain(short(n, 12))) } : {}) },
      xaxis2: { title: narrow(root) ? "all classes" : "samples, all classes", anchor: "y", domain: [.74, 1], nticks: narrow(root) ? 3 : 5 } }, "Samples of each client by class, and in total");
  },
});

section("clients", "Clients: every client's own test samples", {
  nav: "Clients",
  has: () => DATA.series.some(s => s.runs.some(r => r.clients)),
  hint: ["Every client is evaluated after the last round, or earlier with ", "--set eval_clients=5", "."],
  async draw(root, redraw) {
    const m = metric(), lower = m.better === "lower", scale = scaleOf(m);
    const kinds = [[m.name, "global model"], [`personal_${m.name}`, "own models"]].filter(([k]) => DATA.series.some(s => s.runs.some(r => r.clients?.[k])));
    root.append(switches(metricSwitch(), kinds.length > 1 ? switcher("clients", "model", kinds, redraw) : null));
    if (!kinds.length) { root.append(el("p", { class: "about" }, `${capital(m.title)} is undefined for every client.`)); return; }
    const kind = choose("clients", kinds), whose = kind === m.name ? "the global model" : "each client's own model";
    root.append(el("p", { class: "about" }, `${capital(m.title)} of ${whose} on each client's own test samples. A point is a client, all seeds together; boxes are quartiles, whiskers reach to 1.5 times their distance.`));
    const list = shown(), ticks = distinct(list.map(([s]) => short(s.label, narrow(root) ? 16 : 38)));
    const traces = list.map(([s, i], k) => {
      const values = s.runs.flatMap(r => r.clients?.[kind]?.values || []).map(v => scale * v);
      return { type: "box", x: values, y: values.map(() => plain(ticks[k])), orientation: "h", name: s.label, showlegend: false, marker: { color: color(i), size: 4, opacity: .55 }, line: { width: 1.5 },
        boxpoints: values.length <= 1500 ? "all" : "outliers", jitter: .6, pointpos: 0, fillcolor: faded(color(i), .12), hoverinfo: "x" };
    }).filter(t => t.x.length);
    await figure(root, "clients", traces, { height: 80 + 60 * traces.length, xaxis: { title: heading(m), range: scale === 100 ? [-2, 102] : undefined }, yaxis: { autorange: "reversed" }, margin: { l: 20, r: 16, t: 10, b: 44 } }, `${capital(m.title)} of ${whose}, by client`);
    const rows = DATA.series.map((s, i) => {
      const all = s.runs.flatMap(r => (r.clients?.[kind]?.worst || []).map(w => ({ ...w, seed: r.seed, name: clientName(r)(w.client) }))).sort((a, b) => (lower ? -1 : 1) * (a.value - b.value)).slice(0, 5);
      return { cells: [{ text: s.label, dot: i }, all.map(w => `${w.name}${s.runs.length > 1 ? ` (seed ${w.seed})` : ""}: ${showOf(m)(w.value)}`).join(" · ")] };
    });
    root.append(el("h3", {}, `Worst clients, with ${whose}`), table([{ title: "series", word: true }, { title: `client and ${heading(m)}, ${lower ? "highest" : "lowest"} first`, word: true }], rows, "worst-clients"));
  },
});

section("byclass", "Classes: the global model by class", {
  nav: "Classes",
  has: () => DATA.series.some(s => s.runs.some(r => DATA.metrics.some(m => r.summary[`class_${m.name}`]))),
  hint: ["Metrics of the global model by class are computed where a recipe has more than accuracy: ", "--metrics accuracy,macro_f1", "."],
  async draw(root) {
    const m = metric(), scale = scaleOf(m), values = s => s.runs.map(r => r.summary[`class_${m.name}`]).filter(Boolean);
    const classes = [...new Set(DATA.series.flatMap(s => values(s).flatMap(v => Object.keys(v))))].sort(byNumber);
    if (DATA.metrics.length > 1) root.append(switches(metricSwitch()));
    root.append(el("p", { class: "about" }, `${capital(heading(m))} of the global model after the last round on the pooled test set, mean over seeds; error bars are standard deviations${scale === 100 ? ", cut at 0 and 100 %" : ""}. F1 and AUROC are of the class against the rest; other metrics are of the class's own samples.`));
    const ticks = distinct(classes.map(c => short(c, 18)));
    const traces = shown().filter(([s]) => values(s).length).map(([s, i]) => {
      const of = c => values(s).map(v => v[c]).filter(known), sets = classes.map(of), means = sets.map(v => v.length ? scale * mean(v) : null), points = classes.length > 30;
      return { type: points ? "scatter" : "bar", mode: points ? "markers" : undefined, name: s.label, x: ticks.map(plain), y: means, marker: { color: color(i), symbol: points ? SYMBOLS[i % SYMBOLS.length] : undefined },
        error_y: errorBars(means, sets.map(v => scale * deviation(v)), m), hovertemplate: `${plain(s.label)}<br>class %{x}: %{y:.4g}<extra></extra>` };
    });
    await figure(root, "by-class", traces, { height: 310, barmode: "group", xaxis: { title: "class", type: "category" }, yaxis: { title: heading(m) } }, `${capital(m.title)} by class`);
  },
});

const FACTORS = [["weight_similarity", "weight similarity", "classifier rows of classes c and k"], ["inter_class", "inter-class similarity", "prototypes of classes c and k"],
  ["intra_class", "intra-class similarity", "features of class c and prototype of k"], ["prototype_weight", "prototype–weight alignment", "prototype of c and classifier row of k"]];
section("factors", "Four factors: similarity of features and classifier rows", {
  nav: "Factors",
  has: () => DATA.series.some(s => s.runs.some(r => r.analysis?.factors)),
  hint: ["Matrices of weight similarity, inter- and intra-class similarity and prototype–weight alignment: ", "fedloom analyze RUN --what factors", "."],
  async draw(root, redraw) {
    const options = [["all", "all four"], ...FACTORS.map(f => [f[0], f[1]])], now = choose("factor", options, "all");
    root.append(switches(switcher("factor", "show", options, redraw, "all")));
    root.append(el("p", { class: "about" }, "Cosines of the global model's features and classifier rows; rows are classes c, columns are classes k. A prototype is the mean feature of a class. The number is the paper's factor (FedFN): the mean off the diagonal for the first two, of the diagonal for the others. The first two are better low, the others high."));
    const having = shown().map(([s, i]) => [s, i, s.runs.find(r => r.analysis?.factors)]).filter(h => h[2]);
    const grid = el("div", { class: now === "all" ? "grid" : "" });
    root.append(grid);
    for (const [key, title, what] of FACTORS.filter(f => now === "all" || f[0] === now)) {
      const inner = Math.max(200, (now === "all" && root.clientWidth > 900 ? root.clientWidth / 2 : root.clientWidth) - 130), least = narrow(root) ? 96 : 150, gap = { x: 30, y: narrow(root) ? 62 : 46 };
      const side = Math.min(panels(having.length, inner, least, 0, gap).width, 240), plan = panels(having.length, inner, least, side, gap);
      const layout = { annotations: [], margin: { l: 26, r: 64, t: narrow(root) ? 44 : 34, b: 22 }, height: plan.height + (narrow(root) ? 70 : 60) };
      const traces = having.map(([s, , run], k) => {
        const axis = k ? String(k + 1) : "", at = plan.domain(k), scalar = run.analysis.summary?.factors?.[key];
        const few = run.analysis.factors[key].length <= 12, name = classNames(run);
        layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, showgrid: false, zeroline: false, constrain: "domain", nticks: few ? 10 : 5, tickfont: { size: 10 } };
        layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, showgrid: false, zeroline: false, autorange: "reversed", scaleanchor: `x${axis}`, constrain: "domain", nticks: few ? 10 : 5, tickfont: { size: 10 } };
        layout.annotations.push({ text: plain(short(s.label, Math.floor(plan.width / 7.2) - (known(scalar) && !narrow(root) ? 6 : 0))) + (known(scalar) ? `${narrow(root) ? "<br>" : "  "}<b>${fixed(scalar, 2)}</b>` : ""), x: (at.x[0] + at.x[1]) / 2, y: at.y[1], xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", yshift: 3, showarrow: false, font: { color: css("--ink") } });
        return { type: "heatmap", name: s.label, z: run.analysis.factors[key].map(row => row.map(v => known(v) ? v / 100 : null)), xaxis: `x${axis}`, yaxis: `y${axis}`, zmin: -1, zmax: 1, colorscale: cosines(), showscale: k === 0,
          colorbar: colorbar("cosine", { x: 1.02, xpad: 4 }), text: run.analysis.factors[key].map((row, c) => row.map((_, other) => plain(`c = ${name(c)}, k = ${name(other)}`))), hovertemplate: `%{text}: %{z:.2f}<extra>${plain(s.label)}</extra>` };
      });
      await figure(grid, `factor-${key}`, traces, layout, `${capital(title)}: ${what}`);
    }
  },
});

section("inside", "Local training: classes, layers and dimensions", {
  nav: "Layers",
  has: () => DATA.series.some(s => s.runs.some(r => r.analysis?.layers || r.analysis?.spectrum || r.analysis?.summary?.refinement)),
  hint: ["Accuracy by class before and after local training, consistency of layers, singular values of features: ", "fedloom analyze RUN", "."],
  async draw(root) {
    const grid = el("div", { class: "grid" });
    root.append(el("p", { class: "about" }, "Of the global model and of clients' models after one more round of local training. Consistency is the mean cosine of a layer's weights, or outputs, between two clients and between a client and the global model; 1 is perfect. Singular values are of the features' covariance: the faster they fall, the fewer dimensions are used."), grid);
    const pick = name => shown().map(([s, i]) => [s, i, s.runs.map(r => r.analysis?.[name] ?? r.analysis?.summary?.[name]).find(Boolean), s.runs[0]]).filter(h => h[2]);
    const bars = list => seriesKey(list).map(k => ({ ...k, line: { ...k.line, dash: "solid", width: 4 } }));
    const classes = pick("refinement");
    if (classes.length) { // classes have no order: points, not lines
      const stages = [["start", "-open", "before local training"], ["local", "", "after local training"], ["refined", "-open-dot", "after refinement"]].filter(([k]) => classes.some(c => c[2][k]));
      const name = classNames(classes[0][3]);
      await figure(grid, "classes", classes.flatMap(([s, i, v]) => stages.filter(([k]) => v[k]).map(([k, form, text]) => ({ type: "scatter", mode: "markers", offsetgroup: String(i), marker: { size: 7, color: color(i), symbol: SYMBOLS[i % SYMBOLS.length] + form, line: { width: 1.4, color: color(i) } }, name: `${s.label}, ${text}`,
        x: v[k].map((_, c) => plain(short(name(c), 12))), y: v[k].map(a => known(a) ? 100 * a : null), hovertemplate: `${plain(s.label)}, ${text}<br>class %{x}: %{y:.1f} %<extra></extra>` }))),
        { height: 300, scattermode: "group", scattergap: .3, xaxis: { title: "class", type: "category", showgrid: false }, yaxis: { title: "accuracy in %, mean over clients", range: [-4, 104] } }, "Accuracy by class before and after local training",
        [...seriesKey(classes.map(([s, i]) => [s, i]), "markers"), ...stages.map(([, form, text]) => ({ name: text, mode: "markers", marker: { size: 9, color: css("--soft"), symbol: `circle${form}`, line: { width: 1.4, color: css("--soft") } } }))]);
    }
    const spectrum = pick("spectrum");
    const top = Math.log10(Math.max(1e-9, ...spectrum.flatMap(([, , v]) => Object.values(v).flat().filter(known))));
    if (spectrum.length) await figure(grid, "spectrum", spectrum.flatMap(([s, i, v]) => [["global", "solid"], ["local", "dash"]].filter(([k]) => v[k]).map(([k, stroke]) => ({ type: "scatter", mode: "lines", name: `${s.label}, ${k}`, x: range(v[k].length).map(n => n + 1), y: v[k],
      line: { color: color(i), width: 1.8, dash: stroke }, hovertemplate: `${plain(s.label)}, ${k}<br>value %{x}: %{y:.3g}<extra></extra>` }))),
      { height: 300, xaxis: { title: "index, largest first" }, yaxis: { title: "singular value", type: "log", exponentformat: "power", nticks: 6, range: [top - 6, top + .3] } }, "Singular values of the features' covariance",
      [...bars(spectrum), ...styleKey([["global model", "solid"], ["local models, mean", "dash"]])]);
    const layers = pick("layers");
    for (const [what, title] of [["weight", "Weight consistency by layer"], ["activation", "Activation consistency by layer"]]) {
      if (!layers.some(l => l[2][`${what}_clients`].some(known))) continue;
      await figure(grid, `layers-${what}`, layers.flatMap(([s, i, v]) => [["clients", "solid"], ["global", "dash"]].filter(([k]) => v[`${what}_${k}`].some(known)).map(([k, stroke]) => ({ type: "scatter", mode: "lines+markers", marker: { size: 5 }, name: `${s.label}, ${k}`, x: distinct(v.layer.map(l => short(l, 16))).map(plain), y: v[`${what}_${k}`],
        line: { color: color(i), width: 1.8, dash: stroke }, hovertemplate: `${plain(s.label)}, ${k}<br>%{x}: %{y:.3g}<extra></extra>` }))),
        { height: 310, margin: { l: 52, r: 16, t: 14, b: 80 }, xaxis: { tickangle: -40, title: "layer, from input to output", type: "category" }, yaxis: { title: "mean cosine" } }, title,
        [...bars(layers), ...styleKey([["between clients", "solid"], ["to the global model", "dash"]])]);
    }
  },
});

section("embedding", "Features in two dimensions", {
  nav: "Embedding",
  has: () => DATA.series.some(s => s.runs.some(r => r.analysis?.embedding)),
  hint: ["Embeddings of features by class and by client: ", "fedloom analyze RUN --what embedding", "."],
  async draw(root, redraw) {
    const having = shown().map(([s, i]) => [s, i, s.runs.map(r => r.analysis?.embedding).find(Boolean), s.runs[0]]).filter(h => h[2]);
    if (!having.length) return;
    const stages = [["global", "global model"], ["local", "local models"]].filter(([k]) => having.some(h => h[2].stage.includes(k))), stage = choose("stage", stages);
    const bys = [["class", "class"], ...(stage === "local" ? [["client", "client"]] : [["holder", "client that has the sample"]])], by = choose("by", bys, "class");
    root.append(switches(switcher("stage", "of the", stages, redraw), switcher("by", "colored by", bys, redraw, "class")));
    const kind = having[0][2].kind[0], values = [...new Set(having.flatMap(h => range(h[2].x.length).filter(n => h[2].stage[n] === stage).map(n => h[2][by][n])))].filter(v => v !== null).sort((a, b) => a - b);
    root.append(el("p", { class: "about" }, `${kind === "tsne" ? "t-SNE" : kind.toUpperCase()} of features of test samples; distances between distant groups mean little.`
      + (values.length > LISTED ? ` The legend lists the first ${LISTED} of ${values.length}; hover over a point for its ${by === "class" ? "class" : "client"}.` : "")));
    const plan = panels(having.length, over(root), narrow(root) ? 130 : 240, narrow(root) ? 150 : 250, { x: 16, y: 40 }), traces = [], layout = { height: plan.height + 60, annotations: [], margin: { l: 10, r: 10, t: 34, b: 12 } };
    const name = classNames(having[0][3]), called = v => by === "class" ? (name(v) === String(v) ? `class ${v}` : name(v)) : clientName(having[0][3])(v);
    having.forEach(([s, , points, run], k) => {
      const client = clientName(run), axis = k ? String(k + 1) : "", at = plan.domain(k), bare = { showgrid: false, zeroline: false, showticklabels: false, ticks: "" };
      layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, ...bare, mirror: true, showline: true };
      layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, ...bare, mirror: true, showline: true };
      layout.annotations.push({ text: plain(short(s.label, Math.floor(plan.width / 7.5))), x: at.x[0], y: at.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", yshift: 3, showarrow: false, font: { color: css("--ink") } });
      for (const v of [...values, null]) { // a trace for each class or client, with its color and symbol
        const place = values.indexOf(v), keep = range(points.x.length).filter(n => points.stage[n] === stage && points[by][n] === v);
        if (!keep.length) continue;
        traces.push({ type: "scatter", mode: "markers", name: v === null ? "of no client" : called(v), showlegend: false, xaxis: `x${axis}`, yaxis: `y${axis}`, x: keep.map(n => points.x[n]), y: keep.map(n => points.y[n]),
          marker: { size: 5.5, opacity: .85, color: v === null ? css("--soft") : keyColor(place), symbol: v === null ? "circle-open" : SYMBOLS[place % SYMBOLS.length] },
          text: keep.map(n => plain(`${name(points.class[n]) === String(points.class[n]) ? "class " : ""}${name(points.class[n])}${points.client[n] !== null ? `, ${client(points.client[n])}` : points.holder[n] !== null ? `, of ${client(points.holder[n])}` : ""}`)), hovertemplate: `%{text}<extra>${plain(s.label)}</extra>` });
      }
    });
    const key = values.slice(0, LISTED).map((v, place) => ({ name: called(v), mode: "markers", marker: { size: 8, color: keyColor(place), symbol: SYMBOLS[place % SYMBOLS.length] } }));
    await figure(root, "embedding", traces, layout, `Test samples, colored by ${by === "class" ? "class" : "client"}`, key);
  },
});
