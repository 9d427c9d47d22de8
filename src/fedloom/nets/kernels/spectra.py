"""Convolutions by the discrete Fourier transform, where that takes far fewer multiplications.

A convolution is a product of spectra: frequency by frequency, one matrix product over channels. A 5x5 kernel over a
14x14 map needs 2,500 multiplications a pair of channels done directly and 448 as a product of spectra; going there and
back are matrix products with fixed tables of cosines, paid once a channel instead of once a pair of channels. The spectra
of images and kernels serve the backward pass as well. Rounding errors are smaller than those of the direct sum
(docs/speed.md): fewer numbers are added up, and the tables are exact to the last digit (transforms.py).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedloom.nets.kernels.transforms import (  # type: ignore[attr-defined]
    Pair,
    Plan,
    frequencies,
    is_wrapped,
    made_size,
    periods_of,
    planned,
    plus,
    work,
)

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None]
WORTH = 1 << 26  # multiplications of three passes; below, calling from Python costs as much as it saves
GAIN, FORWARD = 0.86, 0.6  # of the direct sum's seconds, by the rule below


@lru_cache(maxsize=256)
def pays(batch: int, channels: Pair, sizes: Pair, taps: Pair, padding: Pair, trained: bool) -> bool:
    """A fixed rule on shapes: the seconds of three passes (forward, image's gradient, kernel's), in multiplications.

    Transforms run as fast as direct sums, products of spectra slower, most of all with few images or channels; the
    numbers fit measurements on an AVX2 core to a tenth or so. Without training there is the forward pass alone, which
    torch does better than the others.
    """
    size = made_size(sizes, taps, padding)
    if min(size) < 1:
        return False
    inputs, out = channels
    directly = batch * inputs * out * math.prod(size) * math.prod(taps)
    if 3 * directly < WORTH:
        return False
    periods = periods_of(sizes, padding)
    image, kernel, made = (work(side, periods) for side in (sizes, taps, size))
    transforms = batch * inputs * image + inputs * out * kernel + batch * out * made
    products = 4 * frequencies(periods) * batch * inputs * out
    slower = 1.15 * (1 + 32 / min(channels)) * (1 + 10 / batch)
    if trained:
        return 2 * transforms + slower * 3 * products <= GAIN * 3 * directly
    return transforms + slower * products <= FORWARD * directly


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """(B, C, H, W) -> (B, out, H made, W made), with a stride of one."""
    sizes, taps = (x.shape[2], x.shape[3]), (weight.shape[2], weight.shape[3])
    last = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)  # channels-last, as in memory
    made, _, _ = _Spectral.apply(*last, bias, planned(sizes, taps, padding, x.dtype))  # type: ignore[no-untyped-call]
    y: Tensor = made
    return y.permute(0, 3, 1, 2)


class _Spectral(torch.autograd.Function):
    """(B, H, W, C), (out, high, wide, C) -> (B, H made, W made, out), and both spectra, so that whatever is
    differentiated again knows where they come from."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        seen, taps = plan.image.there(x), plan.kernel.there(weight)
        (x_r, x_i), (w_r, w_i) = _parts(seen), _parts(taps)  # (K, B, C), (K, out, C)
        w_r, w_i = w_r.transpose(1, 2), w_i.transpose(1, 2)
        real = plus(torch.bmm(x_r, w_r), x_i, w_i, -1)  # (K, B, out)
        imaginary = plus(torch.bmm(x_r, w_i), x_i, w_r)
        made = plan.made.back(real, imaginary)
        if bias is not None:
            made = made + bias if is_wrapped(made) else made.add_(bias)
        return made, seen, taps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Plan], output: tuple[Tensor, ...]) -> None:
        ctx.plan = inputs[3]
        ctx.save_for_backward(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        g, of_seen, of_taps = gradients
        plan: Plan = ctx.plan
        of_bias = None
        x_parts, w_parts = [], []
        if g is not None:
            seen, taps = ctx.saved_tensors
            g_r, g_i = _parts(plan.made.there(g))  # (K, B, out)
            if ctx.needs_input_grad[0]:
                x_parts.append(_against(g_r, g_i, *_parts(taps)))
            if ctx.needs_input_grad[1]:
                w_parts.append(_against(g_r.transpose(1, 2), g_i.transpose(1, 2), *_parts(seen)))
            if ctx.needs_input_grad[2]:
                of_bias = g.sum((0, 1, 2))
        if of_seen is not None:
            x_parts.append(_parts(of_seen))
        if of_taps is not None:
            w_parts.append(_parts(of_taps))
        of_x = _sum([plan.image.back(*parts) for parts in x_parts])
        of_weight = _sum([plan.kernel.back(*parts) for parts in w_parts])
        return of_x, of_weight, of_bias, None


def _against(a_r: Tensor, a_i: Tensor, b_r: Tensor, b_i: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of a times the conjugate of b."""
    return plus(torch.bmm(a_r, b_r), a_i, b_i), plus(torch.bmm(a_i, b_r), a_r, b_i, -1)


def _parts(spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 2K, C) -> real and imaginary parts, (K, B, C) each, without a copy."""
    real, imaginary = spectrum.transpose(0, 1).chunk(2)
    return real, imaginary


def _sum(terms: list[Tensor]) -> Tensor | None:
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0] if terms else None
