"""Run folders for tests of the page: real runs, and analysis files in the documented format beside them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

import fedloom as fl

FIELDS = {"clients": 10, "fraction": 0.5, "rounds": 4, "lanes": 1, "model": "mlp", "eval_clients": 2}


def make(root: Path) -> Path:
    """Two methods, two seeds, one of them analysed; one run more that is not finished."""
    fl.compare("fedavg; fedper @ lr=0.05", seeds=2, out=str(root / "pair"), **FIELDS)
    for seed in (0, 1):
        fl.personalize(root / "pair" / "fedavg" / f"seed{seed}", "head", 1, 0.01)
        analyse(root / "pair" / "fedavg" / f"seed{seed}", seed)
    select(root / "pair" / "fedavg" / "seed0")
    return root / "pair"


def published(folder: Path, name: str, **fields: Any) -> Path:
    """A real run on digits, whose recipe then says that it was of a set and net that papers have."""
    run = fl.run({**FIELDS, "split": "shards:10", **fields}, out=str(folder / name))
    text = (run.path / "recipe.yaml").read_text()
    text = text.replace("name: digits", "name: cifar100").replace("model: mlp", "model: mobilenet")
    (run.path / "recipe.yaml").write_text(text)
    return run.path


def analyse(folder: Path, seed: int) -> None:
    place, draw, classes = folder / "analysis", np.random.default_rng(seed), 10
    place.mkdir()
    groups = {
        "factors": ["weight_similarity", "inter_class", "intra_class", "prototype_weight"],
        "norms": ["feature_global", "feature_seen", "feature_unseen", "weight_global", "weight_seen", "weight_unseen"],
        "alignment": ["global", "seen", "unseen", "gap_seen", "gap_unseen", "distance_seen", "distance_unseen"],
        "drift": ["norm", "mean_norm", "to_mean", "cosine_to_mean", "cosine_pairwise"],
    }

    def scalars() -> dict[str, Any]:
        return {group: {name: float(draw.random()) for name in names} for group, names in groups.items()}

    lines = [{"round": number, "clients": [1, 2], "images": 360, "seconds": 0.1, **scalars()} for number in (2, 4)]
    lines[0]["alignment"]["gap_seen"] = None
    (place / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    accuracy = draw.random((2, classes)).tolist()
    told = {
        **scalars(),
        "refinement": {"start": accuracy[0], "local": accuracy[1], "refined": None},
        "cost": {"kappa": 0.125, "rho": 0.25, "targets": []},
    }
    (place / "summary.json").write_text(json.dumps(told))
    matrices = {name: draw.uniform(-1, 1, (classes, classes)).astype(np.float32) for name in groups["factors"]}
    matrices["inter_class"][0, 3] = np.nan
    np.savez(place / "factors.npz", **matrices)
    table(place / "spectrum.csv", "stage,client,index,singular_value", [["global", "", i, 5 / i] for i in range(1, 9)])
    table(
        place / "layers.csv",
        "layer,kind,weight_clients,weight_global,weight_scale,activation_clients,activation_global,activation_scale,"
        "activation_shift",
        [[f"body.{i}", "Linear", 0.9, 0.8, 1, 0.7, 0.6, 1, 0] for i in (1, 3)],
    )
    points = [["tsne", "global", "", n, n % classes, "", n % 3, draw.normal(), draw.normal()] for n in range(40)]
    points += [["tsne", "local", n % 2, n, n % classes, 1, "", draw.normal(), draw.normal()] for n in range(20)]
    table(place / "embedding.csv", "kind,stage,client,image,class,seen,holder,x,y", points)


def select(folder: Path) -> None:
    """What an adaptive normaliser would have logged."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        share = 0.5 + 0.1 * number
        line["selectors"] = {"body.0.norm": [share, 1 - share], "body.3.norm": {"mean": [0.25, 0.75]}}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def table(path: Path, head: str, rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *rows])
