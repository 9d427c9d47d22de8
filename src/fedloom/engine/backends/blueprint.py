"""What a worker that shares no memory with this process is built from, and that worker.

A forked worker inherits everything. A worker in a fresh process, here or on another machine, receives the recipe, the
partition, the initial weights and the user's .py files. It reads the images by itself and reports digests of what it has
built, so that a machine with other images or other code is refused before it computes anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from fedloom.data import Partition
from fedloom.engine.backends.memory import keep_freed_memory
from fedloom.engine.buffers import Bytes, SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.kernels import check_kernels
from fedloom.engine.tasks import Report, Task
from fedloom.engine.tensor_layout import TensorLayout, prefixed, scoped
from fedloom.errors import FedloomError
from fedloom.nets.parameters import split_text
from fedloom.recipe import recipe
from fedloom.version import __version__

Answer = tuple[Report, list[Bytes]]
_copies: dict[str, tempfile.TemporaryDirectory[str]] = {}  # on a worker: copies of the user's files, by their text


@dataclass(frozen=True)
class Blueprint:
    """`order`: everything that JSON can hold. `tensors`: partitions and initial weights in the safetensors format."""

    order: dict[str, Any]
    tensors: Bytes
    expected: dict[str, Any]  # what a worker must report to have built

    @staticmethod
    def of(experiment: Experiment, rows: int) -> Blueprint:
        refuse_uncarried(experiment)
        tensors = prefixed(experiment.program.layout.tensors(experiment.program.initial), "initial")
        for kind, stages in (("partition", experiment.data.stages), ("validation", experiment.data.validation_stages)):
            for number, stage in enumerate(stages):
                for name, index in vars(stage.partition).items():
                    tensors[f"{kind} {number}.{name}"] = torch.from_numpy(index)
        order = {
            "kind": "build",
            "recipe": experiment.recipe.model_dump(mode="json"),
            "rows": rows,
            "files": carried_files(experiment),
            "paths": [str(Path(path).resolve()) for path in sys.path],
            "folder": str(Path.cwd()),
            "data": os.environ.get("FEDLOOM_DATA"),
        }
        return Blueprint(order, np.frombuffer(save(tensors), dtype=np.uint8), built(experiment))


def built(experiment: Experiment) -> dict[str, Any]:
    """What must be the same for all workers of a run."""
    messages = experiment.program.messages
    layouts = (messages.down, messages.up, messages.state, messages.message, messages.server, messages.reply)
    shapes = hashlib.blake2b(repr([_outline(layout) for layout in layouts]).encode(), digest_size=8).hexdigest()
    return {
        "fedloom": __version__,
        "torch": torch.__version__,
        "images": experiment.data.dataset.digest,
        "public samples": hashlib.blake2b(experiment.data.public.x.numpy().tobytes(), digest_size=8).hexdigest(),
        "method": experiment.program.method.spelled(),
        "tensors": shapes,
    }


def _outline(layout: TensorLayout) -> list[tuple[str, tuple[int, ...], str]]:
    return [(item.name, item.shape, str(item.dtype)) for item in layout.items]


def refuse_uncarried(experiment: Experiment) -> None:
    """Refuse parts and models that only this process knows, such as those of a notebook."""
    for part in experiment.program.method.parts:
        refuse_uncarried_class("part", part.name, type(part))
    if experiment.recipe.model.startswith("__main__:"):
        raise FedloomError(
            f"workers: these workers are built from the recipe in processes of their own, which cannot see the model "
            f"{experiment.recipe.model!r}; put it into a .py file, as in model: net.py:function"
        )


def refuse_uncarried_class(kind: str, name: str, defined: type) -> None:
    home = sys.modules.get(defined.__module__)
    if defined.__module__ == "__main__" or home is None or getattr(home, "__spec__", None) is None:
        raise FedloomError(
            f"workers: these workers are built from the recipe in processes of their own, which cannot see the {kind} "
            f"{name!r} that this script or notebook defines; put it into a .py file and name that in `parts`, "
            f"or use local workers on the CPU"
        )


def carried_files(experiment: Experiment) -> dict[str, str]:
    """The text of the user's own .py files, by their names in the recipe."""
    model = split_text(experiment.recipe.model)[0].rpartition(":")[0]
    names = [*experiment.recipe.parts, *([model] if model.endswith(".py") else [])]
    return {name: Path(name).read_text(encoding="utf-8") for name in names if name.endswith(".py")}


class BuiltWorker:
    """A worker that is built from a blueprint: it has a replica and buffers of its own."""

    def __init__(self) -> None:
        keep_freed_memory()
        torch.set_num_threads(1)
        self._replica: Replica | None = None
        self._buffers: SharedBuffers | None = None
        self._version = ""

    def answer(self, order: Mapping[str, Any], common: Bytes | None, values: Sequence[Bytes]) -> Answer:
        """Carry out an order. `common`: the bytes that all workers receive; None if this worker has them already."""
        try:
            if order["kind"] == "build":
                assert common is not None
                return self._build(order, common), []
            if order["kind"] == "ping":
                return {}, []
            return self._perform(order, common, values)
        except FedloomError as error:
            message, trace = str(error), traceback.format_exc()
        except Exception as error:
            message, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
        return {"error": {"message": message, "trace": trace}, "host": socket.gethostname()}, []

    def _build(self, order: Mapping[str, Any], common: Bytes) -> Report:
        with suppress(OSError):
            os.chdir(order["folder"])  # on the same machine or disk, relative paths keep their meaning
        sys.path += [path for path in order["paths"] if path not in sys.path and Path(path).exists()]
        if order["data"]:
            os.environ.setdefault("FEDLOOM_DATA", order["data"])  # a machine's own setting takes precedence
        tensors = load(common.tobytes())
        partitions, validation = _partitions(tensors, "partition"), _partitions(tensors, "validation")
        experiment = prepare(recipe(_local(order)), partitions, scoped(tensors, "initial"), validation=validation)
        check_kernels(experiment.recipe, experiment.program.net)
        self._replica, self._buffers = Replica(experiment), SharedBuffers(experiment, order["rows"])
        self._version = ""
        return {"built": built(experiment), "host": socket.gethostname(), "data": os.environ.get("FEDLOOM_DATA")}

    def _perform(self, order: Mapping[str, Any], common: Bytes | None, values: Sequence[Bytes]) -> Answer:
        replica, buffers = self._replica, self._buffers
        assert replica is not None and buffers is not None
        if order["version"] != self._version:
            assert common is not None
            np.copyto(buffers.down_row.numpy(), common)
            self._version = order["version"]
        buffers.down["round"].fill_(order["round"])
        worker = order["worker"]
        if order["module"] not in sys.modules:
            importlib.import_module(order["module"])  # registers this kind of task
        task = Task.from_json(order)
        buffers.write(task.reads(worker), values)
        report = task.perform(replica, buffers, worker)
        return report, buffers.read(task.writes(worker))


def _partitions(tensors: Mapping[str, torch.Tensor], kind: str) -> list[Partition]:
    stages = [scoped(tensors, f"{kind} {number}") for number in range(len(tensors))]
    names = [field.name for field in dataclasses.fields(Partition)]
    return [Partition(*(stage[name].numpy() for name in names)) for stage in stages if stage]


def _local(order: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with the paths that the user's files have on this machine."""
    fields = dict(order["recipe"])
    paths = {name: _local_path(name, text) for name, text in order["files"].items()}
    fields["parts"] = [paths.get(name, name) for name in fields["parts"]]
    file = split_text(fields["model"])[0].rpartition(":")[0]
    if file in paths:
        fields["model"] = paths[file] + fields["model"][len(file) :]
    return fields


def _local_path(name: str, text: str) -> str:
    """The file itself if this machine has it with the same text, or a copy of it."""
    path = Path(name)
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return name
    if text not in _copies:
        folder = tempfile.TemporaryDirectory(prefix="fedloom-")
        (Path(folder.name) / path.name).write_text(text, encoding="utf-8")
        _copies[text] = folder
    return str(Path(_copies[text].name) / path.name)
