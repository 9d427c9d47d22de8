"""An analysis of a finished run: local models against plain training, what is stored, what is left alone."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plainly import Plain, features_of, train_locally, unit

import fedloom as fl
from fedloom.analysis.collect.images import select_images
from fedloom.runs.folder import RunFolder

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 2, "workers": 1, "eval_every": 0}
TABLES = {"classes.csv", "clients.csv", "pairs.csv", "spectrum.csv", "layers.csv", "embedding.csv", "cost.csv"}


def mean_over(values: np.ndarray, y: np.ndarray, classes: np.ndarray) -> float:
    return float(values[classes[y]].mean())


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_local_models_are_those_of_plain_training_from_the_stored_weights(model: str) -> None:
    """With whole batches, so that the order of images is no matter."""
    run = fl.run(FIELDS, model=model, batch="full", epochs=3, lr=0.1)
    asked = [1, 4, 7]
    found = fl.analyze(run, what="norms,alignment,drift,refinement", clients=asked)
    plain, start = Plain(run), run.weights
    v0, f0 = start["head.weight"].double().numpy(), features_of(model, start, plain.x)
    y = plain.y
    rows = {row["client"]: row for row in found.table("clients")}
    assert list(rows) == asked
    updates, gaps, accuracies = {}, [], []
    for client in asked:
        own, seen = plain.own[client], plain.seen[client]
        local = train_locally(model, start, plain.train_x[own], plain.train_y[own], 3, 0.1)
        f, v = features_of(model, local, plain.x), local["head.weight"].numpy()
        alignment = (unit(f) * unit(v)[y]).sum(1)
        by_index = {
            "feature_norm": np.linalg.norm(f, axis=1),
            "alignment": alignment,
            "alignment_gap": alignment - (unit(f0) * unit(v0)[y]).sum(1),
            "feature_distance": np.linalg.norm(f - f0, axis=1),
            "feature_angle": np.degrees(np.arccos(np.clip((unit(f) * unit(f0)).sum(1), -1, 1))),
        }
        for name, values in by_index.items():
            for part, classes in (("seen", seen), ("unseen", ~seen)):
                like = mean_over(values, y, classes)
                assert rows[client][f"{name}_{part}"] == pytest.approx(like, rel=2e-3, abs=2e-4), name
        norms = np.linalg.norm(v, axis=1)
        assert rows[client]["weight_norm_seen"] == pytest.approx(norms[seen].mean(), rel=1e-3)
        assert rows[client]["weight_norm_unseen"] == pytest.approx(norms[~seen].mean(), rel=1e-3)
        right = (f @ v.T + local["head.bias"].numpy()).argmax(1) == y
        assert rows[client]["accuracy_local"] == pytest.approx(right.mean(), abs=0.006)  # two images
        accuracies.append([right[y == c].mean() for c in range(10)])
        updates[client] = np.concatenate([(local[name] - start[name]).numpy().ravel() for name in sorted(local)])
        assert rows[client]["update_norm"] == pytest.approx(np.linalg.norm(updates[client]), rel=1e-3)
        gaps.append(mean_over(by_index["alignment_gap"], y, ~seen))
    summary = found.summary
    assert summary["alignment"]["gap_unseen"] == pytest.approx(np.mean(gaps), rel=2e-3, abs=2e-4)
    assert summary["refinement"]["local"] == pytest.approx(np.mean(accuracies, axis=0).tolist(), abs=0.04)
    assert summary["norms"]["feature_global"] == pytest.approx(np.linalg.norm(f0, axis=1).mean(), rel=1e-5)
    assert summary["norms"]["weight_global"] == pytest.approx(np.linalg.norm(v0, axis=1).mean(), rel=1e-5)
    for pair in found.table("pairs"):
        a, b = updates[pair["client_a"]], updates[pair["client_b"]]
        assert pair["cosine"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-3)
    assert len(found.table("pairs")) == 3


def test_everything_is_stored_and_the_run_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.analysis.embedding.POINTS", 200)
    run = fl.run(FIELDS, method="fedper + scaffold", analyze_every=1)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    said: list[str] = []
    found = fl.analyze(run, progress=said.append)
    assert {path: path.read_bytes() for path in before} == before
    assert not multiprocessing.active_children()
    assert {path.name for path in found.path.iterdir()} == TABLES | {"factors.npz", "summary.json", "rounds.jsonl"}
    assert len(said) >= 4
    summary = found.summary
    assert summary["clients"] == run.rounds[-1]["cohort"]
    assert summary["round"] == 2 and summary["classes"] == [str(c) for c in range(10)]
    classes = found.table("classes")
    assert [row["stage"] for row in classes] == ["global"] * 10 + (["start"] * 10 + ["local"] * 10) * 3
    pooled = [row["accuracy"] * row["test_images"] for row in classes[:10]]
    assert sum(pooled) / 360 == pytest.approx(run.summary["test_accuracy"], abs=1e-4)
    points = found.table("embedding")
    assert len(points) == 200 and {point["kind"] for point in points} == {"tsne"}
    assert {point["client"] for point in points} == {None, *summary["clients"]}
    spectrum = [row["singular_value"] for row in found.table("spectrum") if row["stage"] == "global"]
    assert len(spectrum) == 64 and spectrum == sorted(spectrum, reverse=True)
    layers = {row["layer"]: row for row in found.table("layers")}
    assert list(layers) == ["body.1", "head"]
    assert layers["head"]["weight_global"] == 1  # personal: aggregation does not touch it
    assert layers["body.1"]["weight_global"] < 1


def test_the_numbers_depend_neither_on_the_number_of_workers_nor_on_an_earlier_analysis() -> None:
    what = "factors,norms,alignment,drift,collapse,consistency,refinement"
    texts = []
    for workers in (1, 3):
        run = fl.run(FIELDS, workers=workers, method="fnr", out=f"workers{workers}")
        for _ in range(2):
            found = fl.analyze(run, what=what)
            texts.append({path.name: path.read_bytes() for path in found.path.iterdir()})
    assert texts[0] == texts[1] == texts[2] == texts[3]


def test_a_clients_own_head_is_part_of_its_start_and_of_its_local_model() -> None:
    run = fl.run({**FIELDS, "fraction": 1.0}, method="fedper", rounds=3)
    found = fl.analyze(run, what="norms", clients="all")
    own = run.clients[-1]["personal_accuracy"]
    data = Plain(run)
    with np.load(run.path / "partition.npz") as file:
        index, offsets = file["test_index"], file["test_offsets"]
    for row in found.table("clients"):
        mine = index[offsets[row["client"]] : offsets[row["client"] + 1]]
        share = sum(data.seen[row["client"]][data.y[mine]]) / len(mine)
        assert share == 1  # its own test samples are of classes that it holds
    starts = [row for row in found.table("classes") if row["stage"] == "start" and row["seen"]]
    assert np.mean([row["accuracy"] for row in starts]) == pytest.approx(np.mean(own), abs=0.1)
    served = [row for row in found.table("classes") if row["stage"] == "global"]
    assert np.mean([row["accuracy"] for row in served]) < 0.6  # its head is as initialized
    assert np.ptp([row["weight_norm"] for row in starts]) > 0.1


def test_a_second_act_shows_as_a_third_stage() -> None:
    run = fl.run(FIELDS, method="fnr(share=0.4, epochs=2)")
    found = fl.analyze(run, what="refinement", clients=[0, 2, 5, 6, 9])
    asked = found.summary["refinement"]["refined_clients"]
    assert len(asked) == 2 and set(asked) < {0, 2, 5, 6, 9}
    refined = [row for row in found.table("classes") if row["stage"] == "refined"]
    assert {row["client"] for row in refined} == set(asked) and len(refined) == 20
    for row in found.table("clients"):
        assert (row["accuracy_refined"] is not None) == (row["client"] in asked) == bool(row["refined"])
    mean = np.mean([[row["accuracy"] for row in refined if row["client"] == k] for k in asked], axis=0)
    assert found.summary["refinement"]["refined"] == pytest.approx(mean.tolist(), abs=1e-5)
    local = [row for row in found.table("classes") if row["stage"] == "local" and row["client"] in asked]
    mean = np.mean([[row["accuracy"] for row in local if row["client"] == k] for k in asked], axis=0)
    assert found.summary["refinement"]["asked"] == pytest.approx(mean.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "etf"},
        {"method": "sphere(loss=mse)"},
        {"method": "local"},
        {"method": "exp"},
        {"method": "central"},
        {"method": "sphere(calibrate=true)"},
        {"model": "linear"},
        {"method": "gela", "bn": "local"},
        {"split": "iid", "clients": 2, "fraction": 1.0},
        {"lr": 50.0},  # every feature dies
    ],
    ids=str,
)
def test_odd_nets_methods_and_splits_are_measured(fields: dict[str, Any]) -> None:
    run = fl.run({**FIELDS, **fields}, rounds=1, analyze_every=1)
    found = fl.analyze(run, what="factors,norms,alignment,drift,collapse,consistency,refinement")
    summary, line = found.summary, found.rounds[-1]
    assert summary["factors"]["inter_class"] is not None
    assert -1 <= summary["alignment"]["seen"] <= 1
    assert summary["factors"]["weight_similarity"] == pytest.approx(line["factors"]["weight_similarity"])
    if fields.get("method") == "etf":
        assert summary["factors"]["weight_similarity"] == pytest.approx(-1 / 9, abs=1e-6)
    if fields.get("method") == "local":
        assert summary["drift"]["norm"] is None and line["drift"]["norm"] is None
    if fields.get("method") == "central":
        assert summary["clients"] == [0] and summary["alignment"]["unseen"] is None
    if fields.get("split") == "iid":
        assert summary["alignment"]["unseen"] is None and summary["norms"]["feature_unseen"] is None
    if "lr" in fields:
        assert summary["norms"]["feature_global"] == 0 and summary["collapse"]["effective_rank_global"] == 0


def test_later_analyses_leave_other_sections_and_fewer_images_are_balanced() -> None:
    run = fl.run(FIELDS)
    first = fl.analyze(run, what="factors,cost", target=[0.1, 0.99]).summary
    assert [target["target"] for target in first["cost"]["targets"]] == [0.1, 0.99]
    assert first["cost"]["targets"][1]["round"] is None
    second = fl.analyze(run.path, what=["norms"], clients=[3], images=40).summary
    assert second["factors"] == first["factors"] and second["cost"] == first["cost"]
    assert second["norms"]["images"] == 40 and second["norms"]["clients"] == [3]
    experiment = RunFolder(run.path).experiment()
    picked = select_images(experiment, 40)
    assert experiment.data.dataset.test_y[picked].bincount().tolist() == [4] * 10
    assert len(set(picked.tolist())) == 40
    assert select_images(experiment, 1000).tolist() == list(range(360))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"what": "factors,color"}, "what: 'color' is unknown; allowed are factors, norms"),
        ({"clients": [10]}, "clients: there is no client 10; they are numbered from 0 to 9"),
        ({"clients": "some"}, "clients: numbers such as 0,3,7 or all are expected"),
        ({"clients": []}, "clients: at least one is needed"),
        ({"images": 0}, "images: must be at least 1"),
        ({"target": 80}, "target: a value of accuracy above 0 and at most 1 is expected"),
    ],
)
def test_what_cannot_be_analysed_is_told(fields: dict[str, Any], said: str) -> None:
    run = fl.run(FIELDS, rounds=1)
    with pytest.raises(fl.FedloomError, match=said):
        fl.analyze(run, **fields)
    assert not (run.path / "analysis").exists()


def test_a_run_that_is_not_finished_is_not_analysed() -> None:
    run = fl.run(FIELDS, rounds=1, out="x")
    (run.path / "summary.json").unlink()
    with pytest.raises(fl.FedloomError, match="x is not finished"):
        fl.analyze("x")
    with pytest.raises(fl.FedloomError, match="there is no table"):
        fl.Analysis(Path("x/analysis")).table("classes")


def test_the_command_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    from fedloom.cli.main import main

    fl.run(FIELDS, out="x")
    with pytest.raises(SystemExit, match="0"):
        main(["analyze", "x", "--what", "factors, drift,cost", "--clients", "2,5", "--target", "0.05"])
    said = capsys.readouterr().out
    for words in ("four factors of the global model (360 test samples)", "drift: updates of 2 clients", "5.0 %"):
        assert words in said
    assert json.loads(Path("x/analysis/summary.json").read_text())["drift"]["clients"] == [2, 5]
