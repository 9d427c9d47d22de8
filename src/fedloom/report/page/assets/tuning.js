// Tunings: every trial over its rate, parallel coordinates of several tuned values, the budget that was spent.
const STATES = [["finished", "circle"], ["stopped early", "circle-open"], ["running", "diamond-open"], ["diverged", "x"]];
const settingText = v => typeof v === "number" ? String(+v.toPrecision(3)) : String(v);
const pairs = values => Object.entries(values).map(([name, v]) => `${name}=${settingText(v)}`).join(", ");

async function tuningPanels(root, tuning, id) { // one panel per method: validation value over its rate, or over its first tuned value
  const m = tuning.metric, scale = scaleOf(m), methods = tuning.methods.filter(x => x.ranges.length && x.trials.length);
  if (!methods.length) return;
  const all = methods.flatMap(x => x.trials.map(t => t.value)).filter(known).map(v => scale * v);
  const low = all.length ? Math.min(...all) : 0, high = all.length ? Math.max(...all) : 1, pad = Math.max((high - low) * .08, 1e-6), floor = m.better === "lower" ? high + pad : low - pad;
  const plan = panels(methods.length, over(root), 260, 210), traces = [], layout = { height: plan.height + 120, annotations: [], margin: { l: 56, r: 16, t: 30, b: 56 } };
  methods.forEach((x, k) => {
    const axis = k ? String(k + 1) : "", at = plan.domain(k), range = x.ranges.find(r => r.name === "lr") || x.ranges[0];
    for (const [state, symbol] of STATES) {
      const trials = x.trials.filter(t => t.state === state);
      if (trials.length) traces.push({ type: "scatter", mode: "markers", name: state, showlegend: DATA.export && k === 0, x: trials.map(t => t.values[range.name]), y: trials.map(t => known(t.value) ? scale * t.value : floor), xaxis: `x${axis}`, yaxis: `y${axis}`,
        marker: { symbol, size: 9, color: state === "diverged" ? css("--warn") : color(k), line: { width: 1.5, color: state === "diverged" ? css("--warn") : color(k) } },
        text: trials.map(t => plain(`trial ${t.trial}, ${t.state}${t.state === "diverged" ? "" : ` after ${t.done} rounds`}<br>`).replace("&lt;br&gt;", "<br>") + plain(pairs(t.values))), hovertemplate: `%{text}<br>${plain(m.title)} %{y:.4g}<extra>${plain(x.method)}</extra>` });
    }
    if (x.chosen) traces.push({ type: "scatter", mode: "markers", showlegend: false, hoverinfo: "skip", x: [x.chosen[range.name]], y: [scale * x.value], xaxis: `x${axis}`, yaxis: `y${axis}`, marker: { symbol: "circle-open", size: 18, color: css("--ink"), line: { width: 2 } } });
    layout[`xaxis${axis}`] = { domain: at.x, anchor: `y${axis}`, type: range.log ? "log" : undefined, title: plain(range.name), nticks: 6,
      range: known(range.low) ? (range.log ? [Math.log10(range.low) - .12, Math.log10(range.high) + .12] : undefined) : undefined };
    layout[`yaxis${axis}`] = { domain: at.y, anchor: `x${axis}`, range: [Math.min(low, floor) - pad, Math.max(high, floor) + pad], title: k % plan.columns ? undefined : `validation ${heading(m)}` };
    layout.annotations.push({ text: plain(short(x.method, 40)), x: at.x[0], y: at.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { color: css("--ink") } });
  });
  await figure(root, `tuning-${id}`, traces, layout, "Every trial over its rate");
}
async function tuningCoordinates(root, tuning, x, id) { // several tuned values: a line per trial
  const m = tuning.metric, scale = scaleOf(m), trials = x.trials.filter(t => known(t.value));
  if (x.ranges.length < 2 || trials.length < 2) return;
  const dimensions = x.ranges.map(r => {
    const raw = trials.map(t => t.values[r.name]);
    if (!raw.every(v => typeof v === "number")) {
      const words = [...new Set(raw.map(String))];
      return { label: plain(r.name), values: raw.map(v => words.indexOf(String(v))), tickvals: range(words.length), ticktext: words.map(plain) };
    }
    if (!r.log) return { label: plain(r.name), values: raw, range: known(r.low) ? [r.low, r.high] : undefined };
    const ticks = range(13).flatMap(e => [10 ** (e - 8), 3 * 10 ** (e - 8)]).filter(v => v >= r.low * .99 && v <= r.high * 1.01);
    return { label: plain(r.name), values: raw.map(Math.log10), range: [Math.log10(r.low), Math.log10(r.high)], tickvals: ticks.map(Math.log10), ticktext: ticks.map(v => String(+v.toPrecision(1))) };
  });
  const values = trials.map(t => scale * t.value);
  dimensions.push({ label: plain(heading(m)), values });
  await figure(root, `tuning-coordinates-${id}`, [{ type: "parcoords", dimensions, labelfont: { color: css("--ink") }, tickfont: { color: css("--soft") }, rangefont: { color: "rgba(0,0,0,0)" },
    line: { color: values, colorscale: counts().slice(1).map(([, c], k, all) => [k / (all.length - 1), c]), reversescale: m.better === "lower", showscale: false } }],
    { height: 300, margin: { l: 60, r: 60, t: 50, b: 24 } }, `${x.method}: a line per trial, darker is better`.replace("darker", dark() ? "lighter" : "darker"));
}

section("tuning", "Tuning", {
  has: () => (DATA.tunings || []).length > 0,
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
