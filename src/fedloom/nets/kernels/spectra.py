"""Convolutions by the discrete Fourier transform, where that takes far fewer multiplications.

A convolution is a product of spectra: frequency by frequency, one matrix product over channels. A 5x5 kernel over a
14x14 map needs 2,500 multiplications a pair of channels done directly and 448 as a product of spectra; going there and
back are matrix products with fixed tables of cosines, paid once a channel instead of once a pair of channels. The spectra
of images and kernels serve the backward pass as well. Rounding errors are smaller than those of the direct sum
(docs/speed.md): fewer numbers are added up, and the tables are exact to the last digit.

Images are real, so of conjugate frequencies one is kept. Spectra hold all real parts, then all imaginary ones. The period
is the image's side and one border: the border below then is the one above.
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


def lacks_storage(tensor: Tensor) -> bool:
    """Whether this is a wrapper under vmap or another transform of torch.func, which has no storage of its own."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return True
    return False


try:  # private, so it may be gone in another version of torch; asking in public costs an exception under vmap, 40 µs
    from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped
except ImportError:
    is_wrapped = lacks_storage

Pair = tuple[int, int]
Table = npt.NDArray[np.floating]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None]
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
SHORT = 10  # periods up to here: one table for a whole map; beyond, one for its rows and one for its columns
WORTH = 1 << 26  # multiplications of three passes; below, calling from Python costs as much as it saves
GAIN, FORWARD = 0.86, 0.6  # of the direct sum's seconds, by the rule below


@dataclass(frozen=True)
class Whole:
    """A transform by one table; 2K numbers are K complex ones.

    Tables are arrays and not tensors, since a tensor belongs to what it was first made under (no gradients, a vmap).
    """

    size: Pair
    table: Table  # (2K, H * W)

    def there(self, maps: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, 2K, C)."""
        return _all(self.table, maps.flatten(1, 2))

    def back(self, real: Tensor, imaginary: Tensor) -> Tensor:
        """The transposed transform, (K, B, C) twice -> (B, H, W, C)."""
        table = torch.from_numpy(self.table).t()
        return _maps(_both(table, real.flatten(1), imaginary.flatten(1)), self.size, real)


@dataclass(frozen=True)
class Sides:
    """A transform of rows, V frequencies, then one of columns, U: K = U * V."""

    size: Pair
    across: Table  # (2V, W): real parts, then imaginary ones
    down: Table  # (2U, 2H): the same from every row's real and imaginary part

    def there(self, maps: Tensor) -> Tensor:
        batch, high, _, channels = maps.shape
        rows = _all(self.across, maps.flatten(0, 1)).view(batch, 2 * high, -1)  # (B, 2H, V * C)
        return _all(self.down, rows).view(batch, -1, channels)

    def back(self, real: Tensor, imaginary: Tensor) -> Tensor:
        frequencies, (high, _) = len(self.down) // 2, self.size
        table = torch.from_numpy(self.down).t()
        rows = _both(table, real.reshape(frequencies, -1), imaginary.reshape(frequencies, -1))  # (2H, V * B * C)
        return _maps(_all(self.across.T, rows.view(high, len(self.across), -1)), self.size, real)


@dataclass(frozen=True)
class Plan:
    """The transforms of one shape of convolution."""

    image: Whole | Sides
    kernel: Whole | Sides  # the conjugate, since nets correlate
    made: Whole | Sides  # its transpose leads from a spectrum to the map


@lru_cache(maxsize=256)
def pays(batch: int, channels: Pair, sizes: Pair, taps: Pair, padding: Pair, trained: bool) -> bool:
    """A fixed rule on shapes: the seconds of three passes (forward, image's gradient, kernel's), in multiplications.

    Transforms run as fast as direct sums, products of spectra slower, most of all with few images or channels; the
    numbers fit measurements on an AVX2 core to a tenth or so. Without training there is the forward pass alone, which
    torch does better than the others.
    """
    makes = _makes(sizes, taps, padding)
    if min(makes) < 1:
        return False
    inputs, out = channels
    directly = batch * inputs * out * math.prod(makes) * math.prod(taps)
    if 3 * directly < WORTH:
        return False
    periods = _periods(sizes, padding)
    image, kernel, made = (_work(size, periods) for size in (sizes, taps, makes))
    transforms = batch * inputs * image + inputs * out * kernel + batch * out * made
    products = 4 * _count(periods) * batch * inputs * out
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


@lru_cache(maxsize=64)
def planned(sizes: Pair, taps: Pair, padding: Pair, dtype: torch.dtype) -> Plan:
    periods = _periods(sizes, padding)

    def transform(size: Pair, first: Pair, sign: int, share: bool = False) -> Whole | Sides:
        make = _whole if max(periods) <= SHORT else _sides
        return make(size, first, periods, sign, share, DTYPES[dtype])

    made = transform(_makes(sizes, taps, padding), (0, 0), -1, share=True)
    return Plan(transform(sizes, padding, -1), transform(taps, (0, 0), 1), made)


def _whole(size: Pair, first: Pair, periods: Pair, sign: int, share: bool, dtype: npt.DTypeLike) -> Whole:
    high, wide = periods
    rows, columns = _grid(periods, (0, 0))
    number, conjugate = rows * wide + columns, -rows % high * wide + -columns % wide
    kept = number <= conjugate
    turns = np.stack([rows / high, columns / wide], 1)[kept]  # (K, 2), of a circle, a pixel
    real, imaginary = _wave(turns @ np.stack(_grid(size, first)), sign)
    shares = np.where(number == conjugate, 1, 2)[kept, None] / (high * wide) if share else 1
    return Whole(size, np.concatenate([real * shares, imaginary * shares]).astype(dtype))


def _sides(size: Pair, first: Pair, periods: Pair, sign: int, share: bool, dtype: npt.DTypeLike) -> Sides:
    high, wide = periods
    kept = np.arange(wide // 2 + 1)
    real, imaginary = _wave(np.outer(kept, np.arange(size[1]) + first[1]) / wide, sign)
    shares = np.where(2 * kept % wide == 0, 1, 2)[:, None] / (high * wide) if share else 1
    across = np.concatenate([real * shares, imaginary * shares])
    real, imaginary = _wave(np.outer(np.arange(high), np.arange(size[0]) + first[0]) / high, sign)
    down = np.stack([np.stack([real, -imaginary], -1), np.stack([imaginary, real], -1)])  # (2, U, H, 2)
    return Sides(size, across.astype(dtype), down.reshape(2 * high, -1).astype(dtype))


class _Spectral(torch.autograd.Function):
    """(B, H, W, C), (out, high, wide, C) -> (B, H made, W made, out), and both spectra, so that whatever is
    differentiated again knows where they come from."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        seen, taps = plan.image.there(x), plan.kernel.there(weight)
        (x_r, x_i), (w_r, w_i) = _parts(seen), _parts(taps)  # (K, B, C), (K, out, C)
        w_r, w_i = w_r.transpose(1, 2), w_i.transpose(1, 2)
        real = _plus(torch.bmm(x_r, w_r), x_i, w_i, -1)  # (K, B, out)
        imaginary = _plus(torch.bmm(x_r, w_i), x_i, w_r)
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


def _all(table: Table, matrices: Tensor) -> Tensor:
    """The table times every matrix."""
    return torch.bmm(torch.from_numpy(table).expand(len(matrices), -1, -1), matrices)


def _both(table: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """A table's halves times real and imaginary parts, together."""
    return _plus(table[:, : len(real)] @ real, table[:, len(real) :], imaginary)


def _plus(some: Tensor, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
    """`some` and a product, in the place of `some` but under vmap, which has no rule for that."""
    if is_wrapped(some):
        return some + sign * (a @ b)
    return some.addmm_(a, b, alpha=sign) if some.dim() == 2 else some.baddbmm_(a, b, alpha=sign)


def _against(a_r: Tensor, a_i: Tensor, b_r: Tensor, b_i: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of a times the conjugate of b."""
    return _plus(torch.bmm(a_r, b_r), a_i, b_i), _plus(torch.bmm(a_i, b_r), a_r, b_i, -1)


def _parts(spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 2K, C) -> real and imaginary parts, (K, B, C) each, without a copy."""
    real, imaginary = spectrum.transpose(0, 1).chunk(2)
    return real, imaginary


def _maps(pixels: Tensor, size: Pair, like: Tensor) -> Tensor:
    """Pixels first, (H * W, B * C) or so -> (B, H, W, C)."""
    made = pixels.view(*size, *like.shape[1:]).permute(2, 0, 1, 3)
    return made.clone(memory_format=torch.contiguous_format)


def _sum(terms: list[Tensor]) -> Tensor | None:
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0] if terms else None


def _wave(turns: Table, sign: int) -> tuple[Table, Table]:
    angle = 2 * np.pi * (turns % 1)
    return np.cos(angle), sign * np.sin(angle)


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


def _count(periods: Pair) -> int:
    """Frequencies, K."""
    high, wide = periods
    if max(periods) > SHORT:
        return high * (wide // 2 + 1)
    alone = (2 - high % 2) * (2 - wide % 2)  # their own conjugates
    return (high * wide + alone) // 2


def _work(size: Pair, periods: Pair) -> int:
    """Multiplications of a map's transform."""
    if max(periods) <= SHORT:
        return 2 * _count(periods) * math.prod(size)
    wide = periods[1] // 2 + 1
    return size[0] * size[1] * 2 * wide + 2 * size[0] * 2 * periods[0] * wide
