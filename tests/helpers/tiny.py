"""The tiny problem that methods are checked on, and what is compared: real runs, in real folders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from reference import Problem, Weights, read
from safetensors.torch import load_file
from torch import Tensor

import fedloom as fl

# Few and unequal clients, some of whom miss every round, a full batch, and every term of torch's SGD in use.
TINY: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 5,
    "model": "mlp",
    "rounds": 3,
    "fraction": 0.6,
    "epochs": 3,
    "batch": "full",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.001,
    "workers": 1,
    "eval_every": 0,
}
BODY_BYTES = 4 * (64 * 64 + 64)
HEAD_BYTES = 4 * (64 * 10 + 10)
MODEL_BYTES = BODY_BYTES + HEAD_BYTES


def train(method: str | fl.Part | fl.Method, **fields: Any) -> fl.Run:
    return fl.run(**{**TINY, "method": method, **fields})


def fedloom_parts() -> list[fl.Part]:
    """One of every part that fedloom brings, by name; tests register others."""

    def below(part: type[fl.Part]) -> list[type[fl.Part]]:
        return [part, *(found for child in part.__subclasses__() for found in below(child))]

    ours = (part for part in below(fl.Part)[1:] if part.__module__.startswith("fedloom.") and part.name)
    return [part() for part in sorted(ours, key=lambda part: part.name)]


def problem(run: fl.Run) -> Problem:
    return Problem(run.path)


def agree(run: fl.Run, expected: Weights, atol: float = 1e-5) -> None:
    """The served weights are the expected ones, and it took some training to get there."""
    final = read(run.path / "final.safetensors")
    assert set(final) == set(expected)
    for name, value in final.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=atol, msg=lambda text, n=name: f"{n}: {text}")
    assert distance(run) > 100 * atol


def distance(run: fl.Run, names: tuple[str, ...] = ()) -> float:
    """How far the served weights are from the first ones, in the tensor that moved most."""
    final, initial = read(run.path / "final.safetensors"), read(run.path / "initial.safetensors")
    return max(float((final[n] - initial[n]).abs().max()) for n in names or tuple(final))


def gap(a: fl.Run, b: fl.Run) -> float:
    """The largest difference between the served weights of two runs."""
    first, second = read(a.path / "final.safetensors"), read(b.path / "final.safetensors")
    return max(float((first[n] - second[n]).abs().max()) for n in first)


def checkpoint(run: fl.Run) -> dict[str, Tensor]:
    """The server's state after the last round."""
    return load_file(max((run.path / "checkpoints").glob("round-*.safetensors")))


def memories(run: fl.Run) -> dict[int, dict[str, Tensor]]:
    """What every client that took part remembers after the last round."""
    newest: dict[int, Path] = {}
    for path in sorted((run.path / "checkpoints" / "clients").glob("client-*.safetensors")):
        newest[int(path.name.split("-")[1])] = path
    return {client: load_file(path) for client, path in newest.items()}


def traffic(run: fl.Run) -> set[tuple[float, float]]:
    """Bytes down and up per client, of every round."""
    return {(line["bytes_down"] / len(line["cohort"]), line["bytes_up"] / len(line["cohort"])) for line in run.rounds}


def seen(said: Tensor, teachers: Tensor | None = None, y: Tensor | None = None) -> tuple[Any, Any]:
    """A batch as a term of the loss sees it, with the client it is on: what the net says is both features and logits, and so
    with its teachers."""
    taught = None if teachers is None else SimpleNamespace(features=teachers, logits=teachers)
    client = SimpleNamespace(teacher=lambda batch, name="global": taught)
    return SimpleNamespace(features=said, logits=said, y=y), client
