// Tunings: every trial over its rate, parallel coordinates of several tuned values, the budget that was spent.
const STATES = [["finished", "circle"], ["stopped early", "circle-open"], ["running", "diamond-open"], ["diverged", "x"]];
const settingText = v => typeof v === "number" ? String(+v.toPrecision(3)) : String(v);
const pairs = values => Object.entries(values).map(([name, v]) => `${name}=${settingText(v)}`).join(", ");

const methodColor = (x, k) => { const place = DATA.series.findIndex(s => s.label === x.method); return color(place < 0 ? k : place); }; // as in the other figures

async function tuningPanels(root, tuning, id) { // one panel per method: validation value over its rate, or over its first tuned value
  const m = tuning.metric, scale = scaleOf(m), methods = tuning.methods.filter(x => x.ranges.length && x.trials.length);
  if (!methods.length) return;
  const all = methods.flatMap(x => x.trials.map(t => t.value)).filter(known).map(v => scale * v);
  const low = all.length ? Math.min(...all) : 0, high = all.length ? Math.max(...all) : 1, pad = Math.max((high - low) * .08, 1e-6), floor = m.better === "lower" ? high + pad : low - pad;
  const plan = panels(methods.length, over(root), 260, 210, { x: 40, y: 78 }), traces = [], layout = { height: plan.height + 90, annotations: [], margin: { l: 56, r: 16, t: 30, b: 56 } }, listed = new Set();
  methods.forEach((x, k) => {
    const axis = k ? String(k + 1) : "", at = plan.domain(k), range = x.ranges.find(r => r.name === "lr") || x.ranges[0];
    for (const [state, symbol] of STATES) {
      const trials = x.trials.filter(t => t.state === state);
      if (trials.length) traces.push({ type: "scatter", mode: "markers", name: state, showlegend: !listed.has(state) && !!listed.add(state), x: trials.map(t => t.values[range.name]), y: trials.map(t => known(t.value) ? scale * t.value : floor), xaxis: `x${axis}`, yaxis: `y${axis}`,
        marker: { symbol, size: 9, color: state === "diverged" ? css("--warn") : methodColor(x, k), line: { width: 1.5, color: state === "diverged" ? css("--warn") : methodColor(x, k) } },
        text: trials.map(t => plain(`trial ${t.trial}, ${t.state}${t.state === "diverged" ? "" : ` after ${t.done} rounds`}<br>`).replace("&lt;br&gt;", "<br>") + plain(pairs(t.values))), hovertemplate: `%{text}<br>${plain(m.title)} %{y:.4g}<extra>${plain(x.method)}</extra>` });
    }
    if (x.chosen) traces.push({ type: "scatter", mode: "markers", name: "chosen", showlegend: !listed.has("chosen") && !!listed.add("chosen"), hoverinfo: "skip", x: [x.chosen[range.name]], y: [scale * x.value], xaxis: `x${axis}`, yaxis: `y${axis}`, marker: { symbol: "circle-open", size: 18, color: css("--ink"), line: { width: 2 } } });
    layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, type: range.log ? "log" : undefined, title: plain(range.name === "lr" ? "learning rate (lr)" : range.name), nticks: 6, dtick: range.log ? (Math.log10(range.high / range.low) > 1.5 ? 1 : "D2") : undefined,
      range: known(range.low) ? (range.log ? [Math.log10(range.low) - .12, Math.log10(range.high) + .12] : undefined) : undefined };
    layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, range: [Math.min(low, floor) - pad, Math.max(high, floor) + pad], title: k % plan.columns ? undefined : `validation ${heading(m)}` };
    layout.annotations.push({ text: plain(short(x.method, 40)), x: at.x[0], y: at.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { color: css("--ink") } });
  });
  const rates = methods.every(x => x.ranges.some(r => r.name === "lr"));
  await figure(root, `tuning-${id}`, traces, layout, `Every trial: validation ${m.title} over its ${rates ? "learning rate" : "first tuned value"}`);
}
function coordinate(name, raw, r, show = settingText) { // an axis from 0 to 1: where each value lies, and its ticks
  if (!raw.every(v => typeof v === "number")) {
    const words = [...new Set(raw.map(String))], at = k => words.length > 1 ? k / (words.length - 1) : .5;
    return { name, at: raw.map(v => at(words.indexOf(String(v)))), ticks: words.map((w, k) => [at(k), w]) };
  }
  const map = r?.log ? Math.log10 : v => v, ends = known(r?.low) ? [r.low, r.high] : [Math.min(...raw), Math.max(...raw)];
  const [low, high] = ends.map(map), length = high - low || 1, at = v => (map(v) - low) / length;
  const inside = r?.log ? range(25).flatMap(e => [10 ** (e - 12), 3 * 10 ** (e - 12)]).filter(v => at(v) > .08 && at(v) < .92) : [.25, .5, .75].map(s => low + s * length);
  return { name, at: raw.map(at), ticks: [ends[0], ...inside, ends[1]].map(v => [at(v), show(v)]) };
}
async function tuningCoordinates(root, tuning, x, id) { // several tuned values: a line per trial, over parallel axes
  const m = tuning.metric, scale = scaleOf(m), trials = x.trials.filter(t => known(t.value));
  if (x.ranges.length < 2 || trials.length < 2) return;
  const values = trials.map(t => scale * t.value), low = Math.min(...values), high = Math.max(...values);
  const axes = [...x.ranges.map(r => coordinate(r.name, trials.map(t => t.values[r.name]), r)), coordinate(`validation ${heading(m)}`, values, undefined, v => v.toPrecision(3))];
  const good = k => high > low ? (m.better === "lower" ? high - values[k] : values[k] - low) / (high - low) : 1;
  const traces = trials.map((t, k) => ({ type: "scatter", mode: "lines+markers", name: `trial ${t.trial}`, showlegend: false, x: axes.map((_, i) => i), y: axes.map(a => a.at[k]),
    line: { color: faded(methodColor(x, +id.split("-")[1]), .15 + .85 * good(k) ** 2), width: 1 + 1.6 * good(k), dash: t.state === "finished" ? "solid" : "dot" }, marker: { size: 4 },
    hovertemplate: `trial ${t.trial}, ${t.state}<br>${plain(pairs(t.values))}<br>${plain(m.title)} ${settingText(values[k])}<extra></extra>` }));
  const label = (text, at, y, more) => ({ text: plain(text), x: at, y, showarrow: false, font: { size: 11, color: css("--soft") }, bgcolor: css("--card"), borderpad: 1, opacity: .85, ...more });
  await figure(root, `tuning-coordinates-${id}`, traces, { height: 320, margin: { l: 60, r: 60, t: narrow(root) ? 50 : 34, b: 18 }, shapes: axes.map((_, i) => ({ type: "line", x0: i, x1: i, y0: 0, y1: 1, line: { color: css("--line"), width: 1.5 } })),
    annotations: axes.flatMap((a, i) => [label(a.name, i, 1, { yanchor: "bottom", yshift: 10, font: { size: 12.5, color: css("--ink") }, ...(i === axes.length - 1 ? { xanchor: "right", xshift: 55 } : i ? {} : { xanchor: "left", xshift: -45 }), ...(narrow(root) ? { text: plain(a.name).replace(/ /, "<br>") } : {}) }), ...a.ticks.map(([y, text]) => label(text, i, y, { xanchor: "right", xshift: -5 }))]),
    xaxis: { visible: false, range: [-.15, axes.length - .85], fixedrange: true }, yaxis: { visible: false, range: [-.04, 1.06], fixedrange: true } }, `${x.method}: a line per trial; darker is better, dotted stopped early`);
}

section("tuning", "Tuning", {
  has: () => (DATA.tunings || []).length > 0,
  nav: "Tuning",
  hint: ["", "", ""], // without a tuning, the page has no such section
  async draw(root, redraw) {
    const options = DATA.tunings.map((t, i) => [i, t.path]), now = choose("tuning", options, 0), tuning = DATA.tunings[now], m = tuning.metric, show = showOf(m);
    if (options.length > 1) root.append(switches(switcher("tuning", "tuning", options, redraw, 0)));
    const trials = tuning.methods.flatMap(x => x.trials), count = state => trials.filter(t => t.state === state).length;
    const facts = [[tuning.budget, "budget"], [String(trials.length), "trials"], [String(count("stopped early")), "stopped early"], [String(count("diverged")), "diverged"],
      [String(tuning.methods.reduce((a, x) => a + x.rounds, 0)), "rounds"], [duration(tuning.methods.reduce((a, x) => a + x.seconds, 0)), "of training"]];
    if (tuning.samples) facts.push([String(tuning.samples), "validation samples"]);
    if (!tuning.finished) facts.push([String(count("running")), "not finished"]);
    root.append(el("div", { class: "facts" }, facts.map(([value, text]) => el("div", { class: "fact" }, el("b", {}, value), el("span", {}, text)))));
    root.append(el("p", { class: "about" }, `${capital(m.title)} on validation samples; test samples are not evaluated. `
      + (tuning.rungs.length > 1 ? `Trials are compared after rounds ${tuning.rungs.join(", ")}, and the worse half stops. ` : "")
      + "Filled: finished. Open: stopped early. Crosses: diverged, drawn at the worst value. A ring marks the choice."));
    await tuningPanels(root, tuning, now);
    for (const [k, x] of tuning.methods.entries()) await tuningCoordinates(root, tuning, x, `${now}-${k}`);
    root.append(table([{ title: "method", word: true }, { title: "chosen", word: true }, { title: `validation ${heading(m)}` }, { title: "selected on", word: true }, { title: "trials" }, { title: "stopped early" }, { title: "diverged" }, { title: "rounds" }, { title: "training time" }],
      tuning.methods.map(x => ({ cells: [x.method, x.chosen ? pairs(x.chosen) || "nothing is tuned" : tuning.finished ? "every trial diverged" : "–", known(x.value) ? show(x.value) : "–", x.selected_on || "–", String(x.trials.length),
        String(x.trials.filter(t => t.state === "stopped early").length), String(x.trials.filter(t => t.state === "diverged").length), String(x.rounds), duration(x.seconds)] })), "tuning-table"));
    for (const x of tuning.methods) for (const text of x.warnings) root.append(el("p", { class: "hint" }, el("b", {}, x.method), `: ${text}`));
  },
});
