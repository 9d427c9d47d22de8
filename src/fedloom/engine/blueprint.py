"""What a lane that shares nothing with this process is built from, and the lane that is built from it.

A forked lane inherits everything. One in a process of its own, here or on another machine, gets the recipe, who holds
what, the first weights and the user's .py files; it reads the images by itself and says what it has built, so that a
machine with other images or other code is found before it computes anything.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from fedloom import __version__
from fedloom.data import Partition
from fedloom.engine.arena import Packing, prefixed, scoped
from fedloom.engine.board import Board
from fedloom.engine.lanes import Report, keep_freed_memory, perform
from fedloom.engine.regions import Bytes, read, touched, write
from fedloom.engine.setup import Experiment, prepare
from fedloom.engine.worker import Worker
from fedloom.errors import FedloomError
from fedloom.recipe import recipe

Answer = tuple[Report, list[Bytes]]
_copies: dict[str, tempfile.TemporaryDirectory[str]] = {}  # on a lane: the user's files by their text


@dataclass(frozen=True)
class Blueprint:
    """`order`: what JSON can say. `tensors`: partitions and first weights in the safetensors format."""

    order: dict[str, Any]
    tensors: Bytes
    expected: dict[str, Any]  # what a lane must say that it has built

    @staticmethod
    def of(experiment: Experiment, rows: int) -> Blueprint:
        refuse_uncarried(experiment)
        tensors = prefixed(experiment.layout.tensors(experiment.initial), "initial")
        for number, holding in enumerate(experiment.holdings):
            for name, index in vars(holding.partition).items():
                tensors[f"partition {number}.{name}"] = torch.from_numpy(index)
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
    """What must be the same wherever lanes of one run are."""
    messages = experiment.messages
    packings = (messages.down, messages.up, messages.memory, messages.message, messages.server, messages.findings)
    shapes = hashlib.blake2b(repr([_outline(packing) for packing in packings]).encode(), digest_size=8).hexdigest()
    return {
        "fedloom": __version__,
        "torch": torch.__version__,
        "images": experiment.images.digest,
        "public images": hashlib.blake2b(experiment.public.x.numpy().tobytes(), digest_size=8).hexdigest(),
        "method": experiment.method.spelled(),
        "tensors": shapes,
    }


def _outline(packing: Packing) -> list[tuple[str, tuple[int, ...], str]]:
    return [(item.name, item.shape, str(item.dtype)) for item in packing.items]


def refuse_uncarried(experiment: Experiment) -> None:
    """Parts that only this process knows, such as those of a notebook, cannot be built anywhere else."""
    for part in experiment.method.parts:
        home = sys.modules.get(type(part).__module__)
        if type(part).__module__ == "__main__" or home is None or getattr(home, "__spec__", None) is None:
            raise FedloomError(
                f"lanes: these lanes are built from the recipe in processes of their own, which cannot see the part "
                f"{part.name!r} that this script or notebook defines; put it into a .py file and name that in `parts`, "
                f"or use local lanes on the CPU"
            )
    if experiment.recipe.model.startswith("__main__:"):
        raise FedloomError(
            f"lanes: these lanes are built from the recipe in processes of their own, which cannot see the model "
            f"{experiment.recipe.model!r}; put it into a .py file, as in model: net.py:function"
        )


def carried_files(experiment: Experiment) -> dict[str, str]:
    """The text of the user's own .py files by the name that the recipe has for them."""
    model = experiment.recipe.model.rpartition(":")[0]
    names = [*experiment.recipe.parts, *([model] if model.endswith(".py") else [])]
    return {name: Path(name).read_text(encoding="utf-8") for name in names if name.endswith(".py")}


class Resident:
    """The lane's side: a worker and a board of its own, and what it is asked to do with them."""

    def __init__(self) -> None:
        keep_freed_memory()
        torch.set_num_threads(1)
        self._worker: Worker | None = None
        self._board: Board | None = None
        self._version = ""

    def answer(self, order: Mapping[str, Any], common: Bytes | None, values: Sequence[Bytes]) -> Answer:
        """Do what an order says. `common`: what is the same for all lanes; None if this lane has it already."""
        try:
            if order["kind"] == "build":
                assert common is not None
                return self._build(order, common), []
            if order["kind"] == "ping":
                return {}, []
            return self._perform(order, common, values)
        except FedloomError as error:
            said, trace = str(error), traceback.format_exc()
        except Exception as error:
            said, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
        return {"error": {"said": said, "trace": trace}, "host": socket.gethostname()}, []

    def _build(self, order: Mapping[str, Any], common: Bytes) -> Report:
        with suppress(OSError):
            os.chdir(order["folder"])  # the same machine, or the same disk: relative paths mean the same
        sys.path += [path for path in order["paths"] if path not in sys.path and Path(path).exists()]
        if order["data"]:
            os.environ.setdefault("FEDLOOM_DATA", order["data"])  # a machine's own comes first
        tensors = load(common.tobytes())
        stages = [scoped(tensors, f"partition {number}") for number in range(len(tensors))]
        partitions = [
            Partition(*(stage[field.name].numpy() for field in fields(Partition))) for stage in stages if stage
        ]
        experiment = prepare(recipe(_local(order)), partitions, scoped(tensors, "initial"))
        self._worker, self._board = Worker(experiment), Board(experiment, order["rows"])
        self._version = ""
        return {"built": built(experiment), "host": socket.gethostname(), "data": os.environ.get("FEDLOOM_DATA")}

    def _perform(self, order: Mapping[str, Any], common: Bytes | None, values: Sequence[Bytes]) -> Answer:
        worker, board = self._worker, self._board
        assert worker is not None and board is not None
        if order["version"] != self._version:
            assert common is not None
            np.copyto(board.down_row.numpy(), common)
            self._version = order["version"]
        board.down["round"].fill_(order["round"])
        lane = order["lane"]
        regions = touched(order["kind"], order["arguments"], lane)
        write(board, regions.reads, values)
        report = perform(worker, board, lane, dict(order))
        return report, read(board, regions.writes)


def _local(order: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with the user's files where this machine has them."""
    given = dict(order["recipe"])
    places = {name: _placed(name, text) for name, text in order["files"].items()}
    given["parts"] = [places.get(name, name) for name in given["parts"]]
    where, colon, function = given["model"].rpartition(":")
    if where in places:
        given["model"] = f"{places[where]}{colon}{function}"
    return given


def _placed(name: str, text: str) -> str:
    """The file itself if this machine has the very same, else a copy of it."""
    path = Path(name)
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return name
    if text not in _copies:
        folder = tempfile.TemporaryDirectory(prefix="fedloom-")
        (Path(folder.name) / path.name).write_text(text, encoding="utf-8")
        _copies[text] = folder
    return str(Path(_copies[text].name) / path.name)
