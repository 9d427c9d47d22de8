"""`fedloom flower personalize`: a site fine-tunes the final model on its own images and keeps it. Nothing is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from fedloom.deploy import private
from fedloom.deploy.checked import fit
from fedloom.deploy.site import Node, Resident, Site
from fedloom.engine.files import read_tensors
from fedloom.errors import FedloomError
from fedloom.measure.personal import REGIONS, Tuned, check
from fedloom.recipe import recipe


@dataclass(frozen=True)
class Outcome:
    accuracy: list[float | None]  # before, and after every epoch
    model: Path


def find(folder: Path) -> Path:
    """A client's state folder: the one given, or the only one below it that has a final model."""
    if (folder / "site.json").exists():
        return folder
    found = sorted(path.parent for path in folder.glob("**/served.safetensors"))
    if not found:
        raise FedloomError(f"STATE: no site below {folder} has got a final model")
    if len(found) > 1:
        raise FedloomError(f"STATE: {folder} holds several sites; name one of {', '.join(map(str, found[:5]))}")
    return found[0]


def personalize(
    folder: Path, part: Tuned, epochs: int, lr: float, data: str | None = None, weights: Path | None = None
) -> Outcome:
    """`data`: where the images are now, if they moved; `weights`: the run's final.safetensors, for a site that missed it."""
    folder = find(folder)
    resident = _resident(folder, data)
    experiment, board = resident.worker.experiment, resident.board
    check(experiment.layout.regions, part, epochs, lr)
    _begin(folder, resident, weights)
    with torch.random.fork_rng(devices=[]):
        report = resident.worker.tune(resident.node.client, board.views(0), REGIONS[part], epochs, lr)
    total = report["total"]
    accuracy = [correct / total if total else None for correct in report["correct"]]
    stem = f"personal-{part}-{epochs}-{lr:g}"
    model = folder / f"{stem}.safetensors"
    storage = resident.worker.weights.storage.cpu()
    private.write_tensors(model, experiment.layout.tensors(storage), {"recipe": experiment.recipe.digest()})
    told = {"part": part, "epochs": epochs, "lr": lr, "accuracy": accuracy, "images": total}
    private.write(folder / f"{stem}.json", json.dumps(told, indent=2) + "\n")
    return Outcome(accuracy, model)


def _resident(folder: Path, data: str | None) -> Resident:
    try:
        told: dict[str, Any] = json.loads((folder / "site.json").read_text(encoding="utf-8"))
        federation, root = folder.parent.name, folder.parent.parent
        given = recipe(yaml.safe_load(told["recipe"]))
        node = Node(told["client"], told["name"], data or told["data"], str(root))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedloomError(f"STATE: {folder} is not the state folder of a site ({error})") from None
    return Resident(Site(given, node), federation)


def _begin(folder: Path, resident: Resident, weights: Path | None) -> None:
    """The served model as broadcast, and the memory that belongs to it."""
    board, experiment = resident.board, resident.worker.experiment
    messages, layout = experiment.messages, experiment.layout
    board.memory_rows[0].copy_(messages.memory_row)
    for name, value in messages.fixed.items():
        board.down[f"fixed.{name}"].copy_(value)
    if (folder / "served.safetensors").exists():
        served, metadata = read_tensors(folder / "served.safetensors")
        if reason := fit(served, messages.down, board.down_row):
            raise FedloomError(f"STATE: {folder / 'served.safetensors'} does not fit its recipe: {reason}")
        board.down["round"].fill_(int(metadata.get("round", 0)))
        if metadata.get("version"):
            resident.recall(int(metadata["version"]))
        return
    if weights is None:
        raise FedloomError(
            f"STATE: {folder} has not got the final model; give the server's with --weights final.safetensors"
        )
    tensors, metadata = read_tensors(weights)
    board.down["round"].fill_(int(metadata.get("round", 0)))
    storage = experiment.initial.clone()
    layout.read(tensors, storage)
    board.down["w"].copy_(storage[: layout.exchanged])
    board.down["statistics"].copy_(storage[layout.parameters :][: layout.shared_statistics])
    for name in messages.fixed:
        board.down[f"fixed.{name}"].copy_(layout.entries[name].view(storage))
    versions = sorted(folder.glob("memory-round-*.safetensors"))
    if versions:
        resident.recall(int(versions[-1].stem.rpartition("-")[2]))
