"""FedDecorr and FedUV: terms on the features and predictions of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import reference
import torch
from reference import Weights, cross_entropy, features, normalized_cross_entropy
from reference_regularizers import logits, weighted
from tiny import MODEL_BYTES, agree, gap, problem, seen, traffic, train
from torch import Tensor

from fedloom.methods.decorr import Decorr
from fedloom.methods.feduv import FedUV

# Correlations of nearly dead features have gradients of any size, so that rounding grows within a few steps with momentum.
CALM: dict[str, Any] = {"lr": 0.05, "momentum": 0.0, "rounds": 2, "epochs": 1, "split": "iid"}


def correlations(f: Tensor) -> Tensor:
    """Of features, deviations guarded by 1e-8 under the root: cov_ij / (s_i s_j)."""
    away = f - f.mean(0)
    covariance = away.T @ away / (len(f) - 1)
    deviation = (covariance.diagonal() + 1e-8).sqrt()
    return covariance / deviation[:, None] / deviation[None]


def decorrelation(scale: str) -> reference.Loss:
    def term(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f = features(w, x)
        n, d = f.shape
        if n == 1:  # the last batch of an epoch
            return torch.zeros(())
        k = correlations(f)
        if scale == "paper":
            return k.square().sum() / d**2
        return k[~torch.eye(d, dtype=torch.bool)].square().mean() * (n - 1) ** 2 / n

    return term


def spread(variance: float, uniformity: float) -> reference.Loss:
    def term(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f, p = features(w, x), logits(w, x).softmax(1)
        if len(f) == 1:
            return torch.zeros(())
        missing = torch.relu(10**-0.5 - p.std(0, correction=1)).mean()
        rows, columns = np.triu_indices(len(f), 1)
        apart = (f[rows] - f[columns]).square().sum(1)
        middle = apart[apart > 0].sort().values
        return variance * missing + uniformity * (-apart / middle[(len(middle) - 1) // 2]).exp().mean()

    return term


@pytest.mark.parametrize(("scale", "batch"), [("code", "full"), ("code", 100), ("paper", 100)])
def test_correlations_between_features_are_penalized(scale: str, batch: int | str) -> None:
    run = train(f"decorr(weight=0.1, scale={scale})", batch=batch, **CALM, workers=2)
    loss = weighted(cross_entropy, lambda _: decorrelation(scale), 0.1)
    agree(run, reference.fedavg(problem(run), loss, teaching=True))
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_with_fn_the_features_are_those_before_normalization() -> None:
    run = train("decorr + fn", batch=100, **CALM)
    loss = weighted(normalized_cross_entropy, lambda _: decorrelation("code"), 0.1)
    agree(run, reference.fedavg(problem(run), loss, teaching=True))


@pytest.mark.parametrize(("variance", "uniformity", "batch"), [(2.5, 0.5, 64), (0.0, 1.0, 64), (1.0, 0.0, 64)])
def test_variance_and_uniformity_are_kept_up(variance: float, uniformity: float, batch: int | str) -> None:
    run = train(f"feduv(variance={variance}, uniformity={uniformity})", batch=batch, workers=2)
    loss = weighted(cross_entropy, lambda _: spread(variance, uniformity), 1.0)
    agree(run, reference.fedavg(problem(run), loss, teaching=True))


def test_without_weight_they_are_fedavg() -> None:
    plain = train("fedavg")
    for text in ("decorr(weight=0)", "feduv(variance=0, uniformity=0)"):
        assert gap(train(text), plain) < 1e-6
    assert gap(train("decorr"), plain) > 1e-4 < gap(train("feduv"), plain)


def test_decorrelation_does_not_see_scale_and_mean_and_is_the_codes_multiple() -> None:
    f = torch.randn(64, 5, dtype=torch.double)
    value = Decorr().regularizer(*seen(f))
    torch.testing.assert_close(Decorr().regularizer(*seen(f * torch.tensor([3, 0.5, 7, 1, 2]) + 4)), value)
    k = correlations(f)
    between = float(k.square().sum() - k.diagonal().square().sum()) / 20
    assert float(value) == pytest.approx(0.1 * 63**2 / 64 * between)
    assert float(Decorr(scale="paper").regularizer(*seen(f))) == pytest.approx(0.1 * float(k.square().sum()) / 25)


def gradient(part: Any, f: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    f, z = f.clone().requires_grad_(), z.clone().requires_grad_()
    value = part.regularizer(SimpleNamespace(features=f, logits=z, y=torch.zeros(len(f))), None)
    if value.requires_grad:
        value.backward()
    zero = torch.zeros(1)
    return value.detach(), zero if f.grad is None else f.grad, zero if z.grad is None else z.grad


@pytest.mark.parametrize("part", [Decorr(), FedUV()], ids=str)
def test_batches_of_one_sample_and_of_equal_features_have_finite_gradients(part: Any) -> None:
    z = torch.randn(4, 3)
    for f in (torch.ones(4, 6), torch.tensor([[1.0, 2], [1, 2], [0, 1], [0, 1]]), torch.zeros(4, 1)):
        for tensor in gradient(part, f, z):
            assert bool(tensor.isfinite().all())
    assert float(gradient(part, torch.ones(1, 6), z[:1])[0]) == 0


def test_variance_is_zero_for_balanced_confident_predictions_and_full_for_constant_ones() -> None:
    part, f = FedUV(uniformity=0), torch.randn(5, 3)
    assert float(gradient(part, f, 100 * torch.eye(5))[0]) == pytest.approx(0, abs=1e-6)
    assert float(gradient(part, f, torch.zeros(5, 5))[0]) == pytest.approx(2.5 * 5**-0.5)


def test_bf16_works_as_well_as_its_digits_allow() -> None:
    run = train("feduv + decorr", batch=100, precision="bf16", **CALM)
    assert gap(run, train("feduv + decorr", batch=100, **CALM)) < 2e-2


@pytest.mark.parametrize("text", ["decorr", "feduv"])
def test_the_number_of_workers_changes_no_bit(text: str) -> None:
    one, three = (train(text, batch=64, workers=workers).summary["digest"] for workers in (1, 3))
    assert one == three
