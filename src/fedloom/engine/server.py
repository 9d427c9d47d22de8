"""The server as parts see it, and the arithmetic on uploads. Sums run in cohort order, whatever order uploads came
in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.engine.arena import Packing, scoped
from fedloom.engine.shares import client_shares
from fedloom.engine.state import State
from fedloom.errors import FedloomError
from fedloom.keys import secret_normal, torch_generator
from fedloom.methods.part import Part

CHUNK = 1 << 16  # floats: partial sums stay in the cache


@dataclass
class Upload:
    """One accepted client of a round."""

    client: int
    row: int
    samples: int
    segments: tuple[int, ...]  # steps, one number each time that momentum buffers began at zero
    loss: float
    tensors: Mapping[str, Tensor]

    @property
    def steps(self) -> int:
        return sum(self.segments)


def flaw(packing: Packing, tensors: Mapping[str, Tensor]) -> str | None:
    """What is wrong with a message, or None. Nothing that arrives is trusted."""
    declared = {item.name for item in packing.items}
    if extra := sorted(set(tensors) - declared):
        return f"{extra[0]} was not asked for"
    for item in packing.items:
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
    """A sum is several times faster than looking at every number; only one that overflows needs the look."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def weighted_sum(vectors: Sequence[Tensor], shares: Sequence[float], out: Tensor | None = None) -> Tensor:
    """sum_i shares[i] * vectors[i], added in the order given. `out`: memory for it that none of them shares; fresh pages
    take a third of the time."""
    total = torch.zeros_like(vectors[0]) if out is None else out.zero_()
    flat = total.view(-1)
    rows = [vector.reshape(-1) for vector in vectors]
    for begin in range(0, flat.numel(), CHUNK):
        piece = flat[begin : begin + CHUNK]
        for row, share in zip(rows, shares, strict=True):
            piece.add_(row[begin : begin + CHUNK], alpha=share)
    return total


class RoundServer:
    """The uploads of one round and what can be done with them."""

    def __init__(
        self,
        state: State,
        uploads: Sequence[Upload],
        ask: Callable[[str, Sequence[int], Mapping[str, Tensor]], None],
        survey: Callable[[str], Mapping[str, Tensor]],
    ) -> None:
        self.state, self.accepted, self.asked, self.surveyed = state, list(uploads), ask, survey
        recipe = state.experiment.recipe
        self.lr, self.momentum = recipe.rate(state.round + 1), recipe.momentum
        self._recipe = recipe
        self.down = self.up = 0  # bytes of second acts
        self._draws: dict[str, torch.Generator] = {}  # by part

    @property
    def shares(self) -> list[float]:
        return client_shares([upload.samples for upload in self.accepted], self._recipe)

    def drop(self, upload: Upload) -> None:
        self.accepted.remove(upload)

    def noise(self, part: str, count: int) -> Tensor:
        if self.state.experiment.deployed:
            return secret_normal(count)
        if part not in self._draws:
            self._draws[part] = torch_generator(self.state.experiment.recipe.seed, part, self.state.round + 1)
        return torch.randn(count, generator=self._draws[part])

    def scope(self, part: Part) -> ServerScope:
        return ServerScope(self, part)


class ServerScope:
    """The server as one part sees it."""

    def __init__(self, server: RoundServer, part: Part) -> None:
        state = server.state
        self._server, self._part = server, part
        self.round, self.lr, self.momentum = state.round + 1, server.lr, server.momentum
        self.task = state.experiment.task_at(state.round + 1)
        self.weights = state.w
        self.memory = state.slots(part.name)

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
        layout, storage = state.experiment.layout, state.whole(state.w)
        shared = (entry for name, entry in layout.entries.items() if layout.regions.status[name] == "exchanged")
        return {entry.name: entry.view(storage) for entry in shared}

    def ask(self, clients: Sequence[int], message: Mapping[str, Tensor]) -> None:
        self._server.asked(self._part.name, clients, message)

    def survey(self) -> Mapping[str, Tensor]:
        return self._server.surveyed(self._part.name)

    def fix(self, name: str, value: Tensor) -> None:
        if name not in self._part.fixes():
            raise FedloomError(f"method: {self._part.name} fixes {name}, which its `fixes` does not name")
        self._server.state.fixed[name].copy_(value)
