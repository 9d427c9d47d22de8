"""Local work: epochs or steps, the same for all or drawn from a range by every client in every round."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from reference import Problem, Weights, cross_entropy, mean
from tiny import agree, gap, memories, problem, train
from torch import Tensor

from fedloom import FedloomError, Part
from fedloom.engine.client.expected_steps import ExpectedSteps
from fedloom.engine.client.local_work import local_work
from fedloom.engine.experiment import prepare
from fedloom.methods.api.context import ClientContext, Phase
from fedloom.recipe import recipe

FIELDS: dict[str, Any] = {"batch": 24, "epochs": 1, "lr": 0.03, "rounds": 3}


def endless(p: Problem, k: int, draws: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from p.batches(k, 1, draws)


def batches(p: Problem, t: int, k: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What a client trains on in a round; ranges as the log of the run has them."""
    line = p.lines[t - 1]
    work = dict(zip(line["cohort"], line.get("work", ()), strict=False))
    if p.recipe["steps"] is not None:
        return islice(endless(p, k, p.shuffles(t, k)), work.get(k, p.recipe["steps"]))
    return p.batches(k, work.get(k, p.recipe["epochs"]), p.shuffles(t, k))


def fedavg(p: Problem) -> Weights:
    w = p.initial
    for t, cohort in p.rounds:
        w = mean([p.local(w, t, k, cross_entropy, batches=batches(p, t, k)) for k in cohort], p.shares(cohort))
    return w


@pytest.mark.parametrize("work", [{"steps": 1}, {"steps": 25}, {"steps": "2..30"}, {"epochs": "1..4"}], ids=str)
def test_clients_train_as_long_as_the_recipe_says(work: dict[str, Any]) -> None:
    run = train("fedavg", **{**FIELDS, **work}, workers=2)
    agree(run, fedavg(problem(run)))
    assert all(line["lost"] == 0 for line in run.rounds)
    drawn = [number for line in run.rounds for number in line.get("work", ())]
    if any(isinstance(value, str) for value in work.values()):
        assert len(set(drawn)) > 2


def test_a_range_is_uniform_with_both_ends_and_independent_of_everything_but_seed_round_and_client() -> None:
    one = recipe({"epochs": "1..5", "seed": 3})
    drawn = [local_work(one, client, round).epochs for round in range(1, 41) for client in range(50)]
    assert np.bincount(drawn, minlength=6)[1:].min() > 330  # 400 each on average, with a deviation of 18
    assert set(drawn) == {1, 2, 3, 4, 5}
    other = one.changed(method="prox", lr=0.5, clients=7, fraction=0.1)
    assert [local_work(other, client, 9) for client in range(7)] == [local_work(one, client, 9) for client in range(7)]
    assert drawn != [local_work(one.changed(seed=4), k, t).epochs for t in range(1, 41) for k in range(50)]
    assert local_work(recipe({"steps": "4..4"}), 1, 1) == Phase(steps=4)


def test_the_server_expects_the_steps_that_clients_take() -> None:
    for work in ({"steps": 7}, {"steps": "3..40"}, {"epochs": "1..6"}):
        fields = {"split": "dirichlet:0.5", "clients": 5, "batch": 24, **work}
        expected = ExpectedSteps(prepare(recipe(fields)))
        for round, client in ((1, 0), (2, 3)):
            made = local_work(recipe(fields), client, round)
            samples = len(expected.experiment.training(client, round))
            steps = made.steps or made.epochs * -(-samples // 24)
            allowed = expected.training(client, round)
            assert (allowed.least, allowed.most) == (steps, steps)
            assert allowed.flaw(steps) is None and allowed.flaw(steps + 1) is not None


def effective(p: Problem, t: int, k: int) -> float:
    return p.effective(sum(1 for _ in batches(p, t, k)))


@pytest.mark.parametrize("work", [{"steps": "2..30"}, {"epochs": "1..4"}], ids=str)
def test_nova_normalizes_by_the_steps_that_were_drawn(work: dict[str, Any]) -> None:
    run = train("nova", **{**FIELDS, **work})
    p = problem(run)
    w = p.initial
    for t, cohort in p.rounds:
        shares, a = p.shares(cohort), [effective(p, t, k) for k in cohort]
        tau = sum(share * a_i for share, a_i in zip(shares, a, strict=True))
        uploads = [p.local(w, t, k, cross_entropy, batches=batches(p, t, k)) for k in cohort]
        w = {
            n: w[n] + sum(tau * s / a_i * (u[n] - w[n]) for s, a_i, u in zip(shares, a, uploads, strict=True))
            for n in w
        }
    agree(run, w)
    assert gap(run, train("fedavg", **{**FIELDS, **work})) > 1e-3


def test_scaffold_divides_by_the_steps_that_were_drawn() -> None:
    run = train("scaffold", **FIELDS, steps="2..30")
    p = problem(run)
    zeros = {n: torch.zeros_like(v) for n, v in p.initial.items()}
    w, c, c_i = p.initial, dict(zeros), {k: dict(zeros) for k in range(5)}
    for t, cohort in p.rounds:
        uploads, changes = [], []
        for k in cohort:

            def extra(n: str, _: Tensor, k: int = k, c: Weights = c) -> Tensor:
                return c[n] - c_i[k][n]

            uploads.append(p.local(w, t, k, cross_entropy, extra=extra, batches=batches(p, t, k)))
            scale = p.rate(t) * effective(p, t, k)
            new = {n: c_i[k][n] - c[n] + (w[n] - uploads[-1][n]) / scale for n in w}
            changes.append({n: new[n] - c_i[k][n] for n in w})
            c_i[k] = new
        w = mean(uploads, p.shares(cohort))
        c = {n: c[n] + sum(change[n] for change in changes) / 5 for n in w}
    agree(run, w)


@pytest.mark.parametrize("work", [{"steps": "1..20"}, {"epochs": "1..3"}, {"steps": 9}], ids=str)
@pytest.mark.parametrize("method", ["scaffold + fn", "nova + prox", "ditto"])
@pytest.mark.parametrize("augment", ["none", "flip"])
def test_vmapped_clients_with_unequal_work_agree_with_eager_ones(
    method: str, work: dict[str, Any], augment: str
) -> None:
    fields = {**FIELDS, **work, "clients": 6, "fraction": 0.84, "augment": augment}
    alone, together = train(method, **fields), train(method, **fields, vmap=3)
    assert gap(alone, together) < 1e-5
    for client, state in memories(alone).items():
        for name, value in state.items():
            torch.testing.assert_close(value, memories(together)[client][name], rtol=1e-4, atol=1e-5)


def test_dittos_own_model_trains_as_long_as_the_client() -> None:
    """With strength 0 and without anything in common but the data, it takes as many steps as the global one."""
    one, other = train("ditto(strength=0)", **FIELDS, steps=4), train("ditto(strength=0)", **FIELDS, steps=8)
    first, second = memories(one), memories(other)
    assert max(float((first[k]["ditto.own"] - second[k]["ditto.own"]).abs().max()) for k in first) > 1e-3


def test_a_phase_of_steps_can_be_asked_for_by_any_part() -> None:
    class WorkCounted(Part):
        def after_training(self, client: ClientContext) -> None:
            assert client.steps == client.work.steps == 5
            with pytest.raises(FedloomError, match="steps: workcounted asks for the number of local epochs"):
                assert client.epochs

        def extra_training(self, hook: str) -> tuple[()]:
            return ()

    assert train("workcounted", **FIELDS, steps=5).rounds[-1]["lost"] == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"epochs": 0}, "epochs: must be greater than or equal to 1 or a range A..B such as 1..5 (got 0)"),
        ({"epochs": "5..1"}, "epochs: must be a whole number or a range A..B such as 1..5 (got 5..1)"),
        ({"epochs": "0..3"}, "epochs: must be a whole number or a range A..B such as 1..5 (got 0..3)"),
        ({"steps": "many"}, "steps: must be a whole number or a range A..B such as 1..5 (got many)"),
        (
            {"steps": 5, "epochs": 2},
            "steps: local work is counted in epochs or in steps; leave out epochs (got 2)",
        ),
    ],
)
def test_impossible_work_is_refused_in_a_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FedloomError) as caught:
        recipe(fields)
    assert str(caught.value) == said


def test_a_part_that_arranges_epochs_is_refused_by_name_under_steps() -> None:
    with pytest.raises(FedloomError, match=r"^steps: fedrep arranges local epochs in phases.*; set epochs instead"):
        train("fedrep", **FIELDS, steps=5)
    assert train("fedrep(head_epochs=1)", **{**FIELDS, "epochs": "1..3"}).rounds[-1]["lost"] == 0
