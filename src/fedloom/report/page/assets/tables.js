// Recipes, results, published numbers, cost.
function table(columns, rows, id) { // columns: {title, brief (on a phone), word, help}; rows: {cells: [node | text | {text, best, note, dot}], class}
  const shape = columns.length > 2 ? "stack" : "few"; // on a phone, a row of a wide table becomes a list of names and values
  return el("div", { class: "card scroll" }, el("table", { id, class: shape },
    el("thead", {}, el("tr", {}, columns.map(c => el("th", { class: c.word ? "word" : undefined, scope: "col", title: c.help }, c.title)))),
    el("tbody", {}, rows.map(row => el("tr", { class: row.class }, row.cells.map((cell, i) => {
      const made = cell instanceof Node || typeof cell === "string" ? { text: cell } : cell;
      const names = [columns[i].word ? "word" : "", made.best ? "best" : "", made.text === "" || made.text === "–" ? "none" : ""].filter(Boolean).join(" ");
      return el("td", { class: names || undefined, "data-value": made.value, title: made.help, "data-title": columns[i].brief || columns[i].title },
        el("span", {}, made.dot !== undefined ? el("i", { class: "dot", style: `background:${color(made.dot)}` }) : null, made.text,
          made.note ? el("small", {}, ` ${made.note}`) : null));
    }))))));
}
const last = (run, name) => { // the newest known value of a curve: that of the summary once a run is finished
  const values = run.curves[name] || [];
  for (let i = values.length - 1; i >= 0; i--) if (known(values[i])) return values[i];
  return null;
};
const total = (run, name) => run.curves[name].length ? run.curves[name].at(-1) : null;
const perRound = (run, name) => run.done ? total(run, name) / run.done : null;
function summaryValue(run, name, m = metric()) {
  const s = run.summary, of = kind => s[`${kind}_${m.name}`];
  if (name === "global") return known(of("test")) ? of("test") : last(run, `test_${m.name}`);
  if (name === "clients") return of("client") ? of("client").mean : last(run, `client_${m.name}`);
  if (name === "own") return of("personal") ? of("personal").mean : last(run, `personal_${m.name}`);
  if (name === "worst clients") return (of("client") || {}).worst;
  if (name === "worst own") return (of("personal") || {}).worst;
  if (name === "clean") return of("clean_test");
  if (name === "validated") return s.best_by_validation ? s.best_by_validation[`test_${m.name}`] : undefined;
  if (name.startsWith("tuned ")) {
    const tuning = (run.tuned || []).find(t => t.column === name);
    return tuning?.[`personal_${m.name}`]?.mean;
  }
  if (name.startsWith("domain ")) return (of("domain") || {})[name.slice(7)];
}
const undefinedClients = (run, name, m = metric()) => (run.summary[`${name === "own" ? "personal" : "client"}_${m.name}`] || {}).undefined || 0;

section("overview", "What was run", {
  nav: "Overview",
  has: () => true,
  draw(root) {
    const shared = Object.fromEntries(DATA.recipe.shared.map(r => [r.field, r.value]));
    const runs = DATA.series.flatMap(s => s.runs), going = runs.filter(r => !r.finished).length;
    const facts = [[String(runs.length), runs.length === 1 ? "run" : "runs"], [String(DATA.series.length), DATA.series.length === 1 ? "series of seeds" : "series"]];
    for (const [field, text] of [["data.name", "data"], ["split", "split"], ["clients", "clients"], ["model", "model"], ["rounds", "rounds"], ["fraction", "share of clients per round"]])
      if (shared[field]) facts.push([shared[field], text]);
    if (going) facts.push([String(going), "not finished"]);
    root.append(el("div", { class: "facts" }, facts.map(([value, text]) => el("div", { class: "fact" }, el("b", {}, value), el("span", {}, text)))));
    for (const o of DATA.origins || []) root.append(el("p", { class: "about" }, `Run on ${o.machine}, with ${o.versions}${DATA.origins.length > 1 ? ` (${o.series.join("; ")})` : ""}.`));
    const apart = DATA.recipe.apart;
    if (apart.length) {
      root.append(el("p", { class: "about" }, "Where the recipes differ:"));
      root.append(table([{ title: "series", word: true }, ...apart.map(a => ({ title: a.field, word: a.field === "method" })), { title: "seeds" }],
        DATA.series.map((s, i) => ({ cells: [{ text: s.label, dot: i }, ...apart.map(a => a.values[i]), s.runs.map(r => r.seed).join(", ")] })), "differences"));
    } else root.append(el("p", { class: "about" }, `All runs have the same recipe; seeds ${runs.map(r => r.seed).join(", ")}.`));
    root.append(el("details", {}, el("summary", {}, "Fields that all recipes share"),
      table([{ title: "field", word: true }, { title: "value", word: true }], DATA.recipe.shared.map(r => ({ cells: [r.field, r.value] })), "shared")));
    root.append(el("details", { open: going ? "" : undefined }, el("summary", {}, "Folders"),
      table([{ title: "folder", word: true }, { title: "series", word: true }, { title: "seed" }, { title: "state" }, { title: "weights" }],
        DATA.series.flatMap((s, i) => s.runs.map(r => ({ cells: [el("code", {}, r.path), { text: s.label, dot: i }, String(r.seed),
          r.finished ? "finished" : `round ${r.done} of ${r.rounds}`, r.summary.digest ? el("code", {}, r.summary.digest.slice(0, 12)) : "–"] }))), "folders")));
  },
});

section("results", "Results after the last round", {
  nav: "Results",
  has: () => DATA.series.some(s => s.runs.some(r => DATA.metrics.some(m => known(summaryValue(r, "global", m))))),
  hint: ["No round was evaluated yet; the result table appears after the first evaluation (", "--eval-every 1", ")."],
  draw(root, redraw) {
    const runs = DATA.series.flatMap(s => s.runs), m = metric();
    if (DATA.metrics.length > 1) root.append(switches(metricSwitch()));
    const tuned = [...new Set(runs.flatMap(r => (r.tuned || []).map(t => t.column)))].sort();
    const domains = [...new Set(runs.flatMap(r => Object.keys(r.summary[`domain_${m.name}`] || {})))];
    const columns = [
      ["global", "global", "the global model on the pooled test set, after the last round"],
      ["clean", "clean", "the same on unshifted test samples"],
      ["validated", "best by validation", `test ${m.title} of the round that was best on held-out validation samples${DATA.metrics.length > 1 ? " by the headline metric" : ""}`],
      ["clients", "clients", "the global model on each client's own test samples, mean over clients"],
      ["own", "own models", "each client's own model on its own test samples, mean over clients"],
      ["worst clients", "clients, worst", `the global model on the client's own test samples where its ${m.title} is ${m.better === "lower" ? "highest" : "lowest"}`],
      ["worst own", "own models, worst", `the ${m.better === "lower" ? "highest" : "lowest"} ${m.title} of any client's own model on its own test samples`],
      ...tuned.map(t => [t, t, "after fine-tuning on each client's own data, mean over clients"]),
      ...domains.map(d => [`domain ${d}`, d, `the global model on the test samples of ${d}`]),
    ].filter(([name]) => runs.some(r => known(summaryValue(r, name))));
    const values = (s, name) => s.runs.map(r => summaryValue(r, name)).filter(known);
    const bold = (DATA.bold.of[m.name] || {});
    const lost = runs.some(r => (r.summary.lost || 0) > 0);
    const privacy = runs.some(r => known(r.summary.epsilon));
    const rows = DATA.series.map((s, i) => ({ cells: [
      { text: s.label, dot: i, note: s.runs.every(r => r.finished) ? "" : "still running" },
      String(s.runs.length),
      ...columns.map(([name]) => {
        const found = values(s, name);
        const untrained = ["global", "clients"].includes(name) && s.runs.some(r => r.summary.shared === 0 && r.summary.personal > 0);
        const lacking = ["clients", "own"].includes(name) ? s.runs.reduce((a, r) => a + undefinedClients(r, name), 0) : 0;
        return { text: spread(found, showOf(m)), note: [untrained ? "initial model" : "", lacking ? `${lacking} undefined` : ""].filter(Boolean).join(", "), value: found.length ? mean(found) : undefined, best: (bold[name] || []).includes(i) };
      }),
      spread(s.runs.map(r => perRound(r, "seconds")), v => fixed(v, v < 1 ? 3 : 2)),
      spread(s.runs.map(r => perRound(r, "bytes")).slice(0, 1), v => fixed(v / 1e6, 2)),
      ...(privacy ? [spread(s.runs.map(r => r.summary.epsilon).slice(0, 1), v => v.toPrecision(3))] : []),
      ...(lost ? [String(s.runs.reduce((a, r) => a + (r.summary.lost || 0), 0))] : []),
    ] }));
    const seeds = Math.max(...DATA.series.map(s => s.runs.length));
    root.append(el("p", { class: "about" }, `${capital(heading(m))}${seeds > 1 ? ", mean ± standard deviation over seeds" : ", one seed: differences of a few points may be chance"}, after the last round. ${DATA.bold.said[m.name] || ""}`
      + (runs.some(r => (r.summary.site_means || []).includes(m.name)) ? " Only sites have test data: global is the mean over sites, weighted by their test samples." : "")));
    root.append(table([{ title: "series", word: true }, { title: "seeds" }, ...columns.map(c => ({ title: c[1], help: c[2] })), { title: "s / round" }, { title: "MB / round" },
      ...(privacy ? [{ title: "ε", help: "privacy spent per client, at the delta of the recipe" }] : []), ...(lost ? [{ title: "lost uploads" }] : [])], rows, "result-table"));
    root.append(el("details", {}, el("summary", {}, "What the columns mean"),
      el("p", { class: "about" }, columns.map(c => `${c[1]}: ${c[2]}`).join("; ") + ". Seconds are training time without evaluation; MB are down and up together.")));
    return besideBest(root, redraw, m, columns);
  },
});

// Every series beside the best one: intervals, differences and the test that decides which numbers are bold.
async function besideBest(root, redraw, m, columns) {
  const there = DATA.bold.beside[m.name] || {}, options = columns.filter(([name]) => there[name]).map(c => [c[0], c[1]]);
  if (!options.length) return;
  const now = choose("beside", options, "global"), rows = there[now], scale = scaleOf(m), show = showOf(m), [low, high] = limits(m);
  const bounded = v => Math.min(high, Math.max(low, scale * v)), between = (pair, text) => pair ? `${text(pair[0])} to ${text(pair[1])}` : "–";
  const signed = v => `${v > 0 ? "+" : ""}${show(v)}`, pText = p => p < .001 ? "< 0.001" : p < .1 ? p.toPrecision(2) : fixed(p, 2);
  const best = rows.find(r => r.best), unit = scale === 100 ? "points" : m.title, title = options.find(o => o[0] === now)[1];
  root.append(el("h3", {}, `Beside the best: ${DATA.series[best.series].label}`));
  if (options.length > 1) root.append(switches(switcher("beside", "of", options, redraw, "global")));
  root.append(el("p", { class: "about" }, `${capital(heading(m))}, ${title}: mean over seeds with its 95 % confidence interval (Student's t), and the difference from the best on the seeds that both have. p is of a two-sided paired t-test, with Holm's correction for the number of series; the intervals of differences are not corrected.`
    + (rows.some(r => r.seeds < 5) ? " With fewer than five seeds only large and steady differences are significant." : "")));
  const verdict = r => r.best ? "best" : !known(r.difference) ? "no common seeds" : r.equal ? "equal on every seed" : !r.tested ? "not tested" : r.close ? "not significant" : "significantly worse";
  root.append(table([{ title: "series", word: true }, { title: "seeds" }, { title: "mean" }, { title: "95 % interval" }, { title: `difference, ${unit}` }, { title: "95 % interval of it" }, { title: "p (Holm)" }, { title: "verdict", word: true }],
    rows.map(r => ({ cells: [{ text: DATA.series[r.series].label, dot: r.series }, String(r.seeds), show(r.mean), between(r.interval, v => show(bounded(v) / scale)), known(r.difference) ? signed(r.difference) : "–", between(r.difference_interval, signed), known(r.p) ? pText(r.p) : "–", verdict(r)] })), "beside-table"));
  const visible = rows.filter(r => r.interval && !HIDDEN.has(DATA.series[r.series].label)), ticks = distinct(visible.map(r => short(DATA.series[r.series].label, root.clientWidth < 640 ? 16 : 38)));
  await figure(root, "intervals", visible.map((r, k) => ({ type: "scatter", mode: "markers", name: DATA.series[r.series].label, showlegend: false, x: [scale * r.mean], y: [plain(ticks[k])], marker: { color: color(r.series), symbol: SYMBOLS[r.series % SYMBOLS.length], size: 10 },
    error_x: { type: "data", symmetric: false, array: [bounded(r.interval[1]) - scale * r.mean], arrayminus: [scale * r.mean - bounded(r.interval[0])], color: color(r.series), thickness: 2, width: 5 }, hovertemplate: "%{x:.4g}<extra></extra>" })),
    { height: 90 + 34 * visible.length, margin: { l: 20, r: 16, t: 10, b: 44 }, xaxis: { title: `${title} ${heading(m)}` }, yaxis: { autorange: "reversed", type: "category" } }, `${capital(title)} ${m.title}: mean and 95 % interval over seeds`);
}

// Tables of `fedloom reproduce`; without any, the page has no such section.
if ((DATA.reproduced || []).length) section("reproduced", "Reproduced tables", {
  nav: "Reproduced",
  has: () => DATA.reproduced.length > 0,
  hint: ["", "", ""],
  draw(root) {
    root.append(el("p", { class: "about" }, "In the layout of the papers: published, ours, and the difference."));
    DATA.reproduced.forEach((t, i) => {
      root.append(el("h3", {}, t.title));
      t.blocks.forEach((b, k) => root.append(table(b.columns.map((c, n) => ({ title: c, word: n === 0 })),
        b.rows.map(r => ({ class: r[0].endsWith(", published") ? "published" : undefined, cells: r })), `reproduced-${i}-${k}`)));
      for (const note of t.notes) root.append(el("p", { class: "about" }, note));
    });
  },
});

section("published", "Published numbers of the same setting", {
  nav: "Published",
  has: () => DATA.published.length > 0,
  hint: ["No paper's number for the same data set, net, split and method is stored. ", "", ""],
  draw(root) {
    root.append(el("p", { class: "about" }, "From the papers' tables, not run here. Data set, net, split and method agree; learning rate, epochs, rounds and other settings may differ. "
      + "Our value of the same measure and the differences stand beside each number. “Best of n” is the highest of n settings of a table, none of which is ours."));
    const rows = [];
    DATA.series.forEach((s, i) => {
      const found = DATA.published.filter(p => p.series === i);
      if (!found.length) return;
      const rec = r => DATA.recipe.shared.find(x => x.field === r)?.value ?? DATA.recipe.apart.find(a => a.field === r)?.values[i];
      const going = s.runs.filter(r => !r.finished).length, always = found[0].differs.filter(d => found.every(p => p.differs.includes(d)));
      const below = text => el("small", { style: "display:block" }, text), differs = (all, where = "") => all.length ? below(`Ours differs${where}: ${all.join(", ")}.`) : null;
      rows.push({ cells: [{ text: s.label, dot: i }, "ours", "", "", "", el("span", {}, [`${rec("rounds")} rounds; ${rec("clients")} clients, ${rec("fraction")} per round; lr=${rec("lr")}; epochs=${rec("epochs")}`,
        `${s.runs.length === 1 ? "seed" : "seeds"} ${s.runs.map(r => r.seed).join(", ")}`, going ? "still running" : ""].filter(Boolean).join("; "), differs(always, found.length > 1 ? " from all rows below" : ""))] });
      for (const p of found) rows.push({ class: "published", cells: [el("span", {}, el("span", { class: "tag" }, "published"), ` ${p.method}`), `${p.paper}, ${p.table}`, p.measure,
        { text: fixed(p.value, 2) + (known(p.deviation) ? ` ± ${fixed(p.deviation, 2)}` : ""), value: p.value / 100 },
        p.ours.length ? { text: spread(p.ours), value: mean(p.ours), note: p.ours.length < s.runs.length ? `(${p.ours.length} of ${s.runs.length} seeds)` : "" } : "not measured",
        el("span", {}, [p.setting, p.best_of > 1 ? `best of ${p.best_of} settings` : "", p.flag ? `note: ${p.flag}` : ""].filter(Boolean).join("; "),
          differs(p.differs.filter(d => !always.includes(d))), p.lacking ? below(`Ours: ${p.lacking}.`) : null)] });
    });
    root.append(table([{ title: "method", word: true }, { title: "source" }, { title: "accuracy of", word: true }, { title: "published %" }, { title: "ours %" }, { title: "setting, notes and what differs", brief: "notes", word: true }], rows, "published-table"));
    root.append(el("details", { open: "" }, el("summary", {}, "How the papers trained and evaluated"), Object.entries(DATA.protocols).map(([paper, text]) => el("p", { class: "about" }, el("b", {}, `${paper}: `), text))));
  },
});

// Time by activity: means over a series' finished runs.
function spentTable(root) {
  const phases = [["compute", "training on clients and on the server"], ["data", "preparing batches"], ["communication", "copies, pipes, client state, and workers that wait for the slowest one"],
    ["aggregation", "checking and aggregating uploads"], ["evaluation", "evaluation of models"], ["checkpoint", "writing checkpoints"], ["other", "the rest of the rounds"]];
  const rows = DATA.series.map((s, i) => [s.runs.map(r => r.summary.seconds_by).filter(Boolean), s, i]).filter(([found]) => found.length).map(([found, s, i]) => {
    const spent = phases.map(([name]) => mean(found.map(f => f[name]))), whole = spent.reduce((a, b) => a + b, 0);
    return { cells: [{ text: s.label, dot: i }, duration(whole), ...spent.map(v => whole ? fixed(100 * v / whole, 1) : "–")] };
  });
  if (!rows.length) return;
  root.append(el("p", { class: "about" }, "Where the time of finished runs went, in % of the total, including evaluation and checkpoints; mean over seeds."));
  root.append(table([{ title: "series", word: true }, { title: "total time" }, ...phases.map(([name, help]) => ({ title: name, help }))], rows, "spent-table"));
}

section("cost", "Cost: time and traffic", {
  nav: "Cost",
  has: () => DATA.series.some(s => s.runs.some(r => r.done)),
  hint: ["No round is done yet.", "", ""],
  async draw(root, redraw) {
    const m = metric(), name = `test_${m.name}`, lower = m.better === "lower", scale = scaleOf(m), percents = scale === 100;
    const bests = DATA.series.flatMap(s => s.runs.map(r => bestOf(m, (r.curves[name] || []).filter(known)))).filter(known);
    const least = bests.length ? scale * (lower ? Math.max(...bests) : Math.min(...bests)) : null; // what every run reaches
    const near = least === null ? 50 : lower ? 1.05 * least : .95 * least, fallback = percents && !lower ? Math.floor(near) : +near.toPrecision(3);
    const key = `target ${m.name}`, target = CHOICE[key] ?? fallback;
    const limited = v => percents ? Math.min(100, Math.max(lower ? 0 : 1, v)) : v;
    root.append(switches(metricSwitch(), el("label", { class: "switch" }, `target ${heading(m)}`, el("input", { type: "number", min: percents ? 0 : undefined, max: percents ? 100 : undefined, step: percents && !lower ? 1 : "any", value: target, "data-switch": "target",
      onchange: e => { CHOICE[key] = limited(+e.target.value || fallback); redraw(); } }))));
    const reached = run => { // the first evaluated round at or beyond the target
      const at = (run.curves[name] || []).findIndex(v => known(v) && (lower ? scale * v <= target : scale * v >= target));
      return at < 0 ? null : { round: run.curves.round[at], seconds: run.curves.seconds[at], bytes: run.curves.bytes[at] };
    };
    const scalar = (s, name) => s.runs.map(r => r.analysis?.summary?.cost?.[name]).filter(known);
    const extra = [["kappa", "κ (per second)", "final accuracy · 10⁴ / seconds of training"], ["rho", "ρ (per MB)", "final accuracy · 10⁴ / MB sent, down and up"]].filter(([n]) => DATA.series.some(s => scalar(s, n).length));
    const rows = DATA.series.map((s, i) => {
      const hits = s.runs.map(reached), found = hits.filter(Boolean), missing = hits.length - found.length;
      const cell = (name, show) => found.length ? { text: show(mean(found.map(h => h[name]))), note: missing ? `(${missing} of ${hits.length} never)` : "" } : "never";
      const totals = name => mean(s.runs.map(r => total(r, name)).filter(known));
      return { cells: [{ text: s.label, dot: i }, duration(totals("seconds")), size(totals("bytes")), cell("round", v => fixed(v, Number.isInteger(v) ? 0 : 1)), cell("seconds", duration), cell("bytes", size),
        ...extra.map(([n]) => scalar(s, n).length ? String(+mean(scalar(s, n)).toPrecision(3)) : "–")] };
    });
    root.append(table([{ title: "series", word: true }, { title: "total training time" }, { title: "total traffic" }, { title: `round that reached ${target}${percents ? " %" : ""}` }, { title: "time to it" }, { title: "traffic to it" },
      ...extra.map(([, t, h]) => ({ title: t, help: h }))], rows, "cost-table"));
    if (extra.length) root.append(el("p", { class: "about" }, `${extra.map(([, t, h]) => `${t.charAt(0)} = ${h}`).join("; ")}, with accuracy between 0 and 1. Higher is cheaper. FNR-FL defines them (its Table 4) without units; seconds and 10⁶ bytes are used here. Mean over the analyzed runs of a series.`));
    spentTable(root);
    const points = (name, scale) => shown().map(([s, i]) => ({ type: "scatter", mode: "markers", name: s.label, x: s.runs.map(r => (total(r, name) || 0) / scale), y: s.runs.map(r => scaleOf(m) * (summaryValue(r, "global") ?? NaN)),
      marker: { color: color(i), symbol: SYMBOLS[i % SYMBOLS.length], size: 10, line: { width: 1, color: css("--card") } }, hovertemplate: `${plain(s.label)}<br>%{x:.4g}<br>${percents ? "%{y:.1f} %" : "%{y:.4g}"}<extra></extra>` }));
    const grid = el("div", { class: "grid" });
    root.append(grid);
    await figure(grid, "cost-seconds", points("seconds", 1), { height: 300, xaxis: { title: "seconds of training", rangemode: "tozero" }, yaxis: { title: heading(m) } }, `Final ${m.title} against training time, a point per seed`);
    await figure(grid, "cost-bytes", points("bytes", 1e6), { height: 300, xaxis: { title: "MB sent, down and up", rangemode: "tozero" }, yaxis: { title: heading(m) } }, `Final ${m.title} against traffic, a point per seed`);
  },
});
