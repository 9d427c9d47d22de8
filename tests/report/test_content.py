"""The page's data are the folders' numbers; its text cannot become markup."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import FIELDS, make

import fedloom as fl
from fedloom.report.content import content
from fedloom.report.gather import find
from fedloom.report.page import embedded, page, plotly
from fedloom.report.published import matching, parts, rows


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("runs"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_runs_that_differ_in_their_seed_are_one_series_named_by_what_differs(pair: Path) -> None:
    data = content([pair])
    assert [(s["label"], len(s["runs"])) for s in data["series"]] == [("fedavg", 2), ("fedper", 2)]
    assert {row["field"]: row["values"] for row in data["recipe"]["apart"]} == {
        "method": ["fedavg", "fedper"],
        "lr": ["0.1", "0.05"],
    }
    assert {"field": "clients", "value": "10"} in data["recipe"]["shared"]


def test_curves_and_clients_are_what_the_run_folder_holds(pair: Path) -> None:
    for series in content([pair])["series"]:
        for run in series["runs"]:
            told = lines(Path(run["path"]) / "rounds.jsonl")
            assert run["curves"]["round"] == [line["round"] for line in told]
            assert run["curves"]["seconds"] == pytest.approx(np.cumsum([line["seconds"] for line in told]))
            moved = [line["bytes_down"] + line["bytes_up"] for line in told]
            assert run["curves"]["bytes"] == np.cumsum(moved).tolist()
            assert run["curves"]["test_accuracy"] == pytest.approx([line["test_accuracy"] for line in told], rel=1e-5)
            each = lines(Path(run["path"]) / "clients.jsonl")[-1]
            assert run["clients"]["accuracy"]["values"] == pytest.approx(sorted(each["accuracy"]), rel=1e-5)
            worst = min(range(10), key=lambda k: each["accuracy"][k])
            assert run["clients"]["accuracy"]["worst"][0]["client"] == worst
            assert run["summary"]["test_accuracy"] == told[-1]["test_accuracy"]


def test_the_heat_map_counts_every_training_image_once(pair: Path) -> None:
    first, second = content([pair])["splits"]  # one for each seed, shared by the methods
    assert first["series"] == ["fedavg", "fedper"]
    from fedloom.data import load

    labels = load("digits").train_y.numpy()
    stored = np.load(pair / "fedavg" / "seed0" / "partition.npz")
    for client in range(10):
        own = stored["train_index"][stored["train_offsets"][client] : stored["train_offsets"][client + 1]]
        assert first["counts"][client] == [int((labels[own] == c).sum()) for c in range(10)]
    assert np.sum(second["counts"]) == len(labels)


def test_analysis_files_reach_the_page(pair: Path) -> None:
    run, other = content([pair])["series"][0]["runs"]
    told = lines(pair / "fedavg" / "seed0" / "analysis" / "rounds.jsonl")
    columns = run["analysis"]["rounds"]
    assert columns["round"] == [2, 4]
    assert columns["norms.feature_seen"] == pytest.approx([line["norms"]["feature_seen"] for line in told], rel=1e-5)
    assert columns["alignment.gap_seen"][0] is None
    stored = np.load(pair / "fedavg" / "seed0" / "analysis" / "factors.npz")
    shown = np.array(run["analysis"]["factors"]["inter_class"], dtype=float)
    assert np.isnan(shown[0, 3])
    assert np.nanmax(np.abs(shown / 100 - stored["inter_class"])) <= 0.0051
    assert len(run["analysis"]["embedding"]["x"]) == 60
    assert set(other["analysis"]) == {"rounds", "summary"}  # matrices of one seed are enough
    assert run["curves"]["selectors"]["body.3.norm mean"] == [[0.25, 0.75]] * 4


def test_any_text_is_safe_inside_the_page(pair: Path) -> None:
    nasty = "</script><script>alert(1)</script><!-- &amp; \u2028"
    text = page({**content([pair]), "title": nasty})
    assert nasty not in text and "<script>alert" not in text
    assert json.loads(embedded({"x": nasty})) == {"x": nasty}
    assert "<" not in embedded({"x": nasty})


def test_the_file_names_no_address_to_fetch(pair: Path) -> None:
    (path,) = fl.report(pair, "r.html")
    own = path.read_text().replace(plotly(), "").replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in own and "https://" not in own and " src=" not in own and "@import" not in own


def test_ten_runs_of_300_rounds_stay_below_8_mb(pair: Path, tmp_path: Path) -> None:
    source = pair / "fedavg" / "seed0"
    line = lines(source / "rounds.jsonl")[-1]
    for number in range(10):
        shutil.copytree(source, tmp_path / "many" / str(number))
        recipe = (source / "recipe.yaml").read_text().replace("lr: 0.1", f"lr: 0.{number + 1}5")
        (tmp_path / "many" / str(number) / "recipe.yaml").write_text(recipe)
        many = [{**line, "round": k, "seconds": 1.234567 + k} for k in range(1, 301)]
        (tmp_path / "many" / str(number) / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in many))
    (path,) = fl.report([tmp_path / "many"], "r.html")
    assert len(content([tmp_path / "many"])["series"]) == 10
    assert path.stat().st_size < 8e6


def test_damaged_and_unfinished_folders_do_not_stop_the_others(pair: Path, tmp_path: Path) -> None:
    shutil.copytree(pair / "fedavg" / "seed0", tmp_path / "cut")
    for name in ("summary.json", "partition.npz", "clients.jsonl", "analysis/summary.json", "analysis/factors.npz"):
        (tmp_path / "cut" / name).write_text("{ half")
    with (tmp_path / "cut" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "seco')
    run = content([tmp_path / "cut"])["series"][0]["runs"][0]
    assert (run["finished"], run["done"]) == (False, 4)
    assert "clients" not in run and "factors" not in run["analysis"]


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fl.FedloomError, match="holds no run"):
        fl.report(tmp_path, "r.html")
    with pytest.raises(fl.FedloomError, match="there is no folder"):
        fl.report(tmp_path / "none", "r.html")
    with pytest.raises(fl.FedloomError, match="no run folder is given"):
        fl.report([], "r.html")
    assert not Path("r.html").exists()


def test_each_run_is_taken_once_and_hidden_folders_are_passed_over(pair: Path) -> None:
    hidden = pair / "fedavg" / ".seed9.half"
    shutil.copytree(pair / "fedavg" / "seed0", hidden)
    assert len(find([pair, pair / "fedavg", pair / "fedavg" / "seed0"])) == 4
    shutil.rmtree(hidden)


def test_published_numbers_are_matched_by_data_net_split_and_parts() -> None:
    recipe = {"data.name": "cifar10", "model": "lenet", "split": "dirichlet:0.30", "clients": 100, "fraction": 0.15}
    recipe |= {"lr": 0.1, "epochs": 5}
    (row,) = [r for r in matching(recipe, "prox(mu=0.01)") if r["table"] == "Table 8"]
    assert (row["paper"], row["value"], row["best_of"]) == ("FedNN", 76.36, 1)
    assert matching({**recipe, "model": "mlp"}, "prox") == []
    assert matching({**recipe, "split": "shards:2"}, "prox") == []
    assert matching({**recipe, "data.name": "digits"}, "prox") == []
    grid = {**recipe, "model": "vgg11", "split": "shards:2", "lr": 0.05, "epochs": 10}
    (same,) = [r for r in matching(grid, "babu") if r["table"] == "Table A2"]
    assert (same["value"], same["setting"]) == (71.52, "s=2; lr=0.05; epochs=10")
    (best,) = [r for r in matching({**grid, "lr": 7.0}, "babu") if r["table"] == "Table A2"]
    every = [r["value"] for r in rows() if (r["table"], r["split"], r["parts"]) == ("Table A2", "shards:2", "babu")]
    assert best["value"] == max(every) and best["best_of"] == len(every) > 1


def test_parts_of_a_sum_are_compared_without_their_parameters() -> None:
    assert parts("fd(beta=0.9) + dr") == "dr+fd"
    assert parts("fedavg") == "fedavg"


def test_unfinished_runs_show_their_newest_numbers() -> None:
    run = fl.run(FIELDS, out="x")
    (run.path / "summary.json").unlink()
    found = content(["x"])["series"][0]["runs"][0]
    assert (found["finished"], found["done"], found["rounds"]) == (False, 4, 4)
    assert found["summary"] == {}
