"""The uploads of a round, their weighted sums, and the server as parts see it. Sums always run in cohort order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.engine.server.shares import bounded, client_shares
from fedloom.engine.store.state import State
from fedloom.engine.tensor_layout import TensorLayout, scoped
from fedloom.errors import FedloomError
from fedloom.methods.api.part import Part
from fedloom.rng import secret_normal, torch_generator

CHUNK = 1 << 16  # floats: partial sums stay in the cache


@dataclass
class Upload:
    """An accepted upload."""

    client: int
    row: int
    samples: int
    segments: tuple[int, ...]  # steps, one number for each time the momentum buffers started at zero
    loss: float
    tensors: Mapping[str, Tensor]

    @property
    def steps(self) -> int:
        return sum(self.segments)


def flaw(layout: TensorLayout, tensors: Mapping[str, Tensor]) -> str | None:
    """What is wrong with a message, or None."""
    declared = {item.name for item in layout.items}
    if extra := sorted(set(tensors) - declared):
        return f"{extra[0]} was not asked for"
    for item in layout.items:
        if item.name not in tensors:
            return f"{item.name} is missing"
        tensor = tensors[item.name]
        if tensor.dtype != item.dtype:
            return f"{item.name} is {tensor.dtype}, not {item.dtype}"
        if tuple(tensor.shape) != item.shape:
            return f"{item.name} has shape {tuple(tensor.shape)}, not {item.shape}"
        if tensor.dtype.is_floating_point and not is_finite(tensor):
            return f"{item.name} is not finite"
    return None


def is_finite(tensor: Tensor) -> bool:
    """A sum is several times faster than checking every number, and only one that overflows needs that check."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def weighted_sum(vectors: Sequence[Tensor], shares: Sequence[float], out: Tensor | None = None) -> Tensor:
    """sum_i shares[i] * vectors[i], added in the order given. `out`: memory to reuse, which none of the vectors shares;
    fresh pages would cost a third of the time."""
    total = torch.zeros_like(vectors[0]) if out is None else out.zero_()
    flat = total.view(-1)
    rows = [vector.reshape(-1) for vector in vectors]
    for begin in range(0, flat.numel(), CHUNK):
        piece = flat[begin : begin + CHUNK]
        for row, share in zip(rows, shares, strict=True):
            piece.add_(row[begin : begin + CHUNK], alpha=share)
    return total


Ask = Callable[["RoundServer", str, str, Mapping[str, Tensor], Sequence[int] | None], Mapping[str, Tensor]]


def ask_nobody(server: RoundServer, part: str, *_: object) -> Mapping[str, Tensor]:
    raise FedloomError(f"method: {part} asks clients where there is nobody to ask")


class RoundServer:
    """The accepted uploads of one round."""

    def __init__(
        self, state: State, uploads: Sequence[Upload], ask: Ask = ask_nobody, down: int = 0, up: int = 0
    ) -> None:
        self.state, self.accepted, self.ask = state, list(uploads), ask
        recipe = state.experiment.recipe
        self.lr, self.momentum = recipe.rate(state.round + 1), recipe.momentum
        self._recipe = recipe
        self.aggregate: Tensor | None = None  # what the uploads were aggregated to, before the server's step
        self.down, self.up = down, up  # bytes of queries
        self._generators: dict[str, torch.Generator] = {}  # by part

    @property
    def shares(self) -> list[float]:
        """Of the recipe, or of the one part that weighs uploads; at most `deploy.max_share` in both cases."""
        shares = client_shares([upload.samples for upload in self.accepted], self._recipe)
        part = self.state.experiment.program.method.the("weigh_uploads")
        if part is None or not shares:
            return shares
        weights = [float(weight) for weight in part.weigh_uploads(shares, self.context(part))]
        if len(weights) != len(shares) or not all(0 <= weight < math.inf for weight in weights):
            raise FedloomError(f"method: {part.name} weighs {len(shares)} uploads by {weights}")
        total = sum(weights)
        return bounded([weight / total for weight in weights], self._recipe.deploy.max_share) if total else shares

    def average(self, name: str, out: Tensor | None = None) -> Tensor:
        """The mean of one uploaded tensor, weighted by the clients' shares."""
        return weighted_sum([upload.tensors[name] for upload in self.accepted], self.shares, out)

    def drop(self, upload: Upload) -> None:
        self.accepted.remove(upload)

    def noise(self, part: str, count: int) -> Tensor:
        if self.state.experiment.program.deployed:
            return secret_normal(count)
        if part not in self._generators:
            self._generators[part] = torch_generator(self.state.experiment.recipe.seed, part, self.state.round + 1)
        return torch.randn(count, generator=self._generators[part])

    def context(self, part: Part) -> PartServerContext:
        return PartServerContext(self, part)


class PartServerContext:
    """The server as one part sees it."""

    def __init__(self, server: RoundServer, part: Part) -> None:
        state = server.state
        self._server, self._part = server, part
        self.round, self.lr, self.momentum = state.round + 1, server.lr, server.momentum
        self.task = state.experiment.task_at(state.round + 1)
        self.weights = state.w
        self.state = state.slots(part.name)

    @property
    def cohort(self) -> list[int]:
        return [upload.client for upload in self._server.accepted]

    @property
    def samples(self) -> list[int]:
        return [upload.samples for upload in self._server.accepted]

    @property
    def steps(self) -> list[int]:
        return [upload.steps for upload in self._server.accepted]

    @property
    def segments(self) -> list[tuple[int, ...]]:
        return [upload.segments for upload in self._server.accepted]

    @property
    def shares(self) -> list[float]:
        return self._server.shares

    @property
    def aggregate(self) -> Tensor:
        if self._server.aggregate is None:
            raise FedloomError(f"method: {self._part.name} asks for the aggregate before there is one")
        return self._server.aggregate

    @property
    def uploads(self) -> list[Tensor]:
        return [upload.tensors["w"] for upload in self._server.accepted]

    def extras(self, name: str) -> list[Tensor]:
        return [scoped(upload.tensors, self._part.name)[name] for upload in self._server.accepted]

    def noise(self, count: int) -> Tensor:
        return self._server.noise(self._part.name, count)

    def mean(self, vectors: Sequence[Tensor]) -> Tensor:
        return weighted_sum(vectors, self._server.shares)

    def tensors(self) -> dict[str, Tensor]:
        state = self._server.state
        layout, storage = state.experiment.program.layout, state.whole(state.w)
        shared = (entry for name, entry in layout.entries.items() if layout.regions.status[name] == "shared")
        return {entry.name: entry.view(storage) for entry in shared}

    def ask(
        self, query: str, message: Mapping[str, Tensor] | None = None, clients: Sequence[int] | None = None
    ) -> Mapping[str, Tensor]:
        return self._server.ask(self._server, self._part.name, query, message or {}, clients)

    def head(self, features: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        head = self._server.state.experiment.program.net.head.eval()
        named = {name.removeprefix("head."): tensor for name, tensor in tensors.items()}
        logits: Tensor = functional_call(head, named, (features,))
        return logits

    def set_shared(self, name: str, value: Tensor) -> None:
        entry = self._server.state.experiment.program.layout.entries[name]
        if entry.offset + entry.size > len(self.weights):
            raise FedloomError(f"method: {self._part.name} sets {name}, which clients do not share")
        entry.view(self.weights).copy_(value)

    def set_frozen(self, name: str, value: Tensor) -> None:
        if name not in self._part.final_tensors():
            raise FedloomError(f"method: {self._part.name} sets {name}, which its `final_tensors` does not name")
        self._server.state.fixed[name].copy_(value)
