"""Training on inputs other than images: samples per second of an LSTM and a transformer on tokens, a CNN on signals and a
multi-layer perceptron on table rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.bench.figure import Effort, Figure
from fedloom.bench.rounds import random_data, timed_rounds

CLIENTS, SAMPLES, BATCH = 10, 100, 20
TOKENS = {"kind": "tokens", "vocabulary": 1000}
CASES: tuple[tuple[str, str, str, tuple[int, ...], dict[str, Any]], ...] = (
    ("lstm", "LSTM, 64 tokens", "lstm", (64,), TOKENS),
    ("transformer", "transformer, 64 tokens", "transformer", (64,), TOKENS),
    ("cnn1d", "1-d CNN, signals of 3 x 128", "cnn1d", (3, 128), {}),
    ("table", "MLP, table rows of 32 features", "mlp", (32,), {}),
)


def kinds(effort: Effort, _: Callable[[str], None]) -> Iterator[Figure]:
    draw = np.random.default_rng(0)
    for name, title, model, shape, more in CASES:
        size = (CLIENTS * SAMPLES + BATCH, *shape)
        tokens = draw.integers(1, more.get("vocabulary", 2), size, dtype=np.int32)
        inputs = tokens if more else draw.standard_normal(size, dtype=np.float32)
        with tempfile.TemporaryDirectory() as folder:
            data = random_data(Path(folder), inputs, BATCH, **more)
            fields = {"data": data, "clients": CLIENTS, "fraction": 1.0, "model": model, "batch": BATCH}
            timed = timed_rounds({**fields, "precision": effort.precision}, effort.seconds / len(CASES))
        titled = f"{title}; {CLIENTS} clients x {SAMPLES}, batch {BATCH}"
        yield Figure(name, titled, CLIENTS * SAMPLES / timed.round, "samples/s")
