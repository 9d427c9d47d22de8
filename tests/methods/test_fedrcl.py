"""FedRCL, the user of `batch.stages`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import reference
import torch
from reference import Weights, cross_entropy
from reference_regularizers import weighted
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train
from torch import Tensor, nn

import fedloom as fl
from fedloom.methods import Batch, ClientContext
from fedloom.methods.fedrcl import FedRCL
from fedloom.nets import build
from fedloom.nets.stages import with_stages


def relaxed(z: Tensor, y: Tensor, contrast: float, penalty: float, t: float, threshold: float) -> Tensor:
    """One level, sample by sample."""
    n = z / z.square().sum(1, keepdim=True).sqrt()
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(y)):
        s = (n * n[i]).sum(1)
        mine = [s[j] for j in range(len(y)) if y[j] == y[i]]
        others = sorted((s[j] for j in range(len(y)) if y[j] != y[i]), key=float)[-2:]
        plus = min(mine, key=float)
        total = total + contrast * -(plus / t - torch.stack([plus, *others]).div(t).logsumexp(0))
        rest = [s[j] for j in range(len(y)) if y[j] == y[i] and j != i]
        if rest and float(min(rest, key=float)) >= threshold:
            total = total + penalty * (1 + ((min(rest, key=float) - 1) / t).exp()).log()
    return total / len(y)


def term(*given: float) -> reference.Loss:
    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return relaxed(x @ w["body.1.weight"].T + w["body.1.bias"], y, *given)  # before the ReLU

    return loss


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("fedrcl(temperature=0.5)", (1.0, 1.0, 0.5, 0.7)),
        ("fedrcl(contrast=0.1, penalty=2, temperature=0.2, threshold=0.1)", (0.1, 2.0, 0.2, 0.1)),
    ],
)
def test_hidden_layers_are_contrasted_before_their_activation(text: str, given: tuple[float, ...]) -> None:
    run = train(text, batch=40, lr=0.02, momentum=0.0, rounds=2, epochs=1, split="shards:4", workers=2)
    loss = weighted(cross_entropy, lambda _: term(*given), 1.0)
    agree(run, reference.fedavg(problem(run), loss, teaching=True))
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_without_weights_it_is_fedavg() -> None:
    plain = train("fedavg")
    assert gap(train("fedrcl(contrast=0, penalty=0)"), plain) < 1e-6
    assert gap(train("fedrcl"), plain) > 1e-3


def value(part: FedRCL, y: list[int], *levels: Tensor) -> Tensor:
    batch: Any = SimpleNamespace(stages=levels, y=torch.tensor(y))
    return part.regularizer(batch, None)  # type: ignore[arg-type]


def test_special_batches() -> None:
    z = torch.randn(5, 4, dtype=torch.double).requires_grad_()
    assert float(value(FedRCL(penalty=0), [3] * 5, z).detach()) == pytest.approx(0, abs=1e-6)  # one class
    same = torch.ones(3, 4).requires_grad_()
    assert float(value(FedRCL(contrast=0), [0] * 3, same).detach()) == pytest.approx(0.6931, abs=1e-4)  # collapsed
    both = value(FedRCL(), [0, 1, 0, 1, 2], z, 3 * z).detach()
    torch.testing.assert_close(both, value(FedRCL(), [0, 1, 0, 1, 2], z).detach())  # the mean over levels, scale-free
    for y in ([0], [0, 1], [0, 0]):
        live = torch.randn(len(y), 4).requires_grad_()
        value(FedRCL(), y, live).backward()
        assert live.grad is not None and bool(live.grad.isfinite().all())


@pytest.mark.parametrize(
    ("model", "channels"),
    [
        ("resnet18", [64, 64, 128, 256, 512]),
        ("lenet", [64, 64, 384, 192]),
        ("cnn", [32, 64, 128]),
        ("vgg11", [64, 128, 256, 512, 512, 512, 512]),
        ("mobilenet", [1024]),  # its features
    ],
)
def test_levels_of_nets(model: str, channels: list[int]) -> None:
    with torch.no_grad():
        net, x = build(model, (3, 32, 32), 10, "running").eval(), torch.randn(2, 3, 32, 32)
        features, stages = net.staged_features(x)
        assert [tuple(level.shape) for level in stages] == [(2, width) for width in channels]
        assert torch.equal(features, net.features(x))
    if model != "mobilenet":
        assert any(bool((level < 0).any()) for level in stages)  # before the activation


def test_a_module_of_ones_own_is_marked_by_an_attribute() -> None:
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
    body[1].stage = True  # type: ignore[assignment]
    x = torch.randn(2, 3)
    (level,) = with_stages(body, x)[1]
    assert torch.equal(level, body[0](x))


class Peek(fl.Part):
    """Reads stages without saying so."""

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        return batch.stages[0].sum()


def test_stages_are_kept_only_for_parts_that_say_so() -> None:
    with pytest.raises(Exception, match=r"a part that reads batch.stages has to say so by `uses_stages`"):
        train("peek", rounds=1)


def test_a_small_residual_net_trains_with_all_levels() -> None:
    Path("small.py").write_text(SMALL)
    fields: dict[str, Any] = {"model": "small.py:small", "rounds": 1, "epochs": 1, "lr": 0.01, "batch": 64}
    assert gap(train("fedrcl", **fields), train("fedavg", **fields)) > 1e-4


SMALL = """
import torch
from torch import nn
from fedloom.nets.layers.residual import Residual
from fedloom.nets.stages import stage

def small(shape, classes):
    norm = lambda channels: nn.GroupNorm(2, channels)
    first = Residual(nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), norm(4)), shape[0], 4, 1, norm)
    second = Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), norm(4)), 4, 4, 1, norm)
    stage(first.total), stage(second.total)
    return nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(4, classes)
"""


def test_the_number_of_workers_changes_no_bit() -> None:
    one, three = (train("fedrcl", batch=64, workers=workers).summary["digest"] for workers in (1, 3))
    assert one == three
