"""The state of the server between rounds: shared weights, shared statistics, the parts' memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.engine.arena import prefixed, scoped
from fedloom.engine.bounds import too_large
from fedloom.engine.setup import Experiment
from fedloom.methods.seen import Slots


class State:
    def __init__(self, experiment: Experiment) -> None:
        layout = experiment.layout
        self.experiment = experiment
        self.round = 0
        self.w = experiment.initial[: layout.exchanged].clone()
        begin = layout.parameters
        self.statistics = experiment.initial[begin : begin + layout.shared_statistics].clone()
        self.fixed = {name: tensor.clone() for name, tensor in experiment.messages.fixed.items()}
        self.memory = {name: tensor.clone() for name, tensor in experiment.messages.server_memory.items()}
        # a part may well begin with an infinity ("best so far"); what began as numbers stays numbers
        self._numbers = [name for name, tensor in self.tensors().items() if not too_large(tensor)]

    def slots(self, part: str) -> Slots:
        return Slots(scoped(self.memory, part), f"{part}: server memory")

    def broadcast(self) -> dict[str, Tensor]:
        """All that is sent down at the start of a round, and which round these weights come from."""
        sent = {"w": self.w, "statistics": self.statistics, **prefixed(self.fixed, "fixed")}
        sent["round"] = torch.tensor(self.round)
        for part in self.experiment.method.hooked("broadcast"):
            sent.update(prefixed(part.broadcast(scoped(self.memory, part.name)), part.name))
        return sent

    def served(self) -> dict[str, Tensor]:
        """What is tested and handed out: the same messages, with the weights that the method serves."""
        part = self.experiment.method.the("served")
        w = self.w if part is None else part.served(self.w, scoped(self.memory, part.name))
        return {**self.broadcast(), "w": w}

    def whole(self, w: Tensor) -> Tensor:
        """A full storage: these shared weights, everything else as drawn."""
        layout = self.experiment.layout
        storage = self.experiment.initial.clone()
        storage[: layout.exchanged] = w
        storage[layout.parameters :][: layout.shared_statistics] = self.statistics
        for name, value in self.fixed.items():
            layout.entries[name].view(storage).copy_(value)
        return storage

    def tensors(self) -> dict[str, Tensor]:
        fixed = prefixed(self.fixed, "fixed")
        return {"w": self.w, "statistics": self.statistics, **fixed, **prefixed(self.memory, "server")}

    def flaw(self) -> str | None:
        """What of the state can no longer be computed with, and why; None: all is well."""
        tensors = self.tensors()
        for name in self._numbers:
            if too_large(tensors[name]):
                known = {"w": "the weights are", "statistics": "the statistics of normalizers are"}
                what = known.get(name, f"{name.removeprefix('server.')} at the server is")
                finite = bool(tensors[name].isfinite().all())
                return f"{what} {'too large to go on with' if finite else 'no longer finite'}"
        return None

    def load(self, tensors: Mapping[str, Tensor], round: int) -> None:
        self.round = round
        self.w.copy_(tensors["w"])
        self.statistics.copy_(tensors["statistics"])
        for name, home in self.fixed.items():
            home.copy_(tensors[f"fixed.{name}"])
        for name, home in self.memory.items():
            home.copy_(tensors[f"server.{name}"])
