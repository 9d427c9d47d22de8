"""FedPAC: aligned features, and a combination of heads for each client."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from reference import BODY, HEAD, Problem, Weights, cross_entropy, features, flat, mean
from reference_personal import own_tests, share_right
from tiny import BODY_BYTES, HEAD_BYTES, agree, gap, memories, problem, train
from torch import Tensor

from fedloom import FedloomError
from fedloom.methods.fedpac import simplex_minimum

Row = npt.NDArray[np.float64]


def smallest(matrix: Row) -> Row:
    """min a^T P a on the simplex, by trying every face."""
    count = len(matrix)
    faces = chain.from_iterable(combinations(range(count), size) for size in range(1, count + 1))
    best, least = np.zeros(count), np.inf
    for face in map(list, faces):
        inner = matrix[np.ix_(face, face)]
        if np.linalg.matrix_rank(inner) < len(face):
            continue
        solved = np.linalg.solve(inner, np.ones(len(face)))
        shares = np.zeros(count)
        shares[face] = solved / solved.sum()
        if shares.min() >= 0 and shares @ matrix @ shares < least:
            best, least = shares, shares @ matrix @ shares
    return best


def class_means(w: Weights, x: Tensor, y: Tensor) -> dict[int, Tensor]:
    f = features(w, x)
    return {int(c): f[y == c].mean(0) for c in y.unique()}


def statistics(w: Weights, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """h and v of the paper."""
    f, h, v = features(w, x), torch.zeros(10, 64, dtype=torch.float64), 0.0
    for c, mu in class_means(w, x, y).items():
        pi = float((y == c).double().mean())
        h[c] = pi * mu
        v += pi * float(f[y == c].square().sum(1).mean()) - pi**2 * float(mu.square().sum())
    return h, v / len(y)


def fedpac(
    p: Problem, lam: float, head_lr: float | None, collaborate: bool = True
) -> tuple[Weights, list[Weights], list[Row]]:
    w = p.initial
    heads = [{n: w[n] for n in HEAD} for _ in p.data]
    prototypes: dict[int, Tensor] = {}
    all_shares = []
    for t, cohort in p.rounds:
        rows, hs, vs = [], [], []
        for k in cohort:
            x, y = p.data[k]
            start, draws = {**w, **heads[k]}, p.shuffles(t, k)
            own = class_means(start, x, y)
            h, v = statistics(start, x, y)
            hs.append(h)
            vs.append(v)
            targets = torch.stack([prototypes.get(c, own.get(c, torch.zeros(64))) for c in range(10)])

            def loss(w: Weights, x: Tensor, y: Tensor, t: int = t, targets: Tensor = targets) -> Tensor:
                term = (features(w, x) - targets[y]).square().mean() if t > 1 else 0.0
                return cross_entropy(w, x, y) + lam * term

            row = head_phase(p, start, t, k, head_lr, draws)
            rows.append(p.local(row, t, k, loss, BODY, batches=p.batches(k, p.recipe["epochs"], draws)))
        body = mean(rows, p.shares(cohort))
        w = {**w, **{n: body[n] for n in BODY}}
        samples: dict[int, list[Tensor]] = {}
        for k, row in zip(cohort, rows, strict=True):
            x, y = p.data[k]
            for f, c in zip(features(row, x), y.tolist(), strict=True):
                samples.setdefault(c, []).append(f)
        prototypes = {c: torch.stack(rows_of_class).mean(0) for c, rows_of_class in samples.items()}
        for i, k in enumerate(cohort):
            matrix = np.diag(vs)
            for j, h_j in enumerate(hs):
                for m, h_m in enumerate(hs):
                    matrix[j, m] += float(((hs[i] - h_j) * (hs[i] - h_m)).sum())
            shares = smallest(matrix)
            shares[shares <= 1e-3] = 0
            shares = shares / shares.sum() if collaborate else np.eye(len(cohort))[i]
            all_shares.append(shares)
            heads[k] = mean([{n: row[n] for n in HEAD} for row in rows], shares.tolist())
    return w, heads, all_shares


def head_phase(p: Problem, w: Weights, t: int, k: int, lr: float | None, draws: torch.Generator) -> Weights:
    """One epoch of the head at a rate of its own."""
    rate, p.recipe["lr"] = p.recipe["lr"], p.recipe["lr"] if lr is None else lr
    try:
        return p.local(w, t, k, cross_entropy, HEAD, batches=p.batches(k, 1, draws))
    finally:
        p.recipe["lr"] = rate


@pytest.mark.parametrize(("lam", "head_lr", "batch"), [(1.0, 0.1, "full"), (0.3, 0.02, 64)])
def test_heads_are_combined_by_the_quadratic_program_and_features_aligned(
    lam: float, head_lr: float, batch: int | str
) -> None:
    run = train(f"fedpac(lam={lam}, head_lr={head_lr})", batch=batch, lr=0.05, split="dirichlet:0.3", workers=2)
    p = problem(run)
    w, heads, shares = fedpac(p, lam, head_lr)
    agree(run, w)
    remembered = memories(run)
    assert any(0.01 < float(row.max()) < 0.99 for row in shares)  # somebody combines heads
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["personal"].double(), flat(heads[k], HEAD), rtol=0, atol=1e-5)
    tests = zip(heads, own_tests(p), strict=True)
    expected = [share_right(features(w, x) @ head[HEAD[0]].T + head[HEAD[1]], y) for head, (x, y) in tests]
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    sent = sum(float(row.max()) < 1 - 1e-12 for row in shares)  # a client with its own head gets none
    prototypes, counts = 4 * 10 * 64, 4 * 10
    clients = len(shares)
    assert sum(line["bytes_up"] for line in run.rounds) == clients * (
        BODY_BYTES + HEAD_BYTES + 2 * prototypes + counts + 4
    )
    assert sum(line["bytes_down"] for line in run.rounds) == (
        clients * (BODY_BYTES + prototypes + counts) + sent * HEAD_BYTES
    )


def test_without_alignment_and_collaboration_it_is_fedrep() -> None:
    run = train("fedpac(lam=0, head_lr=null, collaborate=false)")
    plain = train("fedrep(head_epochs=1)")
    assert run.summary["digest"] == plain.summary["digest"]
    assert all(torch.equal(tensors["personal"], memories(plain)[k]["personal"]) for k, tensors in memories(run).items())
    assert gap(train("fedpac(head_lr=null)"), plain) > 1e-3


def test_equal_clients_share_alike_and_certain_ones_keep_their_head() -> None:
    assert simplex_minimum(np.diag([0.5] * 4)) == pytest.approx([0.25] * 4, abs=1e-9)
    h = np.random.default_rng(0).normal(size=(5, 3))
    for i in range(5):
        gaps = h[i] - h
        assert simplex_minimum(gaps @ gaps.T) == pytest.approx(np.eye(5)[i], abs=1e-5)
        noisy = np.diag([0.1, 0.4, 0.9, 0.2, 0.3]) + gaps @ gaps.T
        assert simplex_minimum(noisy) == pytest.approx(smallest(noisy), abs=1e-9)
    assert simplex_minimum(np.zeros((3, 3))) == pytest.approx([1 / 3] * 3)


def test_workers_change_no_bit_and_it_adds_to_other_parts() -> None:
    fields = {"epochs": 1, "rounds": 2, "batch": 64}
    one, other = (train("scaffold + ditto + fedpac", workers=workers, **fields) for workers in (1, 3))
    assert one.summary["digest"] == other.summary["digest"]
    for k, tensors in memories(one).items():
        assert all(torch.equal(value, memories(other)[k][name]) for name, value in tensors.items())
    assert gap(one, train("fedpac", **fields)) > 1e-4


@pytest.mark.parametrize("names", [("fedpac", "fedper"), ("babu", "fedpac")])
def test_a_second_owner_of_the_head_is_refused_by_name(names: Sequence[str]) -> None:
    with pytest.raises(FedloomError, match=f"{names[0]} and {names[1]} both decide what happens to the head; keep one"):
        train(" + ".join(names))
