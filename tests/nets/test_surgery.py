"""Finding and replacing normalizers in nets of ours and of others."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.data import InputSpec
from fedloom.errors import FedloomError
from fedloom.methods import TaskInfo, method
from fedloom.nets import Net, Shape, build, region_of
from fedloom.nets.layers.adaptive import AdaptiveGroupNorm
from fedloom.nets.layers.norms import FilterResponseNorm, SwitchableNorm, ThresholdedUnit
from fedloom.nets.layers.surgery import places

torch.set_num_threads(1)
COUNTS = {"lenet": 2, "conv4": 4, "vgg11": 8, "mobilenet": 27, "resnet18": 20, "cnn": 3}


def rebuilt(net: Net, text: str, shape: Shape) -> Net:
    for part in method(text).parts:
        net = part.build(net, TaskInfo(InputSpec.image(shape), 10, clients=5, samples=100, rounds=10, seed=0))
    return net


def kinds(net: Net) -> Counter[type]:
    return Counter(type(module) for module in net.modules())


@pytest.mark.parametrize("model", COUNTS)
def test_every_net_of_ours_takes_every_normalizer(model: str) -> None:
    shape, count = (3, 32, 32), COUNTS[model]
    for text, kind in (
        ("fednn", AdaptiveGroupNorm),
        ("norm(kind=gn)", nn.GroupNorm),
        ("norm(kind=frn)", FilterResponseNorm),
    ):
        net = rebuilt(build(model, shape, 10, "running"), text, shape)
        assert kinds(net)[kind] == count
        assert kinds(net)[nn.BatchNorm2d] == 0
        expected = {name for name, module in net.named_modules() if isinstance(module, (kind, ThresholdedUnit))}
        regions = region_of(net)
        assert {name.rpartition(".")[0] for name, region in regions.items() if region == "norm"} == expected
        if text == "fednn":
            y = net.train()(torch.randn(2, *shape))
            y.square().sum().backward()
            assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


@pytest.mark.parametrize("kind", ["bn", "ln", "in", "rbn", "sn", "none"])
@pytest.mark.parametrize("model", ["lenet", "conv4"])
def test_the_other_kinds(model: str, kind: str) -> None:
    shape = (1, 16, 16)
    net = rebuilt(build(model, shape, 10, "running"), f"norm(kind={kind})", shape)
    assert bool(net.train()(torch.randn(4, *shape)).isfinite().all())
    norms = sum(region == "norm" for region in region_of(net).values())
    assert (norms == 0) == (kind == "none")


def test_an_inserted_normalizer_stands_between_convolution_and_activation_and_names_stay() -> None:
    shape = (3, 32, 32)
    plain, net = (build("lenet", shape, 10, "running") for _ in range(2))
    net.load_state_dict(plain.state_dict())
    net = rebuilt(net, "norm(kind=gn, groups=4)", shape)
    added = set(net.state_dict()) - set(plain.state_dict())
    assert added == {f"body.{i}.norm.{leaf}" for i in (0, 3) for leaf in ("weight", "bias")}
    x = torch.randn(4, *shape)
    f = x
    for i in (0, 3):
        f = F.max_pool2d(F.relu(F.group_norm(plain.body.get_submodule(str(i))(f), 4)), 2)
    for i in (7, 9):
        f = F.relu(plain.body.get_submodule(str(i))(f.flatten(1)))
    torch.testing.assert_close(net(x), plain.head(f))


def test_thresholds_stand_where_a_relu_followed_a_normalizer() -> None:
    shape = (3, 32, 32)
    lenet = rebuilt(build("lenet", shape, 10, "running"), "norm(kind=frn)", shape)
    assert (kinds(lenet)[ThresholdedUnit], kinds(lenet)[nn.ReLU]) == (2, 2)  # the fully connected ones keep theirs
    resnet = rebuilt(build("resnet18", shape, 10, "running"), "norm(kind=frn)", shape)
    assert (kinds(resnet)[ThresholdedUnit], kinds(resnet)[nn.ReLU]) == (9, 0)  # none before the sum of a block
    without = rebuilt(build("lenet", shape, 10, "running"), "norm(kind=frn, threshold=false)", shape)
    assert (kinds(without)[ThresholdedUnit], kinds(without)[nn.ReLU]) == (0, 4)


class Odd(nn.Module):
    """As users write nets: functional activations, a list of blocks, a sum, one ReLU for all, a normalizer of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.stem_bn = nn.BatchNorm2d(8)
        pairs = [{"conv": nn.Conv2d(8, 8, 3, padding=1), "bn": nn.BatchNorm2d(8)} for _ in range(2)]
        self.blocks = nn.ModuleList(nn.ModuleDict(pair) for pair in pairs)
        self.fc, self.fc_bn = nn.Linear(8, 12), nn.BatchNorm1d(12)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem_bn(self.stem(x)))
        for block in self.blocks:
            x = self.relu(x + F.max_pool2d(block["bn"](block["conv"](x)), 1))  # type: ignore[index]
        return torch.tanh(self.fc_bn(self.fc(x.mean((2, 3)))))


def odd() -> Net:
    return Net(Odd(), nn.Linear(12, 10), 12, 10)


def test_a_net_of_a_users_own_is_rebuilt() -> None:
    shape = (1, 8, 8)
    names = [place.name for place in places(odd(), shape)]
    assert names == ["body.stem_bn", "body.blocks.0.bn", "body.blocks.1.bn", "body.fc_bn"]
    net = rebuilt(odd(), "fednn", shape)
    assert kinds(net)[AdaptiveGroupNorm] == 4
    assert bool(net(torch.randn(4, *shape)).isfinite().all())
    assert kinds(rebuilt(odd(), "norm(kind=bn)", shape))[nn.BatchNorm1d] == 1


@pytest.mark.parametrize("kind", ["in", "frn", "rbn", "sn"])
def test_kinds_that_need_maps_are_refused_for_vectors(kind: str) -> None:
    with pytest.raises(FedloomError, match=f"body.fc_bn normalizes vectors, and {kind} needs maps"):
        rebuilt(odd(), f"norm(kind={kind})", (1, 8, 8))


def test_a_relu_that_others_use_too_stays() -> None:
    body = Odd()
    body.fc_bn = nn.Identity()  # type: ignore[assignment]
    net = rebuilt(Net(body, nn.Linear(12, 10), 12, 10), "norm(kind=frn)", (1, 8, 8))
    assert (kinds(net)[FilterResponseNorm], kinds(net)[ThresholdedUnit], kinds(net)[nn.ReLU]) == (3, 0, 1)


def test_a_normalizer_with_two_names_is_replaced_under_both() -> None:
    body = nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Identity(), nn.Flatten()
    )
    body[4] = body[1]
    net = rebuilt(Net(body, nn.Linear(16, 10), 16, 10), "norm(kind=sn)", (1, 2, 2))
    assert isinstance(net.body.get_submodule("1"), SwitchableNorm)
    assert net.body.get_submodule("1") is net.body.get_submodule("4")


def test_layers_that_normalize_another_axis_are_refused() -> None:
    body = nn.Sequential(nn.Flatten(2), nn.LayerNorm(4), nn.Flatten())
    with pytest.raises(FedloomError, match=r"body.1 \(LayerNorm\) normalizes the last axes of \(3, 4\)"):
        rebuilt(Net(body, nn.Linear(12, 10), 12, 10), "agn(groups=1)", (3, 2, 2))


def test_one_pixel_is_too_little_for_instance_normalization() -> None:
    with pytest.raises(FedloomError, match="sees maps of one pixel, of which in leaves nothing"):
        rebuilt(build("mobilenet", (1, 8, 8), 10, "running"), "norm(kind=in)", (1, 8, 8))


def test_convolutions_of_one_weight_are_left_alone_and_a_net_of_such_is_refused() -> None:
    body = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(4, 2, 1), nn.Flatten())
    net = rebuilt(Net(body, nn.Linear(8, 10), 8, 10), "wn", (1, 2, 2))
    assert [type(net.body.get_submodule(str(i))) is nn.Conv2d for i in range(3)] == [True, True, False]
    with pytest.raises(FedloomError, match="no convolution with more than one weight"):
        rebuilt(Net(nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten()), nn.Linear(16, 10), 16, 10), "wn", (1, 2, 2))
