// Layout of the page, redrawing of one section or all, updates of a running experiment.
// What was run, what came out, what it cost; then clients and data; then what analysis found inside of models.
const ORDER = ["overview", "results", "reproduced", "published", "curves", "cost", "clients", "byclass", "split", "tuning", "factors", "norms", "inside", "selectors", "embedding"];

function legend() {
  const root = document.getElementById("legend");
  root.hidden = DATA.series.length < 2;
  root.replaceChildren(...DATA.series.map((s, i) => el("button", { type: "button", class: "chip", "aria-pressed": String(!HIDDEN.has(s.label)), title: s.label, onclick: () => {
    if (HIDDEN.has(s.label)) HIDDEN.delete(s.label); else HIDDEN.add(s.label);
    render();
  } }, el("i", { style: `background:${color(i)}` }), el("span", {}, s.label))));
}
function problems() { // folders that cannot be read completely; all others are shown
  const root = document.getElementById("problems"), found = DATA.problems || [];
  root.hidden = !found.length;
  root.replaceChildren(...found.map(p => el("p", { class: "hint" }, el("b", {}, p.path), `: ${p.reason}`)));
}
async function renderSection(part) {
  let root = document.getElementById(part.id);
  if (!root) { root = el("section", { id: part.id }); document.getElementById("main").append(root); }
  const height = root.offsetHeight;
  root.style.minHeight = `${height}px`; // the page does not jump while a section is drawn again
  root.querySelectorAll(".figure").forEach(f => { SEEN.unobserve(f); Plotly.purge(f); });
  const open = new Set([...root.querySelectorAll("details[open] > summary")].map(s => s.textContent));
  if (part.has()) {
    const inner = el("div", {});
    root.replaceChildren(el("h2", {}, part.title), inner);
    await part.draw(inner, () => renderSection(part));
    inner.querySelectorAll("details > summary").forEach(s => { if (open.has(s.textContent)) s.parentElement.open = true; });
    root.dataset.state = "drawn";
  } else {
    root.replaceChildren(el("p", { class: "hint" }, el("b", {}, part.title), ". ", part.hint[0], part.hint[1] ? el("code", {}, part.hint[1]) : "", part.hint[2] || ""));
    root.dataset.state = "left out";
  }
  root.style.minHeight = "";
  await Promise.all([...root.querySelectorAll(".figure")].filter(f => { const at = f.getBoundingClientRect(); return at.top < innerHeight && at.bottom > 0; }).map(paint));
}
function arrange(parts) { // sections without data are a list at the end
  const main = document.getElementById("main"), missing = document.getElementById("missing") || el("div", { id: "missing" }, el("h2", {}, "Not on this page"), el("p", { class: "about" }, "What makes these sections appear:"));
  const wanted = [...parts.filter(p => p.has()), ...parts.filter(p => !p.has())].map(p => document.getElementById(p.id)), empty = wanted.filter(s => s.dataset.state === "left out");
  if ([...document.querySelectorAll("#main section")].some((s, i) => s !== wanted[i]) || missing.querySelectorAll("section").length !== empty.length || !missing.isConnected) {
    main.append(...wanted.filter(s => !empty.includes(s)), missing);
    missing.append(...empty);
  }
  missing.hidden = !empty.length;
}
let drawing = Promise.resolve();
function render() { // one after the other, so that the first sections appear at once
  drawing = drawing.then(async () => {
    document.body.dataset.ready = "no";
    legend();
    problems();
    const tuned = (DATA.tunings || []).length > 0;
    if (!DATA.series.length && !tuned) {
      document.getElementById("main").replaceChildren(el("p", { class: "hint" }, "There is no run in this folder yet; it appears here once it starts."));
      document.body.dataset.ready = "yes";
      return;
    }
    document.querySelectorAll("#main > .hint").forEach(h => h.remove());
    const parts = ORDER.map(id => SECTIONS.find(s => s.id === id)).filter(s => s && (s.id === "tuning" ? tuned : DATA.series.length)); // a tuning alone is shown alone
    document.getElementById("nav").replaceChildren(...parts.filter(p => p.has()).map(p => el("a", { href: `#${p.id}` }, p.nav || p.title)));
    for (const part of parts) {
      await renderSection(part);
      await new Promise(done => setTimeout(done));
    }
    arrange(parts);
    document.body.dataset.ready = "yes";
  });
  return drawing;
}

const wish = matchMedia("(prefers-color-scheme: dark)");
let chosen = DATA.export ? "light" : null; // by the switch; until then the system decides
function theme() { document.documentElement.dataset.theme = chosen || (wish.matches ? "dark" : "light"); }
wish.addEventListener("change", () => { theme(); render(); });
document.getElementById("theme").addEventListener("click", () => { chosen = dark() ? "light" : "dark"; theme(); render(); });
theme();
document.getElementById("footer").append(`Written by fedloom ${DATA.version} on ${DATA.date}. This file contains everything that it shows and loads nothing.`);
document.getElementById("date").append(`${DATA.date}, fedloom ${DATA.version}`);

addEventListener("beforeprint", drawAll);

async function follow() { // served by `fedloom watch`: ask for newer data, keep all switches
  const sign = document.getElementById("live");
  sign.hidden = false;
  let mark = DATA.mark;
  for (;;) {
    try {
      const answer = await fetch(`data.json?mark=${encodeURIComponent(mark)}`, { cache: "no-store" });
      if (answer.status === 200) {
        DATA = await answer.json();
        mark = DATA.mark;
        await render();
      }
      const going = DATA.series.flatMap(s => s.runs).filter(r => !r.finished).length;
      sign.classList.remove("lost");
      sign.textContent = going ? `live, ${going} running` : "live, all finished";
    } catch (error) {
      sign.classList.add("lost");
      sign.textContent = "no answer from fedloom watch";
    }
    await new Promise(done => setTimeout(done, 2000));
  }
}
async function save(format, width) { // every figure as a data URL, for `fedloom report --format`
  await drawing;
  await drawAll();
  const found = {};
  for (const place of document.querySelectorAll(".figure"))
    found[place.dataset.figure] = await Plotly.toImage(place, { format, width, height: place.offsetHeight, scale: format === "png" ? 3 : 1 });
  document.body.append(el("script", { type: "application/json", id: "saved" }, JSON.stringify(found)));
}
render().then(() => { if (DATA.live) follow(); });
