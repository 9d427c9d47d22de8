"""A depthwise 3x3 convolution between two batch normalizations with ReLU, as in MobileNet, as one operation: block.cpp.

    y = convolve(relu(normalize(x)), weight)
    z = relu(normalize(y))

A 1x1 convolution of z that follows belongs to it, and so does the block that follows that, with all others behind it: what
one block makes is the next one's x, whose mean and variance are known when it is written, and whose gradient is computed where
it is used. x and y of every block are kept for the backward pass; what lies between, z too, is computed again, in a core's
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.nets.kernels.native.again import differentiably
from fedloom.nets.kernels.native.applies import alike, last, like, maps, plain
from fedloom.nets.kernels.native.batchnorm import BatchNorm2d, Settings, torch_s
from fedloom.nets.kernels.native.depthwise import made_sizes, serves, workspace
from fedloom.nets.kernels.native.gradients import gradient_like
from fedloom.nets.kernels.native.library import run

FORWARD, BACKWARD = 17 * "p" + 8 * "n" + "ffffn", 22 * "p" + 8 * "n" + "nn"
PIXELS = 32  # as in depthwise.h
TENSORS = 6  # of a block: weights and biases


class Block(NamedTuple):
    before: BatchNorm2d
    conv: nn.Conv2d
    after: BatchNorm2d
    point: nn.Conv2d | None  # the 1x1 convolution that follows

    @property
    def out(self) -> int:
        return self.conv.in_channels if self.point is None else self.point.out_channels

    def tensors(self) -> tuple[Tensor | None, ...]:
        """As kernels read them."""
        point = None if self.point is None else self.point.weight.contiguous(memory_format=torch.channels_last)
        norms = (self.before.weight, self.before.bias), (self.after.weight, self.after.bias)
        return *norms[0], self.conv.weight.contiguous(), *norms[1], point


class Plan(NamedTuple):
    """All of a block but its weights."""

    first: Settings
    second: Settings
    stride: int


def fits(before: nn.Module, conv: nn.Module, after: nn.Module) -> bool:
    """Whether these three, with a ReLU behind either normalization, are such a block."""
    if not (
        type(before) is BatchNorm2d and type(after) is BatchNorm2d and isinstance(conv, nn.Conv2d) and serves(conv)
    ):
        return False
    alone = getattr(conv, "native", False) and type(conv).forward is nn.Conv2d.forward and conv.bias is None
    same = before.num_features == conv.in_channels == after.num_features
    return alone and same and before.by_batch == after.by_batch


def follows(conv: nn.Module) -> bool:
    """Whether this is a 1x1 convolution that can belong to the block before it."""
    if (
        not isinstance(conv, nn.Conv2d)
        or type(conv).forward is not nn.Conv2d.forward
        or not getattr(conv, "native", False)
    ):
        return False
    plainly = (conv.kernel_size, conv.stride, conv.padding, conv.groups) == ((1, 1), (1, 1), (0, 0), 1)
    return plainly and conv.bias is None


def served(x: Tensor, blocks: Sequence[Block]) -> int:
    """How many of the blocks, one behind the other, the kernel can compute."""
    if not plain(x):
        return 0
    size, channels = tuple(x.shape[2:]), x.shape[1]
    for number, block in enumerate(blocks):
        made = made_sizes(size, block.conv.stride[0])
        point = None if block.point is None else block.point.weight
        if not (
            block.before.admits(x, (len(x), channels, *size))
            and block.after.admits(x, (len(x), channels, *made))
            and alike(x, block.conv.weight, point)
            and (point is None or point.shape[1] == channels)
        ):
            return number
        size, channels = made, block.out
    return len(blocks)


def compute(x: Tensor, blocks: Sequence[Block]) -> Tensor:
    """What the blocks, all of them served, make of x."""
    plans = [Plan(block.before.settings(), block.after.settings(), block.conv.stride[0]) for block in blocks]
    tensors = [tensor for block in blocks for tensor in block.tensors()]
    made: Tensor = _Block.apply(last(x), plans, *tensors)  # type: ignore[no-untyped-call]
    return made


class _Block(torch.autograd.Function):
    """Takes maps that are stored channels last, and of each block a weight stored channel by channel, and that of a 1x1
    convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plans: list[Plan], *tensors: Tensor | None) -> Tensor:
        known, kept, made = None, [], x
        for number, (plan, given) in enumerate(zip(plans, _each(tensors), strict=True)):
            x = made
            followed = number + 1 < len(plans) and plans[number + 1].first.training
            y, made, stats, known = _forward(x, plan, given, known, followed)
            kept += [x, y, stats]
        ctx.save_for_backward(*tensors, *kept)
        ctx.plans = plans
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count = TENSORS * len(ctx.plans)
        tensors, kept = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        if torch.is_grad_enabled():
            needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[2:]]
            function = _torch_s(ctx.plans, kept[2::3])
            of_x, *every = differentiably(function, (kept[0], *tensors), needed, gradients[0])
            return of_x, None, *every
        g, following, every = last(gradients[0]), (None,) * 5, []
        for number in reversed(range(len(ctx.plans))):
            given = tensors[TENSORS * number : TENSORS * (number + 1)]
            x, y, stats = kept[3 * number : 3 * number + 3]
            shares = x.new_empty(2 * x.shape[1])
            g, of_given = _backward(x, y, stats, ctx.plans[number], given, (g, *following), shares, number == 0)
            following, every = (x, given[0], given[1], stats, shares), [*of_given, *every]
        return (
            g if ctx.needs_input_grad[0] else None,
            None,
            *(gradient if need else None for gradient, need in zip(every, ctx.needs_input_grad[2:], strict=True)),
        )


def _forward(
    x: Tensor, plan: Plan, given: tuple[Tensor | None, ...], known: Tensor | None, followed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """y, what the block makes, statistics of x and y, and if a block follows, the sums for those of what is made."""
    weight1, bias1, weight, weight2, bias2, point = given
    (first, second, stride), channels = plan, x.shape[1]
    size, out = made_sizes(x.shape[2:], stride), channels if point is None else len(point)
    y, made, stats = maps(x, channels, size), maps(x, out, size), x.new_empty(4 * channels)
    sums = x.new_zeros(2 * out, dtype=torch.float64) if followed else None
    norms = (weight1, bias1, *first.running, weight, weight2, bias2, *second.running)
    rates = first.momentum, first.eps, second.momentum, second.eps
    tensors = (x, *norms, point, y, made, stats, known, sums, _memory(x, size))
    run("block_forward", FORWARD, tensors, *x.shape, *size, stride, out, *rates, first.training)
    return y, made, stats, sums


def _backward(
    x: Tensor,
    y: Tensor,
    stats: Tensor,
    plan: Plan,
    given: tuple[Tensor | None, ...],
    gradients: tuple[Tensor | None, ...],
    shares: Tensor,
    whole: bool,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The gradients of x and of what was given; that of x not `whole`, but as the block before takes it."""
    weight, point, size = given[2], given[5], y.shape[2:]
    out = x.shape[1] if point is None else len(point)
    assert weight is not None
    of_x, of_weight, of_norms = like(x), gradient_like(weight), x.new_empty(4, x.shape[1])
    of_point = None if point is None else gradient_like(point)
    # some images at a time, the gradient of z is read and then that of x written: with a stride of one, in its place
    of_z = None if point is None else of_x if plan.stride == 1 else like(y)
    tensors = (x, y, *gradients, *given, stats, of_x, of_weight, of_norms, of_z, of_point, shares, _memory(x, size))
    run("block_backward", BACKWARD, tensors, *x.shape, *size, plan.stride, out, plan.first.training, whole)
    return of_x, (of_norms[0], of_norms[1], of_weight, of_norms[2], of_norms[3], of_point)


def _each(tensors: Sequence[Tensor | None]) -> Iterator[tuple[Tensor | None, ...]]:
    """Those of each block."""
    for first in range(0, len(tensors), TENSORS):
        yield tuple(tensors[first : first + TENSORS])


def _memory(x: Tensor, made: Any) -> Tensor:
    """Workspace, with room for the maps of a few images before and after the convolution."""
    group = max(PIXELS // (made[0] * made[1]), 1)
    return workspace(x.shape[1], 4 * x.shape[1] + group * x.shape[1] * (x.shape[2] * x.shape[3] + made[0] * made[1]))


def _torch_s(plans: Sequence[Plan], stats: Sequence[Tensor]) -> Any:
    """The same operation by torch."""

    def function(x: Tensor, *tensors: Tensor | None) -> Tensor:
        for (first, second, stride), of_both, given in zip(plans, stats, _each(tensors), strict=True):
            (before, after), (w1, b1, w, w2, b2, point) = of_both.view(2, 2, -1), given
            assert w is not None
            y = F.conv2d(torch_s(first, True, before)(x, w1, b1), w, None, stride, 1, 1, len(w))
            z = torch_s(second, True, after)(y, w2, b2)
            x = z if point is None else F.conv2d(z, point)
        return x

    return function
