"""`fedloom flower personalize`: a site fine-tunes the final model on its own data and stores it. Nothing is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from fedloom.deploy.messages.checked import pack_checked
from fedloom.deploy.site import private
from fedloom.deploy.site.config import NodeConfig
from fedloom.deploy.site.worker import SiteWorker
from fedloom.errors import FedloomError
from fedloom.evaluation.fine_tuned import TunedPart
from fedloom.evaluation.personalization import REGIONS, check
from fedloom.evaluation.tasks.finetune import FineTune
from fedloom.io.files import read_tensors
from fedloom.recipe import recipe


@dataclass(frozen=True)
class PersonalModel:
    metrics: dict[str, list[float | None]]  # by metric: before, and after every epoch
    model: Path

    @property
    def accuracy(self) -> list[float | None]:
        return self.metrics["accuracy"]


def find_state_folder(folder: Path) -> Path:
    """The state folder of a client: the given one, or the only one below it that has a final model."""
    if (folder / "site.json").exists():
        return folder
    clients = sorted(path.parent for path in folder.glob("**/served.safetensors"))
    if not clients:
        raise FedloomError(f"STATE: no site below {folder} has a final model")
    if len(clients) > 1:
        raise FedloomError(f"STATE: {folder} has several sites; name one of {', '.join(map(str, clients[:5]))}")
    return clients[0]


def personalize(
    folder: Path, part: TunedPart, epochs: int, lr: float, data: str | None = None, weights: Path | None = None
) -> PersonalModel:
    """`data`: the new path of the samples, if they moved; `weights`: the run's final.safetensors, if the site missed it."""
    folder = find_state_folder(folder)
    worker = _worker(folder, data)
    experiment, buffers = worker.replica.experiment, worker.buffers
    check(experiment.program.layout.regions, part, epochs, lr, parts=experiment.program.method.parts)
    _fill_buffers(folder, worker, weights)
    with torch.random.fork_rng(devices=[]):
        task = FineTune(worker.node.client, list(REGIONS[part]), epochs, lr, alternate=part == "alternate")
        report = task.perform(worker.replica, buffers, 0)
    total = report["total"]
    shares = [correct / total if total else None for correct in report["correct"]]
    metrics = {name: shares if name == "accuracy" else report["metrics"][name] for name in experiment.recipe.metrics}
    stem = f"personal-{part}-{epochs}-{lr:g}"
    model = folder / f"{stem}.safetensors"
    storage = worker.replica.weights.storage.cpu()
    private.write_tensors(model, experiment.program.layout.tensors(storage), {"recipe": experiment.recipe.digest()})
    content = {"part": part, "epochs": epochs, "lr": lr, **metrics, "images": total}
    private.write(folder / f"{stem}.json", json.dumps(content, indent=2) + "\n")
    return PersonalModel(metrics, model)


def _worker(folder: Path, data: str | None) -> SiteWorker:
    try:
        stored: dict[str, Any] = json.loads((folder / "site.json").read_text(encoding="utf-8"))
        federation, root = folder.parent.name, folder.parent.parent
        given = recipe(yaml.safe_load(stored["recipe"]))
        node = NodeConfig(stored["client"], stored["name"], data or stored["data"], str(root))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedloomError(f"STATE: {folder} is not the state folder of a site ({error})") from None
    return SiteWorker(given, node, federation)


def _fill_buffers(folder: Path, worker: SiteWorker, weights: Path | None) -> None:
    """Fill the buffers with the served model as broadcast, and the client's state that belongs to it."""
    buffers, experiment = worker.buffers, worker.replica.experiment
    messages, layout = experiment.program.messages, experiment.program.layout
    buffers.state_rows[0].copy_(messages.state_row)
    for name, value in messages.fixed.items():
        buffers.down[f"fixed.{name}"].copy_(value)
    if (folder / "served.safetensors").exists():
        served, metadata = read_tensors(folder / "served.safetensors")
        if reason := pack_checked(served, messages.down, buffers.down_row):
            raise FedloomError(f"STATE: {folder / 'served.safetensors'} does not fit its recipe: {reason}")
        buffers.down["round"].fill_(int(metadata.get("round", 0)))
        if metadata.get("version"):
            worker.load_state(int(metadata["version"]))
        return
    if weights is None:
        raise FedloomError(f"STATE: {folder} has no final model; give the server's with --weights final.safetensors")
    tensors, metadata = read_tensors(weights)
    buffers.down["round"].fill_(int(metadata.get("round", 0)))
    storage = experiment.program.initial.clone()
    layout.read(tensors, storage)
    buffers.down["w"].copy_(storage[: layout.shared])
    buffers.down["statistics"].copy_(storage[layout.parameters :][: layout.shared_statistics])
    for name in messages.fixed:
        buffers.down[f"fixed.{name}"].copy_(layout.entries[name].view(storage))
    versions = sorted(folder.glob("memory-round-*.safetensors"))
    if versions:
        worker.load_state(int(versions[-1].stem.rpartition("-")[2]))
