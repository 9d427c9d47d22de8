"""What parts see in the loop: a batch, a client or the server, an upload. Each sees its own part's memory and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.arena import scoped
from fedloom.engine.descent import Downhill
from fedloom.keys import numpy_generator, secret_normal
from fedloom.methods.part import Part
from fedloom.methods.seen import Batch, Correction, Course, Data, Draw, Phase, Slots
from fedloom.nets import Net

if TYPE_CHECKING:
    from fedloom.engine.local import ClientJob

Loss = Callable[[Batch], Tensor]
PeerRow = tuple[Mapping[str, Tensor], int, float]  # upload, samples, share in the average


@dataclass(frozen=True)
class Views:
    """The tensors of one client's messages, wherever they lie."""

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]


class Said:
    """What a net says of a batch, without gradient: features at once, logits when asked for."""

    def __init__(self, net: Net, x: Tensor) -> None:
        self._net = net
        with torch.no_grad():
            self.features = net.features(x)
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            with torch.no_grad():
                self._logits = self._net.head(self.features)
        return self._logits


class LocalBatch:
    """A batch in the loop: the forward pass is made when features or logits are first asked for, once."""

    def __init__(self, job: ClientJob, x: Tensor, y: Tensor, index: Tensor, learning: bool = True) -> None:
        self.x, self.y, self.index = x, y, index
        self.learning = learning  # whether its forward pass is one to learn from
        self.client: Scope
        self._job = job
        self._features: Tensor | None = None
        self._logits: Tensor | None = None
        self._teachers: dict[tuple[str, str], Said] = {}

    @property
    def features(self) -> Tensor:
        if self._features is None:
            with torch.set_grad_enabled(self.learning):
                self._features = self._job.worker.net.features(self.x)
        return self._features

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            with torch.set_grad_enabled(self.learning):
                self._logits = self._job.worker.net.head(self.features)
        return self._logits

    @property
    def counts(self) -> Tensor:
        return self._job.own.counts

    def head(self, features: Tensor) -> Tensor:
        logits: Tensor = self._job.worker.net.head(features)
        return logits

    def objective(self) -> Tensor:
        return self._job.objective(self)

    def teacher(self, name: str = "global") -> Said:
        """Of the weights that the round began with ("global"), or of a whole storage kept in this part's memory."""
        key = ("", name) if name == "global" else (self.client.name, name)
        if key not in self._teachers:
            self._teachers[key] = Said(self._job.teacher(key), self.x)
        return self._teachers[key]


class Scope:
    """A client as one part sees it: that part's memory, broadcast and upload, and nobody else's."""

    def __init__(self, job: ClientJob, part: Part, views: Views) -> None:
        self._job = job
        self.name, self.task = part.name, job.worker.experiment.task_at(job.round)
        self.round = job.round
        self.momentum, self.epochs = job.worker.experiment.recipe.momentum, job.worker.experiment.recipe.epochs
        self.generator = job.generator
        self.memory = Slots(scoped(views.memory, part.name), f"{part.name}: client memory")
        self.broadcast = Slots(scoped(views.down, part.name), f"{part.name}: broadcast")
        self.upload = Slots(scoped(views.up, part.name), f"{part.name}: upload")
        self.w, self.start, self.whole = job.w, job.start, job.worker.weights.storage

    @property
    def lr(self) -> float:
        return self._job.lr

    @property
    def steps(self) -> int:
        return self._job.exchanged_steps

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(self._job.segments)

    @property
    def samples(self) -> int:
        return len(self._job.own)

    @property
    def batch(self) -> int:
        return self._job.own.batch_size

    @property
    def counts(self) -> Tensor:
        return self._job.own.counts

    @property
    def peers(self) -> list[Uploaded]:
        return [Uploaded(self._job, i, self.name) for i in range(len(self._job.peers))]

    def noise(self, count: int) -> Tensor:
        if self._job.worker.experiment.deployed:
            return secret_normal(count)
        return torch.randn(count, generator=self.generator)

    def share(self, share: float) -> Tensor:
        experiment = self._job.worker.experiment
        index = self._job.holding.partition.train_index
        count = max(round(share * len(index)), 1)
        chosen = numpy_generator(experiment.recipe.seed, "share", self.name).permutation(len(index))[:count]
        return torch.from_numpy(index[np.sort(chosen)])

    def descent(self, vector: Tensor, course: Course, lr: float, moments: Tensor | None = None) -> Downhill:
        return Downhill(vector, course, lr, moments)

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self._job.worker.net.eval()(x)
        return logits

    def gradient_of(self, loss: Loss | None = None, at: Tensor | None = None, batch: Batch | None = None) -> Tensor:
        return self._job.gradient_of(self, loss, at, batch)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        return self._job.worker.layout.named(vector)

    def another(self) -> Batch:
        batch = self._job.draw()
        batch.client = self
        return batch

    def train(
        self,
        epochs: int,
        *,
        regions: tuple[str, ...] = (),
        lr: float | None = None,
        penalty: Loss | None = None,
        data: Data | Draw = "own",
        objective: Loss | None = None,
        course: Course | None = None,
        at: Tensor | None = None,
        correct: Correction | None = None,
    ) -> None:
        if at is None:
            self._job.empty_buffers()
        with nullcontext() if at is None else self._job.aside(at, self.name):
            self._job.run(
                [Phase(epochs, regions)],
                lr=lr,
                penalty=penalty,
                by=self,
                data=data,
                objective=objective,
                plain=objective is not None or at is not None,
                course=course,
                correct=correct,
            )

    def over(self, data: Data = "own") -> Iterator[Batch]:
        return self._job.over(self, data)


class Uploaded:
    """An accepted upload as a part sees it on the server."""

    def __init__(self, job: ClientJob, number: int, part: str) -> None:
        sent, self.samples, self.share = job.peers[number]
        self.upload: Mapping[str, Tensor] = scoped(sent, part)
        self._job, self._number = job, number

    def features(self, x: Tensor) -> Tensor:
        return self._job.peer(self._number).features(x)

    def head(self, features: Tensor) -> Tensor:
        logits: Tensor = self._job.peer(self._number).head(features)
        return logits

    def logits(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
