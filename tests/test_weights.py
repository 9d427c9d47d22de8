"""A net's state as one flat vector: order, segments, regions, and the binding of net and vector."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.io.digest import digest
from fedloom.nets import Net, region_of
from fedloom.weights import Layout, Regions, Weights


class Counter(nn.Module):
    """Keeps an integer and a float that is not part of its state, beside a float that is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("offset", torch.full((2,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # type: ignore[operator]
        self.scratch += 1  # type: ignore[operator]
        return x + self.offset.sum()  # type: ignore[operator]


def make() -> Net:
    """Convolution (1x1 and 3x3), normalizer with statistics, counter, linear head."""
    torch.manual_seed(0)
    body = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 4, 3),
            norm=nn.BatchNorm2d(4),
            point=nn.Conv2d(4, 5, 1),
            count=Counter(),
            flat=nn.Flatten(),
        )
    )
    return Net(body, nn.Linear(5 * 4 * 4, 3), 80, 3)


def regions_of(net: Net, constant: dict[str, str] | None = None) -> Regions:
    return Regions.of(net, region_of(net), constant or {})


def bound(net: Net, regions: Regions | None = None) -> Weights:
    return Weights(net, Layout(net, regions or regions_of(net)))


BODY = ["body.conv.weight", "body.conv.bias", "body.point.weight", "body.point.bias"]
NORM = ["body.norm.weight", "body.norm.bias"]
HEAD = ["head.weight", "head.bias"]
STATISTICS = ["body.count.offset", "body.norm.running_mean", "body.norm.running_var"]


# the order


def test_parameters_are_ordered_by_region_and_followed_by_statistics() -> None:
    layout = Layout(net := make(), regions_of(net))
    assert list(layout.entries) == BODY + NORM + HEAD + STATISTICS
    sizes = {name: tensor.numel() for name, tensor in net.state_dict().items()}
    end = 0
    for name, entry in layout.entries.items():
        assert (entry.offset, entry.size) == (end, sizes[name])
        end += entry.size
    assert layout.total == end
    assert layout.parameters == sum(p.numel() for p in net.parameters())
    assert layout.shared == layout.trained == layout.parameters
    assert (layout.personal, layout.personal_statistics) == (0, 0)
    assert layout.statistics == layout.shared_statistics == 2 + 4 + 4


def test_what_is_shared_comes_first_then_what_is_personal_then_what_is_frozen() -> None:
    net = make()
    layout = Layout(net, regions_of(net).keep("norm").freeze("body.point"))
    order = ["body.conv.weight", "body.conv.bias", *HEAD, *NORM, "body.point.weight", "body.point.bias"]
    assert list(layout.entries)[: len(order)] == order
    assert layout.shared == 108 + 4 + 243
    assert layout.personal == 8
    assert layout.trained == layout.shared + 8
    assert layout.parameters == layout.trained + 25
    assert list(layout.entries)[len(order) :] == STATISTICS  # the offset is the body's: shared; the others go with norm
    assert (layout.shared_statistics, layout.personal_statistics) == (2, 8)


def test_slices_are_merged_where_tensors_are_neighbors() -> None:
    net = make()
    layout = Layout(net, regions_of(net))
    start = {name: entry.offset for name, entry in layout.entries.items()}
    assert layout.slices(BODY + NORM + HEAD) == [slice(0, layout.parameters)]
    assert layout.slices(HEAD) == [slice(start["head.weight"], layout.parameters)]
    assert layout.slices([*HEAD, "body.conv.weight"]) == [slice(0, 108), slice(start["head.weight"], layout.parameters)]
    assert layout.slices(["body.conv.bias", "body.point.weight"]) == [slice(108, 108 + 4 + 20)]
    assert layout.slices([]) == layout.slices(STATISTICS) == []


def test_only_trained_parameters_are_trainable() -> None:
    net = make()
    layout = Layout(net, regions_of(net, {"head.bias": "a part"}).keep("norm").freeze("body.point"))
    assert layout.trainable() == ["body.conv.weight", "body.conv.bias", "head.weight", *NORM]
    assert layout.trainable("body") == ["body.conv.weight", "body.conv.bias"]
    assert layout.trainable("head", "norm") == [*NORM, "head.weight"]
    with pytest.raises(FedloomError, match="nowhere"):
        layout.trainable("nowhere")


# views


def test_filters_keep_channels_last_strides_inside_the_vector() -> None:
    net = make()
    weights = bound(net)
    filters = net.body.conv.weight  # type: ignore[union-attr]
    assert isinstance(filters, Tensor)
    assert filters.shape == (4, 3, 3, 3)
    assert filters.is_contiguous(memory_format=torch.channels_last)
    assert filters.data_ptr() == weights.vector.data_ptr()
    torch.testing.assert_close(weights.vector[:108].view(4, 3, 3, 3), filters.detach().permute(0, 2, 3, 1))


def test_views_without_an_image_plane_or_with_one_channel_are_plain() -> None:
    net = make()
    layout = Layout(net, regions_of(net))
    assert {name for name, entry in layout.entries.items() if entry.channels_last} == {"body.conv.weight"}
    gray = Net(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()), nn.Linear(4, 2), 4, 2)
    assert not Layout(gray, regions_of(gray)).entries["body.0.weight"].channels_last


def test_binding_changes_no_value() -> None:
    net = make()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    x = torch.rand(2, 3, 6, 6)
    said = net.eval()(x)
    bound(net)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items() if "calls" not in name)
    torch.testing.assert_close(net(x), said)


def test_files_hold_contiguous_copies_under_the_nets_own_names() -> None:
    net = make()
    weights = bound(net)
    tensors = weights.layout.tensors(weights.storage)
    assert set(tensors) == set(BODY + NORM + HEAD + STATISTICS)
    for name, tensor in tensors.items():
        assert tensor.is_contiguous() and not tensor.requires_grad
        assert torch.equal(tensor, net.state_dict()[name])
        assert tensor.untyped_storage().data_ptr() != weights.storage.untyped_storage().data_ptr()


def test_reading_back_gives_the_same_storage() -> None:
    net = make()
    weights = bound(net)
    empty = torch.zeros(weights.layout.total)
    weights.layout.read(weights.layout.tensors(weights.storage), empty)
    assert torch.equal(empty, weights.storage)


def test_a_missing_or_misshapen_tensor_is_named() -> None:
    weights = bound(make())
    tensors = weights.layout.tensors(weights.storage)
    with pytest.raises(
        FedloomError, match=r"weights: tensor head\.bias of shape \(3,\) is expected, but it is missing"
    ):
        weights.layout.read({n: t for n, t in tensors.items() if n != "head.bias"}, weights.storage)
    with pytest.raises(FedloomError, match=r"tensor head\.bias of shape \(3,\) is expected, but it has shape \(4,\)"):
        weights.layout.read({**tensors, "head.bias": torch.zeros(4)}, weights.storage)


# binding


def test_training_the_net_changes_the_vector_and_vice_versa() -> None:
    net = make()
    weights = bound(net)
    before = weights.vector.clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.rand(2, 3, 6, 6)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(weights.vector, before)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        entry = weights.layout.entries[name]
        torch.testing.assert_close(entry.view(weights.vector), entry.view(before) - 0.1 * parameter.grad)
    weights.vector.zero_()
    assert all(not bool(parameter.any()) for parameter in net.parameters())


def energy(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().sum()


def test_the_flat_gradient_is_that_of_the_last_pass_and_the_net_keeps_none() -> None:
    net, twin = make(), make()
    weights = bound(net)
    for _ in range(3):
        x = torch.rand(2, 3, 6, 6)
        weights.backward(energy(net, x), weights.layout.slices(dict(net.named_parameters())))
        twin.zero_grad()
        energy(twin, x).backward()
        for name, parameter in twin.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(weights.layout.entries[name].view(weights.gradient), parameter.grad)
        assert all(parameter.grad is None for parameter in net.parameters())


def test_only_the_chosen_parameters_get_a_gradient() -> None:
    net, x = make(), torch.rand(2, 3, 6, 6)
    weights = bound(net, regions_of(net).freeze("head"))
    everything = [slice(0, weights.layout.parameters)]
    (head,) = weights.layout.slices(HEAD)
    assert weights.train_only(HEAD) == [head]
    weights.gradient.fill_(1.0)
    weights.backward(energy(net, x), [head])
    assert bool(weights.gradient[head].ne(1.0).any()) and bool(weights.gradient[: head.start].eq(1.0).all())
    weights.backward(energy(net, x), everything)
    assert bool(weights.gradient[head].any()) and not bool(weights.gradient[: head.start].any())
    weights.train_only(BODY)
    weights.backward(energy(net, x), everything)
    assert not bool(weights.gradient[head].any())
    assert all(bool(weights.gradient[s].any()) for s in weights.layout.slices(BODY))


def test_a_tensor_on_which_the_loss_does_not_depend_has_a_gradient_of_zeros() -> None:
    net = make()
    weights = bound(net)
    (head,) = weights.train_only(HEAD)
    weights.backward(energy(net, torch.rand(2, 3, 6, 6)), [head])
    (weight,) = weights.layout.slices(["head.weight"])
    weights.backward(net.head.bias.square().sum(), [head])
    assert not bool(weights.gradient[weight].any()) and bool(weights.gradient[head].any())


def test_a_tensor_that_was_fixed_when_bound_can_be_trained_later() -> None:
    net = make()
    net.head.requires_grad_(False)
    weights = bound(net)
    (head,) = weights.train_only(HEAD)
    weights.backward(energy(net, torch.rand(2, 3, 6, 6)), [head])
    assert bool(weights.gradient[head].any())


def test_statistics_are_updated_by_the_net_and_loaded_by_a_copy() -> None:
    net = make()
    weights = bound(net)
    before = weights.storage.clone()
    net.train()(torch.rand(2, 3, 6, 6))
    assert torch.equal(weights.vector, before[: weights.layout.parameters])
    moved = weights.layout.tensors(weights.storage)["body.norm.running_mean"]
    assert bool(moved.any())
    assert torch.equal(net.state_dict()["body.norm.running_mean"], moved)
    weights.load(before)
    assert not bool(net.state_dict()["body.norm.running_mean"].any())


def test_counters_and_scratch_are_reset_by_every_load() -> None:
    net = make()
    weights = bound(net)
    start = weights.storage.clone()
    counter = net.body.count  # type: ignore[union-attr]
    assert isinstance(counter, Counter)
    for _ in range(2):
        net(torch.rand(2, 3, 6, 6))
    assert (int(counter.calls), counter.scratch.tolist()) == (2, [2.0, 2.0])  # type: ignore[arg-type, operator]
    weights.load(start)
    assert (int(counter.calls), counter.scratch.tolist()) == (0, [0.0, 0.0])  # type: ignore[arg-type, operator]


# regions


def test_tensors_are_selected_by_region_by_module_and_by_name() -> None:
    regions = regions_of(make())
    assert regions.select("head") == HEAD
    assert set(regions.select("body")) == {*BODY, "body.count.offset"}  # not what belongs to the normalizer
    assert regions.select("body.conv") == ["body.conv.weight", "body.conv.bias"]
    assert regions.select("head.bias") == ["head.bias"]
    assert set(regions.select("norm")) == {*NORM, "body.norm.running_mean", "body.norm.running_var"}
    assert set(regions.select("head", "body.conv.bias")) == {*HEAD, "body.conv.bias"}
    assert regions.select("body.con") == regions.select("hea") == []


def test_everything_is_shared_until_a_part_decides_otherwise() -> None:
    regions = regions_of(make(), {"head.bias": "dr"})
    assert regions.status["head.bias"] == "frozen"
    assert {regions.status[name] for name in regions.region if name != "head.bias"} == {"shared"}
    assert regions.statistics == frozenset(STATISTICS)


def test_a_decision_makes_a_new_value() -> None:
    regions = regions_of(make())
    kept, frozen = regions.keep("head"), regions.freeze("norm")
    assert regions.status["head.weight"] == "shared"
    assert kept.status["head.weight"] == kept.status["head.bias"] == "personal"
    assert frozen.status["body.norm.weight"] == frozen.status["body.norm.running_var"] == "frozen"
    with pytest.raises(FrozenInstanceError):
        regions.speaker = "someone"  # type: ignore[misc]


def test_a_part_may_decide_twice_and_another_may_not() -> None:
    mine = replace(regions_of(make()), speaker="fedper").keep("head")
    assert mine.freeze("head").status["head.weight"] == "frozen"
    with pytest.raises(FedloomError, match="method: fedper and babu both decide what happens to the head; keep one"):
        replace(mine, speaker="babu").freeze("head")
    assert replace(mine, speaker="fedbn").keep("norm").status["body.norm.bias"] == "personal"


def test_what_is_fixed_for_good_cannot_be_decided_about() -> None:
    regions = replace(regions_of(make(), {"head.weight": "dr", "head.bias": "dr"}), speaker="babu")
    with pytest.raises(FedloomError, match=r"dr fixes head\.weight for good, so babu has nothing left to freeze"):
        regions.freeze("head")
    with pytest.raises(FedloomError, match=r"dr fixes head\.weight for good, so babu has nothing to decide about it"):
        regions.keep("head")


def test_a_decision_about_a_region_leaves_out_what_is_fixed_in_it() -> None:
    regions = replace(regions_of(make(), {"head.weight": "etf"}), speaker="fedper").keep("head")
    assert regions.status["head.weight"] == "frozen" and regions.status["head.bias"] == "personal"
    assert regions.decided == {"head.bias": "fedper"}


def test_a_decision_about_nothing_is_refused() -> None:
    regions = replace(regions_of(make()), speaker="fedbn")
    with pytest.raises(FedloomError, match="fedbn decides about tail and limbs, but this net has no such tensors"):
        regions.keep("tail", "limbs")


# digests


def test_a_digest_is_of_names_shapes_types_and_values_and_of_no_order() -> None:
    a, b = torch.arange(6.0), torch.ones(2, dtype=torch.int64)
    one = digest({"a": a, "b": b})
    assert one == digest({"b": b.clone(), "a": a.clone()})
    others = [
        {"a": a},
        {"a": a, "c": b},
        {"a": a.view(2, 3), "b": b},
        {"a": a.double(), "b": b},
        {"a": a + 1e-6, "b": b},
        {"a": -a, "b": b},
        {"a": b, "b": a},
    ]
    assert len({one, *map(digest, others)}) == len(others) + 1


def test_a_digest_reads_any_memory_layout_and_the_empty_tensor() -> None:
    x = torch.rand(2, 3, 4, 4)
    assert digest({"x": x}) == digest({"x": x.contiguous(memory_format=torch.channels_last)})
    assert digest({"x": x[:0]}) != digest({"x": x[:0, :2]})
    assert digest({"x": torch.tensor(1.0)}) != digest({"x": torch.tensor([1.0])})
    assert digest({"x": torch.tensor(1.0).bfloat16()}) != digest({"x": torch.tensor(1.0)})
    assert digest({}) == digest({})
