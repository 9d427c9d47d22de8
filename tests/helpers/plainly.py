"""A digits run looked at from outside: weights and partition read from its files, nets written in plain torch, numpy in
double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.data import load

Array = np.ndarray[Any, Any]


class Plain:
    """The images and splits of a run."""

    def __init__(self, run: fl.Run) -> None:
        data = load("digits")
        self.train_y, self.y = data.train_y.numpy(), data.test_y.numpy()
        self.train_x, self.x = (
            ((x.double() / 16 - data.mean[0]) / data.std[0]).permute(0, 3, 1, 2) for x in (data.train_x, data.test_x)
        )
        with np.load(run.path / "partition.npz") as file:
            index, offsets = file["train_index"], file["train_offsets"]
        self.own = [index[offsets[k] : offsets[k + 1]] for k in range(len(offsets) - 1)]
        self.seen = [np.isin(np.arange(10), self.train_y[own]) for own in self.own]


def body_of(model: str, weights: dict[str, Tensor]) -> nn.Sequential:
    """mlp or cnn without the head, with these weights, in double precision."""
    if model == "mlp":
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
        places = {"1": "1"}
    else:
        layers: list[nn.Module] = []
        for width, out in ((1, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(width, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        body = nn.Sequential(*layers, nn.AvgPool2d(1), nn.Flatten())
        places = {"0": "0", "3": "3", "6": "6"}
    state = {
        f"{mine}.{kind}": weights[f"body.{theirs}.{kind}"]
        for mine, theirs in places.items()
        for kind in ("weight", "bias")
    }
    body.load_state_dict(state)
    return body.double()


def features_of(model: str, weights: dict[str, Tensor], x: Tensor) -> Array:
    with torch.no_grad():
        found: Array = body_of(model, weights)(x).numpy()
    return found


def unit(rows: Array) -> Array:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def four_factors(f: Array, y: Array, v: Array) -> dict[str, Array]:
    """Matrix by matrix, with loops over classes, as appendix B.3 of FedFN writes them."""
    classes = len(v)
    p = np.stack([f[y == c].mean(0) for c in range(classes)])
    found = {name: np.zeros((classes, classes)) for name in ("weight_similarity", "inter_class", "intra_class")}
    found["prototype_weight"] = np.zeros((classes, classes))
    for c in range(classes):
        for k in range(classes):
            found["weight_similarity"][c, k] = _cosine(v[c], v[k])
            found["inter_class"][c, k] = _cosine(p[c], p[k])
            found["intra_class"][c, k] = np.mean([_cosine(x, p[k]) for x in f[y == c]])
            found["prototype_weight"][c, k] = _cosine(p[c], v[k])
    return found


def scalars_of(matrices: dict[str, Array]) -> dict[str, float]:
    off = ~np.eye(len(matrices["inter_class"]), dtype=bool)
    return {
        "weight_similarity": matrices["weight_similarity"][off].mean(),
        "inter_class": matrices["inter_class"][off].mean(),
        "intra_class": matrices["intra_class"].diagonal().mean(),
        "prototype_weight": matrices["prototype_weight"].diagonal().mean(),
    }


def _cosine(a: Array, b: Array) -> float:
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))


def train_locally(
    model: str, weights: dict[str, Tensor], x: Tensor, y: Array, steps: int, lr: float
) -> dict[str, Tensor]:
    """Whole-batch SGD with momentum 0.9 on cross-entropy, by torch's own optimizer."""
    body, head = body_of(model, weights), nn.Linear(*reversed(weights["head.weight"].shape)).double()
    head.load_state_dict({"weight": weights["head.weight"], "bias": weights["head.bias"]})
    sgd = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=lr, momentum=0.9)
    labels = torch.from_numpy(y)
    for _ in range(steps):
        sgd.zero_grad()
        nn.functional.cross_entropy(head(body(x)), labels).backward()
        sgd.step()
    made = {f"body.{name}": value.detach() for name, value in body.state_dict().items()}
    return {**made, "head.weight": head.weight.detach(), "head.bias": head.bias.detach()}
