"""Convolutions over small maps, computed as matrix products where oneDNN's CPU kernels are slow.

Deep layers have many channels and few pixels. There oneDNN's weight gradient reaches half of the speed of a matrix
product, with 2x2 maps a quarter; depthwise convolutions over maps smaller than their kernel a hundredth. So, on CPUs
and in full precision, a convolution is a product of spectra where that takes far fewer multiplications (spectra.py).
Otherwise, with at most SMALL pixels in an output map,

- a 1x1 convolution is a linear layer over pixels, forward and backward;
- the weight gradient of any other is one product of the output gradient with the unfolded input;
- a depthwise one is padded beforehand.

It is the same sum in another order. The choice depends on shapes alone, never on timing, so the same recipe has the
same bits. Figures: docs/speed.md, by benchmarks/kernels.py. `kernels: torch` in the recipe disables all of this;
`kernels: native` tries compiled kernels first (native/).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from fedloom.nets.kernels import spectra
from fedloom.nets.kernels.native.convolve import convolve
from fedloom.nets.kernels.transforms import DTYPES

Pair = tuple[int, int]
SMALL = 64  # pixels of a map; the copies that unfolding makes cost more than they gain in larger ones
LARGEST = 1 << 23  # numbers in an unfolded input: 32 MB, about a processor's cache
WORTH = 1 << 26  # multiply-adds of a gradient; below, calling from Python costs what the product gains
WIDE = 128  # outputs; a product with fewer rows is no faster than oneDNN


def use_products(net: nn.Module) -> None:
    """Let every plain convolution of the net choose; it keeps its place, and its tensors their names."""
    for module in net.modules():
        if type(module) is nn.Conv2d and _regular(module):
            module.__class__ = Conv2d


class Conv2d(nn.Conv2d):
    native = False  # whether compiled kernels are tried first

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding = _pair(self.stride), _pair(self.padding)
        kernel = (weight.shape[2], weight.shape[3])
        if x.dim() != 4 or x.device.type != "cpu" or _elsewhere():
            return self._torch(x, weight, bias)
        if self.in_channels == 1:  # torch cannot tell how such weights are stored, and makes maps of separate channels
            weight = weight.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2)
        if self.native and (y := convolve(x, weight, bias, stride, padding, self.groups)) is not None:
            return y
        if self._spectral(x):
            return spectra.convolve(x, weight, bias, padding)
        made = _sizes(x, kernel, stride, padding)
        if math.prod(made) > SMALL:
            return self._torch(x, weight, bias)
        if self.groups > 1:
            if min(x.shape[2:]) < max(kernel) and self.groups == self.in_channels:
                high, wide = padding
                return F.conv2d(F.pad(x, (wide, wide, high, high)), weight, bias, stride, 0, 1, self.groups)
        elif kernel == (1, 1) and padding == (0, 0):
            pixels = x[:, :, :: stride[0], :: stride[1]].permute(0, 2, 3, 1)
            return F.linear(pixels, weight.flatten(1), bias).permute(0, 3, 1, 2)
        elif torch.is_grad_enabled() and _pays(math.prod((len(x), *made, *weight.shape[1:])), len(weight)):
            output: Tensor = _Convolve.apply(x, weight, bias, stride, padding)  # type: ignore[no-untyped-call]
            return output
        return self._torch(x, weight, bias)

    def _spectral(self, x: Tensor) -> bool:
        if self.groups > 1 or self.stride != (1, 1) or x.dtype not in DTYPES:
            return False
        trained = torch.is_grad_enabled()
        channels, taps = (self.in_channels, self.out_channels), _pair(self.kernel_size)
        return spectra.pays(len(x), channels, (x.shape[2], x.shape[3]), taps, _pair(self.padding), trained)

    def _torch(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = super()._conv_forward(x, weight, bias)
        return y


class _Convolve(torch.autograd.Function):
    """A convolution whose weight's gradient is a matrix product, made of operations that can be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Pair, Pair], output: Tensor) -> None:
        x, weight, _, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        (g,) = gradients  # (B, out, H, W)
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = conv2d_input(x.shape, weight, g, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
        rows = g.permute(0, 2, 3, 1).flatten(0, 2)  # (B * H * W, out)
        if ctx.needs_input_grad[1]:
            out, inputs, high, wide = weight.shape
            product = rows.t() @ _unfold(x, (high, wide), ctx.stride, ctx.padding)
            of_weight = product.view(out, high, wide, inputs).permute(0, 3, 1, 2)  # as weights are stored
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_x, of_weight, of_bias, None, None


def _unfold(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """(B, in, H, W) -> (B * pixels made, kernel * in): the values under the kernel at every place."""
    (high, wide), (down, right) = kernel, stride
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))
    places = padded.unfold(1, high, down).unfold(2, wide, right)  # (B, H made, W made, in, high, wide), without a copy
    return places.permute(0, 1, 2, 4, 5, 3).flatten(3, 5).flatten(0, 2)


def _sizes(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    high, wide = ((x.shape[axis - 2] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1))
    return high, wide


def _pays(unfolded: int, out: int) -> bool:
    return unfolded <= LARGEST and unfolded * out >= WORTH and out >= WIDE


def _regular(conv: nn.Conv2d) -> bool:
    return conv.padding_mode == "zeros" and conv.dilation == (1, 1) and not isinstance(conv.padding, str)


def _pair(value: Any) -> Pair:
    first, second = value
    return first, second


def _elsewhere() -> bool:
    """Autocast chooses other kernels; a net that is compiled or exported has another engine."""
    return torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
