"""Fine-tuning in turns: head and body, or FedETF's vectors and projection."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from reference import BODY, Loss, Problem, Weights, cross_entropy, gradients, read
from reference_heads import balanced, counts, entropy, projected
from reference_personal import own_tests, share_right
from tiny import train

import fedloom as fl
from fedloom.evaluation.personalization import REGIONS
from fedloom.evaluation.tasks.finetune import FineTune
from fedloom.finished.restore import restore_finished
from fedloom.rng import torch_generator
from fedloom.runs.federation import federation
from fedloom.runs.folder import RunFolder

HEAD = ("head.weight", "head.bias")
PROJECTION = ("head.projection.weight",)
Stretch = tuple[Sequence[str], int, float, Loss, float, float]  # tensors, epochs, rate, loss, momentum, weight decay


def tuned(run: fl.Run, client: int, epochs: int, lr: float) -> Weights:
    """The client's weights after fine-tuning by fedloom."""
    folder = RunFolder(run.path)
    with federation(folder.experiment(), folder) as fed:
        restore_finished(fed, folder)
        fed.buffers.broadcast(fed.state.served())
        replica = fed.backend.replica
        FineTune(client, list(REGIONS["alternate"]), epochs, lr, alternate=True).tune(replica, fed.buffers.views(0))
        tensors = fed.experiment.program.layout.tensors(replica.weights.storage)
    return {name: tensor.double() for name, tensor in tensors.items()}


def computed(p: Problem, client: int, stretches: Sequence[Stretch]) -> Weights:
    """The same in double precision: the optimizer of each stretch begins with empty buffers."""
    w = read(p.path / "final.safetensors")
    draws = torch_generator(p.recipe["seed"], "tune", 0, client)
    for names, epochs, rate, loss, momentum, decay in stretches:
        velocity = {name: torch.zeros_like(w[name]) for name in names}
        for x, y in p.batches(client, epochs, draws):
            gradient = gradients(loss, w, x, y, names)
            for name in names:
                velocity[name] = momentum * velocity[name] + gradient[name] + decay * w[name]
                w[name] = w[name] - rate * velocity[name]
    return w


def agree(ours: Weights, expected: Weights, moved: Sequence[str], start: Weights) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=2e-5)
        assert torch.equal(ours[name], start[name]) == (name not in moved)


@pytest.mark.parametrize("method", ["fedavg", "babu"])
def test_head_and_body_take_turns_of_one_epoch(method: str) -> None:
    run = train(method, batch=32)
    p = Problem(run.path)
    head, body = ((names, 1, 0.05, cross_entropy, 0.9, 0.001) for names in (HEAD, BODY))
    start = read(run.path / "final.safetensors")
    agree(tuned(run, 1, 1, 0.05), computed(p, 1, [head]), HEAD, start)
    agree(tuned(run, 1, 2, 0.05), computed(p, 1, [head, body]), (*HEAD, *BODY), start)
    agree(tuned(run, 1, 3, 0.05), computed(p, 1, [head, body, head]), (*HEAD, *BODY), start)


def test_fedetf_trains_everything_then_its_vectors_and_its_projection_in_turns() -> None:
    run = train("etf", batch=32)
    p, start = Problem(run.path), read(run.path / "final.safetensors")

    def plain(w: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return entropy(projected(w, x), y)

    body = (*BODY, "head.scale", *PROJECTION)
    whole: Stretch = (body, 3, 0.05, balanced(counts(p, 2), 1.0), 0.9, 0.001)
    vectors: Stretch = (("head.weight",), 3, 0.1, plain, 0.0, 0.0)
    projection: Stretch = (PROJECTION, 3, 0.05, plain, 0.9, 0.001)
    last: Stretch = (("head.weight",), 1, 0.1, plain, 0.0, 0.0)
    agree(tuned(run, 2, 3, 0.05), computed(p, 2, [whole]), body, start)
    expected = computed(p, 2, [whole, vectors, projection, last])
    agree(tuned(run, 2, 10, 0.05), expected, (*body, "head.weight"), start)

    outcome = fl.personalize(run, part="alternate", epochs=10, lr=0.05)
    x, y = own_tests(p)[2]
    assert outcome.accuracy[-1][2] == pytest.approx(share_right(projected(expected, x), y), abs=1e-9)
    assert outcome.turns == (*["full"] * 3, *["vectors"] * 3, *["projection"] * 3, "vectors")
    stored = json.loads((run.path / "personal" / "alternate-10-0.05.json").read_text())
    assert (stored["part"], stored["turns"]) == ("alternate", list(outcome.turns))
    (again,) = fl.personalize_run(run, [fl.FineTuning("alternate", 10, 0.05)])
    assert again == outcome
    # the vectors that one client trained are not the next client's
    assert fl.personalize(run, part="full", epochs=0).accuracy[0] == outcome.accuracy[0]


def test_a_head_that_is_fixed_has_no_turns() -> None:
    run = train("dr", rounds=1)
    with pytest.raises(
        fl.FedloomError, match="part: the head is fixed by the method, so there is nothing to alternate"
    ):
        fl.personalize(run, part="alternate", epochs=2)
    assert not (run.path / "personal").exists()
