"""pFedFDA: discriminant heads from Gaussians of the features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import BODY, HEAD, Problem, Weights, cross_entropy, features, mean, read
from reference_personal import own_tests, share_right
from scipy.optimize import minimize
from tiny import BODY_BYTES, HEAD_BYTES, checkpoint, distance, gap, problem, train
from torch import Tensor

from fedloom import FedloomError, method
from fedloom.methods.api.secure_sums import check_sums
from fedloom.methods.pfedfda import Gaussians
from fedloom.rng import torch_generator

Stats = tuple[np.ndarray, np.ndarray]  # class means, covariance


def discriminant(stats: Stats, frequencies: np.ndarray) -> Weights:
    means, sigma = stats
    inverse = np.linalg.inv((1 - 1e-4) * sigma + 1e-4 * np.trace(sigma) / len(sigma) * np.eye(len(sigma)))
    bias = [-0.5 * m @ inverse @ m + np.log(f) for m, f in zip(means, frequencies, strict=True)]
    return {"head.weight": torch.from_numpy(means @ inverse), "head.bias": torch.tensor(bias, dtype=torch.float64)}


def local(f: np.ndarray, y: np.ndarray, common: Stats, ridge: float) -> Stats:
    means = np.array([f[y == c].mean(0) if (y == c).any() else common[0][c] for c in range(10)])
    scatter = sum(np.outer(row - means[c], row - means[c]) for row, c in zip(f, y, strict=True))
    return means, scatter / (len(y) - 1) + ridge * np.eye(f.shape[1])


def mix(one: Stats, other: Stats, shares: np.ndarray) -> Stats:
    a, b = (s * x + (1 - s) * z for s, x, z in zip(shares, one, other, strict=True))
    return a, b


def frequencies(y: np.ndarray) -> np.ndarray:
    shares = np.bincount(y, minlength=10) / len(y) + 1e-4
    return shares / shares.sum()


def solve(w: Weights, x: Tensor, labels: Tensor, common: Stats, beta: float | None, ridge: float) -> Stats:
    f, y = features(w, x).numpy(), labels.numpy()
    fold = np.zeros(len(y), dtype=int)
    for c in range(10):
        fold[y == c] = np.arange((y == c).sum()) % 2
    halves = [local(f[fold != k], y[fold != k], common, ridge) for k in (0, 1)]

    def loss(shares: np.ndarray) -> float:
        total = 0.0
        for k in (0, 1):
            head = discriminant(mix(halves[k], common, shares), frequencies(y))
            logits = torch.from_numpy(f[fold == k]) @ head["head.weight"].T + head["head.bias"]
            total -= float(logits.log_softmax(1)[torch.arange(len(logits)), y[fold == k]].sum())
        return total / len(y)

    def slope(shares: np.ndarray) -> np.ndarray:
        step = 1e-6 * np.eye(2)
        return np.array([(loss(shares + d) - loss(shares - d)) / 2e-6 for d in step])

    shares = np.array([beta, beta])
    if beta is None:
        start, options = np.array([0.5, 0.5]), {"maxiter": 10}
        shares = minimize(loss, start, jac=slope, bounds=[(0, 1)] * 2, method="L-BFGS-B", options=options).x
    return mix(local(f, y, common, ridge), common, shares)


def pfedfda(p: Problem, beta: float | None, ridge: float) -> tuple[Weights, Stats]:
    w = p.initial
    common = torch.rand(10, 64, generator=torch_generator(0, "pfedfda")).double().numpy(), np.eye(64)
    for t, cohort in p.rounds:
        rows, stats = [], []
        for k in cohort:
            head = discriminant(common, frequencies(p.data[k][1].numpy()))
            rows.append(p.local({**w, **head}, t, k, cross_entropy, BODY))
            stats.append(solve(rows[-1], *p.data[k], common, beta, ridge))
        body, shares = mean(rows, p.shares(cohort)), p.shares(cohort)
        w = {**w, **{n: body[n] for n in BODY}}
        means, sigma = (sum(s * row[i] for s, row in zip(shares, stats, strict=True)) for i in (0, 1))
        common = means, sigma
    return {**w, **discriminant(common, np.full(10, 0.1))}, common


@pytest.mark.parametrize(
    ("beta", "ridge", "batch"), [(0.5, 1e-4, "full"), (None, 1e-4, 128), (0.5, 1.0, "full"), (None, 1.0, 128)]
)
def test_gaussians_are_mixed_averaged_and_make_the_heads(beta: float | None, ridge: float, batch: int | str) -> None:
    text = f"pfedfda(ridge={ridge})" if beta is None else f"pfedfda(beta={beta}, ridge={ridge})"
    run = train(text, batch=batch, rounds=2, lr=0.01, momentum=0.0, epochs=2, split="dirichlet:0.3", fraction=0.4)
    p = problem(run)
    w, common = pfedfda(p, beta, ridge)
    tolerance = 1e-5 if beta is not None else 2e-3  # the search ends where its gradient is small, not zero
    body = {n: w[n] for n in BODY}
    for name, value in body.items():
        torch.testing.assert_close(run.weights[name].double(), value, rtol=0, atol=tolerance)
    stored = checkpoint(run)
    for name, value in zip(("means", "covariance"), common, strict=True):
        torch.testing.assert_close(
            stored[f"server.pfedfda.{name}"].double(), torch.from_numpy(value), rtol=0, atol=tolerance
        )
    assert distance(run, BODY) > 1e-3
    accuracies = []
    for k, (x, y) in enumerate(own_tests(p)):
        head = discriminant(solve(w, *p.data[k], common, beta, ridge), frequencies(p.data[k][1].numpy()))
        accuracies.append(share_right(features(w, x) @ head["head.weight"].T + head["head.bias"], y))
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(accuracies, abs=0.03 if beta is None else 1e-9)
    statistics = 4 * (10 * 64 + 64 * 64)
    both = BODY_BYTES + statistics
    each = [(line["bytes_down"] / 2, line["bytes_up"] / 2) for line in run.rounds]
    assert each == [(both, both), (both + HEAD_BYTES, both)]  # after the first round the global head goes down as well
    initial = read(run.path / "initial.safetensors")
    drawn = torch.rand(10, 64, generator=torch_generator(0, "pfedfda")).double()
    torch.testing.assert_close(initial["head.weight"], drawn, rtol=0, atol=1e-6)
    torch.testing.assert_close(initial["head.bias"], -0.5 * drawn.square().sum(1) - np.log(10), rtol=0, atol=1e-5)
    assert not list((run.path / "checkpoints" / "clients").iterdir())  # clients keep nothing
    if beta is not None:
        for name in HEAD:  # an inverse enlarges the rounding of the Gaussians to float32
            torch.testing.assert_close(run.weights[name].double(), w[name], rtol=1e-3, atol=1e-2)


def test_with_equal_frequencies_and_the_identity_it_is_the_nearest_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    means, x = (torch.randn(n, 4, generator=generator).double() for n in (5, 50))
    weight, bias = Gaussians(means, torch.eye(4).double()).head(torch.full((5,), 0.2).double())
    nearest = torch.cdist(x, means).argmin(1)
    assert torch.equal((x @ weight.T + bias).argmax(1), nearest)


def test_its_ends_are_the_client_s_and_the_global_discriminant() -> None:
    fields = {"rounds": 1, "lr": 0.01, "epochs": 1, "fraction": 1.0}
    one, none = train("pfedfda(beta=1)", **fields), train("pfedfda(beta=0)", **fields)
    stored = checkpoint(none)
    first = torch.rand(10, 64, generator=torch_generator(0, "pfedfda"))
    torch.testing.assert_close(stored["server.pfedfda.means"], first, rtol=0, atol=1e-6)
    assert float((checkpoint(one)["server.pfedfda.means"] - first).abs().max()) > 0.1
    assert one.summary["personal_accuracy"]["mean"] > none.summary["personal_accuracy"]["mean"]


def test_the_server_needs_nothing_but_weighted_sums() -> None:
    check_sums(method("pfedfda"), "samples", {})


def test_workers_change_no_bit_and_it_adds_to_other_parts() -> None:
    fields = {"rounds": 2, "epochs": 1, "lr": 0.01}
    one, other = (train("scaffold + pfedfda", workers=workers, **fields) for workers in (1, 3))
    assert one.summary["digest"] == other.summary["digest"]
    assert gap(one, train("pfedfda", **fields)) > 1e-5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pfedfda + fn", "pfedfda and fn both replace the head; keep one"),
        ("pfedfda + fedper", "pfedfda and fedper both decide what happens to the head; keep one"),
    ],
)
def test_a_second_head_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(FedloomError, match=reason):
        train(text)
