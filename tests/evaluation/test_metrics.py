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
from fedloom.evaluation.metrics import METRICS, compute
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
            "metrics: 'acuracy' is unknown; allowed are accuracy, auroc, balanced_accuracy",
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
