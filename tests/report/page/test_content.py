"""The page's data are the folders' numbers; its text cannot become markup."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import FIELDS, POINTS, published

import fedloom as fl
from fedloom.data.split import check_spec
from fedloom.report.page.content import content
from fedloom.report.page.gather import find_runs
from fedloom.report.page.html import embedded, page, plotly
from fedloom.report.page.published import ALTERNATIVE, canonical, matching, notes, rows


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


def test_series_are_called_what_the_user_typed_in_the_order_of_the_comparison(tmp_path: Path) -> None:
    fields = {"clients": 5, "rounds": 1, "workers": 1, "eval_every": 0}
    fl.compare("fn @ batch=64; feddrplus", 1, given=fields, out=str(tmp_path / "both"))
    fl.run(fields, method="fedfn", out=str(tmp_path / "one"))
    assert [series["label"] for series in content([tmp_path])["series"]] == ["fn @ batch=64", "feddrplus", "fedfn"]
    (tmp_path / "both" / "labels.json").unlink()  # as while the comparison runs
    assert [series["label"] for series in content([tmp_path])["series"]] == ["feddrplus", "fn", "fedfn"]
    named = content([tmp_path], labels=["dr + fd=FedDr+"])
    assert named["title"] == "FedDr+, fn, fedfn on digits (shards:2, mlp)"
    with pytest.raises(
        fl.FedloomError, match="label: 'scaffold' is none of the methods, which are feddrplus; fn; fedfn"
    ):
        content([tmp_path], labels=["scaffold=S"])


def test_folders_are_ordered_by_the_values_of_their_numbers(small: Path, tmp_path: Path) -> None:
    for name in ("lr=10", "lr=3", "seed2", "seed10"):
        shutil.copytree(small, tmp_path / name)
    assert [run.path.name for run in find_runs([tmp_path])] == ["lr=3", "lr=10", "seed2", "seed10"]


def test_the_page_says_where_and_when_its_runs_were_made(pair: Path) -> None:
    data = content([pair])
    (origin,) = data["origins"]
    summary = json.loads((pair / "fedavg" / "seed0" / "summary.json").read_text())
    assert f"{summary['machine']['cores']} cores" in origin["machine"] and origin["series"] == ["fedavg", "fedper"]
    assert f"torch {summary['versions']['torch']}" in origin["versions"]
    assert data["title"] == "fedavg, fedper on digits (shards:2, mlp)" and data["date"].startswith("20")
    assert content([pair], "mine")["title"] == "mine"


def test_curves_and_clients_are_what_the_run_folder_holds(pair: Path) -> None:
    for series in content([pair])["series"]:
        for run in series["runs"]:
            told = lines(Path(run["path"]) / "rounds.jsonl")
            assert run["curves"]["round"] == [line["round"] for line in told]
            assert run["curves"]["seconds"] == pytest.approx(np.cumsum([line["seconds"] for line in told]), rel=1e-5)
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
    stored = np.load(pair / "fedavg" / "seed0" / "analysis" / "factors.npz")
    shown = np.array(run["analysis"]["factors"]["inter_class"], dtype=float)
    assert np.abs(shown / 100 - stored["inter_class"]).max() <= 0.0051
    tables = fl.Analysis(pair / "fedavg" / "seed0" / "analysis")
    points = tables.table("embedding")
    assert len(points) == POINTS
    for name in ("x", "y"):
        assert run["analysis"]["embedding"][name] == pytest.approx([point[name] for point in points], rel=1e-3)
    values = [row["singular_value"] for row in tables.table("spectrum") if row["stage"] == "global"]
    assert run["analysis"]["spectrum"]["global"] == pytest.approx(values, rel=1e-5)
    assert run["analysis"]["layers"]["layer"] == ["body.1", "head"]
    assert run["analysis"]["layers"]["weight_clients"] == [row["weight_clients"] for row in tables.table("layers")]
    assert run["analysis"]["clients"]["client"] == tables.summary["clients"]
    assert run["analysis"]["summary"] == tables.summary
    assert set(other["analysis"]) == {"rounds", "summary"}  # matrices of one seed are enough


def test_undefined_numbers_of_an_analysis_are_null(gaps: Path) -> None:
    (run,) = content([gaps])["series"][0]["runs"]
    matrix = run["analysis"]["factors"]["inter_class"]
    assert matrix[3] == [None] * 4 and None not in matrix[0][:3]  # no test sample is of class 3
    assert run["analysis"]["rounds"]["alignment.gap_unseen"] == [None, None]  # every client has seen every class
    assert None not in run["analysis"]["rounds"]["alignment.gap_seen"]
    assert run["analysis"]["summary"]["refinement"]["local"][3] is None


def test_selectors_of_adaptive_normalizers_reach_the_page_layer_by_layer(adaptive: Path) -> None:
    shown = [series["runs"][0]["curves"]["selectors"] for series in content([adaptive])["series"]]
    logged = [line["selectors"] for line in lines(adaptive / "fednn" / "rounds.jsonl")]
    assert list(shown[0]) == list(logged[0]) != []
    for layer, shares in shown[0].items():
        assert shares == [pytest.approx(one[layer], rel=1e-3) for one in logged]
    logged = [line["selectors"] for line in lines(adaptive / "sn" / "rounds.jsonl")]
    assert list(shown[1]) == [f"{layer} {kind}" for layer in logged[0] for kind in ("mean", "var")] != []
    for name, shares in shown[1].items():
        layer, kind = name.split(" ")
        assert shares == [pytest.approx(one[layer][kind], rel=1e-3) for one in logged]


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
    assert len(find_runs([pair, pair / "fedavg", pair / "fedavg" / "seed0"])) == 4
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
    assert (same["value"], same["setting"]) == (71.52, "eta=0.05; s=2; E=10")
    (best,) = [r for r in matching({**grid, "lr": 7.0}, "babu") if r["table"] == "Table A2"]
    every = [r["value"] for r in rows() if (r["table"], r["split"], r["sums"]) == ("Table A2", "shards:2", "babu")]
    assert best["value"] == max(every) and best["best_of"] == len(every) > 1


def test_parts_of_a_sum_are_compared_without_the_parameters_that_only_tune_them() -> None:
    assert canonical("fd(beta=0.5) + dr") == canonical("feddrplus") == "dr + fd"
    assert canonical("fedavg") == "fedavg"
    assert canonical("scaffold + norm(kind=gn, groups=4)") == canonical("norm + scaffold") == "norm + scaffold"
    assert canonical("sphere(scale=15)") == "sphere"
    assert canonical("spherefed") == "sphere(loss=mse)" != canonical("sphere(loss=mse, calibrate=true)")


SPHERE = {"data.name": "cifar100", "model": "mobilenet", "split": "shards:10", "lr": 6.5, "epochs": 3}
LENET = {"data.name": "digits5", "model": "lenet", "split": "domains", "clients": 5, "fraction": 0.4}
SKEWED = {"data.name": "cifar10.npz", "model": "resnet18", "split": "dirichlet:0.5", "clients": 10}


def printed(fields: dict[str, Any], text: str) -> set[tuple[str, str, str, float]]:
    return {(r["paper"], r["table"], r["method"], r["value"]) for r in matching(fields, text)}


def test_the_two_losses_of_spherefed_are_two_methods() -> None:
    squares, entropy = printed(SPHERE, "spherefed"), printed(SPHERE, "sphere")
    assert squares and entropy and not squares & entropy
    assert ("FedDr+", "Table 3", "SphereFed", 42.71) in squares
    assert all("(CE)" in name for _, _, name, _ in entropy) and not any("(CE)" in name for _, _, name, _ in squares)
    assert printed(SPHERE, "spherefed(calibrate=true)") == set()  # neither paper calibrates


@pytest.mark.parametrize(
    ("fields", "text", "expected"),
    [
        (LENET, "norm(kind=gn)", ("FedNN", "Table 2", "FedAvg(GN)", 81.8)),
        (LENET, "norm(kind=bn)", ("FedNN", "Table 2", "FedAvg(BN)", 81.02)),
        (LENET, "norm(kind=frn)", ("FedNN", "Table 11", "FRN", 80.79)),
        (LENET, "wn", ("FedNN", "Table 2", "FedAvg+Ours(w/o AGN)", 70.76)),
        (LENET, "prox(mu=0.001) + norm", ("FedNN", "Table 4", "FedProx(GN)", 81.8)),
        (LENET, "fedavg", ("FedNN", "Table 2", "FedAvg", 77.77)),
        (LENET, "fednn(tau=3)", ("FedNN", "Table 7", "FedAvg+FedNN", 82.83)),
        (LENET, "central", ("FedNN", "Table 12", "centralised", 78.42)),
        (LENET, "central + fednn", ("FedNN", "Table 12", "centralised+FedNN", 82.15)),
        ({**LENET, "data.name": "pacs64", "model": "resnet18"}, "fedavg", ("FedNN", "Table 2", "FedAvg(BN)", 87.22)),
        (SKEWED, "fnr", ("FNR-FL", "Table 2", "FNR-FL", 99.7)),
        (SKEWED, "fnr(mode=as_published)", ("FNR-FL", "Table 7", "FNR-FL", 99.7)),
        ({**SKEWED, "split": "noise:0.1"}, "fnrfl", ("FNR-FL", "Table 7", "FNR-FL", 99.84)),
        ({**SKEWED, "split": "noise:0.3", "model": "vgg11"}, "moon", ("FNR-FL", "Table 2", "MOON", 71.93)),
        (
            {**SPHERE, "split": "shards:50"},
            "server-data",
            ("FedBABU", "Table 2", "FedAvg + server update, full", 27.13),
        ),
        ({**SPHERE, "split": "dirichlet:1.0"}, "fn", ("FedFN", "Table A8", "FedAVG +FN", 47.8)),
    ],
)
def test_rows_are_found_for(fields: dict[str, Any], text: str, expected: tuple[str, str, str, float]) -> None:
    assert expected in printed(fields, text)


def test_a_net_without_normalizers_is_not_compared_with_one_that_has_them() -> None:
    plain, normalized = printed(LENET, "prox"), printed(LENET, "prox + norm(kind=gn)")
    assert plain and not plain & normalized
    assert all("GN" not in name and "BN" not in name for _, _, name, _ in plain)


def test_what_fnr_printed_says_that_it_was_trained_on_test_images() -> None:
    found = [row for row in rows() if row["paper"] == "FNR-FL" and row["sums"] == "fnr"]
    assert len(found) == 12
    assert all("the released code trains on the test set" in row["flag"] for row in found)
    assert {row["measure"]["kind"] for row in found if "noise" in row["split"]} == {"clean"}
    (row,) = (r for r in matching(SKEWED, "fnr") if r["table"] == "Table 2")
    assert "fnr.mode private (published as_published)" in row["differs"]


def test_what_differs_from_the_published_protocol_is_listed() -> None:
    ours = {"clients": 20, "fraction": 0.4, "rounds": 200, "epochs": 1, "lr": 0.1, "schedule": "constant", "clip": None}
    (row,) = (r for r in matching({**LENET, **ours}, "prox(mu=0.01) + norm(kind=gn)") if r["table"] == "Table 4")
    first, *others = row["differs"]
    assert first == "split domains (published domains+take:371)"
    assert sorted(others) == [
        *("clients 20 (published 5)", "clip none (published 10)", "epochs 1 (published 5)"),
        *("prox.mu 0.01 (published 0.001)", "schedule constant (published exp:0.998)"),
    ]
    (central,) = matching(LENET, "central + fednn")
    assert central["differs"][-1] == "unknown, since no protocol is printed for this row"
    prior = {"data.name": "cifar10", "model": "lenet", "split": "dirichlet:0.3"}
    assert all(
        r["differs"][0].startswith("split dirichlet:0.3 (published dirichlet-cl") for r in matching(prior, "prox")
    )


def test_every_published_row_can_be_found_by_a_recipe_that_reads_as_it_does() -> None:
    for row in rows():
        for text in row["sums"].split(ALTERNATIVE):
            fl.method(text)
        for split in row["split"].split(ALTERNATIVE):
            split = split.replace("*", "0.25")
            assert check_spec(split) == split
        known = {*fl.Recipe.model_fields, *(f"{p.name}.{f}" for p in fl.method(text).parts for f in p.model_dump())}
        assert set(row["protocol"]) <= known
    fields = {"data.name": "", "model": "", "split": ""}
    for row in rows()[::29]:
        recipe = {**fields, "data.name": row["data"], "model": row["model"], "split": row["split"].split(" ")[0]}
        recipe["split"] = recipe["split"].replace("*", "0.25")
        found = matching({**recipe, **row["protocol"]}, row["sums"].split(ALTERNATIVE)[0])
        assert any((r["table"], r["method"]) == (row["table"], row["method"]) for r in found)
    assert set(notes(row["paper"] for row in rows())) == {"FedFN", "FedBABU", "FedNN", "FedDr+", "FNR-FL"}


def test_a_method_with_a_part_of_the_users_own_has_no_published_numbers() -> None:
    assert matching(LENET, "prox + nobodys") == []


def test_training_the_body_on_server_data_helps_after_fine_tuning_rather_than_before() -> None:
    """FedBABU's Table 2, of which server-data tells."""
    table = [r for r in rows() if (r["paper"], r["table"]) == ("FedBABU", "Table 2") and r["sums"] != "fedavg"]
    cells = {
        (r["sums"], r["split"], r["protocol"]["server-data.share"], r["measure"]["kind"]): r["value"] for r in table
    }
    places = [(split, p) for split in ("shards:100", "shards:50", "shards:10") for p in (0.05, 0.1)]
    better = {
        kind: [cells["server-data(update=body)", *at, kind] > cells["server-data", *at, kind] for at in places]
        for kind in ("client", "tuned")
    }
    assert sum(better["client"]) == 3 and all(better["tuned"])


def test_ours_is_of_the_same_measure_or_said_to_be_lacking(tmp_path: Path) -> None:
    path = published(tmp_path, "x", method="babu")
    before = {(r["table"], r["measure"]): r for r in content([path])["published"]}
    summary = json.loads((path / "summary.json").read_text())
    globally = before["Table 2", "global model, pooled test set"]
    assert globally["ours"] == [pytest.approx(summary["test_accuracy"], abs=1e-6)] and not globally["lacking"]
    client = before["Table 5", "global model, mean over clients before fine-tuning"]
    assert client["ours"] == [pytest.approx(summary["client_accuracy"]["mean"], abs=1e-6)]
    assert client["ours"] != globally["ours"]
    head = "fine-tuned (head, 5 epochs), mean over clients"
    lacking = "not measured; fedloom personalize RUN --part head --epochs 5 --lr 0.001"
    assert (before["Table 3", head]["ours"], before["Table 3", head]["lacking"]) == ([], lacking)

    recipe = (path / "recipe.yaml").read_text()
    (path / "recipe.yaml").write_text(recipe.replace("cifar100", "digits").replace("mobilenet", "mlp"))
    outcome = fl.personalize(path, "head", 6, 0.01)
    for number, odd in enumerate(
        ({"lr": None}, {"lr": "x"}, {"lr": 0.001, "curve": 7}, {"lr": 0.001, "curve": [1] * 9})
    ):
        (path / "personal" / f"odd{number}.json").write_text(json.dumps({"part": "head", **odd}))  # passed over
    (path / "recipe.yaml").write_text(recipe)
    after = {(r["table"], r["measure"]): r for r in content([path])["published"]}
    assert after["Table 3", head]["ours"] == [pytest.approx(outcome.curve[5]["mean"], abs=1e-6)]
    assert "fine-tuning lr 0.01 (published 0.001)" in after["Table 3", head]["differs"]
    full = "fine-tuned (full, 5 epochs), mean over clients"
    assert after["Table 3", full]["ours"] == [] != after["Table 3", full]["lacking"]


def test_personal_rows_are_compared_with_clients_own_models(tmp_path: Path) -> None:
    for seed in (0, 1):
        published(tmp_path / "both", str(seed), method="fedper", seed=seed)
    data = content([tmp_path / "both"])
    found = {row["measure"] for row in data["published"]}
    assert found == {"clients' own models, mean over clients"}
    expected = [json.loads((tmp_path / "both" / s / "summary.json").read_text()) for s in "01"]
    means = [summary["personal_accuracy"]["mean"] for summary in expected]
    assert all(row["ours"] == pytest.approx(means, abs=1e-6) for row in data["published"])
    assert all("rounds 4 (published" in " ".join(row["differs"]) for row in data["published"])
    assert set(data["protocols"]) == {row["paper"] for row in data["published"]} == {"FedBABU", "FedDr+", "FedFN"}


def test_unfinished_runs_show_their_newest_numbers() -> None:
    run = fl.run(FIELDS, out="x")
    (run.path / "summary.json").unlink()
    found = content(["x"])["series"][0]["runs"][0]
    assert (found["finished"], found["done"], found["rounds"]) == (False, 4, 4)
    assert found["summary"] == {}
