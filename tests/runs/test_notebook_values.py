"""What results look like in a notebook: short texts, small tables, data frames, figures; and read again from folders."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl

FIELDS: dict[str, Any] = {"model": "mlp(hidden=8)", "clients": 5, "rounds": 2, "workers": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a comparison, a sweep and a tuning."""
    root = tmp_path_factory.mktemp("made")
    fl.run(FIELDS, out=root / "run", metrics=["accuracy", "macro_f1"], eval_clients=1)
    fl.compare("fedavg; fn", seeds=2, given=FIELDS, out=root / "both", labels={"fn": "FedFN <b>"})
    fl.sweep({"lr": [0.01, 0.1]}, methods="fedavg", given=FIELDS, out=root / "grid")
    fl.tune("fedavg", over={"lr": [0.05, 0.2]}, given=FIELDS, out=root / "tuned")
    return root


def test_a_run_is_one_line_of_text_and_a_small_table(made: Path) -> None:
    run = fl.load(made / "run")
    assert isinstance(run, fl.Run)
    assert re.search(r"run': fedavg on digits, 5 clients, 2 rounds, accuracy \d+\.\d %\)$", repr(run))
    page = run._repr_html_()
    assert "macro" in page and "<script" not in page and len(page) < 1500


def test_a_fine_tuning_is_one_line_of_text(made: Path) -> None:
    tuned = fl.personalize(made / "run", part="head", epochs=1, lr=0.01)
    before, after = (100 * tuned.headline.curve[epoch]["mean"] for epoch in (0, 1))
    numbers = f"mean accuracy in % {before:.1f} before, {after:.1f} after"
    assert repr(tuned) == f"PersonalizationResult(head, 1 epochs at lr 0.01: {numbers})"


def test_an_unfinished_and_a_missing_run_have_a_text_too(made: Path, tmp_path: Path) -> None:
    assert repr(fl.Run(Path("nowhere"))) == "Run('nowhere')"
    (tmp_path / "recipe.yaml").write_bytes((made / "run" / "recipe.yaml").read_bytes())
    run = fl.Run(tmp_path)
    assert "unfinished: 0 of 2 rounds" in repr(run) and "unfinished" in run._repr_html_()
    assert not run.finished


def test_rounds_and_clients_of_a_run_are_data_frames(made: Path) -> None:
    run = fl.Run(made / "run")
    rounds, clients = run.frame(), run.clients_frame()
    assert rounds["round"].tolist() == [1, 2]
    assert rounds["test_accuracy"].tolist() == [line["test_accuracy"] for line in run.rounds]
    assert len(clients) == 2 * 5
    assert clients[clients["round"] == 2]["accuracy"].tolist() == run.clients[-1]["accuracy"]


def test_a_figure_of_a_run_has_a_line_for_each_evaluation(made: Path, tmp_path: Path) -> None:
    run = fl.Run(made / "run")
    figure = run.plot("macro_f1")
    assert [trace.name for trace in figure.data] == ["global model", "global model on clients' data, mean"]
    assert list(figure.data[0].y) == [100 * value for value in run.curve("macro_f1").values() if value is not None]
    figure.write_html(tmp_path / "figure.html")
    with pytest.raises(fl.FedloomError, match="the run has no 'auroc'"):
        run.plot("auroc")


def test_a_comparison_is_read_again_with_all_its_values(made: Path) -> None:
    comparison = fl.load(made / "both")
    assert isinstance(comparison, fl.Comparison)
    assert comparison.rows == ["fedavg", "fn"] and comparison.seeds == [0, 1]
    assert comparison.label("fn") == "FedFN <b>"
    again = fl.compare("fedavg; fn", seeds=2, given=FIELDS, out=made / "both", labels={"fn": "FedFN <b>"})
    assert [item.values() for item in again.results] == [item.values() for item in comparison.results]
    assert re.search(r"2 methods, 2 seeds; accuracy in %: fedavg [\d.]+ ± [\d.]+, FedFN <b> ", repr(comparison))
    assert "FedFN &lt;b&gt;" in comparison._repr_html_()


def test_frames_of_a_comparison_have_a_row_per_run_or_round(made: Path) -> None:
    comparison = fl.load(made / "both")
    assert isinstance(comparison, fl.Comparison)
    frame = comparison.frame()
    assert frame.groupby("method")["global"].mean()["fn"] == pytest.approx(comparison.mean("fn", "global"))
    assert len(comparison.rounds_frame()) == 2 * 2 * 2


def test_a_figure_of_a_comparison_has_a_line_and_a_band_per_method(made: Path) -> None:
    comparison = fl.load(made / "both")
    assert isinstance(comparison, fl.Comparison)
    figure = comparison.plot()
    lines = [trace for trace in figure.data if trace.name]
    assert [trace.name for trace in lines] == ["fedavg", "FedFN <b>"]
    assert lines[0].y[-1] == pytest.approx(100 * comparison.mean("fedavg", "global"))
    assert sum(trace.fill == "toself" for trace in figure.data) == 2


def test_a_sweep_and_a_tuning_are_read_again(made: Path) -> None:
    grid, study = fl.load(made / "grid"), fl.load(made / "tuned")
    assert isinstance(grid, fl.Comparison) and isinstance(study, fl.Study)
    assert [trace.name for trace in grid.plot().data] == ["fedavg lr=0.01", "fedavg lr=0.1"]
    assert "1 method x 2 settings, 1 seed" in repr(grid)
    again = fl.tune("fedavg", over={"lr": [0.05, 0.2]}, given=FIELDS, out=made / "tuned")
    assert study == again
    assert "lr=" in repr(study) and "lr=" in study._repr_html_()


def test_a_comparison_in_which_a_run_failed_is_read_again(tmp_path: Path) -> None:
    fl.compare("fedavg; fedavg @ lr=1e30", given=FIELDS, out=tmp_path / "c")
    comparison = fl.load(tmp_path / "c")
    assert isinstance(comparison, fl.Comparison)
    assert len(comparison.failures) == 1 and "failed" in repr(comparison)
    assert len(comparison.frame()) == 2


def test_a_folder_without_a_result_is_refused_in_a_sentence(made: Path, tmp_path: Path) -> None:
    with pytest.raises(fl.FedloomError, match="there is no folder nowhere"):
        fl.load("nowhere")
    with pytest.raises(fl.FedloomError, match="holds no run, comparison, tuning or reproduction"):
        fl.load(tmp_path)
    (tmp_path / "tune.json").write_text(json.dumps({}))
    with pytest.raises(fl.FedloomError, match="is not finished"):
        fl.load(tmp_path)
    with pytest.raises(fl.FedloomError, match=r"holds .* runs, but no finished comparison"):
        fl.load(made)


def test_splits_data_and_methods_are_short_texts_and_small_tables() -> None:
    split = fl.split(split="shards:2", clients=5)
    assert repr(split).startswith("Split(digits, shards:2: 5 clients with ")
    assert repr(split.partition) == "Partition(5 clients, 1437 training and 360 test samples)"
    assert repr(split.dataset) == "Dataset(digits: images of 8x8x1, 10 classes, 1437 training and 360 test samples)"
    assert split._repr_html_().count("<tr>") == 6
    assert "Karimireddy" in fl.method("scaffold + fn")._repr_html_()
    many = fl.split(split="iid", clients=50)._repr_html_()
    assert "30 more clients" in many and many.count("<tr>") == 21


def test_a_stored_split_is_read_from_its_file(tmp_path: Path) -> None:
    fl.split(split="shards:2", clients=5).save(tmp_path / "s.npz")
    split = fl.load(tmp_path / "s.npz")
    assert isinstance(split, fl.Split) and split.clients == 5


def test_a_frame_without_pandas_is_refused_in_a_sentence(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fl.FedloomError, match="frame: needs pandas; install it with"):
        fl.Run(made / "run").frame()
