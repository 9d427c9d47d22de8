"""Every metric against scikit-learn or a computation written down here, and the registry that finds them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

import fedloom as fl
from fedloom.evaluation import metrics
from fedloom.evaluation.metrics import METRICS, compute, compute_by_class
from fedloom.io.user_code import import_parts

NAMES = ["accuracy", "auroc", "balanced_accuracy", "calibration_error", "loss", "macro_f1", "top5"]


@pytest.fixture
def forget_metrics() -> Iterator[None]:
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


def sample(classes: int, count: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that know something about targets whose classes are unbalanced."""
    draw = np.random.default_rng(seed)
    targets = draw.choice(classes, count, p=draw.dirichlet(np.ones(classes)))
    return draw.normal(size=(count, classes)) + 1.5 * np.eye(classes)[targets], targets


@pytest.mark.parametrize("classes", [2, 7, 30])
def test_metrics_are_those_of_scikit_learn(classes: int) -> None:
    scores, targets = sample(classes)
    predicted = scores.argmax(1)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    values = compute(NAMES, scores, targets)
    assert list(values) == NAMES
    assert values["accuracy"] == sk.accuracy_score(targets, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that are predicted but do not occur
        assert values["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(targets, predicted))
    assert values["macro_f1"] == pytest.approx(sk.f1_score(targets, predicted, average="macro"))
    assert values["loss"] == pytest.approx(sk.log_loss(targets, shares, labels=range(classes)))
    if classes == 2:
        assert values["auroc"] == pytest.approx(sk.roc_auc_score(targets, shares[:, 1]))
        assert values["top5"] == 1
        return
    assert values["top5"] == sk.top_k_accuracy_score(targets, scores, k=5, labels=range(classes))
    present = np.unique(targets)
    one_hot = targets[:, None] == present
    assert values["auroc"] == pytest.approx(sk.roc_auc_score(one_hot, shares[:, present], average="macro"))


def test_the_area_under_the_curve_counts_pairs_in_the_right_order() -> None:
    scores, targets = sample(4, count=60)
    shares = torch.softmax(torch.from_numpy(scores), 1).numpy()
    areas = []
    for label in np.unique(targets):
        inside, outside = shares[targets == label, label], shares[targets != label, label]
        areas.append(np.mean(inside[:, None] > outside[None]))
    assert compute(["auroc"], scores, targets)["auroc"] == pytest.approx(np.mean(areas))


def test_calibration_error_is_the_gap_between_confidence_and_accuracy_by_bin() -> None:
    """Equation 5 of Guo et al. with a loop over bins; and by hand, 0.9 sure and right in 3 of 4 cases."""
    scores, targets = sample(5)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    confidence, correct = shares.max(1), shares.argmax(1) == targets
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert compute(["calibration_error"], scores, targets)["calibration_error"] == pytest.approx(total)
    sure = np.log(np.array([[0.9, 0.1]] * 4))
    assert compute(["calibration_error"], sure, np.array([0, 0, 0, 1]))["calibration_error"] == pytest.approx(0.15)


def test_loss_is_that_of_torch_and_stays_finite_where_probabilities_vanish() -> None:
    scores, targets = sample(10)
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(targets))
    assert compute(["loss"], scores, targets)["loss"] == pytest.approx(float(expected))
    assert compute(["loss"], np.array([[2000.0, 0.0]]), np.array([1]))["loss"] == pytest.approx(2000)


def test_tensors_and_arrays_give_the_same() -> None:
    scores, targets = sample(6)
    assert compute(NAMES, torch.from_numpy(scores), torch.from_numpy(targets)) == compute(NAMES, scores, targets)


def test_without_samples_or_without_a_second_class_nothing_is_made_up() -> None:
    nothing = compute(NAMES, np.zeros((0, 3)), np.zeros(0, dtype=int))
    assert all(math.isnan(value) for value in nothing.values())
    single = compute(NAMES, np.eye(3)[[0, 0, 1]], np.zeros(3, dtype=int))
    assert math.isnan(single["auroc"]) and single["accuracy"] == single["balanced_accuracy"] == pytest.approx(2 / 3)


def test_every_metric_has_a_direction_and_a_format() -> None:
    assert sorted(METRICS) == NAMES
    assert {name for name, metric in METRICS.items() if metric.better == "lower"} == {"loss", "calibration_error"}
    assert METRICS["accuracy"].text(0.8125) == "81.2" and METRICS["loss"].text(0.81251) == "0.813"
    assert METRICS["loss"].is_better(0.1, 0.2) and METRICS["accuracy"].is_better(0.2, 0.1)


def test_a_users_file_brings_a_metric(forget_metrics: None) -> None:
    Path("mine.py").write_text(
        "from fedloom.evaluation.metrics import Metric\n\n\n"
        "class ErrorRate(Metric):\n"
        "    name, title, better = 'error_rate', 'error rate', 'lower'\n\n"
        "    def compute(self, scores, targets):\n"
        "        return float((scores.argmax(1) != targets).mean())\n"
    )
    import_parts(("mine.py",))
    assert compute(["error_rate"], np.eye(4), np.array([0, 1, 2, 2])) == {"error_rate": 0.25}


@pytest.mark.parametrize(
    ("name", "message"), [("accuracy", "two metrics are called 'accuracy'"), ("F-1", "a metric is called 'F-1'")]
)
def test_a_name_that_is_taken_or_cannot_be_written_is_refused(forget_metrics: None, name: str, message: str) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        type("Mine", (metrics.Metric,), {"name": name, "compute": lambda self, scores, targets: 0.0})


@pytest.mark.parametrize(
    ("names", "scores", "targets", "message"),
    [
        (
            ["acuracy"],
            np.eye(2),
            [0, 1],
            r"metrics: 'acuracy' is unknown; did you mean accuracy\? allowed are accuracy, auroc, balanced_accuracy",
        ),
        (["loss"], np.eye(2)[0], [0, 1], r"metrics: scores must be \(samples, classes\)"),
        (["loss"], np.eye(2), [0, 2], "metrics: targets must be class numbers from 0 to 1"),
        (["loss"], np.eye(2), [0.0, 1.0], "metrics: targets must be class numbers from 0 to 1"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    names: list[str], scores: np.ndarray, targets: list[float], message: str
) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        compute(names, scores, targets)


def test_auroc_with_ties_is_that_of_scikit_learn_also_by_class() -> None:
    draw = np.random.default_rng(1)
    targets = draw.integers(0, 4, 300)
    few = draw.normal(size=(12, 4))
    scores = few[(3 * targets + draw.integers(0, 6, 300)) % 12]  # twelve rows, so most scores are equal
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = [sk.roc_auc_score(targets == label, shares[:, label]) for label in range(4)]
    assert compute_by_class("auroc", scores, targets) == pytest.approx(expected, abs=1e-9)
    assert compute(["auroc"], scores, targets)["auroc"] == pytest.approx(np.mean(expected), abs=1e-9)


def test_values_by_class_are_recalls_f1_scores_and_metrics_of_the_classs_samples() -> None:
    scores, targets = sample(5, seed=3)
    scores, targets = np.hstack([scores, np.full((len(scores), 1), -9.0)]), targets  # a class that never occurs
    predicted = scores.argmax(1)
    recalls = sk.recall_score(targets, predicted, labels=range(5), average=None)
    for name in ("accuracy", "balanced_accuracy"):
        assert compute_by_class(name, scores, targets)[:5] == pytest.approx(list(recalls))
    f1 = sk.f1_score(targets, predicted, labels=range(5), average=None)
    assert compute_by_class("macro_f1", scores, targets)[:5] == pytest.approx(list(f1))
    assert np.mean(compute_by_class("macro_f1", scores, targets)[:5]) == pytest.approx(
        compute(["macro_f1"], scores, targets)["macro_f1"]
    )
    for name in NAMES:
        assert math.isnan(compute_by_class(name, scores, targets)[5])
    inside = targets == 2
    losses = torch.nn.functional.cross_entropy(torch.from_numpy(scores[inside]), torch.from_numpy(targets[inside]))
    assert compute_by_class("loss", scores, targets)[2] == pytest.approx(float(losses))


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_scores_of_a_diverged_model_have_no_probabilities(odd: float) -> None:
    scores, targets = sample(4)
    scores[7, 2] = odd
    values = compute(NAMES, scores, targets)
    assert all(math.isnan(values[name]) for name in ("auroc", "loss", "calibration_error"))
    assert 0 < values["accuracy"] < 1 and 0 < values["macro_f1"] < 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "round"}, "'round', which is another column's name"),
        ({"name": "personal_loss"}, "'personal_loss', which is another column's name"),
        ({"name": "mine", "better": "more"}, "metric mine: better is 'more'; allowed are higher and lower"),
        ({"name": "mine", "format": "%"}, "metric mine: format is '%'; allowed are percent and number"),
    ],
)
def test_a_metric_with_impossible_attributes_is_refused(
    forget_metrics: None, fields: dict[str, str], message: str
) -> None:
    with pytest.raises(fl.FedloomError, match=message):
        type("Mine", (metrics.Metric,), {**fields, "compute": lambda self, scores, targets: 0.0})


def test_a_title_is_the_name_in_words_and_undefined_values_are_dashes(forget_metrics: None) -> None:
    mine = type("Mine", (metrics.Metric,), {"name": "my_rate", "compute": lambda self, scores, targets: 0.0})
    assert mine.title == "my rate" and METRICS["my_rate"].heading == "my rate in %"
    assert METRICS["loss"].heading == "cross-entropy loss" and METRICS["loss"].text(0.5, 0.25) == "0.500 ± 0.250"
    assert METRICS["accuracy"].text(None) == METRICS["accuracy"].text(math.nan) == "-"
    assert METRICS["loss"].best([0.3, math.nan, 0.2]) == 0.2 and math.isnan(METRICS["loss"].best([math.nan]))
