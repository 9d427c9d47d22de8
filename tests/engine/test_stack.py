"""Clients stacked in one computation: same bits for any lanes and after any kill, and a rule that decides by itself."""

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
from fedloom.engine.board import Board
from fedloom.engine.local import ClientJob
from fedloom.engine.rounds import stacked
from fedloom.engine.setup import prepare
from fedloom.engine.stack import _ticks
from fedloom.engine.stackable import AUTO
from fedloom.engine.state import State
from fedloom.engine.worker import Worker
from fedloom.methods import Batch
from fedloom.methods.method import _PARTS
from fedloom.recipe import recipe

FIELDS: dict[str, Any] = {
    "split": "dirichlet:0.5",
    "clients": 12,
    "fraction": 0.6,
    "rounds": 4,
    "epochs": 2,
    "batch": 16,
    "stack": 3,
}


@pytest.mark.parametrize("method", ["scaffold", "fedper + fd"])
def test_stacked_runs_have_the_same_bits_for_any_lanes(method: str) -> None:
    runs = [fl.run(FIELDS, method=method, lanes=lanes, name=f"lanes-{lanes}") for lanes in (1, 2, 3)]
    assert len({run.summary["digest"] for run in runs}) == 1
    assert untimed(runs[0].rounds) == untimed(runs[1].rounds) == untimed(runs[2].rounds)
    assert runs[0].clients == runs[2].clients


def test_a_stacked_run_that_is_killed_resumes_to_the_same_bits(straight: Callable[..., fl.Run]) -> None:
    fields = {**FIELDS, "method": "scaffold", "rounds": 8, "lanes": 2, "checkpoint_seconds": 0}
    path = Path("killed")
    for moment in (1, 4):
        child = Child(lambda: fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)))
        until(lambda moment=moment: logged(path) >= moment)
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        until(lambda child=child: not group(child.pid), seconds=3)
    check_whole(fl.run(resume=path), straight(**fields))


@pytest.mark.usefixtures("odd_parts")
def test_who_kills_its_lane_is_lost_and_not_its_whole_stack() -> None:
    fields = {**FIELDS, "clients": 5, "fraction": 1.0, "split": "shards:2", "rounds": 2, "lanes": 2}
    run = fl.run(fields, method="dies(label=3, only=1)")
    assert run.rounds[0]["lost_clients"] == {str(holder(run, 3)): "its lane died every time"}
    assert run.rounds[1]["lost"] == 0


@pytest.mark.usefixtures("odd_parts")
def test_a_lane_that_dies_once_changes_nothing(tmp_path: Path) -> None:
    calm = fl.run(FIELDS, method="scaffold + watch", lanes=2, name="calm")
    died = fl.run(FIELDS, method=f"scaffold + dies(unless={tmp_path / 'died'})", lanes=2, name="died")
    assert died.summary["lanes_replaced"] == 1
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
        ({"method": "fedsol"}, "off", "fedsol finds gradients in its own way"),
    ],
    ids=str,
)
def test_auto_is_a_rule_and_its_choice_is_written_down_and_explained(
    fields: dict[str, Any], chosen: int | str, why: str
) -> None:
    notes = Notes()
    given = {"clients": 10, "rounds": 1, "epochs": 1, "stack": "auto", "eval_every": 0, **fields}
    run = fl.run(given, watcher=notes)
    assert fl.Run(run.path).recipe.stack == chosen
    (said,) = [said for said in notes.said if said.startswith("stack: ")]
    assert said.startswith(f"stack: auto is {chosen} here: ") and why in said


def test_stacking_is_off_unless_asked_for_and_then_part_of_what_a_recipe_is() -> None:
    plain = recipe({})
    assert plain.stack == "off"
    assert recipe({"stack": False}).stack == "off"  # how YAML reads a bare off
    assert recipe({"stack": 4}).digest() != plain.digest()


@pytest.mark.parametrize("value", [1, 0, "on", 2.5])
def test_impossible_values_are_refused(value: Any) -> None:
    with pytest.raises(fl.FedloomError, match=r"^stack: "):
        recipe({"stack": value})


@pytest.fixture
def strangers() -> Iterator[None]:
    before = dict(_PARTS)

    class Branches(fl.Part):
        def penalty(self, batch: Batch) -> Tensor:
            if float(batch.logits.sum()) > 0:
                return batch.logits.square().mean()
            return batch.logits.abs().mean()

    class Counts(fl.Part):
        def penalty(self, batch: Batch) -> Tensor:
            return batch.logits.mean() / batch.client.samples

    class Late(fl.Part):
        def penalty(self, batch: Batch) -> Tensor:
            if batch.client.round < 2:
                return batch.logits.new_zeros(())
            return torch.rand((), generator=batch.client.generator) * batch.logits.mean()

    class Pulls(fl.Part):
        """Uses nearly all that a loss may know of its client."""

        def client_memory(self, w: Tensor, task: fl.methods.Task) -> dict[str, Tensor]:
            return {"last": torch.zeros_like(w)}

        def penalty(self, batch: Batch) -> Tensor:
            client = batch.client
            share = batch.counts / batch.counts.sum()
            far = (client.w - client.start).square().sum() + (client.w - client.memory["last"]).square().sum()
            return (
                0.1 * client.lr * far * share.max() + 0.1 * batch.objective() + 1e-3 * batch.head(batch.features).mean()
            )

        def finish(self, client: fl.methods.Client) -> None:
            client.memory["last"] = client.w

    yield
    _PARTS.clear()
    _PARTS.update(before)


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("name", ["branches", "counts", "late"])
def test_a_part_that_cannot_be_stacked_is_refused_by_name_before_anything_is_written(name: str) -> None:
    with pytest.raises(fl.FedloomError, match=rf"^stack: the loss of {name} .*; set stack to off$"):
        fl.run(FIELDS, method=name, name="refused")
    assert not Path("runs/refused").exists()
    assert fl.run({**FIELDS, "stack": "auto"}, method=name).recipe.stack == "off"


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
    alone, together = (fl.run({**FIELDS, "stack": stack}, model="nets.py:tied") for stack in ("off", 4))
    for name, value in alone.weights.items():
        torch.testing.assert_close(together.weights[name], value, rtol=0, atol=1e-5)


def test_a_net_that_keeps_its_weights_elsewhere_is_refused() -> None:
    Path("nets.py").write_text(NETS)
    with pytest.raises(fl.FedloomError, match=r"^stack: the net .*; set stack to off$"):
        fl.run(FIELDS, model="nets.py:recurrent")


@pytest.mark.usefixtures("strangers")
def test_a_stranger_that_keeps_to_tensors_is_stacked() -> None:
    alone, together = (fl.run({**FIELDS, "stack": stack}, method="pulls") for stack in ("off", 4))
    for name, value in alone.weights.items():
        torch.testing.assert_close(together.weights[name], value, rtol=0, atol=1e-5)


# who stands and steps together


def test_stacks_are_even_and_of_near_sizes() -> None:
    sizes = [5, 90, 17, 40, 8, 60, 33]
    assert stacked(sizes, recipe({"stack": 3})) == [[1, 5], [3, 6], [2, 4, 0]]
    assert stacked(sizes, recipe({"stack": 32})) == [[1, 5, 3, 6, 2, 4, 0]]
    assert stacked(sizes, recipe({})) == [[place] for place in range(7)]


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_every_client_gets_its_own_batches_in_its_own_order(augment: str) -> None:
    experiment = prepare(recipe({**FIELDS, "augment": augment, "stack": "off"}))
    worker, board = Worker(experiment), Board(experiment, 4)
    board.broadcast(State(experiment).broadcast())

    def jobs() -> list[ClientJob]:
        worker.receive(board.down, None, 1)
        return [ClientJob(worker, client, 1, board.views(client)) for client in range(4)]

    expected = [[batch for _ in range(2) for batch in job.own.epoch(job.generator)] for job in jobs()]
    found: list[list[tuple[Tensor, ...]]] = [[] for _ in range(4)]
    together = Counter[int]()
    for rows, *columns in _ticks(jobs(), 2):
        chosen = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        together[len(chosen)] += 1
        for place, row in enumerate(chosen):
            found[row].append(tuple(column[place] for column in columns))
    assert max(together) == 4
    for one, other in zip(expected, found, strict=True):
        assert len(one) == len(other)
        for batch, stacked_batch in zip(one, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, stacked_batch, strict=True))
