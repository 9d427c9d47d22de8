"""FedRS and FedLC: losses that depend on the client's class counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import reference
import torch
from reference import Problem, Weights, mean
from reference_regularizers import logits
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train
from torch import Tensor

from fedloom import FedloomError, method
from fedloom.methods.fedlc import FedLC
from fedloom.methods.fedrs import FedRS


def counts(p: Problem, k: int) -> Tensor:
    return torch.bincount(p.data[k][1], minlength=10).double()


def nll(z: Tensor, y: Tensor) -> Tensor:
    return (z.logsumexp(1) - z[torch.arange(len(y)), y]).mean()


def restricted(n: Tensor, alpha: float, mode: str) -> reference.Loss:
    scale = torch.tensor([(1.0 if c > 0 else alpha) for c in n]).double()
    if mode == "counts":
        scale = alpha + (1 - alpha) * n / n.max()
    return lambda w, x, y: nll(logits(w, x) * scale, y)


def calibrated(n: Tensor, tau: float, absent: str = "mask") -> reference.Loss:
    held = n > 0

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        z = logits(w, x)
        shift = torch.where(held, tau * n.clamp(min=1) ** -0.25, torch.zeros_like(n))
        if absent == "keep":
            return nll(z - shift, y)
        place = torch.cumsum(held, 0) - 1  # labels among the held classes
        return nll((z - shift)[:, held], place[y])

    return loss


def by_client(p: Problem, make: Any) -> Weights:
    w = p.initial
    for t, cohort in p.rounds:
        w = mean([p.local(w, t, k, make(counts(p, k))) for k in cohort], p.shares(cohort))
    return w


@pytest.mark.parametrize(
    ("alpha", "mode", "batch"), [(0.5, "absent", "full"), (0.0, "absent", 64), (0.3, "counts", 64)]
)
def test_logits_of_absent_classes_are_scaled(alpha: float, mode: str, batch: int | str) -> None:
    run = train(f"fedrs(alpha={alpha}, mode={mode})", batch=batch, split="shards:4", workers=2)
    p = problem(run)
    assert any((counts(p, k) == 0).any() for k in range(5))
    agree(run, by_client(p, lambda n: restricted(n, alpha, mode)))
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


@pytest.mark.parametrize(
    ("tau", "absent", "batch"), [(1.0, "mask", "full"), (0.5, "mask", 64), (0.0, "mask", 64), (2.0, "keep", 64)]
)
def test_logits_are_shifted_by_class_counts_and_absent_classes_leave_the_softmax(
    tau: float, absent: str, batch: int | str
) -> None:
    run = train(f"fedlc(tau={tau}, absent={absent})", batch=batch, split="shards:4", workers=2)
    agree(run, by_client(problem(run), lambda n: calibrated(n, tau, absent)))
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_with_scaffold_controls_come_from_the_calibrated_loss() -> None:
    run = train("fedlc + scaffold", split="shards:4", lr=0.05)
    p = problem(run)
    w = p.initial
    zero = {n: torch.zeros_like(v) for n, v in w.items()}
    c, c_i = zero, [zero for _ in p.data]
    for t, cohort in p.rounds:
        rows, sums = [], zero
        for k in cohort:
            loss = calibrated(counts(p, k), 1.0)
            row = p.local(w, t, k, loss, extra=lambda n, _, k=k, c=c: c[n] - c_i[k][n])
            scale = p.rate(t) * p.effective(p.steps(k))
            new = {n: c_i[k][n] - c[n] + (w[n] - row[n]) / scale for n in w}
            sums = {n: sums[n] + new[n] - c_i[k][n] for n in w}
            c_i[k] = new
            rows.append(row)
        w = mean(rows, p.shares(cohort))
        c = {n: c[n] + sums[n] / len(p.data) for n in w}
    agree(run, w)


def test_limits() -> None:
    fields: dict[str, Any] = {"split": "shards:4"}
    plain = train("fedavg", **fields)
    assert gap(train("fedrs(alpha=1)", **fields), plain) < 1e-6
    assert gap(train("fedlc(tau=0, absent=keep)", **fields), plain) < 1e-6
    assert gap(train("fedlc(tau=0)", split="iid"), train("fedavg", split="iid")) < 1e-6
    assert gap(train("fedlc", **fields), plain) > 1e-3 < gap(train("fedrs", **fields), plain)


def seen(z: Tensor, y: Tensor, n: Tensor) -> tuple[Any, Any]:
    return SimpleNamespace(logits=z, y=y), SimpleNamespace(counts=n)


def test_equal_counts_shift_nothing() -> None:
    z, y = torch.randn(6, 4, dtype=torch.double), torch.tensor([0, 1, 2, 3, 1, 2])
    torch.testing.assert_close(FedLC(tau=3.0).loss(*seen(z, y, torch.full((4,), 7.0))), nll(z, y))


def test_gradients_of_absent_classes() -> None:
    n, y = torch.tensor([5.0, 3.0, 0.0]), torch.tensor([0, 1, 1, 0])
    z = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    FedRS(alpha=0.25).loss(*seen(z, y, n)).backward()
    scaled = (z.detach() * torch.tensor([1, 1, 0.25])).softmax(1)
    assert z.grad is not None
    torch.testing.assert_close(z.grad[:, 2], 0.25 * scaled[:, 2] / 4)
    z.grad = None
    FedLC().loss(*seen(z, y, n)).backward()
    assert z.grad[:, 2].abs().max() == 0 < z.grad.abs().max()  # type: ignore[index]


def test_a_sample_of_an_absent_class_has_a_finite_loss() -> None:
    z = torch.randn(2, 3, dtype=torch.double, requires_grad=True)
    value = FedLC().loss(*seen(z, torch.tensor([2, 0]), torch.tensor([5.0, 3.0, 0.0])))
    value.backward()
    assert value.isfinite() and z.grad is not None and bool(z.grad.isfinite().all())


def test_a_second_loss_is_refused_by_name() -> None:
    with pytest.raises(FedloomError, match="method: fedlc and fedrs both decide what the local loss is; keep one"):
        method("fedlc + fedrs")


@pytest.mark.parametrize("text", ["fedrs", "fedlc"])
def test_the_number_of_workers_changes_no_bit(text: str) -> None:
    assert train(text, workers=1).summary["digest"] == train(text, workers=3).summary["digest"]
