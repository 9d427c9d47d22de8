"""What losses see where clients are stacked: a batch, a teacher, a client, each a row of one computation under vmap.

The counterparts for a client that stands alone are in scope.py. Parts cannot tell the difference, as long as they keep to
tensors; what a stacked client cannot give is refused by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.engine.arena import scoped
from fedloom.engine.local import Drive, objective, total
from fedloom.errors import FedloomError
from fedloom.methods.part import Part
from fedloom.methods.seen import Slots
from fedloom.nets import Net

if TYPE_CHECKING:
    from fedloom.engine.worker import Worker

# torch takes the clients one by one where it has no batched form of an operation: right, only slower
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")


class Losses:
    """The method's loss of several clients at once, each under its own row of weights."""

    def __init__(self, worker: Worker, scopes: Mapping[str, Any]) -> None:
        self.worker, self.scopes = worker, scopes
        self._net = Lent(worker.net, list(worker.layout.entries))
        speaking = [*worker.penalties, *([worker.objective] if worker.objective else [])]
        self.parts: list[Part] = speaking
        names = tuple(f"{part.name}." for part in speaking)
        self.remembered = [n for n in worker.experiment.messages.memory.names if n.startswith(names)] if names else []
        personal = worker.layout.personal > 0 or bool(worker.layout.personal_statistics)
        self._start = 0 if personal else None  # where all begin with the same weights, a teacher needs no rows
        self._teacher: Lent | None = None  # a net in the mode that evaluation uses; weights are given with every call
        if speaking:
            net, _ = worker.teacher(("", "stack"))
            worker.tell_round(net)
            self._teacher = Lent(net, list(worker.layout.entries))

    def __call__(
        self,
        drive: Drive,
        pieces: Sequence[Tensor],  # of the rows, that are trained
        w: Tensor,  # (n, total) whole rows
        start: Tensor,
        x: Tensor,  # (n, B, C, H, W)
        y: Tensor,
        index: Tensor,
        counts: Tensor,
        memory: Mapping[str, Tensor],
    ) -> Tensor:
        def one(
            pieces: Sequence[Tensor],
            w: Tensor,
            start: Tensor,
            x: Tensor,
            y: Tensor,
            index: Tensor,
            counts: Tensor,
            memory: Mapping[str, Tensor],
        ) -> Tensor:
            batch = StackedBatch(self, x, y, index, counts, self._tensors(drive, pieces, w), w, start, memory)
            scopes = {part.name: StackedScope(self.scopes[part.name], batch) for part in self.parts}
            batch.scopes = scopes
            return total(self.worker, scopes, batch, drive)

        if self._start is None:
            start = start[0]
        values: Tensor = vmap(one, in_dims=(0, 0, self._start, 0, 0, 0, 0, 0))(
            list(pieces), w, start, x.contiguous(), y, index, counts, dict(memory)
        )
        return values

    def _tensors(self, drive: Drive, pieces: Sequence[Tensor], w: Tensor) -> list[Tensor]:
        """The net's tensors in order: from the trained pieces, where gradients are wanted, else from the whole row."""
        tensors = self.worker.layout.views(w)
        for s, piece in zip(drive.stretches, pieces, strict=True):
            tensors.update(self.worker.layout.views(piece, s.start))
        return list(tensors.values())

    def ask(self, tensors: Sequence[Tensor], what: str, value: Tensor, teacher: bool = False) -> Tensor:
        called = self._teacher if teacher else self._net
        assert called is not None
        return called(tensors, what, value)


class Lent:
    """A net that is called with other weights than its own: they lie in its modules for the time of a call.

    As torch.func.functional_call does it, which looks every name up again in every call; here that is half of a tiny step.
    """

    def __init__(self, net: Net, names: Sequence[str]) -> None:
        self._net = net
        order = {id(_tensor(net, name)): i for i, name in enumerate(names)}
        self._places: list[tuple[dict[str, Any], str, int]] = []  # a tensor may have several
        for module in net.modules():
            for home in (module._parameters, module._buffers):
                self._places += [(home, leaf, order[id(t)]) for leaf, t in home.items() if id(t) in order]

    def __call__(self, tensors: Sequence[Tensor], what: str, value: Tensor) -> Tensor:
        own = [home[leaf] for home, leaf, _ in self._places]
        try:
            for home, leaf, i in self._places:
                home[leaf] = tensors[i]
            found: Tensor = self._net.features(value) if what == "features" else self._net.head(value)
            return found
        finally:
            for (home, leaf, _), tensor in zip(self._places, own, strict=True):
                home[leaf] = tensor


def _tensor(net: Net, name: str) -> Tensor | None:
    owner, _, leaf = name.rpartition(".")
    module = net.get_submodule(owner)
    return module._parameters[leaf] if leaf in module._parameters else module._buffers[leaf]


class StackedBatch:
    """One client's batch inside the stacked computation; see LocalBatch."""

    def __init__(
        self,
        losses: Losses,
        x: Tensor,
        y: Tensor,
        index: Tensor,
        counts: Tensor,
        tensors: Sequence[Tensor],
        w: Tensor,
        start: Tensor,
        memory: Mapping[str, Tensor],
    ) -> None:
        self.x, self.y, self.index, self.counts = x, y, index, counts
        self.tensors, self.w, self.start, self.memory = tensors, w, start, memory
        self.client: StackedScope
        self.scopes: Mapping[str, StackedScope] = {}
        self._losses = losses
        self._features: Tensor | None = None
        self._logits: Tensor | None = None
        self._teachers: dict[tuple[str, str], StackedTeacher] = {}

    @property
    def features(self) -> Tensor:
        if self._features is None:
            self._features = self._losses.ask(self.tensors, "features", self.x)
        return self._features

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            self._logits = self.head(self.features)
        return self._logits

    def head(self, features: Tensor) -> Tensor:
        return self._losses.ask(self.tensors, "head", features)

    def objective(self) -> Tensor:
        return objective(self._losses.worker, self.scopes, self)

    def teacher(self, name: str = "global") -> StackedTeacher:
        key = ("", name) if name == "global" else (self.client.name, name)
        if key not in self._teachers:
            whole = self.start if name == "global" else self.memory[".".join(key)]
            self._teachers[key] = StackedTeacher(self._losses, whole, self.x)
        return self._teachers[key]


class StackedTeacher:
    """What a teacher says of one client's batch, without gradient."""

    def __init__(self, losses: Losses, whole: Tensor, x: Tensor) -> None:
        self._losses = losses
        self._tensors = list(losses.worker.layout.views(whole).values())
        with torch.no_grad():
            self.features = losses.ask(self._tensors, "features", x, teacher=True)
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            with torch.no_grad():
                self._logits = self._losses.ask(self._tensors, "head", self.features, teacher=True)
        return self._logits


class StackedScope:
    """A client as the loss of one part sees it inside the stacked computation: what is a tensor, or the same for all."""

    def __init__(self, of: Any, batch: StackedBatch) -> None:
        self.name, self.task, self.round, self.lr = of.name, of.task, of.round, of.lr
        self.momentum, self.epochs, self.broadcast = of.momentum, of.epochs, of.broadcast
        self.memory = Slots(scoped(batch.memory, of.name), f"{of.name}: client memory")
        self.counts = batch.counts
        self._batch = batch

    @property
    def start(self) -> Tensor:
        return self._batch.start[: self._exchanged]

    @property
    def w(self) -> Tensor:
        return self._batch.w[: self._exchanged]  # without gradient, as for a client that stands alone

    @property
    def _exchanged(self) -> int:
        return self._batch._losses.worker.layout.exchanged

    def __getattr__(self, name: str) -> Any:
        raise FedloomError(
            f"method: the loss of {self.name} asks for client.{name}, which stacked clients do not have in common; "
            f"set stack to off"
        )
