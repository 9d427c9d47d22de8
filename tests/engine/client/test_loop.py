"""Corners of the local loop that no single paper visits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.engine.client.batches import cut
from fedloom.methods import Batch, ClientContext, ServerContext, TaskInfo, Tensors

SMALL: dict[str, Any] = {"clients": 10, "rounds": 2, "workers": 1, "eval_every": 0, "lr": 0.05}


class TwiceGradient(fl.Part):
    """Asks for the gradient twice, once at other weights."""

    name = "twice-gradient"

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        client.gradient_of(at=client.weights + 1, batch=batch, loss=lambda b, _: 100 * b.logits.square().mean())
        return client.gradient_of(batch=batch)


class AsksForTheHead(fl.Part):
    """Asks for the head's gradients, at other values and with fixed features, and compares them with those of all weights."""

    name = "asks-for-the-head"
    fixable: bool = True

    def before_training(self, client: ClientContext) -> None:
        def loss(batch: Batch, own: ClientContext) -> Tensor:
            return own.loss(batch)

        before = client.weights.clone()
        head = {name: value + 0.1 for name, value in client.named(client.weights).items() if name.startswith("head.")}
        moved = client.weights.clone()
        for name, value in head.items():
            client.named(moved)[name].copy_(value)
        batch = next(iter(client.iterate(order=torch.arange(client.samples))))
        draws = torch.random.get_rng_state()
        whole = client.named(client.gradient_of(loss, moved, batch))
        fixed = client.fix_features(batch)
        for given in (batch, fixed, fixed):  # twice: a second pass is not added to the first one
            torch.random.set_rng_state(draws)
            gradients = client.gradients_of(loss, head, given)
            assert list(gradients) == list(head)
            assert all(torch.equal(gradients[name], whole[name]) for name in head)
        assert torch.equal(client.weights, before)
        assert (fixed is not batch) == self.fixable


class FinishesTwice(fl.Part):
    """Trains on in `finish`, with a penalty that stops all movement when it is felt."""

    name = "finishes-twice"
    strength: float = 0.0

    def after_training(self, client: ClientContext) -> None:
        spec = fl.TrainSpec((fl.Phase(1),), regularizer=lambda batch, _: self.strength * batch.features.square().mean())
        client.train(spec)


class LooksOver(fl.Part):
    """Looks at all its data, stops half-way, then trains on."""

    name = "looks-over"

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"learns": torch.zeros(1), "samples": torch.zeros(1)}

    def after_training(self, client: ClientContext) -> None:
        batches = list(client.iterate())
        client.upload["samples"] = torch.tensor([float(sum(len(b.y) for b in batches))])
        client.upload["learns"] = torch.tensor([float(any(b.logits.requires_grad for b in batches))])
        next(client.iterate())
        client.train(fl.TrainSpec((fl.Phase(1),)))

    def after_aggregation(self, server: ServerContext) -> None:
        assert all(float(x) == 0 for x in server.extras("learns"))
        assert [float(x) for x in server.extras("samples")] == [float(n) for n in server.samples]


class BreaksAfter(fl.Part):
    """Leaves weights that are not numbers after combining."""

    name = "breaks-after"

    def after_aggregation(self, server: ServerContext) -> None:
        server.weights.fill_(float("nan"))


class AsksStranger(fl.Part):
    """Asks a client that was not there."""

    name = "asks-stranger"

    def queries(self, weights: Tensor, task: TaskInfo) -> dict[str, fl.Query]:
        return {"again": fl.Query(trains=True)}

    def after_uploads(self, server: ServerContext) -> None:
        server.ask("again", clients=[next(k for k in range(10) if k not in server.cohort)])

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        client.train(fl.TrainSpec((fl.Phase(1),)))


class MistypedPhase(fl.Part):
    """Trains a region that no net has."""

    name = "mistyped-phase"

    def phases(self, epochs: int) -> list[fl.Phase]:
        return [fl.Phase(epochs, ("neck",))]


@pytest.mark.parametrize("method", ["fedper", "fedrep(head_epochs=1)", "fedper + nova", "fedper + scaffold"])
def test_a_method_may_leave_nothing_to_exchange(method: str) -> None:
    """A linear net is all head: with a personal head every client trains alone."""
    run = fl.run(model="linear", method=method, **SMALL)
    assert run.summary["bytes_up"] == 0
    assert run.summary["personal_accuracy"]["mean"] > run.summary["client_accuracy"]["mean"] + 0.3


def test_a_gradient_taken_elsewhere_leaves_no_trace() -> None:
    plain, twice = fl.run(method="fedavg", **SMALL), fl.run(method="twice-gradient", **SMALL)
    assert twice.summary["digest"] == plain.summary["digest"]
    assert twice.rounds[-1]["train_loss"] == plain.rounds[-1]["train_loss"]


def test_a_gradient_taken_elsewhere_leaves_no_trace_in_statistics() -> None:
    fields = {**SMALL, "data": {"name": "digits", "resize": 16}, "model": "conv4", "rounds": 1, "clients": 20}
    plain, twice = fl.run(method="fedavg", **fields), fl.run(method="twice-gradient", **fields)
    for name, value in plain.weights.items():
        if "running" not in name:  # the second forward pass at these weights moves statistics once more
            assert torch.equal(twice.weights[name], value), name
        assert bool(twice.weights[name].isfinite().all())


@pytest.mark.parametrize("last", [nn.ReLU(), nn.Dropout(0.5)])
def test_gradients_of_some_tensors_are_those_of_all_weights_and_leave_no_trace(last: nn.Module) -> None:
    body = [nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), last]
    fields = {**SMALL, "model": nn.Sequential(*body, nn.Linear(16, 10))}
    asking = fl.run(method=f"asks-for-the-head(fixable={isinstance(last, nn.ReLU)})".lower(), **fields)
    assert asking.summary["digest"] == fl.run(method="fedavg", **fields).summary["digest"]


def test_further_training_feels_its_penalty_also_under_a_gradient_hook() -> None:
    for method in ("finishes-twice", "twice-gradient + finishes-twice"):
        weak, strong = (fl.run(method=method + f"(strength={s})", **SMALL) for s in (0, 1))
        assert weak.summary["digest"] != strong.summary["digest"]


def test_looking_over_the_data_takes_no_gradient_and_disturbs_nothing() -> None:
    assert fl.run(method="looks-over", **SMALL).summary["lost"] == 0


def test_weights_that_a_part_breaks_after_combining_end_the_run() -> None:
    with pytest.raises(fl.FedloomError, match="no longer finite after aggregation in round 1"):
        fl.run(method="breaks-after", **SMALL)


def test_a_client_outside_the_cohort_cannot_be_asked_again() -> None:
    with pytest.raises(
        fl.FedloomError, match=r"asks-stranger asks client . again, which is not in this round's cohort"
    ):
        fl.run(method="asks-stranger", **SMALL)


def test_a_phase_that_names_no_region_of_the_net_is_refused() -> None:
    with pytest.raises(fl.FedloomError, match="'neck', which this net does not have"):
        fl.run(method="mistyped-phase", **SMALL)


def test_batches_cover_all_samples_and_a_lone_last_one_joins_where_it_must() -> None:
    assert list(cut(7, 3, alone=True)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(cut(7, 3, alone=False)) == [slice(0, 3), slice(3, 7)]
    assert list(cut(8, 3, alone=False)) == [slice(0, 3), slice(3, 6), slice(6, 8)]
    assert list(cut(1, 3, alone=False)) == [slice(0, 1)]
    assert list(cut(0, 3, alone=False)) == []


def test_batch_normalization_survives_clients_whose_last_batch_would_be_a_lone_sample() -> None:
    sizes = {len(range(k, 1437, 10)) for k in range(10)}
    assert 144 in sizes and 144 % 11 == 1
    fields = {**SMALL, "split": "iid", "batch": 11, "data": {"name": "digits", "resize": 8}, "model": "mobilenet"}
    run = fl.run(method="fedavg", bn="batch", fraction=0.2, **{**fields, "rounds": 1})
    assert run.summary["lost"] == 0
