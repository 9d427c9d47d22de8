"""`data.resize`: bilinear with antialiasing, on uint8, the same as pillow's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from fedloom.data.arrays import DatasetArrays
from fedloom.errors import FedloomError
from fedloom.io.archives import Array

LARGEST = 4096


def check_resize(side: object) -> int | None:
    if side is None or (isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= LARGEST):
        return side
    raise FedloomError(
        f"data.resize is {side!r}; allowed is a side in pixels from 1 to {LARGEST}, or nothing to keep the size"
    )


def resized(arrays: DatasetArrays, side: int) -> DatasetArrays:
    shape = (arrays.inputs.shape[0], side, side)
    return replace(
        arrays,
        inputs=replace(arrays.inputs, shape=shape),
        train_x=_resize(arrays.train_x, side),
        test_x=_resize(arrays.test_x, side),
    )


def _resize(x: Array, side: int) -> Array:
    if x.shape[1:3] == (side, side):
        return x
    out = np.empty((len(x), side, side, x.shape[3]), x.dtype)
    for start in range(0, len(x), 1024):
        block = torch.from_numpy(np.ascontiguousarray(x[start : start + 1024])).permute(0, 3, 1, 2)
        small = functional.interpolate(block, size=(side, side), mode="bilinear", antialias=True)
        out[start : start + 1024] = small.permute(0, 2, 3, 1).numpy()
    return out
