"""What the hooks of a part see: the task, a batch, the client it runs on, the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedloom.errors import FedloomError

Memory = dict[str, Tensor]
Data = Literal["own", "held"]  # a client's own training images | those held back for validation


@dataclass(frozen=True)
class Task:
    """What a part may know of the experiment when it builds or allocates."""

    shape: tuple[int, int, int]
    classes: int
    clients: int
    samples: int
    rounds: int
    seed: int
    held: int = 0  # training images held back for validation
    initial: Tensor = field(default_factory=lambda: torch.empty(0))  # the whole storage as drawn; empty while building


@dataclass(frozen=True)
class Phase:
    """Some local epochs that train some regions (all that are trained, if none is named)."""

    epochs: int
    regions: tuple[str, ...] = ()


class Slots(MutableMapping[str, Tensor]):
    """Named tensors of fixed shape; assigning copies into place, so what is stored never changes shape or type."""

    def __init__(self, tensors: Mapping[str, Tensor], what: str) -> None:
        self._tensors = dict(tensors)
        self._what = what

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise FedloomError(f"{self._what} has no {name!r}; declared are: {', '.join(self._tensors) or 'none'}")
        return self._tensors[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        home = self[name]
        if home.shape != value.shape:
            raise FedloomError(f"{self._what} {name!r} has shape {tuple(home.shape)}, not {tuple(value.shape)}")
        home.copy_(value)

    def __delitem__(self, name: str) -> None:
        raise FedloomError(f"{self._what} {name!r} is declared for the whole run and cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Teaching(Protocol):
    """What a teacher says of a batch, without gradient."""

    @property
    def features(self) -> Tensor: ...
    @property
    def logits(self) -> Tensor: ...


class Batch(Protocol):
    """What a loss sees."""

    @property
    def x(self) -> Tensor: ...  # (B, C, H, W), prepared
    @property
    def y(self) -> Tensor: ...  # (B,)
    @property
    def features(self) -> Tensor: ...  # (B, d)
    @property
    def logits(self) -> Tensor: ...  # (B, C)
    @property
    def counts(self) -> Tensor: ...  # (C,) the client's training samples of each class
    @property
    def client(self) -> Client: ...

    def teacher(self, name: str = "global") -> Teaching:
        """Of the weights that the round began with, or of a whole storage that this part keeps in client memory."""
        ...


class Client(Protocol):
    """What a part sees of the client it runs on."""

    @property
    def task(self) -> Task: ...
    @property
    def round(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def counts(self) -> Tensor: ...  # (C,) training samples of each class
    @property
    def lr(self) -> float: ...  # of this round
    @property
    def momentum(self) -> float: ...
    @property
    def w(self) -> Tensor: ...  # live: it moves as the client trains
    @property
    def start(self) -> Tensor: ...  # as broadcast
    @property
    def whole(self) -> Tensor: ...  # the whole storage, personal and frozen stretches and statistics included; live
    @property
    def steps(self) -> int: ...  # so far, counting those that trained what is exchanged
    @property
    def memory(self) -> Slots: ...  # this part's memory on this client; assign to remember
    @property
    def broadcast(self) -> Slots: ...  # what this part sent down
    @property
    def upload(self) -> Slots: ...  # what this part sends up beside the weights; assign in `finish` or `act`
    @property
    def generator(self) -> torch.Generator: ...

    def gradient_of(
        self, loss: Callable[[Batch], Tensor] | None = None, at: Tensor | None = None, batch: Batch | None = None
    ) -> Tensor:
        """The gradient of the method's loss or of another one, here or at other weights, on a batch or on a new one."""
        ...

    def named(self, vector: Tensor) -> Mapping[str, Tensor]:
        """The tensors of an exchanged vector by name, as views into it."""
        ...

    def another(self) -> Batch:
        """An independent batch of the client's training data."""
        ...

    def train(
        self,
        epochs: int,
        *,
        regions: tuple[str, ...] = (),
        lr: float | None = None,
        penalty: Callable[[Batch], Tensor] | None = None,
        data: Data = "own",
    ) -> None:
        """Further local work by the same local loop, on the client's own images or on those held back for validation."""
        ...

    def over(self, data: Data = "own") -> Iterator[Batch]:
        """All of the data once, in order, without gradient and in the mode that evaluation uses."""
        ...


class Server(Protocol):
    """What a part sees of the server. Lists are in cohort order and hold only the uploads that were accepted."""

    @property
    def task(self) -> Task: ...
    @property
    def round(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def cohort(self) -> Sequence[int]: ...
    @property
    def samples(self) -> Sequence[int]: ...
    @property
    def steps(self) -> Sequence[int]: ...
    @property
    def shares(self) -> Sequence[float]: ...  # of each client in the average; they sum to one
    @property
    def uploads(self) -> Sequence[Tensor]: ...  # trained weights, one vector a client
    @property
    def weights(self) -> Tensor: ...  # before combining; after it, the new ones
    @property
    def memory(self) -> Slots: ...

    def extras(self, name: str) -> Sequence[Tensor]:
        """What this part's clients added to their uploads."""
        ...

    def mean(self, vectors: Sequence[Tensor]) -> Tensor:
        """Weighted by `shares`."""
        ...

    def ask(self, clients: Sequence[int], message: Mapping[str, Tensor]) -> None:
        """A second act: run this part's `act` on some clients of the cohort; their uploads are replaced."""
        ...
