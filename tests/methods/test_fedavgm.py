"""FedAvgM: server momentum, the user of `server_step`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from folders import check_whole, logged
from processes import Child, until
from reference import Problem, Weights, cross_entropy, flat, mean
from reference_personal import NORMED
from tiny import MODEL_BYTES, agree, checkpoint, gap, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError, method
from fedloom.methods.api.secure_sums import check_sums

Row = npt.NDArray[np.float64]


def momentum(
    p: Problem, beta: float, lr: float, nesterov: bool, aggregate: Callable[[list[Row], list[float]], Row] | None = None
) -> tuple[Weights, Row]:
    """Weights and velocity after the last round, in numpy: each client's update, their mean, then the step."""
    w, names = p.initial, list(p.initial)
    sizes = np.cumsum([w[name].numel() for name in names])[:-1]
    velocity = np.zeros(sum(w[name].numel() for name in names))
    for t, cohort in p.rounds:
        before = flat(w, names).numpy()
        updates = [flat(p.local(w, t, k, cross_entropy), names).numpy() - before for k in cohort]
        shares = p.shares(cohort)
        update = np.average(updates, axis=0, weights=shares) if aggregate is None else aggregate(updates, shares)
        velocity = beta * velocity + update
        after = before + lr * (update + beta * velocity if nesterov else velocity)
        pieces = np.split(after, sizes)
        w = {n: torch.from_numpy(piece).view(w[n].shape) for n, piece in zip(names, pieces, strict=True)}
    return w, velocity


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("beta", "lr"), [(0.9, 1.0), (0.5, 0.7)])
def test_it_is_momentum_on_the_mean_update(beta: float, lr: float, nesterov: bool) -> None:
    run = train(f"fedavgm(beta={beta}, lr={lr}, nesterov={str(nesterov).lower()})", lr=0.05, workers=2)
    p = problem(run)
    w, velocity = momentum(p, beta, lr, nesterov)
    agree(run, w)
    expected = flat(dict(zip(p.initial, _split(velocity, p), strict=True)))
    torch.testing.assert_close(checkpoint(run)["server.fedavgm.velocity"].double(), expected, rtol=0, atol=1e-5)


def _split(vector: Row, p: Problem) -> list[torch.Tensor]:
    sizes = np.cumsum([value.numel() for value in p.initial.values()])[:-1]
    return [
        torch.from_numpy(piece).view(v.shape)
        for piece, v in zip(np.split(vector, sizes), p.initial.values(), strict=True)
    ]


# limits


@pytest.mark.parametrize("nesterov", ["true", "false"])
def test_without_momentum_and_with_rate_one_it_is_fedavg(nesterov: str) -> None:
    """w + (mean - w) is the mean up to the rounding of two operations."""
    assert gap(train(f"fedavgm(beta=0, nesterov={nesterov})"), train("fedavg")) < 1e-6


def test_the_first_round_of_heavy_ball_is_fedavg_and_of_nesterov_longer() -> None:
    plain = train("fedavg", rounds=1)
    assert gap(train("fedavgm", rounds=1), plain) < 1e-6
    long = train("fedavgm(beta=0.5, nesterov=true)", rounds=1)
    for name, value in long.weights.items():
        first = problem(plain).initial[name].float()
        torch.testing.assert_close(value - first, 1.5 * (plain.weights[name] - first), rtol=1e-4, atol=1e-6)


def test_a_server_rate_scales_the_step() -> None:
    plain, half = train("fedavg", rounds=1), train("fedavgm(beta=0, lr=0.5)", rounds=1)
    for name, value in half.weights.items():
        first = problem(plain).initial[name].float()
        torch.testing.assert_close(value, (first + plain.weights[name]) / 2, rtol=0, atol=1e-6)


# what is kept, sent and averaged


def test_only_the_server_keeps_anything_and_nothing_more_travels() -> None:
    run = train("fedavgm")
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}
    assert not list((run.path / "checkpoints" / "clients").iterdir())


def test_the_velocity_survives_kill_and_resume(straight: Callable[..., fl.Run]) -> None:
    fields = {"method": "fedavgm", "clients": 10, "rounds": 8, "workers": 2, "lr": 0.05, "checkpoint_seconds": 0}
    like, path = straight(**fields), Path("killed")
    for moment in (2, 5):
        child = Child(lambda: fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)))
        until(lambda moment=moment: logged(path) >= moment)
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    run = fl.run(resume=path)
    check_whole(run, like)
    kept = checkpoint(run)["server.fedavgm.velocity"]
    assert torch.equal(kept, checkpoint(like)["server.fedavgm.velocity"]) and kept.abs().max() > 1e-3


def test_the_number_of_workers_changes_no_bit() -> None:
    assert train("fedavgm", workers=1).summary["digest"] == train("fedavgm", workers=3).summary["digest"]


def test_statistics_of_normalizers_are_averaged_without_momentum() -> None:
    Path("normed.py").write_text(NORMED)
    fields = {"model": "normed.py:normed", "lr": 0.05, "rounds": 1}
    plain, moved = train("fedavg", **fields), train("fedavgm(lr=0.25)", **fields)
    names = [name for name in plain.weights if "running" in name]
    assert names and all(torch.equal(plain.weights[n], moved.weights[n]) for n in names)


# sums


def test_with_scaffold_the_control_is_scaffold_s_and_the_step_has_momentum() -> None:
    run = train("fedavgm(beta=0.5) + scaffold", lr=0.05)
    p = problem(run)
    w = p.initial
    zero = {n: torch.zeros_like(v) for n, v in w.items()}
    c, c_i, velocity = zero, [zero for _ in p.data], zero
    for t, cohort in p.rounds:
        rows, changes = [], []
        for k in cohort:
            row = p.local(w, t, k, cross_entropy, extra=lambda n, _, k=k, c=c: c[n] - c_i[k][n])
            scale = p.rate(t) * p.effective(p.steps(k))
            new = {n: c_i[k][n] - c[n] + (w[n] - row[n]) / scale for n in w}
            rows.append(row)
            changes.append({n: new[n] - c_i[k][n] for n in w})
            c_i[k] = new
        update = mean([{n: row[n] - w[n] for n in w} for row in rows], p.shares(cohort))
        velocity = {n: 0.5 * velocity[n] + update[n] for n in w}
        w = {n: w[n] + velocity[n] for n in w}
        total = mean(changes, [1.0] * len(cohort))
        c = {n: c[n] + total[n] / len(p.data) for n in w}
    agree(run, w)
    torch.testing.assert_close(checkpoint(run)["server.scaffold.control"].double(), flat(c), rtol=0, atol=1e-4)


def test_with_a_robust_rule_the_step_starts_from_its_aggregate() -> None:
    run = train("fedavgm(beta=0.5) + median", lr=0.05)
    agree(run, momentum(problem(run), 0.5, 1.0, False, lambda updates, _: np.median(updates, axis=0))[0])


def test_a_second_server_step_is_refused_by_name() -> None:
    for text in ("fedavgm + exp", "exp + fedavgm"):
        with pytest.raises(FedloomError) as caught:
            method(text)
        one, other = text.split(" + ")
        decision = "what the server does with the aggregate"
        assert str(caught.value) == f"method: {one} and {other} both decide {decision}; keep one"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("local", "fedavgm acts on what clients share, and with local they share nothing"),
        ("central", "fedavgm .*and with central there is one worker that holds all data"),
        ("dp", "fedavgm takes a step of its own at the server, which dp would neither clip nor hide"),
    ],
)
def test_it_is_refused_where_the_server_has_no_step_to_take(other: str, reason: str) -> None:
    with pytest.raises(FedloomError, match=f"method: {reason}; keep one"):
        method(f"fedavgm + {other}")


def test_it_needs_nothing_but_the_weighted_sum_of_uploads() -> None:
    check_sums(method("fedavgm"), "samples", {})
    with pytest.raises(FedloomError, match="exp aggregates uploads in its own way"):
        check_sums(method("exp"), "samples", {})
