"""The one local loop: what a client does between broadcast and upload. Every method runs through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.engine.arena import scoped
from fedloom.engine.samples import Samples
from fedloom.errors import FedloomError
from fedloom.keys import torch_generator
from fedloom.methods.part import Part
from fedloom.methods.seen import Batch, Data, Phase, Slots
from fedloom.nets import Net

if TYPE_CHECKING:
    from fedloom.engine.worker import Worker

Loss = Callable[[Batch], Tensor]


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

    def __init__(self, job: ClientJob, x: Tensor, y: Tensor, learning: bool = True) -> None:
        self.x, self.y = x, y
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
        self.name, self.task = part.name, job.worker.experiment.task
        self.round, self.samples = job.round, len(job.own)
        self.momentum = job.worker.experiment.recipe.momentum
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
    def counts(self) -> Tensor:
        return self._job.own.counts

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
        data: Data = "own",
    ) -> None:
        self._job.worker.velocity.zero_()
        self._job.run([Phase(epochs, regions)], lr=lr, penalty=penalty, by=self, data=data)

    def over(self, data: Data = "own") -> Iterator[Batch]:
        return self._job.over(self, data)


@dataclass(frozen=True)
class Drive:
    """How a stretch of steps is made."""

    stretches: list[slice]  # of the vector, that are trained
    lr: float
    exchanged: bool  # whether they hold anything that is exchanged
    plain: bool  # the method's loss, without its corrections
    penalty: Loss | None  # a further term, asked for by a part
    by: Scope | None


class ClientJob:
    """One client at work: its data, its generator, its place in the loop."""

    def __init__(self, worker: Worker, client: int, round: int, views: Views, purpose: str = "local") -> None:
        experiment = worker.experiment
        self.worker, self.round = worker, round
        self.recipe = experiment.recipe
        self.lr = self.recipe.rate(max(round, 1))
        self.client = client
        self._samples: dict[str, Samples] = {}
        self.own = self.samples("own")
        self.generator = torch_generator(self.recipe.seed, purpose, round, client)
        worker.start.copy_(worker.weights.storage)
        worker.velocity.zero_()
        worker.weights.train_only(worker.layout.trainable())  # whatever the lane did before
        self.w = worker.weights.vector[: worker.layout.exchanged]
        self.start = worker.start[: worker.layout.exchanged]
        self.exchanged_steps = self.losses = 0
        self.drive: Drive | None = None
        self.loss = torch.zeros((), device=worker.device)
        self.views = views
        self.scopes = {part.name: Scope(self, part, views) for part in experiment.method.parts}
        self._taught: set[tuple[str, str]] = set()

    def mean_loss(self) -> float:
        return float(self.loss) / max(self.losses, 1)

    # the loop

    def run(
        self,
        phases: Sequence[Phase],
        *,
        lr: float | None = None,
        penalty: Loss | None = None,
        by: Scope | None = None,
        names: Sequence[str] | None = None,
        plain: bool = False,
        data: Data = "own",
    ) -> None:
        """Epochs over shuffled samples. `plain`: the method's loss, without its corrections."""
        worker = self.worker
        for phase in phases:
            trained = worker.layout.trainable(*phase.regions) if names is None else list(names)
            stretches = worker.weights.train_only(trained)
            if not stretches:
                continue
            exchanged = stretches[0].start < worker.layout.exchanged
            self.drive = drive = Drive(stretches, self.lr if lr is None else lr, exchanged, plain, penalty, by)
            worker.net.train()
            for _ in range(phase.epochs):
                for x, y in self.samples(data).epoch(self.generator):
                    self.step(LocalBatch(self, x, y), drive)
                    self.exchanged_steps += exchanged
        worker.weights.train_only(worker.layout.trainable())  # so `gradient_of` outside of a phase is the whole one

    def step(self, batch: LocalBatch, drive: Drive) -> None:
        """Forward, backward or the one `gradient` hook, corrections, clipping, then SGD as torch does it."""
        worker, recipe = self.worker, self.recipe
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
            if recipe.clip is not None:
                _clip([g[s] for s in drive.stretches], recipe.clip)
            for s in drive.stretches:
                move = g[s]
                if recipe.weight_decay:
                    move.add_(w[s], alpha=recipe.weight_decay)
                if recipe.momentum:
                    move = torch.add(move, worker.velocity[s], alpha=recipe.momentum, out=worker.velocity[s])
                w[s].add_(move, alpha=-drive.lr)

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

    def total(self, batch: LocalBatch, drive: Drive | None = None) -> Tensor:
        """Objective, then penalties in the order of the sum."""
        worker = self.worker
        if worker.objective is None:
            loss = F.cross_entropy(batch.logits, batch.y)
        else:
            batch.client = self.scopes[worker.objective.name]
            loss = worker.objective.objective(batch)
        for part in worker.penalties:
            batch.client = self.scopes[part.name]
            term, share = part.penalty(batch), part.mix
            loss = loss + term if share is None else share * loss + (1 - share) * term
        if drive is None or drive.penalty is None or drive.by is None:
            return loss
        batch.client = drive.by
        return loss + drive.penalty(batch)

    def gradient_of(self, scope: Scope, loss: Loss | None, at: Tensor | None, batch: Batch | None) -> Tensor:
        """The gradient of what is trained, at these weights or at others; then weights and statistics are put back."""
        worker = self.worker
        chosen = self.draw() if batch is None else LocalBatch(self, batch.x, batch.y)
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

    # data

    def samples(self, data: Data) -> Samples:
        """The client's own training images, or those that are held back for validation."""
        if data not in self._samples:
            experiment = self.worker.experiment
            if data == "held" and not len(experiment.validation):
                raise FedloomError("method: it works on images that are held back; set data.validation above 0")
            index = (
                experiment.validation if data == "held" else torch.from_numpy(experiment.partition.train(self.client))
            )
            self._samples[data] = Samples(experiment, index, self.worker.device, alone=not self.worker.normalisers)
        return self._samples[data]

    def draw(self) -> LocalBatch:
        return LocalBatch(self, *self.own.draw(self.generator))

    def over(self, scope: Scope, data: Data) -> Iterator[Batch]:
        for x, y in self.samples(data).over():
            self.worker.net.eval()
            batch = LocalBatch(self, x, y, learning=False)
            batch.client = scope
            yield batch

    # teachers

    def teacher(self, key: tuple[str, str]) -> Net:
        """The net of a teacher, loaded once a client."""
        net, weights = self.worker.teacher(key)
        if key not in self._taught:
            weights.load(self.worker.start if key[1] == "global" else self.views.memory[".".join(key)])
            self._taught.add(key)
        return net


def _clip(pieces: list[Tensor], largest: float) -> None:
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]))
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for piece in pieces:
        piece.mul_(factor)
