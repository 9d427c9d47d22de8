"""Discrete Fourier transforms of maps as products with tables of cosines: those of a convolution's images, kernels and results.

Images are real, so of conjugate frequencies one is kept. Spectra hold all real parts, then all imaginary ones. The period
is the image's side and one border: the border below then is the one above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

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
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
SHORT = 10  # periods up to here: one table for a whole map; beyond, one for its rows and one for its columns


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


@lru_cache(maxsize=64)
def planned(sizes: Pair, taps: Pair, padding: Pair, dtype: torch.dtype, short: int = SHORT) -> Plan:
    """`short`: periods up to here have one table for a whole map."""
    periods = periods_of(sizes, padding)

    def transform(size: Pair, first: Pair, sign: int, share: bool = False) -> Whole | Sides:
        make = _whole if max(periods) <= short else _sides
        return make(size, first, periods, sign, share, DTYPES[dtype])

    made = transform(made_size(sizes, taps, padding), (0, 0), -1, share=True)
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


def _all(table: Table, matrices: Tensor) -> Tensor:
    """The table times every matrix."""
    return torch.bmm(torch.from_numpy(table).expand(len(matrices), -1, -1), matrices)


def _both(table: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """A table's halves times real and imaginary parts, together."""
    return plus(table[:, : len(real)] @ real, table[:, len(real) :], imaginary)


def plus(some: Tensor, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
    """`some` and a product, in the place of `some` but under vmap, which has no rule for that."""
    if is_wrapped(some):
        return some + sign * (a @ b)
    return some.addmm_(a, b, alpha=sign) if some.dim() == 2 else some.baddbmm_(a, b, alpha=sign)


def _maps(pixels: Tensor, size: Pair, like: Tensor) -> Tensor:
    """Pixels first, (H * W, B * C) or so -> (B, H, W, C)."""
    made = pixels.view(*size, *like.shape[1:]).permute(2, 0, 1, 3)
    return made.clone(memory_format=torch.contiguous_format)


def _wave(turns: Table, sign: int) -> tuple[Table, Table]:
    angle = 2 * np.pi * (turns % 1)
    return np.cos(angle), sign * np.sin(angle)


def _grid(size: Pair, first: Pair) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and columns of all pixels, in order."""
    rows, columns = (np.arange(side) + start for side, start in zip(size, first, strict=True))
    high, wide = np.meshgrid(rows, columns, indexing="ij")
    return high.ravel(), wide.ravel()


def periods_of(sizes: Pair, padding: Pair) -> Pair:
    return sizes[0] + padding[0], sizes[1] + padding[1]


def made_size(sizes: Pair, taps: Pair, padding: Pair) -> Pair:
    high, wide = (size + 2 * border - tap + 1 for size, tap, border in zip(sizes, taps, padding, strict=True))
    return high, wide


def frequencies(periods: Pair, short: int = SHORT) -> int:
    """K."""
    high, wide = periods
    if max(periods) > short:
        return high * (wide // 2 + 1)
    alone = (2 - high % 2) * (2 - wide % 2)  # their own conjugates
    return (high * wide + alone) // 2


def work(size: Pair, periods: Pair, short: int = SHORT) -> int:
    """Multiplications of a map's transform."""
    if max(periods) <= short:
        return 2 * frequencies(periods, short) * math.prod(size)
    wide = periods[1] // 2 + 1
    return size[0] * size[1] * 2 * wide + 2 * size[0] * 2 * periods[0] * wide
