"""What the hooks of a part see: the task, a batch, the client it runs on, the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedloom.errors import FedloomError

Memory = dict[str, Tensor]
# A client's own training images | those held back for validation | those that belong to nobody | by their indices
Data = Literal["own", "held", "public"] | Tensor
Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]  # makes a batch (x, y) of images that are not in the data
Correction = Callable[[Tensor, "Client"], None]  # changes the gradient of what is exchanged, in place


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
    public: int = 0  # images that belong to nobody and may be used by the server or by anybody
    labelled: bool = False  # whether the public ones have labels
    cohort: int = 1  # clients that are asked in a round
    initial: Tensor = field(default_factory=lambda: torch.empty(0))  # the whole storage as drawn; empty while building
    dim: int = 0  # width of the features that the head sees; 0 while building


@dataclass(frozen=True)
class Plan:
    """What a part may know of the whole run, before it begins and at its end."""

    task: Task
    exchanged: int  # parameters that are trained and shared
    personal: int  # parameters and statistics that clients keep
    statistics: int  # shared statistics of normalisers: averaged beside the weights
    remembers: bool  # whether clients keep anything from round to round
    surveys: bool  # whether all clients are asked for sums over their data at the end
    known_cohorts: bool = False  # whether clients know the seed, and so who takes part in which round


@dataclass(frozen=True)
class Phase:
    """Some local epochs that train some regions (all that are trained, if none is named)."""

    epochs: int
    regions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """How a stretch of extra training goes where it is not like a client's round: steps in place of epochs, another optimiser.

    What is None is as the recipe says. With `patience`, accuracy on the images held back for validation is taken every
    `check` steps; training ends after that many steps without a gain, and the best weights are kept.
    """

    steps: int
    optimiser: Literal["sgd", "adam"] = "sgd"
    batch: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    falling: bool = False  # the rate falls to zero along a cosine
    statistics: bool = True  # whether the running statistics of normalisers follow; else they stay as they were
    patience: int = 0
    check: int = 100


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
    @property
    def index(self) -> Tensor: ...  # (B,) places of these images in the data that are worked through

    def head(self, features: Tensor) -> Tensor:
        """The head, as it is now, on features from elsewhere; gradients reach both."""
        ...

    def objective(self) -> Tensor:
        """The method's own objective on this batch, without penalties: cross-entropy unless a part replaces it."""
        ...

    def teacher(self, name: str = "global") -> Teaching:
        """Of the weights that the round began with, or of a whole storage that this part keeps in client memory."""
        ...


class Peer(Protocol):
    """An uploaded model, as the server may look at it: fixed, in the mode that evaluation uses; gradients reach its input."""

    @property
    def share(self) -> float: ...  # in the average
    @property
    def samples(self) -> int: ...
    @property
    def upload(self) -> Mapping[str, Tensor]: ...  # what this part's client added

    def features(self, x: Tensor) -> Tensor: ...
    def head(self, features: Tensor) -> Tensor: ...
    def logits(self, x: Tensor) -> Tensor: ...


class Descent(Protocol):
    """Takes a vector of a part's own (a generator's weights) downhill."""

    def step(self, loss: Callable[[], Tensor]) -> None: ...


class Client(Protocol):
    """What a part sees of the client it runs on; in `refine`, of the server, which trains by the same loop."""

    @property
    def task(self) -> Task: ...
    @property
    def round(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def batch(self) -> int: ...  # samples in a whole batch
    @property
    def counts(self) -> Tensor: ...  # (C,) training samples of each class
    @property
    def lr(self) -> float: ...  # of this round
    @property
    def momentum(self) -> float: ...
    @property
    def epochs(self) -> int: ...  # of a round, as the recipe says
    @property
    def w(self) -> Tensor: ...  # live: it moves as the client trains; without gradient: what pulls at it is a `correct`
    @property
    def start(self) -> Tensor: ...  # as broadcast
    @property
    def whole(self) -> Tensor: ...  # the whole storage, personal and frozen stretches and statistics included; live
    @property
    def steps(self) -> int: ...  # so far in this round, counting those that trained what is exchanged
    @property
    def segments(self) -> Sequence[int]: ...  # the same, one number each time that momentum buffers began at zero
    @property
    def memory(self) -> Slots: ...  # this part's memory on this client; assign to remember
    @property
    def broadcast(self) -> Slots: ...  # what this part sent down
    @property
    def upload(self) -> Slots: ...  # what this part sends up beside the weights; assign in `finish` or `act`
    @property
    def generator(self) -> torch.Generator: ...

    def noise(self, count: int) -> Tensor:
        """Standard normal numbers that hide something: on real machines secret, in a simulation from `generator`."""
        ...

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
        data: Data | Draw = "own",
        objective: Callable[[Batch], Tensor] | None = None,
        course: Course | None = None,
        at: Tensor | None = None,
        correct: Correction | None = None,
    ) -> None:
        """Further work by the same local loop, on the client's own images or on others. An `objective` takes the place of
        the method's loss and of its corrections; a `course` the place of epochs. `correct` is a further correction.

        `at`: another whole storage is trained in place (under the method's loss, without its corrections and its
        `gradient`), with draws of its own, and `w` shows it meanwhile; afterwards the client stands as if nothing had been.
        """
        ...

    def descent(self, vector: Tensor, course: Course, lr: float, moments: Tensor | None = None) -> Descent:
        """For a vector of n numbers that belongs to the part; it is moved in place. `moments`, 2 n + 1 numbers that are
        zero at first, hold what Adam remembers: a part that keeps them goes on in the next round where it stopped.
        """
        ...

    @property
    def peers(self) -> Sequence[Peer]: ...  # in `refine`: the accepted uploads, in cohort order

    def logits(self, x: Tensor) -> Tensor:
        """Of the net as it is now, fixed, in the mode that evaluation uses; gradients reach x."""
        ...

    def share(self, share: float) -> Tensor:
        """Indices of a share of all clients' training images, the same in every round."""
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
    def segments(self) -> Sequence[Sequence[int]]: ...  # of each client, as `Client.segments`
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

    def noise(self, count: int) -> Tensor:
        """Standard normal numbers that hide something: on real machines from the operating system's randomness, in a
        simulation from the seed, the round and the part's name, so that runs repeat."""
        ...

    def mean(self, vectors: Sequence[Tensor]) -> Tensor:
        """Weighted by `shares`."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """What is shared of the present global model, weights and statistics, by name."""
        ...

    def ask(self, clients: Sequence[int], message: Mapping[str, Tensor]) -> None:
        """A second act: run this part's `act` on some clients of the cohort; their uploads are replaced."""
        ...

    def survey(self) -> Mapping[str, Tensor]:
        """In `conclude`: run this part's `tell` on all clients under the new weights; the sums of what they say, in double."""
        ...

    def fix(self, name: str, value: Tensor) -> None:
        """In `conclude`: give a tensor that nobody trains (see `fixes`) another value, for everyone."""
        ...
