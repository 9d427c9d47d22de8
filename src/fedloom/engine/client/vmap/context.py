"""The method's loss of several clients under vmap, each with its own row of weights, and the context that parts see there.

A part that keeps to tensors works without changes. A part that asks for something that differs between clients and is no
tensor is refused by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.func import vmap

from fedloom.engine.client.local_batch import LocalBatch, TeacherOutputs
from fedloom.engine.client.loop import Trained
from fedloom.engine.client.losses import MethodLoss
from fedloom.engine.client.replica import Replica
from fedloom.engine.tensor_layout import scoped
from fedloom.errors import FedloomError
from fedloom.methods.api.context import Phase, Slots, TaskInfo, TrainSpec
from fedloom.nets import Net

# where an operation has no batched form, torch computes the clients one by one: correct, only slower
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")


class CommonContext(Protocol):
    """The part of a client's context that is the same for all clients of a cohort."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> TaskInfo: ...
    @property
    def round(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def work(self) -> Phase: ...
    @property
    def broadcast(self) -> Slots: ...


class VmapLoss:
    def __init__(self, replica: Replica, loss: MethodLoss, contexts: Mapping[str, CommonContext]) -> None:
        self.replica, self.loss, self.contexts = replica, loss, contexts
        names = list(replica.layout.entries)
        self.net = FunctionalNet(replica.net, names)
        prefixes = tuple(f"{part.name}." for part in loss.parts)
        known = replica.experiment.program.messages.state.names
        self.states = [name for name in known if name.startswith(prefixes)] if prefixes else []
        personal = replica.layout.personal > 0 or bool(replica.layout.personal_statistics)
        differs = personal or bool(replica.experiment.program.method.hooked("before_training"))
        self._start = 0 if differs else None  # clients that start with the same weights share one row for the teacher
        self.teacher: FunctionalNet | None = None  # in evaluation mode; every call brings its weights
        if loss.parts:
            net, _ = replica.teacher(("", "vmap"))
            replica.announce_round(net)
            self.teacher = FunctionalNet(net, names)

    def __call__(
        self,
        spec: TrainSpec,
        trained: Trained,
        pieces: Sequence[Tensor],  # the trained slices of the rows
        w: Tensor,  # (n, total) whole rows
        start: Tensor,
        x: Tensor,  # (n, B, C, H, W)
        y: Tensor,
        index: Tensor,
        counts: Tensor,
        state: Mapping[str, Tensor],
    ) -> Tensor:
        def one(
            pieces: Sequence[Tensor],
            w: Tensor,
            start: Tensor,
            x: Tensor,
            y: Tensor,
            index: Tensor,
            counts: Tensor,
            state: Mapping[str, Tensor],
        ) -> Tensor:
            batch = LocalBatch(FunctionalModel(self.net, self._tensors(trained, pieces, w)), x, y, index)
            contexts: dict[str, Any] = {}
            for part in self.loss.parts:
                contexts[part.name] = VmapContext(self, self.contexts[part.name], contexts, w, start, counts, state)
            return self.loss(batch, contexts, spec, None)

        if self._start is None:
            start = start[0]
        values: Tensor = vmap(one, in_dims=(0, 0, self._start, 0, 0, 0, 0, 0))(
            list(pieces), w, start, x.contiguous(), y, index, counts, dict(state)
        )
        return values

    def _tensors(self, trained: Trained, pieces: Sequence[Tensor], w: Tensor) -> list[Tensor]:
        """The net's tensors in order: views into the trained pieces, which record gradients, or into the whole row."""
        tensors = self.replica.layout.views(w)
        for s, piece in zip(trained.slices, pieces, strict=True):
            tensors.update(self.replica.layout.views(piece, s.start))
        return list(tensors.values())


class FunctionalNet:
    """A net that is called with other weights than its own, which are put into its modules during the call.

    torch.func.functional_call does the same, but looks up every name in every call: half the time of a tiny net's step.
    """

    def __init__(self, net: Net, names: Sequence[str]) -> None:
        self._net = net
        order = {id(_tensor(net, name)): i for i, name in enumerate(names)}
        self._places: list[tuple[dict[str, Any], str, int]] = []  # a tied weight has several
        for module in net.modules():
            for home in (module._parameters, module._buffers):
                self._places += [(home, leaf, order[id(t)]) for leaf, t in home.items() if id(t) in order]

    @property
    def staged(self) -> bool:
        return self._net.staged

    def __call__(self, tensors: Sequence[Tensor], part: str, value: Tensor) -> Any:
        """`part`: features, stages, or the name of a module."""
        own = [home[leaf] for home, leaf, _ in self._places]
        try:
            for home, leaf, i in self._places:
                home[leaf] = tensors[i]
            if part == "stages":
                return self._net.staged_features(value)
            return self._net.features(value) if part == "features" else self._net.get_submodule(part)(value)
        finally:
            for (home, leaf, _), tensor in zip(self._places, own, strict=True):
                home[leaf] = tensor


class FunctionalModel:
    """A functional net with the weights of one client."""

    def __init__(self, net: FunctionalNet, tensors: Sequence[Tensor]) -> None:
        self._net, self._tensors = net, tensors

    @property
    def staged(self) -> bool:
        return self._net.staged

    def staged_features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        staged: tuple[Tensor, list[Tensor]] = self._net(self._tensors, "stages", x)
        return staged

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self._net(self._tensors, "features", x)
        return features

    def head(self, features: Tensor) -> Tensor:
        logits: Tensor = self._net(self._tensors, "head", features)
        return logits

    def get_submodule(self, target: str) -> Callable[[Tensor], Tensor]:
        return lambda value: self._net(self._tensors, target, value)


def _tensor(net: Net, name: str) -> Tensor | None:
    owner, _, leaf = name.rpartition(".")
    module = net.get_submodule(owner)
    return module._parameters[leaf] if leaf in module._parameters else module._buffers[leaf]


class VmapContext:
    """A client as one part's loss sees it under vmap: tensors, and what is the same for all clients."""

    def __init__(
        self,
        losses: VmapLoss,
        common: CommonContext,
        contexts: Mapping[str, Any],
        w: Tensor,
        start: Tensor,
        counts: Tensor,
        state: Mapping[str, Tensor],
    ) -> None:
        self.name, self.task, self.round, self.lr = common.name, common.task, common.round, common.lr
        self.momentum, self.broadcast = common.momentum, common.broadcast
        if not losses.replica.recipe.varied_work:
            self.work = common.work
            if not self.work.steps:
                self.epochs = self.work.epochs
        self.state = Slots(scoped(state, common.name), f"{common.name}: client state")
        self.counts = counts
        shared = losses.replica.layout.shared
        self.weights, self.global_weights = w[:shared], start[:shared]  # without gradient, as for an eager client
        self._losses, self._contexts, self._start, self._state = losses, contexts, start, state

    def loss(self, batch: LocalBatch) -> Tensor:
        return self._losses.loss.base(batch, self._contexts)

    def teacher(self, batch: LocalBatch, name: str = "global") -> TeacherOutputs:
        key = ("", name) if name == "global" else (self.name, name)
        if key not in batch.teachers:
            storage = self._start if name == "global" else self._state[".".join(key)]
            teacher, layout = self._losses.teacher, self._losses.replica.layout
            assert teacher is not None
            batch.teachers[key] = TeacherOutputs(
                FunctionalModel(teacher, list(layout.views(storage).values())), batch.x
            )
        return batch.teachers[key]

    def __getattr__(self, name: str) -> Any:
        raise FedloomError(
            f"method: the loss of {self.name} asks for client.{name}, which vmapped clients do not have in common; "
            f"set vmap to off"
        )
