"""The page in a real browser: what is drawn, what switches do, which numbers stand there."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import published

import fedloom as fl
from fedloom.report.grid import sheets
from fedloom.report.page import figures
from fedloom.report.page.watch import serve

pytestmark = pytest.mark.slow  # every page is opened in a browser

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
FLAGS = [flag for flag in figures.FLAGS if flag != "--headless"]
NASTY = "<img src=x onerror=alert(1)> & more"


@dataclass
class Opened:
    page: Any
    root: Path
    said: list[str] = field(default_factory=list)  # console and page errors
    asked: list[str] = field(default_factory=list)  # addresses

    def ready(self) -> None:
        self.page.wait_for_selector("body[data-ready=yes]", timeout=120_000)

    def table(self, name: str) -> list[list[str]]:
        found = self.page.evaluate(
            "id => [...document.querySelectorAll(`#${id} tr`)].map(r => [...r.children].map(c => c.textContent.trim()))",
            name,
        )
        return [list(map(str, row)) for row in found]

    def traces(self, name: str) -> list[dict[str, Any]]:
        self.page.evaluate("id => paint(document.getElementById(`figure-${id}`))", name)
        pick = "t => ({name: t.name, x: t.x, y: t.y, z: t.z})"
        text = self.page.evaluate(
            f"id => JSON.stringify(document.getElementById(`figure-${{id}}`).data.map({pick}))", name
        )
        return [trace for trace in json.loads(text) if trace.get("x") != [None]]  # without entries of the legend

    def switch(self, name: str, value: str) -> None:
        self.page.click(f'[data-switch="{name}"] [data-value="{value}"]')
        self.page.wait_for_selector(f'[data-switch="{name}"] [data-value="{value}"][aria-pressed=true]')


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        own = Path(engine.chromium.executable_path)
        try:
            program = str(own) if own.exists() else figures.browser()
        except fl.FedloomError as error:
            pytest.skip(f"no browser: {error}")
        running = engine.chromium.launch(executable_path=program, args=FLAGS)
        yield running
        running.close()


def opened(browser: Any, address: str, root: Path, **settings: Any) -> Opened:
    page = browser.new_page(**settings)
    made = Opened(page, root)
    page.on("console", lambda message: made.said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: made.said.append(str(error)))
    page.on("request", lambda request: made.asked.append(request.url))
    page.goto(address)
    made.ready()
    return made


@pytest.fixture(scope="module")
def shown(chromium: Any, pair: Path) -> Iterator[Opened]:
    (path,) = fl.report(pair, pair.parent / "report.html", title=NASTY)
    made = opened(chromium, path.as_uri(), pair, viewport={"width": 1200, "height": 800}, color_scheme="light")
    yield made
    made.page.close()


def summaries(root: Path, method: str) -> list[dict[str, Any]]:
    return [json.loads((root / method / f"seed{seed}" / "summary.json").read_text()) for seed in (0, 1)]


def test_nothing_is_said_on_the_console_and_nothing_is_fetched(shown: Opened) -> None:
    assert shown.said == []
    assert [url for url in shown.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert shown.page.inner_text("#title") == NASTY  # as text


def test_every_section_has_its_figures_and_every_figure_is_drawn(shown: Opened) -> None:
    tall = shown.page.evaluate("document.documentElement.scrollHeight")
    for at in range(0, tall, 600):
        shown.page.evaluate("at => scrollTo(0, at)", at)
        shown.page.wait_for_timeout(50)
    shown.page.wait_for_function("[...document.querySelectorAll('.figure')].every(f => f.querySelector('.main-svg'))")
    drawn = shown.page.eval_on_selector_all(
        ".figure",
        "all => all.map(f => [f.dataset.figure, f.data.length, !!f.querySelector('.main-svg'), f.offsetWidth, f.offsetHeight])",
    )
    names = [row[0] for row in drawn]
    assert names == [
        *("curves", "cost-seconds", "cost-bytes", "clients", "split", "factor-weight_similarity", "factor-inter_class"),
        *("factor-intra_class", "factor-prototype_weight", "norms", "alignment", "drift", "factors", "classes"),
        *("spectrum", "layers-weight", "layers-activation", "embedding"),
    ]
    for name, traces, has_picture, width, height in drawn:
        assert traces > 0 and has_picture and width > 200 and height > 100, name
    states = dict(shown.page.eval_on_selector_all("main section", "all => all.map(s => [s.id, s.dataset.state])"))
    assert [name for name, state in states.items() if state == "left out"] == ["published", "byclass", "selectors"]


def test_the_result_table_holds_the_numbers_of_the_folders(shown: Opened) -> None:
    head, *rows = shown.table("result-table")
    column = {title: number for number, title in enumerate(head)}
    for row in rows:
        found = summaries(shown.root, row[0])
        for title, values in {
            "global": [s["test_accuracy"] for s in found],
            "clients": [s["client_accuracy"]["mean"] for s in found],
            "clients, worst": [s["client_accuracy"]["worst"] for s in found],
            "own models, worst": [s["personal_accuracy"]["worst"] for s in found if "personal_accuracy" in s],
        }.items():
            if not values:
                assert title not in column or row[column[title]] == "–"
                continue
            told = f"{100 * statistics.fmean(values):.1f} ± {100 * statistics.stdev(values):.1f}"
            assert row[column[title]] == told
        traffic = (found[0]["bytes_down"] + found[0]["bytes_up"]) / found[0]["rounds"] / 1e6
        assert row[column["MB / round"]] == f"{traffic:.2f}"
    tuned = [json.loads((shown.root / f"fedavg/seed{s}/personal/head-1-0.01.json").read_text()) for s in (0, 1)]
    after = [t["personal_accuracy"]["mean"] for t in tuned]
    told = f"{100 * statistics.fmean(after):.1f} ± {100 * statistics.stdev(after):.1f}"
    assert [row[column["tuned head, 1 ep."]] for row in rows] == [told, "–"]
    place = f"#result-table td:nth-child({column['global'] + 1})"
    exact = shown.page.eval_on_selector_all(place, "all => all.map(c => +c.dataset.value)")
    means = [statistics.fmean(s["test_accuracy"] for s in summaries(shown.root, r[0])) for r in rows]
    assert exact == pytest.approx(means)
    assert shown.page.locator("#result-table td.best").count() == 0  # two seeds are too few for a test
    assert "Nothing is bold: a paired test needs 3 seeds or more" in shown.page.inner_text("#results")


def test_learning_curves_can_be_seen_by_round_seconds_and_traffic(shown: Opened) -> None:
    told = [
        [json.loads(line) for line in (shown.root / "fedavg" / f"seed{seed}" / "rounds.jsonl").read_text().splitlines()]
        for seed in (0, 1)
    ]

    def line() -> dict[str, Any]:
        return next(t for t in shown.traces("curves") if t.get("name") == "fedavg")

    accuracy = np.array([[100 * one["test_accuracy"] for one in run] for run in told])
    assert line()["y"] == pytest.approx(accuracy.mean(0), rel=1e-5)
    assert line()["x"] == [1, 2, 3, 4]
    band = shown.traces("curves")[0]
    assert band["y"][:4] == pytest.approx(accuracy.mean(0) + accuracy.std(0, ddof=1), rel=1e-4)
    shown.switch("x", "seconds")
    assert line()["x"] == pytest.approx(
        np.cumsum([[one["seconds"] for one in run] for run in told], 1).mean(0), rel=1e-4
    )
    shown.switch("x", "bytes")
    moved = np.cumsum([one["bytes_down"] + one["bytes_up"] for one in told[0]]) / 1e6
    assert line()["x"] == pytest.approx(moved, rel=1e-6)
    shown.switch("metric", "train_loss")
    assert line()["y"] == pytest.approx(np.mean([[one["train_loss"] for one in run] for run in told], 0), rel=1e-5)
    shown.switch("seeds", "each")
    assert [t["name"] for t in shown.traces("curves")][:2] == ["fedavg, seed 0", "fedavg, seed 1"]
    shown.switch("seeds", "band")
    shown.switch("metric", "test_accuracy")
    shown.switch("x", "round")


def test_figures_of_the_analysis_hold_its_numbers(shown: Opened) -> None:
    stored = np.load(shown.root / "fedavg" / "seed0" / "analysis" / "factors.npz")
    (matrix,) = shown.traces("factor-intra_class")
    assert np.abs(np.array(matrix["z"]) - stored["intra_class"]).max() <= 0.0051
    shown.switch("norms", "weights")
    told = [
        [json.loads(one) for one in (shown.root / f"fedavg/seed{s}/analysis/rounds.jsonl").read_text().splitlines()]
        for s in (0, 1)
    ]
    line = next(t for t in shown.traces("norms") if t.get("name") == "fedavg, local, seen classes")
    expected = np.mean([[one["norms"]["weight_seen"] for one in run] for run in told], 0)
    assert line["y"] == pytest.approx(expected, rel=1e-5)
    shown.switch("stage", "local")
    points = fl.Analysis(shown.root / "fedavg" / "seed0" / "analysis").table("embedding")
    of_class = {trace["name"]: trace["x"] for trace in shown.traces("embedding")}
    for number in range(10):
        local = [point["x"] for point in points if point["stage"] == "local" and point["class"] == number]
        assert of_class[f"class {number}"] == pytest.approx(local, rel=1e-3)
    shown.switch("by", "client")
    costs = [fl.Analysis(shown.root / "fedavg" / f"seed{seed}" / "analysis").summary["cost"] for seed in (0, 1)]
    means = [statistics.fmean(cost[name] for cost in costs) for name in ("kappa", "rho")]
    assert [float(cell) for cell in shown.table("cost-table")[1][-2:]] == pytest.approx(means, rel=6e-3)
    local_accuracy = [100 * a for a in fl.Analysis(shown.root / "fedavg/seed0/analysis").summary["refinement"]["local"]]
    line = next(t for t in shown.traces("classes") if t["name"] == "fedavg, after local training")
    assert line["y"] == pytest.approx(local_accuracy, rel=1e-5)


def test_shares_of_adaptive_normalizers_are_drawn_layer_by_layer(chromium: Any, adaptive: Path) -> None:
    (path,) = fl.report(adaptive, adaptive.parent / "adaptive.html")
    made = opened(chromium, path.as_uri(), adaptive)
    logged = [json.loads(line)["selectors"] for line in (adaptive / "fednn" / "rounds.jsonl").read_text().splitlines()]
    layers = list(logged[0])
    areas = made.traces("selectors")
    assert [area["name"] for area in areas] == ["batch", "group"] * len(layers)
    assert areas[0]["y"] == pytest.approx([line[layers[0]][0] for line in logged], rel=1e-3)
    assert areas[1]["y"] == pytest.approx([line[layers[0]][1] for line in logged], rel=1e-3)
    made.switch("selectors", "1")
    assert {area["name"] for area in made.traces("selectors")} == {"instance", "layer", "batch"}
    assert made.said == []
    made.page.close()


def test_undefined_numbers_leave_gaps_in_figures(chromium: Any, gaps: Path) -> None:
    (path,) = fl.report(gaps, gaps.parent / "gaps.html")
    made = opened(chromium, path.as_uri(), gaps)
    (matrix,) = made.traces("factor-inter_class")
    assert matrix["z"][3] == [None] * 4 and None not in matrix["z"][0][:3]
    made.page.evaluate("drawAll()")
    assert made.said == []
    made.page.close()


def test_where_the_seconds_went_stands_under_the_cost(shown: Opened) -> None:
    title, *rows = shown.table("spent-table")
    assert title[2:] == ["compute", "data", "communication", "aggregation", "evaluation", "checkpoint", "other"]
    told = [summary["seconds_by"] for summary in summaries(shown.root, "fedper")]
    whole = sum(sum(one.values()) for one in told)
    assert [float(cell) for cell in rows[1][2:]] == pytest.approx(
        [100 * sum(one[name] for one in told) / whole for name in title[2:]], abs=0.051
    )


def test_series_can_be_hidden_and_shown_again(shown: Opened) -> None:
    chip = shown.page.locator(".chip", has_text="fedper")
    chip.click()
    shown.ready()
    assert {t["name"] for t in shown.traces("curves")} == {"fedavg", "fedavg, ± standard deviation"}
    chip.click()
    shown.ready()
    assert "fedper" in {t.get("name") for t in shown.traces("curves")}


def test_a_target_accuracy_tells_when_it_was_reached(shown: Opened) -> None:
    run = [json.loads(one) for one in (shown.root / "fedavg/seed0/rounds.jsonl").read_text().splitlines()]
    both = [run, [json.loads(one) for one in (shown.root / "fedavg/seed1/rounds.jsonl").read_text().splitlines()]]
    target = int(100 * min(r[0]["test_accuracy"] for r in both))
    shown.page.fill('[data-switch="target"]', str(max(target, 1)))
    shown.page.press('[data-switch="target"]', "Enter")
    shown.page.wait_for_function(
        f"document.querySelector('#cost-table').textContent.includes('reached {max(target, 1)} %')"
    )
    assert shown.table("cost-table")[1][3] == "1"
    shown.page.fill('[data-switch="target"]', "100")
    shown.page.press('[data-switch="target"]', "Enter")
    shown.page.wait_for_function("document.querySelector('#cost-table').textContent.includes('reached 100 %')")
    assert shown.table("cost-table")[1][3] == "never"


def test_one_switch_shows_another_metric_everywhere(chromium: Any, tmp_path: Path) -> None:
    """Tables, curves, clients, classes and cost of the chosen metric; bold numbers are those of the table of `compare`."""
    fields = {"clients": 5, "rounds": 3, "model": "linear", "metrics": ["macro_f1", "loss", "auroc"], "workers": 1}
    comparison = fl.compare("fedavg; fedper", seeds=3, given=fields, out=str(tmp_path / "both"))
    (path,) = fl.report(tmp_path / "both", tmp_path / "report.html")
    seen = opened(chromium, path.as_uri(), tmp_path, viewport={"width": 1200, "height": 800})

    def means(key: str) -> dict[str, float]:
        return {
            row: statistics.fmean(r.run.summary[key] for r in comparison.results if r.cell.row == row)
            for row in comparison.rows
        }

    def bold() -> list[str]:
        cells = seen.page.eval_on_selector_all("#result-table td.best:nth-child(3)", "all => all.map(c => c.innerText)")
        return [str(text).partition(" ")[0] for text in cells]

    by_metric = dict(zip(comparison.metrics, sheets(comparison), strict=True))

    def in_table(metric: str) -> list[str]:
        return [row[1].text.partition(" ")[0] for row in by_metric[metric].rows if row[1].bold]

    assert bold() == in_table("macro_f1") and f"{100 * max(means('test_macro_f1').values()):.1f}" in bold()
    seen.switch("clients", "personal_macro_f1")
    seen.page.click('#results [data-switch="measure"] [data-value="loss"]')
    seen.page.wait_for_function("document.querySelector('#results').textContent.includes('Cross-entropy loss, mean')")
    seen.ready()
    assert bold() == in_table("loss") and f"{min(means('test_loss').values()):.3f}" in bold()
    (line,) = [t for t in seen.traces("curves") if t.get("name") == "fedavg"]
    expected = [statistics.fmean(r.run.rounds[k]["test_loss"] for r in comparison.results[:3]) for k in range(3)]
    assert line["y"] == pytest.approx(expected, rel=1e-5)
    assert [t["name"] for t in seen.traces("clients")] == ["fedper"]  # still own models, which fedavg has none of
    bars = next(t for t in seen.traces("by-class") if t["name"] == "fedavg")
    by_class = [r.run.summary["class_loss"] for r in comparison.results[:3]]
    assert bars["y"] == pytest.approx([statistics.fmean(v[c] for v in by_class) for c in by_class[0]], rel=1e-5)
    assert (
        seen.table("cost-table")[0][3].startswith("round that reached ") and "%" not in seen.table("cost-table")[0][3]
    )
    seen.switch("clients", "loss")
    losses = [pair for r in comparison.results[:3] for pair in enumerate(r.run.clients[-1]["loss"])]
    top = max(losses, key=lambda pair: pair[1])
    assert f"client {top[0]} (seed" in seen.table("worst-clients")[1][1].split(" · ")[0]
    assert f"{top[1]:.3f}" in seen.table("worst-clients")[1][1].split(" · ")[0]
    assert seen.said == []
    seen.page.close()


def test_light_and_dark_follow_the_system_until_the_switch_is_used(chromium: Any, shown: Opened) -> None:
    theme = "document.documentElement.dataset.theme"
    assert shown.page.evaluate(theme) == "light"
    ink = "getComputedStyle(document.body).color"
    before = shown.page.evaluate(ink)
    shown.page.click("#theme")
    shown.ready()
    assert shown.page.evaluate(theme) == "dark"
    assert shown.page.evaluate(ink) != before
    shown.page.emulate_media(color_scheme="light")
    assert shown.page.evaluate(theme) == "dark"
    shown.page.click("#theme")
    shown.ready()
    assert shown.page.evaluate(theme) == "light"
    assert shown.said == []


CUT_OFF = """all => all.flatMap(figure => {
  const whole = figure.getBoundingClientRect();
  const out = at => at.width && (at.left < whole.left - 2 || at.right > whole.right + 2 || at.top < whole.top - 2
    || at.bottom > whole.bottom + 2);
  const texts = [...figure.querySelectorAll('.main-svg text')].filter(text => out(text.getBoundingClientRect()));
  return texts.map(text => `${figure.dataset.figure}: ${text.textContent}`);
})"""
COVERED = """all => all.filter(figure => {
  const legend = figure.querySelector('.legend')?.getBoundingClientRect();
  const plots = [...figure.querySelectorAll('.bglayer .bg, .plot')].map(plot => plot.getBoundingClientRect());
  return legend && plots.some(plot => plot.height && plot.top < legend.bottom - 1);
}).map(figure => figure.dataset.figure)"""


@pytest.mark.parametrize("width", [1400, 390])
def test_a_figure_of_several_series_has_a_legend_that_covers_nothing(
    chromium: Any, pair: Path, adaptive: Path, width: int
) -> None:
    (path,) = fl.report([pair, adaptive], pair.parent / f"legends-{width}.html")
    made = opened(chromium, path.as_uri(), pair, viewport={"width": width, "height": 900})
    made.page.evaluate("drawAll()")
    assert made.page.eval_on_selector_all(".figure", CUT_OFF) == []
    assert made.page.eval_on_selector_all(".figure", COVERED) == []
    names = made.page.eval_on_selector_all(".figure", "all => all.flatMap(f => f._fullData.map(t => t.name))")
    assert names and not [name for name in names if name.startswith("trace ")]
    listed = made.page.eval_on_selector_all(
        ".figure",
        "all => all.map(f => [f.dataset.figure, [...f.querySelectorAll('.legendtext')].map(t => t.textContent)])",
    )
    series = [label for label in made.page.evaluate("DATA.series.map(s => s.label)") if label != "fedper"]
    legends = dict(listed)
    assert legends["curves"] == ["fedavg", "fedper", *series[-2:]]
    assert {"fedavg", "global model", "local, seen classes"} <= {*legends["norms"], "fedavg"}  # of one series, styles
    assert legends["embedding"] == [f"class {number}" for number in range(10)]
    assert made.said == []
    made.page.close()


def test_every_series_stands_beside_the_best_with_its_interval_and_p_value(chromium: Any, tmp_path: Path) -> None:
    fields = {"clients": 5, "rounds": 2, "workers": 1}
    comparison = fl.compare("fedavg; feddrplus", seeds=3, given=fields, out=str(tmp_path / "both"))
    (path,) = fl.report(tmp_path / "both", tmp_path / "report.html", labels={"dr + fd": "FedDr+"})
    made = opened(chromium, path.as_uri(), tmp_path, viewport={"width": 1200, "height": 800})
    _, *rows = made.table("beside-table")
    assert [row[0] for row in rows] == ["fedavg", "FedDr+"]
    assert [row[2] for row in rows] == [
        f"{100 * comparison.mean(row, 'global'):.1f}" for row in ("fedavg", "feddrplus")
    ]
    (best,) = [row for row in rows if row[-1] == "best"]
    (other,) = [row for row in rows if row is not best]
    assert float(other[4]) == pytest.approx(float(other[2]) - float(best[2]), abs=0.11) and other[6] != "–"
    assert made.page.inner_text("#title") == "fedavg, FedDr+ on digits (shards:2, mlp)"
    assert "Run on" in made.page.inner_text("#overview") and "torch" in made.page.inner_text("#overview")
    made.page.close()


def test_a_phone_shows_everything_without_scrolling_sideways(chromium: Any, pair: Path) -> None:
    (path,) = fl.report(pair, pair.parent / "phone.html")
    made = opened(chromium, path.as_uri(), pair, viewport={"width": 390, "height": 800}, color_scheme="dark")
    assert made.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert made.page.evaluate("document.documentElement.dataset.theme") == "dark"
    made.page.evaluate("drawAll()")
    widths = made.page.eval_on_selector_all(".figure", "all => all.map(f => f.getBoundingClientRect().right)")
    assert max(widths) <= 390
    tables = made.page.eval_on_selector_all("table", "all => all.map(t => t.getBoundingClientRect().right)")
    assert max(tables) <= 390  # no column is cut off
    assert made.said == []
    made.page.close()


def test_what_is_missing_is_one_line_with_the_command_that_makes_it(chromium: Any, pair: Path) -> None:
    (path,) = fl.report(pair / "fedper", pair.parent / "plain.html")
    made = opened(chromium, path.as_uri(), pair)
    told = made.page.eval_on_selector_all("section[data-state='left out']", "all => all.map(s => [s.id, s.innerText])")
    assert dict(told).keys() == {"published", "byclass", "factors", "norms", "inside", "selectors", "embedding"}
    assert "fedloom analyze RUN --what factors" in dict(told)["factors"]
    assert made.said == []
    made.page.close()


def test_watch_updates_the_page_and_keeps_its_switches(chromium: Any, pair: Path, tmp_path: Path) -> None:
    going = tmp_path / "runs" / "going"
    (tmp_path / "runs").mkdir()
    with serve([tmp_path / "runs"], port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            made = opened(chromium, f"http://127.0.0.1:{server.server_port}/", pair)
            assert "no run in this folder yet" in made.page.inner_text("#main")
            shutil.copytree(pair / "fedavg" / "seed0", going)
            lines = (going / "rounds.jsonl").read_text().splitlines(keepends=True)
            (going / "summary.json").rename(tmp_path / "summary.json")
            made.page.wait_for_selector("#figure-curves", timeout=60_000)
            made.ready()
            made.switch("x", "seconds")
            assert "round 4 of 4" in made.page.inner_text("#folders")
            made.page.wait_for_function("document.getElementById('live').textContent === 'live, 1 running'")
            more = {**json.loads(lines[-1]), "round": 5, "seconds": 1000.0}
            (going / "rounds.jsonl").write_text("".join(lines) + json.dumps(more) + "\n")
            made.page.wait_for_function("DATA.series[0].runs[0].done === 5 && document.body.dataset.ready === 'yes'")
            assert made.traces("curves")[0]["x"][-1] > 1000  # still by seconds
            (tmp_path / "summary.json").rename(going / "summary.json")
            made.page.wait_for_function("document.getElementById('live').textContent === 'live, all finished'")
            assert made.said == []
            made.page.close()
        finally:
            server.shutdown()
            thread.join()


def test_a_published_number_stands_beside_ours_of_the_same_measure(chromium: Any, tmp_path: Path) -> None:
    for seed in (0, 1):
        published(tmp_path / "both", str(seed), method="babu", seed=seed)
    (path,) = fl.report(tmp_path / "both", tmp_path / "r.html")
    made = opened(chromium, path.as_uri(), tmp_path)
    found = [json.loads((tmp_path / "both" / seed / "summary.json").read_text()) for seed in "01"]
    ours = {
        "global model, pooled test set": [100 * one["test_accuracy"] for one in found],
        "global model, mean over clients before fine-tuning": [100 * one["client_accuracy"]["mean"] for one in found],
    }
    _, scale, *rows = made.table("published-table")
    assert (
        scale[1] == "ours" and scale[5].startswith("4 rounds; 10 clients, 0.5 per round;") and "seeds 0, 1" in scale[5]
    )
    assert "Ours differs from all rows below: clients 10 (published 100)" in scale[5]
    assert {row[2] for row in rows} >= {*ours, "fine-tuned (full, 5 epochs), mean over clients"}
    for row in rows:
        values = ours.get(row[2])
        if values is None:
            assert row[4] == "not measured" and "Ours: not measured; fedloom personalize RUN" in row[5]
        else:
            assert row[4] == f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
        assert "clients 10 (published" not in row[5] and "rounds 4 (published" in row[5] + scale[5]
    assert "FedBABU: 100 clients" in made.page.inner_text("#published")
    assert made.said == []
    made.page.close()


def test_legends_of_figures_for_papers_name_what_is_drawn(chromium: Any, pair: Path) -> None:
    files = {path.stem: path.read_text() for path in fl.report(pair, "named", format="svg")}
    legends = {name: re.findall(r'class="legendtext"[^>]*>([^<]*)<', text) for name, text in files.items()}
    assert not [(name, words) for name, words in legends.items() if any(word.startswith("trace ") for word in words)]
    assert legends["embedding"] == [f"class {number}" for number in range(10)]
    assert legends["curves"] == ["fedavg", "fedper"]


@pytest.mark.parametrize(("kind", "head"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_are_written_for_papers(chromium: Any, pair: Path, kind: str, head: bytes) -> None:
    files = fl.report(pair / "fedper", "figures", format=kind)
    assert {path.stem for path in files} == {"curves", "split", "clients", "cost-seconds", "cost-bytes"}
    for path in files:
        assert path.read_bytes().startswith(head)
        assert path.stat().st_size > 3000


def test_a_reproduced_table_is_a_section_in_the_papers_layout(chromium: Any, tmp_path: Path) -> None:
    small = {"data.name": "digits", "model": "mlp", "clients": 10, "fraction": 0.3, "workers": 1}
    out = tmp_path / "out"
    done = fl.reproduce("fedbabu/table5", "s=10; s=50", "fedavg,fedbabu", scale=0.1, out=out, **small)
    (out / "broken.reproduction.json").write_text('{"title": 3}')  # passed over
    (path,) = fl.report(out, tmp_path / "page.html")
    made = opened(chromium, path.as_uri(), tmp_path)
    head, first, ours, difference, *others = made.table("reproduced-0-0")
    assert head == ["s / method", *(f"epochs={k}" for k in (0, 1, 2, 3, 4, 5, 10))]
    assert first[:3] == ["s=50, FedAvg, published", "27.34 ± 4.96", "29.17 ± 5.01"] and len(others) == 9
    item = done.outcomes[0]
    assert ours[1].split()[0] == f"{item.mean:.2f}" and difference[1] == f"{item.difference:+.2f}"
    assert "0.1 of the rounds" in ours[0]
    assert "Reproduced tables" in made.page.inner_text("#reproduced") and made.said == []
    made.page.close()


def test_a_tuning_shows_every_trial_over_its_rate_and_what_was_chosen(chromium: Any, tmp_path: Path) -> None:
    over, fields = {"lr": "log:0.01..100", "prox.mu": "0.001..0.1"}, {"clients": 5, "rounds": 2, "model": "linear"}
    study = fl.tune("prox(mu=?) + fn", over, 5, out=str(tmp_path / "t"), workers=1, **fields)
    (path,) = fl.report(study.root, tmp_path / "t.html")
    made = opened(chromium, path.as_uri(), study.root, viewport={"width": 1200, "height": 800})
    states = made.page.eval_on_selector_all("main section", "all => all.map(s => [s.id, s.dataset.state])")
    assert states == [["tuning", "drawn"]] and made.said == []
    drawn = {trace["name"]: trace for trace in made.traces("tuning-0") if "name" in trace}
    for state in {trial.state for trial in study.trials}:
        trials = [trial for trial in study.trials if trial.state == state]
        assert drawn[state]["x"] == [trial.values["lr"] for trial in trials]
        if state != "diverged":
            assert np.allclose(drawn[state]["y"], [100 * trial.value for trial in trials])
    assert made.page.locator("#figure-tuning-coordinates-0-0").count() == 1
    (chosen,) = study.tuned.methods
    (row,) = made.table("tuning-table")[1:]
    assert row[0] == chosen.method and row[4:7] == [str(chosen.trials), str(chosen.stopped_early), str(chosen.diverged)]
    assert f"lr={chosen.tuned['lr']:g}" in row[1] and len(chosen.warnings) == made.page.locator("#tuning .hint").count()
    made.page.close()
