"""What hooks receive: the task, a batch, the client they run on, the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedloom.data.spec import InputSpec, Shape
from fedloom.errors import FedloomError

Tensors = dict[str, Tensor]
# The client's training samples | validation samples | public samples, which no client holds | samples by index
Data = Literal["own", "held", "public"] | Tensor
Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]  # generates a batch (x, y)
Loss = Callable[["Batch", "ClientContext"], Tensor]
Correction = Callable[[Tensor, "ClientContext"], None]  # changes the gradient of the shared weights, in place
Objective = Literal["method", "objective", "ce"]  # loss and regularizers | the loss alone | cross-entropy


@dataclass(frozen=True)
class TaskInfo:
    """What a part knows of the experiment when it builds the net or declares its state."""

    inputs: InputSpec
    classes: int
    clients: int
    samples: int
    rounds: int
    seed: int
    held: int = 0  # validation samples
    public: int = 0  # samples that no client holds
    labeled: bool = False  # whether public samples have labels
    cohort: int = 1  # clients per round
    # the whole storage at initialization; empty during `build`
    initial: Tensor = field(default_factory=lambda: torch.empty(0))
    dim: int = 0  # number of features that the head receives; 0 during `build`
    # of every tensor of the net, by name; empty during `build`
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """Of one network input."""
        return self.inputs.shape


@dataclass(frozen=True)
class RunPlan:
    """What a part knows of the whole run, before it starts and at its end."""

    task: TaskInfo
    shared: int  # number of shared parameters
    personal: int  # number of parameters and statistics that clients keep
    statistics: int  # number of shared statistics of normalizers, which are averaged beside the weights
    stateful: bool  # whether clients keep anything between rounds
    queried: bool  # whether clients answer queries with sums over their data
    known_cohorts: bool = False  # whether clients know the seed, and with it every cohort
    sampling: float | None = None  # Bernoulli participation: each client's probability; None: cohorts of fixed size
    optimizer: str = "sgd"  # of local training


@dataclass(frozen=True)
class Query:
    """A question that the server may ask clients beside training: tensors of the shapes of message and reply.

    `trains`: the client continues from the weights that it uploaded in this round, and its upload is replaced. `delivers`: the
    message is for single clients, whose answer changes nothing but their own state and personal regions; there is no reply.
    Otherwise nothing is trained, and the replies of all clients are summed in client order.

    >>> import torch
    >>> query = fl.Query(message={"lr": torch.zeros(1)}, trains=True)
    """

    message: Tensors = field(default_factory=dict)
    reply: Tensors = field(default_factory=dict)
    trains: bool = False
    delivers: bool = False


@dataclass(frozen=True)
class Phase:
    """Local epochs that train these regions (default: everything trainable).

    `steps`: that many steps in place of epochs, through as many shuffled epochs of the data as they need. `lr`: a rate of its
    own, in place of that of the round.

    >>> head_first = (fl.Phase(epochs=5, regions=("head",)), fl.Phase(epochs=1, regions=("body", "norm")))
    """

    epochs: int = 0
    regions: tuple[str, ...] = ()
    steps: int = 0
    lr: float | None = None


@dataclass(frozen=True)
class TrainSchedule:
    """Steps instead of epochs, and an optimizer of its own, which starts anew. None: the recipe's value.

    With `patience`, validation accuracy is measured every `check` steps; training stops after `patience` steps without
    improvement, and the best weights are kept.

    >>> schedule = fl.TrainSchedule(steps=500, optimizer="adam", patience=200)
    """

    steps: int
    optimizer: Literal["sgd", "adam"] = "sgd"
    batch: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    cosine: bool = False  # cosine schedule of the learning rate, down to zero
    statistics: bool = True  # whether running statistics of normalizers are updated
    patience: int = 0
    check: int = 100


@dataclass(frozen=True)
class TrainSpec:
    """One stretch of training by the local loop. None: the recipe's value. Without a schedule it uses the recipe's optimizer.

    `at`: detached training. Another whole storage is trained in place with the method's loss, without its corrections and its
    `gradient`, with random draws of its own. `weights` refers to it meanwhile; afterwards the client is unchanged.

    >>> again = fl.TrainSpec((fl.Phase(epochs=1),), lr=0.01)  # for client.train(again) in a hook
    """

    phases: tuple[Phase, ...]
    data: Data | Draw = "own"
    lr: float | None = None
    loss: Loss | None = None  # replaces the method's loss, regularizers and corrections
    regularizer: Loss | None = None  # an additional term
    correction: Correction | None = None  # an additional correction
    schedule: TrainSchedule | None = None
    at: Tensor | None = None
    objective: Objective = "method"
    corrected: bool = True  # whether the method's corrections and its `gradient` apply
    names: tuple[str, ...] | None = None  # parameters to train, instead of regions
    without: tuple[str, ...] = ()  # parameters that stay as they are

    @property
    def plain(self) -> bool:
        """Whether the method's corrections and its `gradient` are skipped."""
        return not self.corrected or self.loss is not None or self.at is not None

    def rate(self, lr: float, step: int) -> float:
        """The learning rate of a step; `lr` is that of the round."""
        rate = lr if self.lr is None else self.lr
        if self.schedule is None or not self.schedule.cosine:
            return rate
        return rate * 0.5 * (1 + math.cos(math.pi * step / self.schedule.steps))


class Slots(MutableMapping[str, Tensor]):
    """Named tensors of fixed shape and type; assignment copies into place."""

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


class Outputs(Protocol):
    """A teacher's outputs on a batch, without gradient."""

    @property
    def features(self) -> Tensor: ...
    @property
    def logits(self) -> Tensor: ...


class Batch(Protocol):
    """A batch as a loss sees it: one forward pass, shared by all parts."""

    @property
    def x(self) -> Tensor: ...  # (B, C, H, W), normalized
    @property
    def y(self) -> Tensor: ...  # (B,)
    @property
    def features(self) -> Tensor: ...  # (B, d)
    @property
    def logits(self) -> Tensor: ...  # (B, C)
    @property
    def stages(self) -> Sequence[Tensor]: ...  # (B, channels) of every stage of the body; for parts with `uses_stages`
    @property
    def index(self) -> Tensor: ...  # (B,) positions of these samples in the data

    def head(self, features: Tensor) -> Tensor:
        """The current head on other features; gradients reach both."""
        ...

    def module(self, name: str, value: Tensor) -> Tensor:
        """The output of a module of the net, such as one that the part's `build` added; gradients reach both."""
        ...


class Peer(Protocol):
    """An uploaded model on the server: fixed, in evaluation mode; gradients reach its input."""

    @property
    def share(self) -> float: ...  # its weight in the average
    @property
    def samples(self) -> int: ...
    @property
    def upload(self) -> Mapping[str, Tensor]: ...  # what this part's clients uploaded beside the weights

    def features(self, x: Tensor) -> Tensor: ...
    def head(self, features: Tensor) -> Tensor: ...
    def logits(self, x: Tensor) -> Tensor: ...


class Optimizer(Protocol):
    """Minimizes a loss over a vector of the part (a generator's weights)."""

    def step(self, loss: Callable[[], Tensor]) -> None: ...


class ClientContext(Protocol):
    """What a part sees of its client; in `server_training`, of the server, which uses the same loop."""

    @property
    def task(self) -> TaskInfo: ...
    @property
    def round(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def batch(self) -> int: ...  # batch size
    @property
    def counts(self) -> Tensor: ...  # (C,) number of training samples per class
    @property
    def lr(self) -> float: ...  # of this round
    @property
    def momentum(self) -> float: ...
    @property
    def epochs(self) -> int: ...  # of this client in this round; refused where local work is counted in steps
    @property
    def work(self) -> Phase: ...  # the same as a phase that trains everything: epochs or steps
    @property
    def weights(
        self,
    ) -> Tensor: ...  # shared weights, live; they carry no gradient: use `correct_gradient` to pull at them
    @property
    def global_weights(self) -> Tensor: ...  # as broadcast
    @property
    def storage(self) -> Tensor: ...  # the whole model, live: shared, personal and frozen weights, and statistics
    @property
    def steps(self) -> int: ...  # steps on shared weights so far in this round
    @property
    def segments(self) -> Sequence[int]: ...  # the same, one number per start from zero momentum buffers
    @property
    def state(self) -> Slots: ...  # this part's state on this client; assign to keep
    @property
    def broadcast(self) -> Slots: ...  # what this part's `broadcast` returned
    @property
    def upload(self) -> Slots: ...  # what this part uploads beside the weights; assign in `after_training` or `answer`
    @property
    def reply(self) -> Slots: ...  # to the query that is being answered; assign in `answer`
    @property
    def generator(self) -> torch.Generator: ...

    def noise(self, count: int) -> Tensor:
        """Standard normal noise for privacy: secret on real machines, from `generator` in a simulation."""
        ...

    def loss(self, batch: Batch) -> Tensor:
        """The method's own loss on this batch, without regularizers: cross-entropy unless a part replaces it."""
        ...

    def teacher(self, batch: Batch, name: str = "global") -> Outputs:
        """Outputs of the broadcast weights, or of a whole storage in this part's client state."""
        ...

    def gradient_of(
        self, loss: Loss | None = None, at: Tensor | None = None, batch: Batch | None = None, whole: bool = False
    ) -> Tensor:
        """The gradient of the method's loss or another loss, at the current or other weights, on this or a new batch.
        `whole`: of the personal weights too, which follow the shared ones.
        """
        ...

    def gradients_of(self, loss: Loss, at: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """The gradients of some shared tensors alone, at these values, by name; all other weights are the current ones."""
        ...

    def fix_features(self, batch: Batch) -> Batch:
        """The batch with the current features, fixed: `gradients_of` then computes the head alone. Where the body draws
        random numbers in training, the batch itself."""
        ...

    def named(self, vector: Tensor) -> Mapping[str, Tensor]:
        """The tensors inside a vector of shared weights, by name, as views."""
        ...

    def draw_batch(self) -> Batch:
        """An independent batch of the client's training data."""
        ...

    def train(self, spec: TrainSpec) -> None:
        """More training by the local loop."""
        ...

    def optimizer(self, vector: Tensor, schedule: TrainSchedule, lr: float, moments: Tensor | None = None) -> Optimizer:
        """An optimizer that changes a vector of n numbers in place. `moments`, 2 n + 1 zeros at first, receives Adam's
        moments: a part that keeps them as state continues with them in the next round.
        """
        ...

    @property
    def peers(self) -> Sequence[Peer]: ...  # in `server_training`: the accepted uploads, in cohort order

    def logits(self, x: Tensor) -> Tensor:
        """Logits of the current net, fixed, in evaluation mode; gradients reach x."""
        ...

    def pooled_sample(self, share: float) -> Tensor:
        """Indices of a fixed random share of all clients' training samples."""
        ...

    def iterate(self, data: Data = "own", order: Tensor | None = None) -> Iterator[Batch]:
        """All of the data once, without gradient and in evaluation mode. `order`: these samples only, by their positions in
        the data, in batches as in training.
        """
        ...


class ServerContext(Protocol):
    """What a part sees of the server. Lists are in cohort order and contain accepted uploads only."""

    @property
    def task(self) -> TaskInfo: ...
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
    def segments(self) -> Sequence[Sequence[int]]: ...  # per client, as `ClientContext.segments`
    @property
    def shares(self) -> Sequence[float]: ...  # weight of each client in averages (see `weigh_uploads`); they sum to one
    @property
    def uploads(self) -> Sequence[Tensor]: ...  # trained weights, one vector per client
    @property
    def weights(self) -> Tensor: ...  # the old weights before aggregation, the new ones after it
    @property
    def aggregate(
        self,
    ) -> Tensor: ...  # in `after_aggregation`: the aggregate before the server step; not to be changed
    @property
    def state(self) -> Slots: ...

    def extras(self, name: str) -> Sequence[Tensor]:
        """What this part's clients uploaded beside the weights."""
        ...

    def noise(self, count: int) -> Tensor:
        """Standard normal noise for privacy: from the operating system on real machines; in a simulation from seed, round and
        the part's name, so that runs repeat."""
        ...

    def mean(self, vectors: Sequence[Tensor]) -> Tensor:
        """The mean, weighted by `shares`."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Shared weights and statistics of the global model, by name."""
        ...

    def ask(
        self, query: str, message: Mapping[str, Tensor] | None = None, clients: Sequence[int] | None = None
    ) -> Mapping[str, Tensor]:
        """Send a declared query. One that `trains` goes to the given clients of the cohort and replaces their uploads; one that
        `delivers` goes to them too, a call for each message. Any other goes to all clients with the current weights; the sums
        of their replies are returned in double precision.
        """
        ...

    def head(self, features: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Logits of the head with these tensors, by name, in place of its own; gradients reach both."""
        ...

    def set_shared(self, name: str, value: Tensor) -> None:
        """In `finalize`: replace a shared parameter of the global model."""
        ...

    def set_frozen(self, name: str, value: Tensor) -> None:
        """Replace a frozen tensor (see `final_tensors`) for everyone, in any hook of the server."""
        ...
