"""Numbers that are finite and still absurd: how large an upload or the server's state may be.

An upload is compared with what was broadcast and with the other uploads of its round. What is absurd is far beyond what
training can do: a thousand times farther from the broadcast than the median client, than the broadcast is long, and than
1. Clients that hold more samples or take more steps may go farther in proportion. So a client that learns fast, alone
or on many samples is never dropped, and 1e20 always is. It is no defence against a client that lies within these bounds:
`median`, `trimmed` and `clipped` are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedloom.engine.server import Upload

CHUNK = 1 << 16  # floats: a difference stays in the cache
LARGEST = 1e18  # the norm of anything that is gone on with: its square is still a float32, and so are a few sums of it


def norm(tensor: Tensor, base: Tensor | None = None) -> float:
    """The length of a tensor, or of its difference from another; not finite where that is beyond float32."""
    flat = tensor.reshape(-1)
    if base is None:
        return float(torch.linalg.vector_norm(flat))
    other = base.reshape(-1)
    pieces = [
        torch.linalg.vector_norm(flat[begin : begin + CHUNK] - other[begin : begin + CHUNK])
        for begin in range(0, flat.numel(), CHUNK)
    ]
    return float(torch.linalg.vector_norm(torch.stack(pieces))) if pieces else 0.0


def too_large(tensor: Tensor) -> bool:
    """Not finite, or about to overflow."""
    return tensor.is_floating_point() and tensor.numel() > 0 and not norm(tensor) < LARGEST


def absurd(uploads: Sequence[Upload], base: Mapping[str, Tensor], factor: float | None) -> dict[int, str]:
    """Clients whose upload cannot be used, and why. `base`: what was broadcast, by the name of what comes back for it.
    `factor`: how many times farther than the others an upload may lie; None: as far as numbers go."""
    found: dict[int, str] = {}
    if not uploads:
        return found
    for name, example in uploads[0].tensors.items():
        if not example.is_floating_point() or not example.numel():
            continue
        lengths = [norm(upload.tensors[name], base.get(name)) for upload in uploads]
        wide = _limits(uploads, lengths, norm(base[name]) if name in base else 0.0, factor)
        for upload, length, limit in zip(uploads, lengths, wide, strict=True):
            if not length < LARGEST:
                found.setdefault(upload.client, f"{name} is too large to compute with")
            elif length > limit:
                from_what = "from what was broadcast" if name in base else "from zero"
                found.setdefault(
                    upload.client,
                    f"{name} is {length:.3g} away {from_what}, and deploy.max_distance allows {limit:.3g}",
                )
    return found


def _limits(uploads: Sequence[Upload], lengths: Sequence[float], base: float, factor: float | None) -> list[float]:
    if factor is None or len(uploads) < 2:
        return [LARGEST] * len(uploads)
    steps, samples = ([max(getattr(u, field), 1) for u in uploads] for field in ("steps", "samples"))
    common = max(_median(lengths), base, 1.0)
    per_step = _median([length / count for length, count in zip(lengths, steps, strict=True)])
    per_sample = _median([length / count for length, count in zip(lengths, samples, strict=True)])
    return [factor * max(common, per_step * k, per_sample * n) for k, n in zip(steps, samples, strict=True)]


def _median(values: Sequence[float]) -> float:
    """The lower one of an even number: one of two is no majority."""
    return sorted(values)[(len(values) - 1) // 2]
