"""The server's state between rounds: shared weights, shared statistics, the parts' state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fedloom.engine.experiment import Experiment
from fedloom.engine.magnitude import too_large
from fedloom.engine.tensor_layout import prefixed, scoped
from fedloom.errors import Diverged
from fedloom.methods.api.context import Slots


class State:
    def __init__(self, experiment: Experiment) -> None:
        layout = experiment.program.layout
        self.experiment = experiment
        self.round = 0
        self.w = experiment.program.initial[: layout.shared].clone()
        begin = layout.parameters
        self.statistics = experiment.program.initial[begin : begin + layout.shared_statistics].clone()
        self.fixed = {name: tensor.clone() for name, tensor in experiment.program.messages.fixed.items()}
        self.state = {name: tensor.clone() for name, tensor in experiment.program.messages.server_state.items()}
        # a part may start with an infinity ("best so far"); tensors that start finite must stay finite
        self._finite = [name for name, tensor in self.tensors().items() if not too_large(tensor)]

    def slots(self, part: str) -> Slots:
        return Slots(scoped(self.state, part), f"{part}: server state")

    def broadcast(self) -> dict[str, Tensor]:
        """The tensors sent to clients at the start of a round, and the round that the weights come from."""
        sent = {"w": self.w, "statistics": self.statistics, **prefixed(self.fixed, "fixed")}
        sent["round"] = torch.tensor(self.round)
        for part in self.experiment.program.method.hooked("broadcast"):
            sent.update(prefixed(part.broadcast(scoped(self.state, part.name)), part.name))
        return sent

    @property
    def changed_fixed(self) -> int:
        """Bytes of the fixed tensors that are not as at initialization, which clients know, so that they have to be sent."""
        initial = self.experiment.program.messages.fixed
        return sum(t.nbytes for name, t in self.fixed.items() if not torch.equal(t, initial[name]))

    def served(self) -> dict[str, Tensor]:
        """The same tensors with the weights that the method serves: those that are evaluated and handed out."""
        part = self.experiment.program.method.the("served_weights")
        w = self.w if part is None else part.served_weights(self.w, scoped(self.state, part.name))
        return {**self.broadcast(), "w": w}

    def whole(self, w: Tensor) -> Tensor:
        """A full storage: these shared weights, everything else as at initialization."""
        layout = self.experiment.program.layout
        storage = self.experiment.program.initial.clone()
        storage[: layout.shared] = w
        storage[layout.parameters :][: layout.shared_statistics] = self.statistics
        for name, value in self.fixed.items():
            layout.entries[name].view(storage).copy_(value)
        return storage

    def tensors(self) -> dict[str, Tensor]:
        fixed = prefixed(self.fixed, "fixed")
        return {"w": self.w, "statistics": self.statistics, **fixed, **prefixed(self.state, "server")}

    def flaw(self) -> str | None:
        """Which tensor of the state is too large or not finite, as a sentence; None if none is."""
        tensors = self.tensors()
        for name in self._finite:
            if too_large(tensors[name]):
                known = {"w": "the weights are", "statistics": "the statistics of normalizers are"}
                what = known.get(name, f"{name.removeprefix('server.')} at the server is")
                finite = bool(tensors[name].isfinite().all())
                return f"{what} {'too large to go on with' if finite else 'no longer finite'}"
        return None

    def check(self, step: str) -> None:
        """Refuse a state that the next round could not compute with. `step`: what changed it last."""
        if reason := self.flaw():
            raise Diverged(f"{reason} after {step} in round {self.round + 1}; lower lr or clip gradients")

    @contextmanager
    def restored_on_error(self, wanted: bool = True) -> Iterator[None]:
        """Restore the state if the block fails. `wanted`: whether the block can fail, so that a copy is needed."""
        before = {name: tensor.clone() for name, tensor in self.tensors().items()} if wanted else None
        try:
            yield
        except BaseException:
            if before is not None:
                self.load(before, self.round)
            raise

    def load(self, tensors: Mapping[str, Tensor], round: int) -> None:
        self.round = round
        self.w.copy_(tensors["w"])
        self.statistics.copy_(tensors["statistics"])
        for name, home in self.fixed.items():
            home.copy_(tensors[f"fixed.{name}"])
        for name, home in self.state.items():
            home.copy_(tensors[f"server.{name}"])
