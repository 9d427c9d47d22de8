"""Fine-tuning in many ways at once, under every loss, and what it forgets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.data import load
from fedloom.engine.backends.fork import ForkBackend
from fedloom.engine.tasks import Assignment
from fedloom.evaluation.tasks.finetune import FineTune

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 3, "workers": 1, "eval_every": 0, "batch": "full", "lr": 0.5}


def tunings() -> list[fl.FineTuning]:
    return [fl.FineTuning(part, 2, lr) for part in ("full", "head") for lr in (0.3, 0.05)]  # type: ignore[arg-type]


def test_many_ways_at_once_come_to_what_each_comes_to_alone() -> None:
    run = fl.run(FIELDS, out="x")
    together = fl.personalize_run(run, tunings())
    assert len({str(found.accuracy) for found in together}) == 4
    for tuning, found in zip(tunings(), together, strict=True):
        assert found == fl.personalize(run, tuning.part, tuning.epochs, tuning.lr)
        assert (run.path / "personal" / f"{tuning.part}-2-{tuning.lr:g}.json").exists()


def test_what_is_known_already_is_read_and_what_belongs_to_other_weights_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = fl.run(FIELDS, out="x")
    first = fl.personalize_run(run, tunings()[:2])
    asked: list[str] = []
    plainly = ForkBackend.run

    def listening(self: ForkBackend, assignments: Sequence[Assignment], done: Any = None) -> Any:
        tasks = [assignment.task for assignment in assignments]
        asked.append(str({(task.lr, task.epochs) for task in tasks if isinstance(task, FineTune)}))
        return plainly(self, assignments, done)

    monkeypatch.setattr(ForkBackend, "run", listening)
    assert fl.personalize_run(run, tunings()[:2]) == first
    assert asked == []
    fl.personalize_run(run, tunings()[:3])
    assert asked == ["{(1.0, 0)}", "{(0.3, 2)}"]  # where clients start, and the one that was missing
    path = run.path / "personal" / "full-2-0.3.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "weights": "others", "clients": []}))
    assert fl.personalize_run(run, tunings()[:2]) == first
    assert json.loads(path.read_text()) == told


def test_what_is_forgotten_is_counted_on_classes_that_a_client_never_saw() -> None:
    """Every client's fine-tuning again, by torch itself, and its test on the pooled images of absent classes."""
    run = fl.run(FIELDS, momentum=0.9, out="x")
    found = fl.personalize(run, epochs=3, lr=0.3)
    images, parts = load("digits"), np.load("x/partition.npz")
    x = {
        name: ((value.float().permute(0, 3, 1, 2) / 16 - images.mean[0]) / images.std[0]).flatten(1)
        for name, value in (("train", images.train_x), ("test", images.test_x))
    }
    for client in range(10):
        own = parts["train_index"][slice(*parts["train_offsets"][client : client + 2])]
        seen = set(images.train_y[own].tolist())
        others = torch.tensor([label not in seen for label in images.test_y.tolist()])
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        names = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
        net.load_state_dict(dict(zip(net.state_dict(), (run.weights[name] for name in names), strict=True)))
        sgd = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
        expected = [_right(net, x["test"][others], images.test_y[others])]
        for _ in range(3):
            sgd.zero_grad()
            nn.functional.cross_entropy(net(x["train"][own]), images.train_y[own]).backward()
            sgd.step()
        expected.append(_right(net, x["test"][others], images.test_y[others]))
        assert [found.unseen_accuracy[0][client], found.unseen_accuracy[1][client]] == pytest.approx(expected, abs=1e-9)
    before, after = found.unseen
    assert before["clients"] == 10 and after["mean"] < before["mean"]
    stored = json.loads(Path("x/personal/full-3-0.3.json").read_text())
    assert stored["clients_unseen"] == [list(pair) for pair in zip(*found.unseen_accuracy, strict=True)]
    assert stored["clients_global"] == run.clients[-1]["accuracy"] == found.global_accuracy
    few = fl.personalize(run, epochs=0, unseen=7)
    assert all((value or 0) * 7 == pytest.approx(round((value or 0) * 7)) for value in few.unseen_accuracy[0])
    everything = fl.run(FIELDS, split="iid", rounds=1)
    assert fl.personalize(everything, epochs=0).unseen_accuracy == ([None] * 10, [None] * 10)


def _right(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return (net(x).argmax(1) == y).double().mean().item()


def test_the_loss_is_the_methods_its_objective_or_cross_entropy() -> None:
    """dr + fd(beta=1) has no distillation, so its method's loss is the objective of dr + fd; and ce is neither."""
    run = fl.run(FIELDS, method="dr + fd(beta=0.5)", out="x", lr=1.0)
    fl.run(FIELDS, method="dr", out="y", lr=1.0)
    (Path("y") / "final.safetensors").write_bytes((run.path / "final.safetensors").read_bytes())

    def adopted(folder: str, loss: str) -> dict[str, torch.Tensor]:
        from fedloom.io.files import read_tensors

        keep = np.arange(len(images.train_y)) % 7 == 0
        np.savez("new.npz", x=images.train_x[keep].numpy(), y=images.train_y[keep].numpy())
        return read_tensors(fl.adopt(folder, "new.npz", lr=1.0, loss=loss).path)[0]  # type: ignore[arg-type]

    images = load("digits")
    objective, distilled, ce = (adopted("x", loss) for loss in ("objective", "method", "ce"))
    plain = adopted("y", "method")
    for name in plain:
        assert torch.equal(plain[name], objective[name])
    assert not torch.equal(distilled["body.1.weight"], objective["body.1.weight"])
    assert not torch.equal(ce["body.1.weight"], objective["body.1.weight"])
    moved = {
        k: (v["body.1.weight"] - run.weights["body.1.weight"]).norm() for k, v in (("d", distilled), ("o", objective))
    }
    assert moved["d"] < moved["o"]  # distillation to the global model holds it back


def test_a_gela_client_reads_its_own_logits_scaled_by_its_class_counts() -> None:
    run = fl.run(FIELDS, method="gela", lr=0.01, momentum=0.0, rounds=1, split="shards:2", out="x")
    own, plain = run.clients[-1]["personal_accuracy"], run.clients[-1]["accuracy"]
    assert own != plain
    images, parts, w = load("digits"), np.load("x/partition.npz"), run.weights
    x = ((images.test_x.double().permute(0, 3, 1, 2) / 16 - images.mean[0]) / images.std[0]).flatten(1)
    f = torch.relu(x @ w["body.0.1.weight"].double().T + w["body.0.1.bias"])
    f = (f - w["body.1.running_mean"]) / (w["body.1.running_var"].double() + 1e-5).sqrt() * w["body.1.weight"] + w[
        "body.1.bias"
    ]
    for client in range(10):
        train, test = (
            parts[f"{k}_index"][slice(*parts[f"{k}_offsets"][client : client + 2])] for k in ("train", "test")
        )
        counts = torch.bincount(images.train_y[train], minlength=10).double()
        logits = f[test] @ w["head.weight"].double().T
        y = images.test_y[test]
        assert plain[client] == pytest.approx((logits.argmax(1) == y).double().mean().item())
        assert own[client] == pytest.approx(
            ((logits * 10 * counts / counts.sum()).argmax(1) == y).double().mean().item()
        )


@pytest.mark.parametrize("fields", [{"unseen": -1}, {"loss": "kd"}])
def test_what_cannot_be_is_told(fields: dict[str, object]) -> None:
    run = fl.run(FIELDS, rounds=1)
    with pytest.raises(fl.FedloomError, match=f"^{next(iter(fields))}: "):
        fl.personalize(run, **fields)  # type: ignore[arg-type]
    assert not (run.path / "personal").exists()
