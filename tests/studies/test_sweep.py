"""A grid of settings as one job: what is planned, what survives a kill, what a table says of it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedloom as fl
from fedloom import RunCallback
from fedloom.cli.main import main
from fedloom.evaluation.metrics import METRICS
from fedloom.report.grid import choice, sheets
from fedloom.report.progress import TimeLeft
from fedloom.report.sheet import latex, markdown
from fedloom.report.significance import note, paired, rank
from fedloom.report.sweep_warnings import warnings
from fedloom.studies.cells import Cell, plan
from fedloom.studies.sweep import cut

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 2, "workers": 1, "eval_every": 0, "model": "linear"}


class Follows(RunCallback):
    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.rounds: list[str] = []
        self.notes: list[str] = []

    def cell_started(self, cell: Cell, number: int, total: int) -> None:
        self.cells.append(cell)

    def round_ended(self, line: dict[str, Any]) -> None:
        self.rounds.append(f"{self.cells[-1].title} {line['round']}")

    def note(self, text: str) -> None:
        self.notes.append(text)


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.parent.relative_to(root)): json.loads(path.read_text())["digest"]
        for path in sorted(root.rglob("summary.json"))
    }


def test_every_combination_of_values_methods_and_seeds_is_a_run() -> None:
    found = fl.sweep(["lr=0.01,0.1", "epochs=1,2"], "fedavg; fn", 2, name="s", **FIELDS)
    assert len(found.results) == 16
    assert found.points[0] == (("lr", "0.01"), ("epochs", "1"))
    for result in found.results:
        told = result.run.recipe
        assert (str(told.lr), str(told.epochs), told.seed) == (*dict(result.cell.point).values(), result.cell.seed)
        assert result.run.path.parent.parent.parent == Path("runs/s")
    alone = fl.run(FIELDS, method="fn", lr=0.1, epochs=2, seed=1)
    assert digests(Path("runs/s"))["fn/lr=0.1-epochs=2/seed1"] == alone.summary["digest"]
    partitions = {path.read_bytes() for path in Path("runs/s").rglob("seed0/partition.npz")}
    assert len(partitions) == 1

    point = (("lr", "0.1"), ("epochs", "2"))
    mine = [r.run.summary["test_accuracy"] for r in found.results if r.cell.row == "fn" and r.cell.point == point]
    assert found.mean("fn", "global", point) == pytest.approx(np.mean(mine))
    assert found.deviation("fn", "global", point) == pytest.approx(np.std(mine, ddof=1))

    with Path("runs/s/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    row = next(r for r in rows if (r["method"], r["lr"], r["epochs"]) == ("fn", "0.1", "2"))
    assert float(row["global_mean"]) == pytest.approx(np.mean(mine))
    assert float(row["global_deviation"]) == pytest.approx(np.std(mine, ddof=1))
    with Path("runs/s/cells.csv").open() as file:
        assert sorted(float(r["global"]) for r in csv.DictReader(file)) == sorted(
            r.run.summary["test_accuracy"] for r in found.results
        )
    shown = f"{100 * np.mean(mine):.1f} ± {100 * np.std(mine, ddof=1):.1f}"
    assert shown in Path("runs/s/table.md").read_text()
    assert shown.replace("±", r"$\pm$") in Path("runs/s/table.tex").read_text()


def test_methods_and_seeds_can_be_swept_like_any_field() -> None:
    found = fl.sweep(["method=fedavg,prox(mu=0.5)+fn", "seed=3,1"], **FIELDS)
    assert found.rows == ["fedavg", "prox(mu=0.5)+fn"]
    assert found.seeds == [3, 1]
    assert found.points == [()]
    assert {r.run.recipe.seed for r in found.results} == {1, 3}


def test_finished_cells_are_skipped_and_new_values_are_added() -> None:
    fl.sweep({"lr": [0.01]}, name="s", **FIELDS)
    watcher = Follows()
    fl.sweep({"lr": [0.01, 0.1]}, name="s", callbacks=[watcher], **FIELDS)
    assert len(watcher.cells) == 2
    assert {title.rsplit(" ", 1)[0] for title in watcher.rounds} == {"fedavg, lr=0.1 seed 0"}


@pytest.mark.slow
def test_a_sweep_killed_at_any_moment_and_started_again_gives_the_same_results() -> None:
    fields = {"rounds": 15, "clients": 10, "workers": 1, "checkpoint_seconds": 0}
    over, methods = {"lr": [0.05, 0.1]}, "fedavg; scaffold"
    fl.sweep(over, methods, name="whole", **fields)
    flags = ["--over", "lr=0.05,0.1", "--methods", methods, "--name", "cut"]
    flags += [word for field, value in fields.items() for word in ("--set", f"{field}={value}")]
    killed = subprocess.Popen([sys.executable, "-m", "fedloom", "sweep", *flags], stdout=subprocess.DEVNULL)
    rounds = Path("runs/cut/scaffold/lr=0.05/seed0/rounds.jsonl")
    while killed.poll() is None and not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 3):
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not Path("runs/cut/table.csv").exists()
    watcher = Follows()
    fl.sweep(over, methods, name="cut", callbacks=[watcher], **fields)
    assert {title.partition(",")[0] for title in watcher.rounds} == {"scaffold"}
    assert "scaffold, lr=0.05 seed 0 1" not in watcher.rounds  # carried on, not begun again
    assert digests(Path("runs/cut")) == digests(Path("runs/whole"))
    assert len(digests(Path("runs/cut"))) == 4
    assert Path("runs/cut/table.md").read_text() == Path("runs/whole/table.md").read_text()


def test_a_cell_that_fails_says_why_and_the_others_are_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("weak.py").write_text(
        "import fedloom as fl\n"
        "class Weak(fl.Part):\n"
        "    '''Breaks from some strength on.'''\n"
        "    strength: float = 0.0\n"
        "    def regularizer(self, batch, client):\n"
        "        if self.strength > 1:\n"
        "            raise RuntimeError('strength is too much for me')\n"
        "        return 0 * batch.features.sum()\n"
    )
    command = ["sweep", "--parts", "weak.py", "--name", "w", "--rounds", "1", "--workers", "1", "--over", "lr=0.1,0.2"]
    for _ in range(2):  # failed cells are tried again, and fail again
        with pytest.raises(SystemExit) as ended:
            main([*command, "--methods", "weak(strength=2); weak(strength=1)"])
        assert ended.value.code == 1
        said = capsys.readouterr().out
        assert said.count("Failed: weak(strength=2)") == 2
        assert "strength is too much for me" in said
    assert "Traceback" not in Path("runs/w/table.md").read_text()
    assert sorted(digests(Path("runs/w"))) == [f"weak-strength=1/lr={lr}/seed0" for lr in (0.1, 0.2)]
    with Path("runs/w/cells.csv").open() as file:
        failed = [row for row in csv.DictReader(file) if row["failure"]]
    assert [row["method"] for row in failed] == ["weak(strength=2)"] * 2
    assert all(row["global"] == "" for row in failed)


def test_the_setting_is_chosen_by_validation_accuracy_where_images_are_held_back() -> None:
    fields = {**FIELDS, "data": {"validation": 0.2}, "rounds": 3}
    found = fl.sweep({"lr": [0.001, 0.1]}, seeds=2, **fields)
    means = {p: np.mean([v["validation"] for v in found.of("fedavg", p)]) for p in found.points}
    lines = {r.cell.point: r.run.rounds[-1] for r in found.results if r.cell.seed == 0}
    first = found.points[0]
    assert found.of("fedavg", first)[0]["validation"] == lines[first]["validation_accuracy"]
    assert choice(found)["fedavg"] == max(means, key=lambda p: means[p])
    assert "selected for its method by mean validation accuracy" in sheets(found)[-1].notes[0]
    assert "optimistic" not in sheets(found)[-1].notes[0]
    plain = fl.sweep({"lr": [0.001, 0.1]}, name="plain", **FIELDS)
    assert "by mean test accuracy" in sheets(plain)[-1].notes[0]
    assert "optimistic" in sheets(plain)[-1].notes[0]


def test_significance_is_the_paired_t_test_by_its_formula() -> None:
    ours, theirs = [0.91, 0.87, 0.93, 0.90], [0.88, 0.86, 0.89, 0.84]
    d = np.subtract(ours, theirs)
    t = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
    assert paired(ours, theirs) == pytest.approx(2 * stats.t.sf(abs(t), len(d) - 1))
    assert paired(ours[:2], theirs[:2]) is None
    assert paired([0.5, 0.6, 0.7], [0.4, 0.5, 0.6]) is None  # differences without any spread
    samples = {"a": dict(enumerate(ours)), "b": dict(enumerate(theirs)), "c": {0: 0.9}}
    said = note(rank(samples, "higher"), METRICS["accuracy"])
    assert f"b {100 * -d.mean():+.1f} (p = {paired(theirs, ours):.2g})" in said
    assert "c -1.0 (no test, too few seeds)" in said
    assert "needs 3 seeds" in note(rank({"a": {0: 0.5}, "b": {0: 0.4}}, "higher"), METRICS["accuracy"])


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ([], "over: nothing is swept"),
        (["lr"], "over: cannot read 'lr'"),
        (["lr="], "over: lr has an empty value"),
        (["lr=0.1,,0.2"], "over: lr has an empty value"),
        (["lr=0.1,0.1"], "over: lr=0.1 is given twice"),
        (["lr=0.1", "lr=0.2"], "over: lr is given twice"),
        (["rate=0.1"], "over: rate is not a field of a recipe"),
        (["out=a,b"], "over: out has no effect on the result"),
        (["analyze_every=0,5"], "over: analyze_every has no effect on the result"),
        (["seed=a"], "over: seed must be whole numbers"),
        (["lr=0.1,-1"], "lr: must be greater than 0"),
        (["split=iid,shard:2"], "did you mean shards?"),
        (["method=fedavg,scafold"], "did you mean scaffold?"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_written(over: list[str], said: str) -> None:
    with pytest.raises(fl.FedloomError) as caught:
        fl.sweep(over, **FIELDS)
    assert said in str(caught.value)
    assert not Path("runs").exists()


def test_a_swept_field_may_not_be_set_by_a_method_too() -> None:
    with pytest.raises(fl.FedloomError, match=r"lr is swept, but the method 'fn @ lr=0\.3' sets it too"):
        fl.sweep(["lr=0.1,0.2"], "fedavg; fn @ lr=0.3", **FIELDS)


def test_values_are_cut_at_commas_outside_of_brackets_or_at_semicolons() -> None:
    assert cut("0.1, 0.2") == ["0.1", "0.2"]
    assert cut("dr(a=1,b=2),fn") == ["dr(a=1,b=2)", "fn"]
    assert cut("dr + fd; prox(mu=0.1)") == ["dr + fd", "prox(mu=0.1)"]


def test_wide_grids_are_cut_at_the_first_field_and_texts_are_safe_in_latex_and_markdown() -> None:
    found = fl.sweep(["lr=0.1,0.2", "batch=8,16,32,full"], "fedavg; prox(mu=0.5)", **{**FIELDS, "rounds": 1})
    first, second = sheets(found)
    assert first.title.endswith("lr=0.1") and second.title.endswith("lr=0.2")
    assert first.columns[1:] == [("batch=8",), ("batch=16",), ("batch=32",), ("batch=full",)]
    assert not first.notes and second.notes
    assert latex([first, second]).count(r"\begin{tabular}{lrrrr}") == 2
    assert r"mean\_x \& 5\%" in latex([type(first)("mean_x & 5%", first.columns, first.rows)])
    assert r"a\|b" in markdown([type(first)("a|b", first.columns, first.rows)])


def test_work_is_shared_out_by_rounds_and_epochs_so_that_time_left_can_be_told() -> None:
    cells = plan("fedavg", 1, FIELDS, {"epochs": ["1", "4"]})
    assert [cell.share for cell in cells] == [(0, pytest.approx(0.2)), (pytest.approx(0.2), pytest.approx(1))]
    clock = TimeLeft()
    clock.skip(0.5)
    assert clock.left() == ""  # nothing was done yet that could be measured
    clock._since -= 30
    clock.reach(0.6)
    assert clock.left() == "2 min 0 s left"


def test_a_sweep_with_a_loss_as_its_headline_selects_the_lowest_on_validation_data() -> None:
    fields = {"clients": 5, "rounds": 2, "model": "linear", "workers": 1, "metrics": "loss,macro_f1"}
    fields |= {"data": {"name": "digits", "validation": 0.2}}
    comparison = fl.sweep({"lr": [0.001, 0.1]}, methods="fedavg", seeds=3, given=fields, name="grid")
    by_point = {point: comparison.mean("fedavg", "validation", point) for point in comparison.points}
    best = min(by_point, key=lambda point: by_point[point])
    assert choice(comparison) == {"fedavg": best}
    first, second = sheets(comparison)
    over = "mean ± deviation over 3 seeds"
    assert (first.title, second.title) == (f"global cross-entropy loss, {over}", f"global macro F1 in %, {over}")
    place = 1 + comparison.points.index(best)
    assert first.rows[0][place].mark == "*" and first.rows[0][place].bold and not first.rows[0][3 - place].bold
    assert first.rows[0][place].text.startswith(f"{comparison.mean('fedavg', 'global', best):.3f} ± ")
    assert second.rows[0][place].text.startswith(f"{100 * comparison.metric('fedavg', 'macro_f1', point=best):.1f} ± ")
    assert "selected for its method by mean validation cross-entropy loss" in second.notes[0]
    assert "global cross-entropy loss" in latex([first, second]) and "**" in markdown([first, second])


def test_a_sweep_warns_of_best_values_at_the_edge_and_of_settings_that_diverged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [word for name, value in FIELDS.items() for word in ("--set", f"{name}={value}")]
    with pytest.raises(SystemExit):
        main(
            ["sweep", "--over", "lr=0.1,1e12", "--methods", "fedavg; fn", "--label", "fn=FedFN", "--name", "s", *flags]
        )
    said = capsys.readouterr().out
    plain = " ".join(said.split())
    assert "Warning: fedavg is best at lr=0.1, the smallest value of the sweep; try smaller ones." in plain
    assert "Warning: fedavg at lr=1e12 diverged (seed 0: " in plain
    assert "fedavg, lr=1e12 seed 0" in said.partition("global accuracy")[0]  # lines of a cell name it
    assert "FedFN" in Path("runs/s/table.tex").read_text()
    assert json.loads(Path("runs/s/labels.json").read_text()) == {"fedavg": "fedavg", "fn": "FedFN"}


def test_a_limit_of_the_recipe_is_no_edge() -> None:
    comparison = fl.sweep(["momentum=0,0.5", "fraction=0.3,1"], **{**FIELDS, "rounds": 1})
    texts = [warnings(comparison, {"fedavg": point}) for point in comparison.points]
    momentum = "Warning: fedavg is best at momentum=0.5, the largest value of the sweep; try larger ones."
    fraction = "Warning: fedavg is best at fraction=0.3, the smallest value of the sweep; try smaller ones."
    assert texts == [[fraction], [], [momentum, fraction], [momentum]]
