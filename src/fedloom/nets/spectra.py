"""Convolutions by way of the discrete Fourier transform, where that takes far fewer multiplications.

A convolution is a product of spectra: frequency by frequency, one matrix product over channels. A 5x5 kernel over a
14x14 map needs 2,500 multiplications a pair of channels done directly and about 400 as a product of spectra; going there
and back is a matrix product with a fixed table of cosines, paid once a channel instead of once a pair of channels. The
transforms of the image and of the kernel serve the backward pass as well. Rounding errors are smaller than those of the
direct sum (docs/speed.md): a transform adds up fewer numbers and its table is exact to the last digit.

Images are real, so of every two conjugate frequencies one is kept. Spectra hold all real parts, then all imaginary ones.
The period is the image's side and one border: the border below then is the one above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

Pair = tuple[int, int]
Table = npt.NDArray[np.floating]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None]
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
GAIN = 0.61  # of the direct sum's multiplications; the small products here run at two thirds of its speed
FEWEST = 16  # images; with fewer rows a frequency's product is too small


@dataclass(frozen=True)
class Plan:
    """The tables of one shape of convolution; 2K numbers are K complex ones.

    They are arrays and not tensors, since a tensor belongs to what it was first made under (no gradients, a vmap).
    """

    image: Table  # (2K, H * W): an image's spectrum
    kernel: Table  # (2K, taps): the conjugate of a kernel's, since nets correlate
    made: Table  # (H made * W made, 2K): a map from its spectrum
    sizes: Pair  # of the image
    taps: Pair
    makes: Pair


@lru_cache(maxsize=256)
def pays(batch: int, channels: Pair, sizes: Pair, taps: Pair, padding: Pair) -> bool:
    """A fixed rule on shapes: multiplications of three passes (forward, image's gradient, kernel's), both ways."""
    inputs, out = channels
    if batch < FEWEST or min(_makes(sizes, taps, padding)) < 1:
        return False
    pixels, makes = math.prod(sizes), math.prod(_makes(sizes, taps, padding))
    numbers = math.prod(_periods(sizes, padding))  # of a spectrum
    transforms = numbers * (batch * inputs * pixels + inputs * out * math.prod(taps) + batch * out * makes)
    products = 2 * numbers * batch * inputs * out
    directly = batch * inputs * out * makes * math.prod(taps)
    return 2 * transforms + 3 * products <= GAIN * 3 * directly


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """(B, C, H, W) -> (B, out, H made, W made), with a stride of one."""
    sizes, taps = (x.shape[2], x.shape[3]), (weight.shape[2], weight.shape[3])
    last = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)  # as they lie in memory
    made, _, _ = _Spectral.apply(*last, bias, planned(sizes, taps, padding, x.dtype))  # type: ignore[no-untyped-call]
    found: Tensor = made
    return found.permute(0, 3, 1, 2)


@lru_cache(maxsize=64)
def planned(sizes: Pair, taps: Pair, padding: Pair, dtype: torch.dtype) -> Plan:
    (high, wide), makes = _periods(sizes, padding), _makes(sizes, taps, padding)
    rows, columns = _grid((high, wide), (0, 0))
    number, conjugate = rows * wide + columns, -rows % high * wide + -columns % wide
    kept = number <= conjugate
    turns = np.stack([rows / high, columns / wide], 1)[kept]  # (K, 2), in turns a pixel
    share = np.where(number == conjugate, 1, 2)[kept] / (high * wide)

    def waves(size: Pair, first: Pair, sign: int) -> Table:
        phase = 2 * np.pi * (turns @ np.stack(_grid(size, first)) % 1)
        return np.concatenate([np.cos(phase), sign * np.sin(phase)])

    back = waves(makes, (0, 0), -1) * np.tile(share, 2)[:, None]
    tables = waves(sizes, padding, -1), waves(taps, (0, 0), 1), back.T
    image, kernel, made = (np.ascontiguousarray(table, DTYPES[dtype]) for table in tables)
    return Plan(image, kernel, made, sizes, taps, makes)


class _Spectral(torch.autograd.Function):
    """(B, H, W, C), (out, high, wide, C) -> (B, H made, W made, out), and both spectra, so that whatever is differentiated
    again knows where they come from."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        seen, taps = _spectrum(x, plan.image), _spectrum(weight, plan.kernel)
        (x_r, x_i), (w_r, w_i) = _parts(seen), _parts(taps)  # (K, B, C), (K, out, C)
        w_r, w_i = w_r.transpose(1, 2), w_i.transpose(1, 2)
        real = _plus(torch.bmm(x_r, w_r), x_i, w_i, -1)  # (K, B, out)
        imaginary = _plus(torch.bmm(x_r, w_i), x_i, w_r)
        return _back(real, imaginary, plan.made, plan.makes, bias), seen, taps

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
            g_r, g_i = _parts(_spectrum(g, plan.made.T))  # (K, B, out)
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
        of_x = _sum([_back(*parts, plan.image.T, plan.sizes) for parts in x_parts])
        of_weight = _sum([_back(*parts, plan.kernel.T, plan.taps) for parts in w_parts])
        return of_x, of_weight, of_bias, None


def _against(a_r: Tensor, a_i: Tensor, b_r: Tensor, b_i: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of a times the conjugate of b."""
    return _plus(torch.bmm(a_r, b_r), a_i, b_i), _plus(torch.bmm(a_i, b_r), a_r, b_i, -1)


def _plus(some: Tensor, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
    """`some` and a product, in the place of `some` but under vmap, which has no rule for that."""
    if is_functorch_wrapped_tensor(some):
        return some + sign * (a @ b)
    return some.addmm_(a, b, alpha=sign) if some.dim() == 2 else some.baddbmm_(a, b, alpha=sign)


def _spectrum(maps: Tensor, table: Table) -> Tensor:
    """(B, H, W, C) -> (B, 2K, C)."""
    return torch.bmm(torch.from_numpy(table).expand(len(maps), -1, -1), maps.flatten(1, 2))


def _parts(spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 2K, C) -> real and imaginary parts, (K, B, C) each, without a copy."""
    real, imaginary = spectrum.transpose(0, 1).chunk(2)
    return real, imaginary


def _back(real: Tensor, imaginary: Tensor, table: Table, sizes: Pair, bias: Tensor | None = None) -> Tensor:
    """(K, B, C) twice -> (B, *sizes, C)."""
    count, batch, channels = real.shape
    both = torch.from_numpy(table)
    first, second = both[:, :count], both[:, count:]
    under = torch.zeros(1, dtype=real.dtype) if bias is None else bias.repeat(batch)
    rows = torch.addmm(under, first, real.reshape(count, -1))
    rows = _plus(rows, second, imaginary.reshape(count, -1))  # (pixels, B * C)
    return rows.view(*sizes, batch, channels).permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)


def _sum(found: list[Tensor]) -> Tensor | None:
    return torch.stack(found).sum(0) if len(found) > 1 else found[0] if found else None


def _grid(size: Pair, first: Pair) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and columns of all pixels, in order."""
    rows, columns = (np.arange(side) + start for side, start in zip(size, first, strict=True))
    high, wide = np.meshgrid(rows, columns, indexing="ij")
    return high.ravel(), wide.ravel()


def _periods(sizes: Pair, padding: Pair) -> Pair:
    return sizes[0] + padding[0], sizes[1] + padding[1]


def _makes(sizes: Pair, taps: Pair, padding: Pair) -> Pair:
    high, wide = (size + 2 * border - tap + 1 for size, tap, border in zip(sizes, taps, padding, strict=True))
    return high, wide
