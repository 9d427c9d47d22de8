"""Uploads that are finite and still absurd: how far an upload may be from the broadcast.

An upload is dropped if its distance from the broadcast is a thousand times (`deploy.max_distance`) the largest of: the
median client's distance, the norm of the broadcast, and 1. Clients with more samples or more steps may go farther in
proportion. So a client that learns fast, alone or on many samples is never dropped, and 1e20 always is. This is no defense
against a malicious client that stays within these bounds: `median`, `trimmed` and `clipped` are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedloom.engine.magnitude import LARGEST, norm
from fedloom.engine.server.aggregation import Upload


def absurd_uploads(uploads: Sequence[Upload], base: Mapping[str, Tensor], factor: float | None) -> dict[int, str]:
    """The clients whose upload cannot be used, and why. `base`: the broadcast tensors, by the names of the uploaded ones.
    `factor`: how many times farther than the others an upload may be; None: no limit but float32's."""
    reasons: dict[int, str] = {}
    if not uploads:
        return reasons
    for name, example in uploads[0].tensors.items():
        if not example.is_floating_point() or not example.numel():
            continue
        lengths = [norm(upload.tensors[name], base.get(name)) for upload in uploads]
        limits = _limits(uploads, lengths, norm(base[name]) if name in base else 0.0, factor)
        for upload, length, limit in zip(uploads, lengths, limits, strict=True):
            if not length < LARGEST:
                reasons.setdefault(upload.client, f"{name} is too large to compute with")
            elif length > limit:
                origin = "from what was broadcast" if name in base else "from zero"
                reasons.setdefault(
                    upload.client,
                    f"{name} is {length:.3g} away {origin}, and deploy.max_distance allows {limit:.3g}",
                )
    return reasons


def _limits(uploads: Sequence[Upload], lengths: Sequence[float], base: float, factor: float | None) -> list[float]:
    if factor is None or len(uploads) < 2:
        return [LARGEST] * len(uploads)
    steps, samples = ([max(getattr(u, field), 1) for u in uploads] for field in ("steps", "samples"))
    common = max(_median(lengths), base, 1.0)
    per_step = _median([length / count for length, count in zip(lengths, steps, strict=True)])
    per_sample = _median([length / count for length, count in zip(lengths, samples, strict=True)])
    return [factor * max(common, per_step * k, per_sample * n) for k, n in zip(steps, samples, strict=True)]


def _median(values: Sequence[float]) -> float:
    """Of an even number of values the lower middle one: one client out of two is no majority."""
    return sorted(values)[(len(values) - 1) // 2]
