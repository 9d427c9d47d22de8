"""One client that trains eagerly: its data, its random draws, and its steps of the local loop. Or the server as a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedloom.engine.client import purposes
from fedloom.engine.client.client_data import ClientData
from fedloom.engine.client.context import PartContext
from fedloom.engine.client.feature_memo import KEPT_BYTES, FeatureMemo
from fedloom.engine.client.local_batch import LocalBatch
from fedloom.engine.client.local_work import local_phases, local_work
from fedloom.engine.client.loop import LocalLoop, Trained
from fedloom.engine.client.losses import Contexts
from fedloom.engine.client.moments import Moments
from fedloom.engine.client.optimizers import FlatOptimizer, Patience, Rule
from fedloom.engine.client.replica import MessageViews, Replica
from fedloom.engine.client.samples import Samples, held_back
from fedloom.engine.client.teachers import Teachers, UploadedModel
from fedloom.errors import FedloomError
from fedloom.methods.api.context import ClientContext, Data, Loss, Phase, TrainSpec
from fedloom.methods.api.part import Part
from fedloom.rng import seeded, torch_generator


class Client(LocalLoop[LocalBatch]):
    """`client`: None for the server. `purpose`: the key of its random draws. `stage`: the round whose data are meant, where
    that is not the round of the work. `vmapped`: its weights will not be the replica's."""

    def __init__(
        self,
        replica: Replica,
        client: int | None,
        round: int,
        views: MessageViews,
        purpose: str = purposes.TRAINING,
        peers: Sequence[UploadedModel] = (),
        stage: int = 0,
        vmapped: bool = False,
    ) -> None:
        program = replica.experiment.program
        self.replica, self.recipe, self.round, self.views = replica, replica.recipe, round, views
        self.lr = self.recipe.rate(max(round, 1))
        self.client = client
        # fine-tuning and queries to all clients treat each client by itself, even where training pools the data
        pooled = program.pooled and purpose not in (purposes.FINE_TUNING, purposes.ASKING)
        # fine-tuning, whose round is 0, follows the last round
        self.data = ClientData(replica, client, round or stage or self.recipe.rounds, pooled)
        self.teachers = Teachers(replica, views.state, peers)
        self.key = "server" if client is None else client
        self.work = local_work(self.recipe, client, round)
        self.generator = torch_generator(self.recipe.seed, purpose, round, self.key)
        if not vmapped:
            replica.start.copy_(replica.weights.storage)
            replica.moments.reset()
            replica.weights.train_only(replica.layout.trainable())  # undo what the replica's last client froze
        self.rebind(replica.weights.storage, replica.start)
        # steps that trained shared weights, one number for each time the momentum buffers started at zero
        self.segments = [0]
        self.losses = 0
        self.loss = torch.zeros((), device=replica.device)
        self.contexts = {part.name: PartContext(self, part.name) for part in program.method.parts}
        self._training: tuple[TrainSpec, ClientContext | None] | None = None

    def rebind(self, storage: Tensor, start: Tensor) -> None:
        """Use other memory for the client's weights, and for those that it started with."""
        shared = self.replica.layout.shared
        self.storage, self.weights, self.global_weights = storage, storage[:shared], start[:shared]

    @property
    def own(self) -> Samples:
        return self.data.own

    @property
    def steps(self) -> int:
        return sum(self.segments)

    def mean_loss(self) -> float:
        """Over steps: a shorter last batch counts as much as a full one."""
        return float(self.loss) / max(self.losses, 1)

    # before and after the loop

    def before_training(self, parts: Sequence[Part]) -> None:
        """Let parts adapt the received weights."""
        if parts:
            with seeded(self.recipe.seed, purposes.FORWARD_BEFORE_TRAINING, self.round, self.key):
                for part in parts:
                    part.before_training(self.contexts[part.name])

    def after_training(self, parts: Sequence[Part]) -> None:
        for part in parts:
            part.after_training(self.contexts[part.name])

    def train_locally(self) -> None:
        """The local training of the round, with an optimizer that may continue from the client's last round."""
        moments = self.replica.moments
        moments.load(self.views.state)
        self.train(TrainSpec(self.phases()))
        moments.save(self.views.state)

    def phases(self) -> tuple[Phase, ...]:
        return local_phases(self.replica.experiment.program.method, self.work)

    # the steps of the loop

    def train(self, spec: TrainSpec, caller: ClientContext | None = None) -> None:
        super().train(spec, caller)
        # outside of a phase, `gradient_of` is the gradient of all trainable weights
        self.replica.weights.train_only(self.replica.layout.trainable())

    def begin(self, phase: Phase, spec: TrainSpec, caller: ClientContext | None) -> Trained:
        replica, layout, schedule = self.replica, self.replica.layout, spec.schedule
        names = layout.trainable(*phase.regions) if spec.names is None else list(spec.names)
        names = [name for name in names if name not in spec.without]
        if self.client is None:  # the server has no personal regions
            names = [name for name in names if layout.regions.status[name] == "shared"]
        slices = replica.weights.train_only(names)
        if not slices:
            return Trained([], False)
        self._training = spec, caller
        rule, moments = replica.rule, replica.moments
        if schedule is not None:
            rule = Rule.of(self.recipe, schedule)
            if rule.adaptive:  # it starts anew with every phase
                moments = Moments(layout, replica.weights.vector, True)
        self._optimizer = FlatOptimizer(replica.weights, moments, names, slices, rule)
        self._patience = Patience(replica.weights, schedule, self._validation_accuracy)
        if schedule is not None and schedule.patience and not len(replica.experiment.data.validation):
            raise FedloomError("method: it stops when validation no longer gains; set data.validation above 0")
        frozen_statistics = schedule is not None and not schedule.statistics
        self._statistics = replica.weights.statistics.clone() if frozen_statistics else None
        replica.net.train()
        return Trained(slices, slices[0].start < layout.shared)

    def batches(self, phase: Phase, spec: TrainSpec) -> Iterator[LocalBatch]:
        """The phase's epochs, or as many epochs as its steps or those of a schedule need."""
        net, schedule = self.replica.net, spec.schedule
        if callable(spec.data):
            for _ in range(schedule.steps if schedule else phase.steps or phase.epochs):
                x, y = spec.data(self.generator)
                yield LocalBatch(net, x, y, torch.arange(len(y)))
            return
        samples = self.data[spec.data]
        if self.client is None:
            self.data.own = samples
        if schedule is not None:
            pieces = samples.stream(self.generator, schedule.steps, schedule.batch)
        else:
            pieces = samples.work(self.generator, phase)
        repeated = schedule is not None or phase.steps or phase.epochs > 1
        memo = FeatureMemo(len(samples)) if repeated and self._memorable(samples) else None
        yield from (LocalBatch(net, *piece, memo=memo) for piece in pieces)

    def _memorable(self, samples: Samples) -> bool:
        """Whether teachers' features of these samples may be kept: the same in every epoch, and not too large."""
        return samples.pipeline.augment == "none" and 4 * len(samples) * self.replica.net.dim <= KEPT_BYTES

    def gradient(
        self, batch: LocalBatch, trained: Trained, spec: TrainSpec, caller: ClientContext | None
    ) -> list[Tensor]:
        flat, part = self.replica.weights.gradient, self.replica.gradient
        if part is not None and not spec.plain:
            flat[: len(self.weights)].copy_(part.gradient(batch, self.contexts[part.name]))
        else:
            self.backward(lambda: self.replica.loss(batch, self.contexts, spec, caller), trained.slices)
        return [flat[s] for s in trained.slices]

    def shared_gradients(
        self, batch: LocalBatch, gradient: list[Tensor], trained: Trained
    ) -> Iterator[tuple[Contexts, Tensor]]:
        yield self.contexts, self.replica.weights.gradient[: len(self.weights)]

    def optimizer_step(self, gradient: Sequence[Tensor], batch: LocalBatch, trained: Trained, rate: float) -> None:
        self._optimizer.step(rate)
        self.segments[-1] += trained.shared

    def after_step(self, batch: LocalBatch) -> None:
        # draws of their own, so that the steps have the same bits without these hooks
        with seeded(self.recipe.seed, purposes.FORWARD_AFTER_STEP, self.round, self.key, self.steps):
            for part in self.replica.followers:
                part.after_step(batch, self.contexts[part.name])

    def stops_early(self, steps: int) -> bool:
        return self._patience.exhausted(steps)

    def end(self, spec: TrainSpec) -> None:
        self._optimizer.end()
        self._patience.restore()
        if self._statistics is not None:
            self.replica.weights.statistics.copy_(self._statistics)

    def backward(self, loss: Callable[[], Tensor], slices: list[slice], reported: bool = True) -> None:
        """The one backward pass: leaves the gradient in the flat vector. `reported`: the loss enters the client's mean."""
        with self.replica.autocast():
            value = loss()
        self.replica.weights.backward(value, slices)
        if reported:
            self.loss += value.detach()
            self.losses += 1

    def _validation_accuracy(self) -> float:
        hits = self.replica.hits(held_back(self.replica.experiment))
        self.replica.net.train()
        return float(hits.double().mean())

    # what parts can ask of their client, through their contexts

    def train_further(self, spec: TrainSpec, caller: PartContext) -> None:
        """Training that a part asks for: further steps of this client, or of other weights (`spec.at`)."""
        if spec.at is not None:
            with self._detached(spec.at, caller.name):
                self.train(spec, caller)
            return
        self.replica.moments.reset()
        if self.segments[-1]:
            self.segments.append(0)
        self.train(spec, caller)

    @contextmanager
    def _detached(self, storage: Tensor, part: str) -> Iterator[None]:
        """Train another whole storage with random draws of its own; afterwards the client continues as if nothing happened."""
        replica, seed = self.replica, self.recipe.seed
        before, moments = replica.weights.storage.clone(), replica.moments.snapshot()
        counters = [(buffer, buffer.clone()) for buffer in replica.weights.counters]
        kept = self.generator, self.segments, self.loss, self.losses, self._training
        self.segments = [0]
        self.generator = torch_generator(seed, purposes.DETACHED, part, self.round, self.key)
        self.loss = torch.zeros_like(self.loss)
        replica.weights.storage.copy_(storage)
        replica.moments.reset()
        with seeded(seed, purposes.FORWARD_DETACHED, part, self.round, self.key):
            yield
        storage.copy_(replica.weights.storage)
        replica.weights.storage.copy_(before)
        replica.moments.restore(moments)
        for buffer, value in counters:
            buffer.copy_(value)
        self.generator, self.segments, self.loss, self.losses, self._training = kept

    def gradient_of(
        self, caller: ClientContext, loss: Loss | None, at: Tensor | None, batch: Any, whole: bool
    ) -> Tensor:
        """The gradient of the trained weights, at these weights or at others; weights and statistics are restored."""
        replica = self.replica
        local_batch = self.draw_batch() if batch is None else batch.anew()
        replica.net.train()
        before = replica.weights.storage.clone() if at is not None else None
        with torch.no_grad():
            if at is not None:
                replica.weights.vector[: len(at)].copy_(at)
        with torch.enable_grad():
            slices = [slice(0, replica.layout.trained)]
            if loss is None:
                spec, trainer = self._training or (None, None)
                self.backward(lambda: replica.loss(local_batch, self.contexts, spec, trainer), slices)
            else:
                self.backward(lambda: loss(local_batch, caller), slices, reported=False)
        if before is not None:
            replica.weights.storage.copy_(before)
        return replica.weights.gradient[: replica.layout.trained if whole else len(self.weights)].clone()

    def gradients_of(
        self, caller: ClientContext, loss: Loss, at: Mapping[str, Tensor], batch: LocalBatch
    ) -> dict[str, Tensor]:
        """The gradients of these tensors alone, at these values; weights and statistics are restored."""
        weights = self.replica.weights
        values, gradients = (self.replica.layout.named(vector) for vector in (self.weights, weights.gradient))
        before, statistics = {name: values[name].clone() for name in at}, weights.statistics.clone()
        for name, value in at.items():
            values[name].copy_(value)
        self.replica.net.train()
        with torch.enable_grad(), weights.training(at) as slices:
            self.backward(lambda: loss(batch.anew(), caller), slices, reported=False)
        for name, value in before.items():
            values[name].copy_(value)
        weights.statistics.copy_(statistics)
        return {name: gradients[name].clone() for name in at}

    def fix_features(self, batch: LocalBatch) -> LocalBatch:
        """The batch with the features of the current body in training; the batch itself, where that body draws numbers."""
        weights, draws = self.replica.weights, torch.random.get_rng_state()
        statistics = weights.statistics.clone()
        self.replica.net.train()
        with torch.no_grad(), self.replica.autocast():
            fixed = batch.anew().features
        weights.statistics.copy_(statistics)
        if torch.equal(draws, torch.random.get_rng_state()):
            return batch.anew(fixed.detach())
        torch.random.set_rng_state(draws)
        return batch

    def draw_batch(self) -> LocalBatch:
        return LocalBatch(self.replica.net, *self.own.draw(self.generator))

    def iterate(self, data: Data, order: Tensor | None = None) -> Iterator[LocalBatch]:
        for piece in self.data[data].in_order(order):
            self.replica.net.eval()
            yield LocalBatch(self.replica.net, *piece, learning=False)
