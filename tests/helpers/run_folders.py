"""Run folders for tests of the page: small real runs, fine-tuned and analyzed by the library itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl

FIELDS = {"clients": 10, "fraction": 0.5, "rounds": 4, "workers": 1, "model": "mlp", "eval_clients": 2}
POINTS = 150  # of an embedding, so that t-SNE is fast


def make_pair(root: Path) -> Path:
    """Two methods with two seeds each: fedavg fine-tuned and analyzed, during the run and after it; fedper neither."""
    for seed in (0, 1):
        fl.run(FIELDS, method="fedper", lr=0.05, seed=seed, out=str(root / "fedper" / f"seed{seed}"))
        run = fl.run(FIELDS, method="fedavg", seed=seed, analyze_every=2, out=str(root / "fedavg" / f"seed{seed}"))
        fl.personalize(run, "head", 1, 0.01)
        analyze(run)
    return root


def make_small(root: Path) -> Path:
    """One round of a linear net, analyzed."""
    analyze(fl.run(out=str(root / "x"), rounds=1, workers=1, model="linear", eval_every=0, analyze_every=1))
    return root / "x"


def make_adaptive(root: Path) -> Path:
    """Two runs that log the selectors of adaptive normalizers: one per layer, and one for mean and variance each."""
    fields = {**FIELDS, "clients": 5, "rounds": 3, "model": "cnn"}
    fl.run(fields, method="fednn", out=str(root / "fednn"))
    fl.run(fields, method="norm(kind=sn)", out=str(root / "sn"))
    return root


def make_gaps(root: Path) -> Path:
    """A run whose analysis has undefined numbers: no test sample of class 3, and no class that a client has not seen."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (230, 4, 4, 1), dtype=np.uint8), np.arange(230) % 4
    test = (np.arange(230) >= 200) & (y != 3)
    data = root / "gaps.npz"
    np.savez(data, train_x=x[:200], train_y=y[:200], test_x=x[test], test_y=y[test])
    run = fl.run(FIELDS, data=str(data), split="iid", clients=4, analyze_every=2, out=str(root / "gaps"))
    analyze(run)
    return run.path


def analyze(run: fl.Run) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.analysis.embedding.POINTS", POINTS)
        fl.analyze(run)


def published(folder: Path, name: str, **fields: Any) -> Path:
    """A real run on digits, whose recipe then says that it was of a data set and net that papers have."""
    run = fl.run({**FIELDS, "split": "shards:10", **fields}, out=str(folder / name))
    text = (run.path / "recipe.yaml").read_text()
    text = text.replace("name: digits", "name: cifar100").replace("model: mlp", "model: mobilenet")
    (run.path / "recipe.yaml").write_text(text)
    return run.path
