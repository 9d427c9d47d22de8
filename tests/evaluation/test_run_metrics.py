"""The metrics of a recipe in a whole run, recomputed from its files with numpy and scikit-learn alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from numpy.typing import NDArray
from safetensors.numpy import load_file

import fedloom as fl
from fedloom.errors import Interrupted
from fedloom.evaluation.clients import evaluate_clients
from fedloom.evaluation.global_model import evaluate_global
from fedloom.evaluation.metrics import METRICS
from fedloom.finished.restore import restore_finished
from fedloom.runs.federation import federation
from fedloom.runs.folder import RunFolder

ALL = ["accuracy", "auroc", "balanced_accuracy", "calibration_error", "loss", "macro_f1", "top5"]
FIELDS: dict[str, Any] = {"clients": 5, "fraction": 0.6, "rounds": 3, "workers": 2, "model": "linear", "lr": 0.05}
TIMES = ("seconds", "phase_seconds", "evaluation_seconds")
Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def forget_metrics() -> Iterator[None]:
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


def imbalanced(path: str = "rare.npz", rare: float = 0.06, domains: bool = False) -> str:
    """Three classes, of which the first is nine times as frequent as the others together; noisy 4 x 4 images."""
    draw = np.random.default_rng(0)
    y = draw.choice(3, 900, p=[1 - 2 * rare, rare, rare])
    centers = draw.integers(60, 190, (3, 4, 4, 1))
    x = np.clip(centers[y] + draw.normal(0, 70, (900, 4, 4, 1)), 0, 255).astype(np.uint8)
    arrays = {"train_x": x[:600], "train_y": y[:600], "test_x": x[600:], "test_y": y[600:]}
    if domains:
        arrays |= {"train_domain": np.arange(600) % 2, "test_domain": np.arange(300) % 2}
    np.savez(path, **arrays)
    return path


def scores(run: fl.Run, data: str) -> tuple[Array, NDArray[np.int64]]:
    """Of the linear net on all test images, and their classes."""
    with np.load(data) as file:
        train, x, y = file["train_x"] / 255, file["test_x"] / 255, file["test_y"]
    weights = {name: value.astype(np.float64) for name, value in load_file(run.path / "final.safetensors").items()}
    flat = ((x - train.mean()) / train.std()).reshape(len(x), -1)
    return flat @ weights["head.weight"].T + weights["head.bias"], y


def reference(scores: Array, y: NDArray[np.int64]) -> dict[str, float]:
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    present = [c for c in range(scores.shape[1]) if 0 < (y == c).sum() < len(y)]
    predicted = scores.argmax(1)
    confidence, correct = shares.max(1), predicted == y
    calibration = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            calibration += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    recalls = [float((predicted[y == c] == c).mean()) for c in np.unique(y)]
    return {
        "accuracy": float(correct.mean()),
        "auroc": float(np.mean([sk.roc_auc_score(y == c, shares[:, c]) for c in present])) if present else math.nan,
        "balanced_accuracy": float(np.mean(recalls)),
        "calibration_error": calibration,
        "loss": float(sk.log_loss(y, shares, labels=range(scores.shape[1]))),
        "macro_f1": float(sk.f1_score(y, predicted, average="macro", zero_division=0)),
        "top5": 1.0,
    }


def own_tests(run: fl.Run) -> list[NDArray[np.int64]]:
    with np.load(run.path / "partition.npz") as file:
        return np.split(file["test_index"], file["test_offsets"][1:-1])


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def test_every_number_is_that_of_the_final_weights_where_accuracy_and_macro_f1_disagree() -> None:
    data = imbalanced()
    run = fl.run(FIELDS, data=data, split="iid", metrics=ALL)
    values, y = scores(run, data)
    expected = reference(values, y)
    assert expected["accuracy"] > expected["macro_f1"] + 0.15  # the rare classes are mostly missed
    for name in ALL:
        assert run.summary[f"test_{name}"] == pytest.approx(expected[name], abs=1e-5), name
        assert run.rounds[-1][f"test_{name}"] == run.summary[f"test_{name}"] == run.metric(name)
        own = [reference(values[index], y[index])[name] for index in own_tests(run)]
        assert run.clients[-1][name] == pytest.approx(own, abs=1e-5), name
        summary = run.summary[f"client_{name}"]
        assert summary["mean"] == pytest.approx(np.mean(own), abs=1e-5) == run.metric(name, of="client")
        assert summary["worst"] == pytest.approx((max if METRICS[name].better == "lower" else min)(own), abs=1e-5)
    assert run.clients[-1]["tested"] == [len(index) for index in own_tests(run)]
    assert list(run.curve("auroc")) == [1, 2, 3]


def test_by_class_and_by_domain() -> None:
    data = imbalanced(domains=True)
    run = fl.run(FIELDS, data=data, split="iid", metrics=["macro_f1", "auroc", "loss", "accuracy"])
    values, y = scores(run, data)
    shares = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    for label in range(3):
        inside, name = y == label, str(label)
        of = {metric: run.summary[f"class_{metric}"][name] for metric in run.metrics}
        assert of["macro_f1"] == pytest.approx(sk.f1_score(inside, values.argmax(1) == label), abs=1e-5)
        assert of["auroc"] == pytest.approx(sk.roc_auc_score(inside, shares[:, label]), abs=1e-5)
        assert of["loss"] == pytest.approx(-np.log(shares[inside, label]).mean(), abs=1e-5)
        assert of["accuracy"] == pytest.approx((values[inside].argmax(1) == label).mean())
    for domain, (name, value) in enumerate(run.summary["domain_macro_f1"].items()):
        inside = np.arange(300) % 2 == domain
        assert value == pytest.approx(reference(values[inside], y[inside])["macro_f1"], abs=1e-5), name
    assert not any(name.startswith("class_") for line in run.rounds[:-1] for name in line)


def test_what_is_undefined_for_a_client_is_null_and_left_out_and_counted() -> None:
    data = imbalanced(rare=0.25)
    run = fl.run(FIELDS, data=data, split="dirichlet:0.1", metrics="auroc,accuracy")
    with np.load(data) as file:
        y = file["test_y"]
    single = [len(set(y[index])) < 2 for index in own_tests(run)]
    assert 0 < sum(single) < 5
    column = json.loads((run.path / "clients.jsonl").read_text().splitlines()[-1])["auroc"]
    assert [value is None for value in column] == single
    known = [value for value in column if value is not None]
    assert run.summary["client_auroc"]["mean"] == pytest.approx(np.mean(known))
    assert run.summary["client_auroc"]["clients"] == len(known)
    assert run.summary["client_auroc"]["undefined"] == sum(single) == run.rounds[-1]["undefined"]["client_auroc"]
    assert "undefined" not in run.summary["client_accuracy"]
    tuned = fl.personalize(run, epochs=1, lr=0.01)
    assert tuned.personal["undefined"] == sum(single) and tuned.personal["clients"] == len(known)
    assert [value is None for value in tuned.of("auroc").values[-1]] == single


def test_metrics_change_no_bit_and_no_digest_and_the_default_folder_is_as_before() -> None:
    plain, more = fl.run(FIELDS, out="plain"), fl.run(FIELDS, metrics=ALL, out="more")
    assert plain.recipe.digest() == more.recipe.digest()
    for name in ("digest", "recipe_digest"):
        assert plain.summary[name] == more.summary[name]
    assert plain.clients[-1]["accuracy"] == more.clients[-1]["accuracy"]
    assert [line["test_accuracy"] for line in plain.rounds] == [line["test_accuracy"] for line in more.rounds]
    assert plain.summary["client_accuracy"] == more.summary["client_accuracy"]
    assert set(plain.clients[-1]) == {"round", "accuracy"}
    assert {n for n in plain.rounds[-1] if "accuracy" in n} == {"test_accuracy", "client_accuracy"}
    assert not (plain.path / "metrics.json").exists()
    assert not any(name.startswith(("class_", "undefined")) for name in plain.rounds[-1])


def test_the_headline_selects_the_best_round_on_validation_samples() -> None:
    fields = {**FIELDS, "data": {"name": "digits", "validation": 0.2}, "rounds": 8, "lr": 0.5, "clients": 10}
    for headline, pick in (("loss", min), ("macro_f1", max)):
        run = fl.run(fields, metrics=[headline, "accuracy"], out=headline)
        curve = run.curve(of="validation")
        best = pick(curve, key=lambda number: (curve[number], number if pick is min else -number))
        assert run.best_round == run.summary["best_round"] == run.summary["best_by_validation"]["round"] == best
        line = run.rounds[best - 1]
        for name in (f"validation_{headline}", f"test_{headline}", "validation_accuracy", "test_accuracy"):
            assert run.summary["best_by_validation"][name] == line[name]
    assert fl.run(FIELDS, metrics="loss").best_round is None  # never on test samples


@pytest.mark.slow
@pytest.mark.parametrize(("method", "split"), [("fedavg", "shards:2"), ("fedper", "shards:2"), ("fedavg", "noise:0.3")])
def test_the_main_process_workers_and_fresh_processes_compute_the_same(method: str, split: str) -> None:
    folder = RunFolder(fl.run(FIELDS, method=method, split=split, metrics=ALL).path)
    run = fl.Run(folder.path)
    for spawned in (False, True):
        with federation(folder.experiment(), folder, spawned=spawned) as fed:
            restore_finished(fed, folder)
            values = evaluate_global(fed)
            assert values == {name: run.rounds[-1][name] for name in values}
            assert ("clean_test_loss" in values) == (split == "noise:0.3")
            each = evaluate_clients(fed)
            assert each == evaluate_clients(fed, fresh=False)
            assert each == {name: run.clients[-1][name] for name in each}


def test_fine_tuning_starts_from_the_clients_own_models_in_every_metric() -> None:
    run = fl.run(FIELDS, method="fedper", model="mlp", metrics=ALL)
    tuned = fl.personalize(run, epochs=2, lr=0.05)
    stored = json.loads(next((run.path / "personal").glob("*.json")).read_text())
    for name in ALL:
        one = tuned.of(name)
        assert one.values[0] == pytest.approx(run.clients[-1][f"personal_{name}"], abs=1e-9)
        assert one.on_global == run.clients[-1][name]
        assert stored[f"personal_{name}"] == one.personal and len(one.curve) == 3
        assert stored[f"initial_{name}"]["mean"] == pytest.approx(run.summary[f"personal_{name}"]["mean"])
    assert stored["curve"] == tuned.of("accuracy").curve and stored["curve_loss"] == tuned.of("loss").curve
    assert tuned.of("loss").personal["mean"] < tuned.of("loss").initial["mean"]
    again = fl.personalize_run(run, [fl.FineTuning("full", 2, 0.05)])[0]
    assert again == tuned  # read, not computed


class Stop(fl.RunCallback):
    def round_ended(self, line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt


def test_an_interrupted_run_resumes_with_its_metrics() -> None:
    fields = {**FIELDS, "rounds": 4, "metrics": ["macro_f1", "auroc"], "eval_clients": 2, "checkpoint_seconds": 0}
    whole = fl.run(fields, out="whole")
    with pytest.raises(Interrupted):
        fl.run(fields, out="cut", callbacks=[Stop()])
    run = fl.run(resume="cut")
    assert run.metrics == ("macro_f1", "auroc")
    assert untimed(run.rounds) == untimed(whole.rounds) and run.clients == whole.clients
    assert "test_accuracy" not in run.rounds[-1] and "accuracy" not in run.clients[-1]


MINE = """
import fedloom as fl


class ErrorRate(fl.Metric):
    '''Share of samples that are classified wrongly.'''

    name, better = "error_rate", "lower"

    def compute(self, scores, targets):
        return (scores.argmax(1) != targets).mean()
"""


def test_a_users_metric_goes_through_run_compare_tables_and_page() -> None:
    Path("mine.py").write_text(MINE)
    fields = {**FIELDS, "parts": ["mine.py"], "metrics": "error_rate,accuracy", "rounds": 2}
    comparison = fl.compare("fedavg; fn @ lr=0.3", seeds=3, given=fields, name="both")
    for result in comparison.results:
        run = result.run
        assert run.summary["test_error_rate"] == pytest.approx(1 - run.summary["test_accuracy"])
        assert run.clients[-1]["error_rate"] == pytest.approx([1 - v for v in run.clients[-1]["accuracy"]])
    assert comparison.metrics == ("error_rate", "accuracy")
    rows = comparison.rows
    means = {row: comparison.mean(row, "global") for row in rows}
    assert {row: comparison.metric(row, "accuracy") for row in rows} == {
        row: pytest.approx(1 - mean) for row, mean in means.items()
    }
    best = min(means, key=lambda row: means[row])
    for name, bold in (("table.md", "**"), ("table.tex", "\\textbf{")):
        text = (comparison.root / name).read_text()
        assert "error rate in" in text and "accuracy in" in text
        lines = [line for line in text.splitlines() if best in line]
        assert f"{bold}{100 * means[best]:.1f}" in lines[0]  # the lowest error
        assert f"{bold}{100 * (1 - means[best]):.1f}" in lines[1]  # the highest accuracy
    assert f"Against {best}" in (comparison.root / "table.md").read_text()
    METRICS.pop("error_rate")  # the page does not run a user's code
    from fedloom.report.page.content import content

    page = content([comparison.root])
    described = {"name": "error_rate", "title": "error rate", "better": "lower", "format": "percent"}
    assert page["metrics"][0] == described and [m["name"] for m in page["metrics"]] == ["error_rate", "accuracy"]
    assert rows.index(best) in page["bold"]["of"]["error_rate"]["global"]
    shown = page["series"][0]["runs"][0]
    assert shown["summary"]["test_error_rate"] == comparison.results[0].run.summary["test_error_rate"]
    worst = shown["clients"]["error_rate"]["worst"]
    assert [w["value"] for w in worst] == sorted((w["value"] for w in worst), reverse=True)
    assert worst[0]["value"] == pytest.approx(max(comparison.results[0].run.clients[-1]["error_rate"]), abs=1e-5)


def test_an_edited_metric_is_the_new_one_and_a_failing_one_is_named() -> None:
    Path("mine.py").write_text(MINE)
    first = fl.run(FIELDS, parts=["mine.py"], metrics="error_rate", rounds=1, out="first")
    Path("mine.py").write_text(MINE.replace(".mean()", ".mean() / 2"))
    second = fl.run(FIELDS, parts=["mine.py"], metrics="error_rate", rounds=1, out="second")
    assert second.summary["test_error_rate"] == pytest.approx(first.summary["test_error_rate"] / 2)
    Path("mine.py").write_text(MINE.replace("return", "raise RuntimeError('no idea')  #"))
    with pytest.raises(fl.FedloomError, match="metrics: error_rate failed: RuntimeError: no idea"):
        fl.run(FIELDS, parts=["mine.py"], metrics="error_rate", rounds=1, out="third")


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            "acuracy",
            r"metrics: 'acuracy' is unknown; did you mean accuracy\? allowed are accuracy, auroc, balanced_accuracy",
        ),
        ("", "metrics: at least one is needed, as in accuracy,macro_f1"),
        (["loss", "loss"], "metrics: 'loss' is given twice"),
        (5, "metrics: must be a list"),
    ],
)
def test_metrics_that_cannot_be_are_refused_and_nothing_is_written(metrics: Any, message: str) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        fl.run(FIELDS, metrics=metrics, out="x")
    with pytest.raises(fl.FedloomError, match=message):
        fl.compare("fedavg; fn", given={**FIELDS, "metrics": metrics}, name="x")
    assert not Path("x").exists() and not Path("runs").exists()


def test_a_finished_comparison_without_the_metric_is_refused() -> None:
    fl.compare("fedavg", given={**FIELDS, "rounds": 1}, name="one")
    with pytest.raises(fl.FedloomError, match=r"metrics: the run in .*fedavg/seed0 has no macro_f1, only accuracy"):
        fl.compare("fedavg", given={**FIELDS, "rounds": 1, "metrics": "macro_f1"}, name="one")


def test_top_5_of_few_classes_is_noted() -> None:
    notes: list[str] = []

    class Listen(fl.RunCallback):
        def note(self, text: str) -> None:
            notes.append(text)

    fl.run(FIELDS, data=imbalanced(), split="iid", metrics="accuracy,top5", rounds=1, callbacks=[Listen()])
    assert "metrics: top5 is always 100 % here: there are 3 classes" in notes


def test_a_part_cannot_log_what_a_metric_is_called() -> None:
    Path("mine.py").write_text(
        "import fedloom as fl\n\n\nclass Chatty(fl.Part):\n    def log(self, server):\n        return {'test_loss': 1.0}\n"
    )
    fl.run(FIELDS, parts=["mine.py"], method="chatty", rounds=1, out="fine")
    with pytest.raises(fl.FedloomError, match="method: chatty logs 'test_loss', which the line of a round has already"):
        fl.run(FIELDS, parts=["mine.py"], method="chatty", rounds=1, metrics="loss", out="not")
