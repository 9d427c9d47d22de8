"""Clients vmapped into one computation: same bits for any workers and after any kill, and a rule that decides by itself."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import Notes, check_whole, holder, logged, untimed
from processes import Child, group, until
from torch import Tensor

import fedloom as fl
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.client import Client
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.vmap.choose import AUTO
from fedloom.engine.client.vmap.clients import aligned_batches
from fedloom.engine.experiment import prepare
from fedloom.engine.server.local_training import vmap_groups
from fedloom.engine.store.state import State
from fedloom.methods import Batch, ClientContext, Phase
from fedloom.methods.api.registry import PARTS
from fedloom.recipe import recipe

FIELDS: dict[str, Any] = {
    "split": "dirichlet:0.5",
    "clients": 12,
    "fraction": 0.6,
    "rounds": 4,
    "epochs": 2,
    "batch": 16,
    "vmap": 3,
}


@pytest.mark.parametrize("method", ["scaffold", "fedper + fd"])
def test_vmapped_runs_have_the_same_bits_for_any_workers(method: str) -> None:
    runs = [fl.run(FIELDS, method=method, workers=workers, name=f"workers-{workers}") for workers in (1, 2, 3)]
    assert len({run.summary["digest"] for run in runs}) == 1
    assert untimed(runs[0].rounds) == untimed(runs[1].rounds) == untimed(runs[2].rounds)
    assert runs[0].clients == runs[2].clients


def test_a_vmapped_run_that_is_killed_resumes_to_the_same_bits(straight: Callable[..., fl.Run]) -> None:
    fields = {**FIELDS, "method": "scaffold", "rounds": 8, "workers": 2, "checkpoint_seconds": 0}
    path = Path("killed")
    for moment in (1, 4):
        child = Child(lambda: fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)))
        until(lambda moment=moment: logged(path) >= moment)
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        until(lambda child=child: not group(child.pid), seconds=3)
    check_whole(fl.run(resume=path), straight(**fields))


@pytest.mark.usefixtures("odd_parts")
def test_a_client_that_kills_its_worker_is_lost_and_not_its_whole_group() -> None:
    fields = {**FIELDS, "clients": 5, "fraction": 1.0, "split": "shards:2", "rounds": 2, "workers": 2}
    run = fl.run(fields, method="dies(label=3, only=1)")
    assert run.rounds[0]["lost_clients"] == {str(holder(run, 3)): "its worker died every time"}
    assert run.rounds[1]["lost"] == 0


@pytest.mark.usefixtures("odd_parts")
def test_a_worker_that_dies_once_changes_nothing(tmp_path: Path) -> None:
    calm = fl.run(FIELDS, method="scaffold + watch", workers=2, name="calm")
    died = fl.run(FIELDS, method=f"scaffold + dies(unless={tmp_path / 'died'})", workers=2, name="died")
    assert died.summary["workers_replaced"] == 1
    assert died.summary["digest"] == calm.summary["digest"]


@pytest.mark.usefixtures("odd_parts")
def test_a_poisoned_client_does_not_spoil_those_beside_it() -> None:
    fields = {**FIELDS, "clients": 5, "fraction": 1.0, "split": "shards:2", "rounds": 1}
    run = fl.run(fields, method="poison(label=3)")
    assert list(run.rounds[0]["lost_clients"]) == [str(holder(run, 3))]
    assert all(bool(tensor.isfinite().all()) for tensor in run.weights.values())


# the rule


@pytest.mark.parametrize(
    ("fields", "chosen", "why"),
    [
        ({}, AUTO, "a tiny net"),
        ({"model": "linear"}, AUTO, "a tiny net"),
        ({"batch": "full"}, AUTO, "a tiny net"),
        ({"method": "scaffold + fn"}, AUTO, "a tiny net"),
        ({"model": "cnn"}, "off", "the net has convolutions"),
        ({"batch": 1000}, "off", "batches of 1000 make steps long enough"),
        ({"data": {"name": "digits", "resize": 32}}, "off", "weights to train, more than 16,384"),
        ({"method": "fedsol"}, "off", "fedsol computes gradients in its own way"),
    ],
    ids=str,
)
def test_auto_is_a_rule_and_its_choice_is_written_down_and_explained(
    fields: dict[str, Any], chosen: int | str, why: str
) -> None:
    notes = Notes()
    given = {"clients": 10, "rounds": 1, "epochs": 1, "vmap": "auto", "eval_every": 0, **fields}
    run = fl.run(given, callbacks=[notes])
    assert fl.Run(run.path).recipe.vmap == chosen
    (said,) = [said for said in notes.said if said.startswith("vmap: ")]
    assert said.startswith(f"vmap: auto is {chosen} here: ") and why in said


def test_vmap_is_off_unless_asked_for_and_then_part_of_what_a_recipe_is() -> None:
    plain = recipe({})
    assert plain.vmap == "off"
    assert recipe({"vmap": False}).vmap == "off"  # how YAML reads a bare off
    assert recipe({"vmap": 4}).digest() != plain.digest()


@pytest.mark.parametrize("value", [1, 0, "on", 2.5])
def test_impossible_values_are_refused(value: Any) -> None:
    with pytest.raises(fl.FedloomError, match=r"^vmap: "):
        recipe({"vmap": value})


@pytest.fixture
def strangers() -> Iterator[None]:
    before = dict(PARTS)

    class Branches(fl.Part):
        def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
            if float(batch.logits.sum()) > 0:
                return batch.logits.square().mean()
            return batch.logits.abs().mean()

    class Counts(fl.Part):
        def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
            return batch.logits.mean() / client.samples

    class Late(fl.Part):
        def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
            if client.round < 2:
                return batch.logits.new_zeros(())
            return torch.rand((), generator=client.generator) * batch.logits.mean()

    class Pulls(fl.Part):
        """Uses nearly all that a loss may know of its client."""

        def client_state(self, w: Tensor, task: fl.methods.TaskInfo) -> dict[str, Tensor]:
            return {"last": torch.zeros_like(w)}

        def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
            share = client.counts / client.counts.sum()
            moved, since = client.weights - client.global_weights, client.weights - client.state["last"]
            far = moved.square().sum() + since.square().sum()
            return (
                0.1 * client.lr * far * share.max()
                + 0.1 * client.loss(batch)
                + 1e-3 * batch.head(batch.features).mean()
            )

        def after_training(self, client: ClientContext) -> None:
            client.state["last"] = client.weights

    yield
    PARTS.clear()
    PARTS.update(before)


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("name", ["branches", "counts", "late"])
def test_a_part_that_cannot_be_vmapped_is_refused_by_name_before_anything_is_written(name: str) -> None:
    with pytest.raises(fl.FedloomError, match=rf"^vmap: the loss of {name} .*; set vmap to off$"):
        fl.run(FIELDS, method=name, name="refused")
    assert not Path("runs/refused").exists()
    assert fl.run({**FIELDS, "vmap": "auto"}, method=name).recipe.vmap == "off"


NETS = """
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(x.flatten(1)).relu())

class Recurrent(nn.Module):  # keeps its weights in a list of its own, too
    def __init__(self):
        super().__init__()
        self.rows = nn.GRU(8, 16, batch_first=True)

    def forward(self, x):
        return self.rows(x.squeeze(1))[0][:, -1]

def tied(shape, classes):
    return Tied(), nn.Linear(64, classes)

def recurrent(shape, classes):
    return Recurrent(), nn.Linear(16, classes)
"""


def test_a_weight_with_two_places_is_lent_to_both() -> None:
    Path("nets.py").write_text(NETS)
    alone, together = (fl.run({**FIELDS, "vmap": size}, model="nets.py:tied") for size in ("off", 4))
    for name, value in alone.weights.items():
        torch.testing.assert_close(together.weights[name], value, rtol=0, atol=1e-5)


def test_a_net_that_keeps_its_weights_elsewhere_is_refused() -> None:
    Path("nets.py").write_text(NETS)
    with pytest.raises(fl.FedloomError, match=r"^vmap: the net .*; set vmap to off$"):
        fl.run(FIELDS, model="nets.py:recurrent")


@pytest.mark.usefixtures("strangers")
def test_a_part_that_keeps_to_tensors_is_vmapped() -> None:
    alone, together = (fl.run({**FIELDS, "vmap": size}, method="pulls") for size in ("off", 4))
    for name, value in alone.weights.items():
        torch.testing.assert_close(together.weights[name], value, rtol=0, atol=1e-5)


# which clients train and step together


def test_groups_are_even_and_of_near_sizes() -> None:
    sizes = [5, 90, 17, 40, 8, 60, 33]
    assert vmap_groups(sizes, recipe({"vmap": 3})) == [[1, 5], [3, 6], [2, 4, 0]]
    assert vmap_groups(sizes, recipe({"vmap": 32})) == [[1, 5, 3, 6, 2, 4, 0]]
    assert vmap_groups(sizes, recipe({})) == [[place] for place in range(7)]


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_every_client_gets_its_own_batches_in_its_own_order(augment: str) -> None:
    experiment = prepare(recipe({**FIELDS, "augment": augment, "vmap": "off"}))
    replica, buffers = Replica(experiment), SharedBuffers(experiment, 4)
    buffers.broadcast(State(experiment).broadcast())

    def clients() -> list[Client]:
        replica.receive(buffers.down, None, 1)
        return [Client(replica, client, 1, buffers.views(client)) for client in range(4)]

    expected = [[batch for _ in range(2) for batch in one.own.epoch(one.generator)] for one in clients()]
    received: list[list[tuple[Tensor, ...]]] = [[] for _ in range(4)]
    together = Counter[int]()
    for batches in aligned_batches(clients(), [Phase(2)] * 4):
        together[len(batches.numbers)] += 1
        for place, row in enumerate(batches.numbers):
            received[row].append((batches.x[place], batches.y[place], batches.index[place]))
    assert max(together) == 4
    for one, other in zip(expected, received, strict=True):
        assert len(one) == len(other)
        for batch, vmapped_batch in zip(one, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, vmapped_batch, strict=True))
