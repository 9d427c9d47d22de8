"""A client, or the server that trains itself, as one part sees it: its own state, messages and uploads, and no other part's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.client.client_data import ClientData
from fedloom.engine.client.local_batch import LocalBatch, TeacherOutputs
from fedloom.engine.client.optimizers import VectorOptimizer
from fedloom.engine.client.replica import MessageViews, Replica
from fedloom.engine.client.samples import Samples
from fedloom.engine.client.teachers import Teachers
from fedloom.engine.tensor_layout import scoped
from fedloom.errors import FedloomError
from fedloom.methods.api.context import Batch, Data, Loss, Phase, Slots, TaskInfo, TrainSchedule, TrainSpec
from fedloom.rng import numpy_generator, secret_normal


class ClientWork(Protocol):
    """What a context needs of the client at work."""

    replica: Replica
    round: int
    lr: float
    work: Phase
    segments: list[int]
    generator: torch.Generator
    weights: Tensor
    global_weights: Tensor
    storage: Tensor
    views: MessageViews
    data: ClientData
    teachers: Teachers

    @property
    def own(self) -> Samples: ...
    @property
    def steps(self) -> int: ...
    def train_further(self, spec: TrainSpec, caller: Any) -> None: ...
    def gradient_of(self, caller: Any, loss: Loss | None, at: Tensor | None, batch: Any, whole: bool) -> Tensor: ...
    def gradients_of(self, caller: Any, loss: Loss, at: Mapping[str, Tensor], batch: Any) -> dict[str, Tensor]: ...
    def fix_features(self, batch: Any) -> LocalBatch: ...
    def draw_batch(self) -> LocalBatch: ...
    def iterate(self, data: Data, order: Tensor | None) -> Iterator[LocalBatch]: ...
    @property
    def contexts(self) -> Mapping[str, Any]: ...


class PartContext:
    """A client as one part sees it."""

    def __init__(self, client: ClientWork, name: str) -> None:
        self._client, self.name = client, name
        experiment, views = client.replica.experiment, client.views
        self.task: TaskInfo = experiment.task_at(client.round)
        self.round = client.round
        self.momentum, self.work = experiment.recipe.momentum, client.work
        self.generator = client.generator
        self.state = Slots(scoped(views.state, name), f"{name}: client state")
        self.broadcast = Slots(scoped(views.down, name), f"{name}: broadcast")
        self.upload = Slots(scoped(views.up, name), f"{name}: upload")
        self.reply = Slots(scoped(views.reply, name), f"{name}: reply")

    @property
    def weights(self) -> Tensor:
        return self._client.weights

    @property
    def global_weights(self) -> Tensor:
        return self._client.global_weights

    @property
    def storage(self) -> Tensor:
        return self._client.storage

    @property
    def lr(self) -> float:
        return self._client.lr

    @property
    def epochs(self) -> int:
        if self.work.steps:
            raise FedloomError(f"steps: {self.name} asks for the number of local epochs; set epochs instead")
        return self.work.epochs

    @property
    def steps(self) -> int:
        return self._client.steps

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(self._client.segments)

    @property
    def samples(self) -> int:
        return len(self._client.own)

    @property
    def batch(self) -> int:
        return self._client.own.batch_size

    @property
    def counts(self) -> Tensor:
        return self._client.own.counts

    @property
    def peers(self) -> list[PeerModel]:
        teachers = self._client.teachers
        return [PeerModel(teachers, number, self.name) for number in range(len(teachers.uploads))]

    def noise(self, count: int) -> Tensor:
        if self._client.replica.experiment.program.deployed:
            return secret_normal(count)
        return torch.randn(count, generator=self.generator)

    def loss(self, batch: Batch) -> Tensor:
        return self._client.replica.loss.base(batch, self._client.contexts)

    def teacher(self, batch: Batch, name: str = "global") -> TeacherOutputs:
        assert isinstance(batch, LocalBatch)
        key = ("", name) if name == "global" else (self.name, name)
        if key not in batch.teachers:
            batch.teachers[key] = self._client.teachers.outputs(key, batch)
        return batch.teachers[key]

    def pooled_sample(self, share: float) -> Tensor:
        index = self._client.data.stage.partition.train_index
        count = max(round(share * len(index)), 1)
        order = numpy_generator(self._client.replica.recipe.seed, "share", self.name).permutation(len(index))
        return torch.from_numpy(index[np.sort(order[:count])])

    def optimizer(
        self, vector: Tensor, schedule: TrainSchedule, lr: float, moments: Tensor | None = None
    ) -> VectorOptimizer:
        return VectorOptimizer(vector, schedule, lr, moments)

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self._client.replica.net.eval()(x)
        return logits

    def gradient_of(
        self, loss: Loss | None = None, at: Tensor | None = None, batch: Batch | None = None, whole: bool = False
    ) -> Tensor:
        return self._client.gradient_of(self, loss, at, batch, whole)

    def gradients_of(self, loss: Loss, at: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        return self._client.gradients_of(self, loss, at, batch)

    def fix_features(self, batch: Batch) -> Batch:
        return self._client.fix_features(batch)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        return self._client.replica.layout.named(vector)

    def draw_batch(self) -> Batch:
        return self._client.draw_batch()

    def train(self, spec: TrainSpec) -> None:
        self._client.train_further(spec, self)

    def iterate(self, data: Data = "own", order: Tensor | None = None) -> Iterator[Batch]:
        return self._client.iterate(data, order)


class PeerModel:
    """An accepted upload as a part sees it at the server."""

    def __init__(self, teachers: Teachers, number: int, part: str) -> None:
        uploaded = teachers.uploads[number]
        self.samples, self.share = uploaded.samples, uploaded.share
        self.upload: Mapping[str, Tensor] = scoped(uploaded.tensors, part)
        self._teachers, self._number = teachers, number

    def features(self, x: Tensor) -> Tensor:
        return self._teachers.peer(self._number).features(x)

    def head(self, features: Tensor) -> Tensor:
        logits: Tensor = self._teachers.peer(self._number).head(features)
        return logits

    def logits(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
