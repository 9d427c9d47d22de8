"""Several methods on the same clients: what is run, what is skipped, what is refused."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom import RunCallback
from fedloom.studies.cells import Cell, RelativeFineTuning, plan

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 2, "workers": 1, "eval_every": 0}


class Follows(RunCallback):
    """Keeps which cells came, and which rounds were made in them."""

    def __init__(self) -> None:
        self.cells: list[tuple[str, int]] = []
        self.rounds: list[tuple[str, int, int]] = []

    def cell_started(self, cell: Cell, number: int, total: int) -> None:
        assert number == len(self.cells) < total
        self.cells.append((cell.row, cell.seed))

    def round_ended(self, line: dict[str, Any]) -> None:
        self.rounds.append((*self.cells[-1], line["round"]))


def times(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def test_one_row_a_method_over_all_its_seeds() -> None:
    found = fl.compare("fedavg; dr + fd @ lr=0.3 epochs=2", seeds=2, name="c", seed=4, **FIELDS)
    assert found.rows == ["fedavg", "dr + fd @ lr=0.3 epochs=2"]
    runs = {(result.cell.row, result.cell.seed): result.run for result in found.results}
    assert [seed for _, seed in runs] == [4, 5, 4, 5]
    assert all(run.path.parent.parent == Path("runs/c") for run in runs.values())
    assert len({run.path for run in runs.values()}) == 4
    for (row, seed), run in runs.items():
        assert run.recipe.seed == seed
        assert (run.recipe.lr, run.recipe.epochs) == ((0.1, 1) if row == "fedavg" else (0.3, 2))
        assert run.summary["method"] == ("fedavg" if row == "fedavg" else "dr + fd")
    accuracies = [runs["fedavg", seed].summary["test_accuracy"] for seed in (4, 5)]
    assert found.mean("fedavg", "global") == pytest.approx(statistics.fmean(accuracies))
    assert found.deviation("fedavg", "global") == pytest.approx(statistics.stdev(accuracies))
    values = found.of("fedavg")[0]
    assert values["bytes"] == 2 * 3 * 4 * (64 * 64 + 64 + 640 + 10)  # a round, down and up
    assert values["client"] == runs["fedavg", 4].summary["client_accuracy"]["mean"]
    assert values["lost"] == 0
    assert "personal" not in values


def test_a_single_seed_has_no_deviation() -> None:
    assert fl.compare("fedavg", **FIELDS).deviation("fedavg", "global") == 0


def test_all_methods_meet_the_same_clients_with_the_same_data_and_first_weights() -> None:
    found = fl.compare(["fedavg", "scaffold @ lr=0.05", "fedper"], **FIELDS)
    runs = [result.run for result in found.results]
    assert len({str([line["cohort"] for line in run.rounds]) for run in runs}) == 1
    partitions = [np.load(run.path / "partition.npz") for run in runs]
    for partition in partitions[1:]:
        assert all(np.array_equal(partition[key], partitions[0][key]) for key in partitions[0].files)
    alone = fl.run(FIELDS, method="scaffold", lr=0.05)
    assert runs[1].summary["digest"] == alone.summary["digest"]


def test_a_method_with_personal_regions_is_judged_by_them() -> None:
    found = fl.compare("fedper", **FIELDS)
    summary = found.results[0].run.summary
    assert found.mean("fedper", "client") == summary["personal_accuracy"]["mean"]
    assert found.mean("fedper", "global") == summary["test_accuracy"]


def test_fine_tuning_takes_a_share_of_each_methods_own_rate() -> None:
    found = fl.compare("fedavg; fn @ lr=0.5", fine_tuning=RelativeFineTuning("head", 2, 0.1), **FIELDS)
    for result in found.results:
        assert result.personal is not None
        assert result.personal.lr == pytest.approx(0.1 * result.run.recipe.lr)
        again = fl.personalize(result.run, "head", 2, 0.1 * result.run.recipe.lr)
        assert result.values()["personal"] == again.personal["mean"]
        assert result.values()["personal_spread"] == again.personal["std"]


def test_finished_cells_are_skipped() -> None:
    first, again = Follows(), Follows()
    before = fl.compare("fedavg; fn", seeds=2, name="c", callbacks=[first], **FIELDS)
    assert len(first.rounds) == 2 * 2 * 2
    stamps = times(Path("runs/c"))
    after = fl.compare("fedavg; fn", seeds=2, name="c", callbacks=[again], **FIELDS)
    assert times(Path("runs/c")) == stamps
    assert again.rounds == []
    assert again.cells == [("fedavg", 0), ("fedavg", 1), ("fn", 0), ("fn", 1)]
    assert [result.values() for result in after.results] == [result.values() for result in before.results]


def test_more_seeds_and_methods_are_added_to_those_that_are_done() -> None:
    fl.compare("fedavg", seeds=1, name="c", **FIELDS)
    watcher = Follows()
    fl.compare("fedavg; fn", seeds=2, name="c", callbacks=[watcher], **FIELDS)
    assert sorted({(row, seed) for row, seed, _ in watcher.rounds}) == [("fedavg", 1), ("fn", 0), ("fn", 1)]


def test_an_interrupted_cell_is_carried_on() -> None:
    fields = {**FIELDS, "rounds": 3, "checkpoint_seconds": 0}
    whole = fl.compare("fedavg; scaffold", name="c", **fields)
    path = whole.results[1].run.path
    digest = whole.results[1].run.summary["digest"]
    (path / "summary.json").unlink()
    max((path / "checkpoints").glob("*.safetensors")).unlink()
    watcher = Follows()
    again = fl.compare("fedavg; scaffold", name="c", callbacks=[watcher], **fields)
    assert watcher.rounds == [("scaffold", 0, 3)]
    assert again.results[1].run.summary["digest"] == digest


def test_a_folder_of_another_recipe_is_refused_and_left_as_it_is() -> None:
    fl.compare("fedavg", name="c", **FIELDS)
    stamps = times(Path("runs/c"))
    with pytest.raises(fl.FedloomError, match="out: runs/c/fedavg/seed0 holds a run of another recipe"):
        fl.compare("fedavg", name="c", lr=0.2, **FIELDS)
    assert times(Path("runs/c")) == stamps


@pytest.mark.parametrize(
    ("methods", "seeds", "said"),
    [
        ("", 1, "methods: none given"),
        (" ; ", 1, "methods: none given"),
        ("fedavg; fn; fedavg", 1, "methods: fedavg is given twice"),
        ("fedavg", 0, "seeds: must be 1 or more"),
        ("fedavg; scafold", 1, "unknown part 'scafold'; did you mean scaffold?"),
        ("fedavg; fn @ lr=-1", 1, "lr: "),
        ("fedavg; fn @ rate=1", 1, "rate: unknown field"),
        ("fedavg; fn @ lr", 1, "cannot read 'lr'"),
        ("fedavg; babu @ model=linear", 1, "nothing to train"),
        ("fedavg; fn @ split=shard:2", 1, "did you mean shards?"),
    ],
)
def test_everything_is_checked_before_the_first_run_starts(methods: str, seeds: int, said: str) -> None:
    with pytest.raises(fl.FedloomError) as caught:
        fl.compare(methods, seeds, **FIELDS)
    assert said in str(caught.value)
    assert not Path("runs").exists()


def test_a_plan_is_a_list_of_recipes() -> None:
    cells = plan(["fedavg", "fn @ data.normalize=none, batch=full"], 2, {**FIELDS, "out": "there"})
    assert [cell.recipe.out for cell in cells] == [
        "there/fedavg/seed0",
        "there/fedavg/seed1",
        "there/fn-data.normalize=none-batch=full/seed0",
        "there/fn-data.normalize=none-batch=full/seed1",
    ]
    assert (cells[2].recipe.data.normalize, cells[2].recipe.batch) == ("none", "full")
    assert cells[0].recipe.data.normalize == "set"


def test_methods_that_differ_only_in_a_sign_get_folders_of_their_own() -> None:
    cells = plan(["prox(mu=1e-3)", "prox(mu=1e+3)", "fn + prox"], 1, {"out": "here"})
    assert [cell.recipe.out for cell in cells] == [
        "here/prox-mu=1e-3/seed0",
        "here/prox-mu=1e+3/seed0",
        "here/fn+prox/seed0",
    ]
