"""The three ways of a batch-normalized net."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets import BatchNormMode, Net, build, set_batch_norm

torch.set_num_threads(1)


def batch(seed: int = 0) -> Tensor:
    return torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(seed)) * 3 + 1


@pytest.mark.parametrize("bn", ["running", "batch", "local"])
@pytest.mark.parametrize("model", ["conv4", "mobilenet", "resnet18"])
def test_no_integer_is_left_in_the_state(model: str, bn: BatchNormMode) -> None:
    state = build(model, (1, 16, 16), 10, bn).state_dict()
    assert all(value.is_floating_point() for value in state.values())
    assert any("running_var" in name for name in state) == (bn != "batch")


def test_running_statistics_move_by_a_tenth_in_training_and_rest_in_evaluation() -> None:
    net = build("conv4", (1, 16, 16), 10, "running")
    x = batch()
    conv, norm = net.body.get_submodule("0"), net.body.get_submodule("1")
    maps = conv(x)
    net(x)
    torch.testing.assert_close(norm.running_mean, 0.1 * maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * maps.var((0, 2, 3)), rtol=1e-4, atol=1e-6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.eval()(batch(1))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize(("bn", "by_batch"), [("batch", True), ("running", False), ("local", False)])
def test_evaluation_uses_the_batch_when_bn_is_batch_and_not_otherwise(bn: BatchNormMode, by_batch: bool) -> None:
    net = build("conv4", (1, 16, 16), 10, bn)
    x = batch()
    assert torch.equal(net.train()(x), net.eval()(x)) == by_batch
    neighbors = torch.cat([x[:1], batch(1)])
    assert torch.allclose(net(neighbors)[:1], net(x)[:1], atol=1e-5) != by_batch


def test_the_recipe_decides_whatever_a_users_layer_was_made_with() -> None:
    net = Net(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, track_running_stats=False)), nn.Linear(4, 2), 4, 2)
    set_batch_norm(net, "running")
    net(torch.randn(5, 4, 1, 1) + 2)
    mean = net.state_dict()["body.1.running_mean"]
    assert mean.min() > 0
    set_batch_norm(net, "batch")
    assert "body.1.running_mean" not in net.state_dict()


def test_a_plain_dict_of_tensors_loads_strictly_with_or_without_counts() -> None:
    net, other = build("conv4", (1, 16, 16), 10, "running"), build("conv4", (1, 16, 16), 10, "running")
    net(batch())
    plain = dict(net.state_dict())  # as read from a file: without torch's version marks
    other.load_state_dict(plain)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True))
    other.load_state_dict({**plain, "body.1.num_batches_tracked": torch.tensor(7)})
    assert "body.1.num_batches_tracked" not in other.state_dict()


def test_a_users_momentum_none_is_refused_only_where_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "cumulative.py"
    path.write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.BatchNorm2d(1, momentum=None), nn.Flatten()), nn.Linear(64, classes)\n"
    )
    with pytest.raises(
        FedloomError, match=r"body\.0 \(BatchNorm2d\) has momentum=None.*give it a momentum, such as 0\.1"
    ):
        build(f"{path}:make", (1, 8, 8), 3, "running")
    build(f"{path}:make", (1, 8, 8), 3, "batch")


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(FedloomError, match="bn is 'none'; it can be running, batch, local"):
        build("mlp", (1, 8, 8), 3, "none")  # type: ignore[arg-type]
