"""The one local loop: what a client does between broadcast and upload. Every method runs through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.data import Pictures
from fedloom.engine.clock import Preparing
from fedloom.engine.descent import Patience, adam, clip, sgd
from fedloom.engine.samples import Samples, held_back
from fedloom.engine.scope import LocalBatch, Loss, PeerRow, Scope, Views
from fedloom.errors import FedloomError
from fedloom.keys import seeded, torch_generator
from fedloom.methods.seen import Batch, Correction, Course, Data, Draw, Phase
from fedloom.nets import Net

if TYPE_CHECKING:
    from fedloom.engine.worker import Worker

Which = Literal["method", "objective", "ce"]  # objective and penalties | the objective alone | cross-entropy


@dataclass(frozen=True)
class Drive:
    """How a stretch of steps is made."""

    stretches: list[slice]  # of the vector, that are trained
    lr: float
    exchanged: bool  # whether they hold anything that is exchanged
    plain: bool  # the method's loss, without its corrections
    penalty: Loss | None  # a further term, asked for by a part
    by: Scope | None
    objective: Loss | None = None  # in place of the method's loss, asked for by a part
    course: Course | None = None
    adam: torch.optim.Adam | None = None
    correct: Correction | None = None  # a further correction, asked for by a part
    loss: Which = "method"

    def rate(self, step: int) -> float:
        if self.course is None or not self.course.falling:
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * step / self.course.steps))


class ClientJob:
    """One client at work: its data, its generator, its place in the loop."""

    def __init__(
        self,
        worker: Worker,
        client: int | None,  # None: the server
        round: int,
        views: Views,
        purpose: str = "local",
        peers: Sequence[PeerRow] = (),
        stage: int = 0,  # the round whose data are meant, where that is not the round of the job
        stacked: bool = False,  # its weights will not be the worker's
    ) -> None:
        experiment = worker.experiment
        self.worker, self.round, self.purpose = worker, round, purpose
        self.recipe = experiment.recipe
        self.lr = self.recipe.rate(max(round, 1))
        self.client, self.peers = client, peers
        self.holding = experiment.at(
            round or stage or self.recipe.rounds
        )  # fine-tuning, round 0, comes after the last one
        self._samples: dict[str, Samples] = {}
        self.generator = torch_generator(self.recipe.seed, purpose, round, "server" if client is None else client)
        if not stacked:
            worker.start.copy_(worker.weights.storage)
            worker.velocity.zero_()
            worker.weights.train_only(worker.layout.trainable())  # whatever the lane did before
        self.w = worker.weights.vector[: worker.layout.exchanged]
        self.start = worker.start[: worker.layout.exchanged]
        self.segments = [0]  # steps that trained what is exchanged, by when momentum buffers began at zero
        self.losses = 0
        self.drive: Drive | None = None
        self.loss = torch.zeros((), device=worker.device)
        self.views = views
        self.scopes = {part.name: Scope(self, part, views) for part in experiment.method.parts}
        self._taught: set[tuple[str, str]] = set()

    @property
    def own(self) -> Samples:
        return self.samples("own")

    @property
    def exchanged_steps(self) -> int:
        return sum(self.segments)

    def mean_loss(self) -> float:
        """Over steps: a last, shorter batch counts as much as a whole one."""
        return float(self.loss) / max(self.losses, 1)

    def empty_buffers(self) -> None:
        """Momentum begins anew."""
        self.worker.velocity.zero_()
        if self.segments[-1]:
            self.segments.append(0)

    # the loop

    def run(
        self,
        phases: Sequence[Phase],
        *,
        lr: float | None = None,
        penalty: Loss | None = None,
        by: Scope | None = None,
        correct: Correction | None = None,
        names: Sequence[str] | None = None,
        plain: bool = False,
        data: Data | Draw = "own",
        objective: Loss | None = None,
        course: Course | None = None,
        loss: Which = "method",
    ) -> None:
        """Epochs over shuffled samples, or the steps of a course. `plain`: the method's loss, without its corrections."""
        worker = self.worker
        for phase in phases:
            trained = worker.layout.trainable(*phase.regions) if names is None else list(names)
            if self.client is None:  # the server has nobody's personal regions
                trained = [name for name in trained if worker.layout.regions.status[name] == "exchanged"]
            stretches = worker.weights.train_only(trained)
            if not stretches:
                continue
            exchanged = stretches[0].start < worker.layout.exchanged
            rate = self.lr if lr is None else lr
            moments = adam(worker.weights, stretches, rate, course, self.recipe.weight_decay)
            self.drive = drive = Drive(
                stretches, rate, exchanged, plain, penalty, by, objective, course, moments, correct, loss
            )
            worker.net.train()
            watch = Patience(worker, course)
            kept = None if course is None or course.statistics else worker.weights.statistics.clone()
            for step, batch in enumerate(self.batches(data, phase.epochs, course)):
                self.step(batch, drive, step)
                self.segments[-1] += exchanged
                if watch.enough(step + 1):
                    break
            watch.restore()
            if kept is not None:
                worker.weights.statistics.copy_(kept)
        worker.weights.train_only(worker.layout.trainable())  # so `gradient_of` outside of a phase is the whole one

    def batches(self, data: Data | Draw, epochs: int, course: Course | None) -> Iterator[LocalBatch]:
        """Shuffled epochs one after the other; as many as the steps of a course need."""
        if callable(data):
            for _ in range(course.steps if course else epochs):
                x, y = data(self.generator)
                yield LocalBatch(self, x, y, torch.arange(len(y)))
            return
        samples, size = self.samples(data), course.batch if course else None
        if self.client is None:
            self._samples["own"] = samples  # class counts are those of what it works on
        if course is None:
            for _ in range(epochs):
                yield from (LocalBatch(self, *piece) for piece in samples.epoch(self.generator))
            return
        endless = (piece for _ in count() for piece in samples.epoch(self.generator, size))
        yield from (LocalBatch(self, *piece) for piece in islice(endless, course.steps))

    def step(self, batch: LocalBatch, drive: Drive, number: int = 0) -> None:
        """Forward, backward or the one `gradient` hook, corrections, clipping, then SGD as torch does it."""
        worker, recipe, course = self.worker, self.recipe, drive.course
        w, g = worker.weights.vector, worker.weights.gradient
        if worker.gradient is not None and not drive.plain:
            scope = self.scopes[worker.gradient.name]
            batch.client = scope
            g[: len(self.w)].copy_(worker.gradient.gradient(scope, batch))
        else:
            self.backward(lambda: self.total(batch, drive), drive.stretches)
        with torch.no_grad():
            if drive.exchanged and not drive.plain:
                for part in worker.corrections:
                    part.correct(g[: len(self.w)], self.scopes[part.name])
            if drive.exchanged and drive.correct is not None and drive.by is not None:
                drive.correct(g[: len(self.w)], drive.by)
            if recipe.clip is not None:
                clip([g[s] for s in drive.stretches], recipe.clip)
            if drive.adam is not None:
                drive.adam.param_groups[0]["lr"] = drive.rate(number)
                drive.adam.step()
                return
            decay, momentum, rate = recipe.weight_decay, recipe.momentum, drive.lr
            if course is not None:
                decay = decay if course.weight_decay is None else course.weight_decay
                momentum = momentum if course.momentum is None else course.momentum
                rate = drive.rate(number)
            for s in drive.stretches:
                sgd(w[s], g[s], worker.velocity[s], decay, momentum, rate)

    def backward(self, loss: Callable[[], Tensor], stretches: list[slice], told: bool = True) -> None:
        """The one backward pass: leaves the gradient in the flat vector. `told`: the loss enters the client's report."""
        for s in stretches:
            self.worker.weights.gradient[s].zero_()
        with self.worker.autocast():
            value = loss()
        torch.autograd.backward(value)
        if told:
            self.loss += value.detach()
            self.losses += 1

    def objective(self, batch: LocalBatch) -> Tensor:
        return objective(self.worker, self.scopes, batch)

    def total(self, batch: LocalBatch, drive: Drive | None = None) -> Tensor:
        return total(self.worker, self.scopes, batch, drive)

    def stand(self, storage: Tensor, start: Tensor) -> None:
        """From now on the client's weights lie elsewhere, and so do those that it began with."""
        self.w, self.start = storage[: len(self.w)], start[: len(self.w)]
        for scope in self.scopes.values():
            scope.w, scope.start, scope.whole = self.w, self.start, storage

    def gradient_of(self, scope: Scope, loss: Loss | None, at: Tensor | None, batch: Batch | None) -> Tensor:
        """The gradient of what is trained, at these weights or at others; then weights and statistics are put back."""
        worker = self.worker
        chosen = self.draw() if batch is None else LocalBatch(self, batch.x, batch.y, batch.index)
        chosen.client = scope
        worker.net.train()
        before = worker.weights.storage.clone() if at is not None else None
        with torch.no_grad():
            if at is not None:
                worker.weights.vector[: len(at)].copy_(at)
        with torch.enable_grad():
            stretches = [slice(0, worker.layout.trained)]
            if loss is None:
                self.backward(lambda: self.total(chosen, self.drive), stretches)
            else:
                self.backward(lambda: loss(chosen), stretches, told=False)
        if before is not None:
            worker.weights.storage.copy_(before)
        return worker.weights.gradient[: len(self.w)].clone()

    @contextmanager
    def aside(self, storage: Tensor, purpose: str) -> Iterator[None]:
        """Work on another whole storage, with draws of its own; the client's own stream is then as if nothing was."""
        worker, seed = self.worker, self.recipe.seed
        before, velocity = worker.weights.storage.clone(), worker.velocity.clone()
        counters = [(buffer, buffer.clone()) for buffer in worker.weights.counters]
        kept = self.generator, self.segments, self.loss, self.losses, self.drive
        self.segments = [0]
        self.generator = torch_generator(
            seed, "aside", purpose, self.round, "server" if self.client is None else self.client
        )
        self.loss = torch.zeros_like(self.loss)
        worker.weights.storage.copy_(storage)
        worker.velocity.zero_()
        with seeded(seed, "forward-aside", purpose, self.round, "server" if self.client is None else self.client):
            yield
        storage.copy_(worker.weights.storage)
        worker.weights.storage.copy_(before)
        worker.velocity.copy_(velocity)
        for buffer, value in counters:
            buffer.copy_(value)
        self.generator, self.segments, self.loss, self.losses, self.drive = kept

    # data

    def samples(self, data: Data) -> Samples:
        """The client's own training images, those held back for validation, public ones, or any by their indices."""
        experiment, alone = self.worker.experiment, not self.worker.normalisers
        if isinstance(data, Tensor):
            return Samples(experiment, self.holding.by_image(data.numpy()), self.worker.device, alone)
        if data not in self._samples:
            began, pipeline = perf_counter(), None
            if data == "own":
                if self.client is None:
                    raise FedloomError("method: the server has no images of its own; name others")
                if experiment.pooled and self.purpose not in ("tune", "tell"):  # there a client stands for itself
                    pictures = self.holding.by_image(experiment.training(self.client, self.round))
                else:
                    pictures = self.holding.train(self.client)
            elif data == "held":
                pictures = held_back(experiment)
                if not len(pictures):
                    raise FedloomError("method: it works on images that are held back; set data.validation above 0")
            else:
                public = experiment.public
                pictures, pipeline = Pictures(public.x, torch.arange(len(public.y)), public.y), public.pipeline
                if not len(pictures):
                    raise FedloomError("method: it works on public images; set data.public above 0")
            self._samples[data] = Samples(experiment, pictures, self.worker.device, alone, pipeline)
            Preparing.since(began)
        return self._samples[data]

    def draw(self) -> LocalBatch:
        return LocalBatch(self, *self.own.draw(self.generator))

    def over(self, scope: Scope, data: Data) -> Iterator[Batch]:
        for piece in self.samples(data).over():
            self.worker.net.eval()
            batch = LocalBatch(self, *piece, learning=False)
            batch.client = scope
            yield batch

    # teachers

    def teacher(self, key: tuple[str, str]) -> Net:
        """The net of a teacher, loaded once a client."""
        net, weights = self.worker.teacher(key)
        if key not in self._taught:
            weights.load(self.worker.start if key[1] == "global" else self.views.memory[".".join(key)])
            self.worker.tell_round(net)
            self._taught.add(key)
        return net

    def peer(self, number: int) -> Net:
        """The net that a client uploaded; everything that it does not send is as drawn."""
        key = ("peer", str(number))
        net, weights = self.worker.teacher(key)
        if key not in self._taught:
            weights.load(self.worker.start)
            sent, layout = self.peers[number][0], self.worker.layout
            weights.vector[: layout.exchanged].copy_(sent["w"])
            weights.statistics[: layout.shared_statistics].copy_(sent["statistics"])
            self._taught.add(key)
        return net


def objective(worker: Worker, scopes: Mapping[str, Any], batch: Any) -> Tensor:
    """Of the method: cross-entropy, or what the one part says that decides it."""
    chosen = worker.objective
    if chosen is None:
        return F.cross_entropy(batch.logits, batch.y)
    before, batch.client = getattr(batch, "client", None), scopes[chosen.name]
    loss = chosen.objective(batch)
    if before is not None:
        batch.client = before
    return loss


def total(worker: Worker, scopes: Mapping[str, Any], batch: Any, drive: Drive | None) -> Tensor:
    """Objective, then penalties in the order of the sum; of one client, or of one in a stack."""
    which = "method" if drive is None else drive.loss
    if drive is not None and drive.objective is not None and drive.by is not None:
        batch.client = drive.by
        return drive.objective(batch)
    loss = F.cross_entropy(batch.logits, batch.y) if which == "ce" else objective(worker, scopes, batch)
    for part in worker.penalties if which == "method" else ():
        batch.client = scopes[part.name]
        term, share = part.penalty(batch), getattr(part, "mix", None)
        loss = loss + term if share is None else share * loss + (1 - share) * term
    if drive is None or drive.penalty is None or drive.by is None:
        return loss
    batch.client = drive.by
    return loss + drive.penalty(batch)
