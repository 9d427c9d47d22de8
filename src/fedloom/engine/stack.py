"""Several clients in one computation: their vectors are the rows of a matrix, and one step moves all of them.

A tiny net leaves a core idle between its operations; vmap turns K small products into one batched product. Every client
keeps its own generator, order of samples, memory, momentum and corrections, so a stacked round is the same mathematics
and agrees with an unstacked one up to rounding. Clients of a stack need not have the same number of samples: those
whose next batches are equally long step together, and the others wait.

Which clients stand together is decided by the cohort alone, never by lanes, so stacked runs keep their bits for any
number of lanes and after any interruption. Only local training is stacked; tests, second acts and fine-tuning are not.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.engine.arena import scoped
from fedloom.engine.clock import preparing
from fedloom.engine.local import ClientJob, Drive, objective, total
from fedloom.engine.samples import PREPARED_BYTES, Samples
from fedloom.engine.scope import Views
from fedloom.errors import FedloomError
from fedloom.keys import seeded
from fedloom.methods.part import Part
from fedloom.methods.seen import Phase, Slots
from fedloom.nets import Net

if TYPE_CHECKING:
    from fedloom.engine.worker import Worker

# torch takes the clients one by one where it has no batched form of an operation: right, only slower
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")

Rows = slice | Tensor  # some rows of the matrix: a stretch where that is possible, since it needs no copy


class Stack:
    """Clients of one cohort side by side; `run` gives the report of each."""

    def __init__(self, worker: Worker, clients: Sequence[int], round: int, views: Sequence[Views]) -> None:
        self.worker, self.views = worker, views
        layout, count = worker.layout, len(clients)
        self.w = worker.weights.storage.new_empty(count, layout.total)
        self.jobs: list[ClientJob] = []
        worker.weights.train_only(layout.trainable())  # whatever the lane did before
        for row, client in enumerate(clients):
            if not row or views[row].memory:
                worker.receive(views[row].down, views[row].memory, round)
            self.w[row].copy_(worker.weights.storage)
            self.jobs.append(ClientJob(worker, client, round, views[row], stacked=True))
        self.start = self.w.clone()
        for row, job in enumerate(self.jobs):
            job.stand(self.w[row], self.start[row])
        self.velocity = torch.zeros_like(self.w[:, : layout.trained])
        self.gradient = torch.zeros_like(self.w[:, : layout.trained])
        self.loss = torch.zeros(count, device=worker.device)
        self.steps = torch.zeros(count, dtype=torch.int64)
        self.losses = Losses(worker, self.jobs[0].scopes)
        self.counts = torch.zeros(count, 0)
        if self.losses.parts:  # nobody else asks for them
            self.counts = torch.stack([job.own.counts for job in self.jobs])
        named = [view.memory for view in views]
        self.memory = {name: torch.stack([row[name] for row in named]) for name in self.losses.remembered}

    def run(self) -> list[dict[str, Any]]:
        began = time.perf_counter()
        worker = self.worker
        worker.net.train()
        for phase in worker.phases:
            self._phase(phase)
        reports = []
        finishing = worker.experiment.method.hooked("finish")
        for row, (job, views) in enumerate(zip(self.jobs, self.views, strict=True)):
            worker.weights.load(self.w[row])
            job.loss, job.losses = self.loss[row], int(self.steps[row])
            if finishing:
                worker.start.copy_(self.start[row])
                job.stand(worker.weights.storage, worker.start)
                worker.velocity.zero_()
                with seeded(job.recipe.seed, "forward", job.round, str(job.client)):
                    for part in finishing:
                        part.finish(job.scopes[part.name])
            worker.send(views)
            reports.append({"loss": job.mean_loss(), "steps": job.exchanged_steps})
        spent = (time.perf_counter() - began) / len(reports)
        return [{**report, "seconds": spent} for report in reports]

    def _phase(self, phase: Phase) -> None:
        worker, layout = self.worker, self.worker.layout
        stretches = worker.layout.slices(layout.trainable(*phase.regions))
        if not stretches:
            return
        exchanged = stretches[0].start < layout.exchanged
        drive = Drive(stretches, self.jobs[0].lr, exchanged, plain=False, penalty=None, by=None)
        for rows, x, y, index in preparing(_ticks(self.jobs, phase.epochs)):
            self._step(rows, x, y, index, drive)
            for row in range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist():
                self.jobs[row].exchanged_steps += exchanged
                self.steps[row] += 1

    def _step(self, rows: Rows, x: Tensor, y: Tensor, index: Tensor, drive: Drive) -> None:
        """What ClientJob.step does, for some of the clients at once."""
        worker, recipe, w = self.worker, self.worker.experiment.recipe, self.w[rows]
        pieces = [w[:, s].detach().requires_grad_() for s in drive.stretches]
        memory = {name: value[rows] for name, value in self.memory.items()}
        with worker.autocast():
            values = self.losses(drive, pieces, w, self.start[rows], x, y, index, self.counts[rows], memory)
        found = torch.autograd.grad(values.sum(), pieces, materialize_grads=True)
        with torch.no_grad():
            self.loss[rows] += values.detach()
            if worker.corrections and drive.exchanged:
                gradient = self.gradient
                for s, piece in zip(drive.stretches, found, strict=True):
                    gradient[rows, s] = piece
                each = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
                for row in each:
                    job = self.jobs[row]
                    for part in worker.corrections:
                        part.correct(gradient[row, : worker.layout.exchanged], job.scopes[part.name])
                found = tuple(gradient[rows, s] for s in drive.stretches)
            if recipe.clip is not None:
                norms = torch.stack([torch.linalg.vector_norm(piece, dim=1) for piece in found], 1)
                factor = (recipe.clip / (torch.linalg.vector_norm(norms, dim=1) + 1e-6)).clamp(max=1.0)
                found = tuple(piece * factor[:, None] for piece in found)
            for s, move in zip(drive.stretches, found, strict=True):
                if recipe.weight_decay:
                    move = move.add(w[:, s], alpha=recipe.weight_decay)
                if recipe.momentum:
                    move = move.add(self.velocity[rows, s], alpha=recipe.momentum)
                    self.velocity[rows, s] = move
                if isinstance(rows, slice):
                    self.w[rows, s].add_(move, alpha=-drive.lr)
                else:
                    self.w[rows, s] = w[:, s].add(move, alpha=-drive.lr)


Tick = tuple[Rows, Tensor, Tensor, Tensor]


def _ticks(jobs: Sequence[ClientJob], epochs: int) -> Iterator[Tick]:
    """Batches of equal length side by side: always the largest group of clients that can step together goes first."""
    recipe = jobs[0].recipe
    total = sum(len(job.own) for job in jobs) * jobs[0].own.x[0].numel() * 4
    if recipe.augment == "none" and total <= PREPARED_BYTES:
        yield from _prepared_ticks(jobs, epochs)
        return
    ahead = [job.own.epochs(job.generator, epochs) for job in jobs]
    waiting = [next(batches, None) for batches in ahead]
    while any(batch is not None for batch in waiting):
        chosen = _largest([0 if batch is None else len(batch[1]) for batch in waiting])
        found = [batch for row in chosen if (batch := waiting[row]) is not None]
        for row in chosen:
            waiting[row] = next(ahead[row], None)
        yield _rows(chosen), *(torch.stack(column) for column in zip(*found, strict=True))  # type: ignore[misc]


def _prepared_ticks(jobs: Sequence[ClientJob], epochs: int) -> Iterator[Tick]:
    """The same where all images are prepared once: a step then takes all its images by one index."""
    every = [job.own for job in jobs]
    x = _prepared(every)
    y = torch.cat([samples.y for samples in every])
    ahead: list[list[Tensor]] = [[] for _ in jobs]
    begins, begin = [], 0
    for row, (job, samples) in enumerate(zip(jobs, every, strict=True)):
        for _ in range(epochs):
            ahead[row] += samples.orders(job.generator)
        begins.append(begin)
        begin += len(samples)
    first = torch.tensor(begins)
    places = [0] * len(jobs)
    while True:
        sizes = [len(ahead[row][at]) if (at := places[row]) < len(ahead[row]) else 0 for row in range(len(jobs))]
        if not any(sizes):
            return
        chosen = _largest(sizes)
        index = torch.stack([ahead[row][places[row]] for row in chosen])
        rows = _rows(chosen)
        taken = index + first[rows][:, None]
        yield rows, x[taken].permute(0, 1, 4, 2, 3), y[taken], index
        for row in chosen:
            places[row] += 1


def _prepared(every: Sequence[Samples]) -> Tensor:
    """The images of several clients one after the other, N,H,W,C; at once where they come from one place."""
    one = every[0]
    if all(samples.x is one.x for samples in every):
        rows = torch.cat([samples.rows for samples in every])
        return one.pipeline(one.x[rows], None).permute(0, 2, 3, 1).contiguous().to(one.device)
    return torch.cat([samples.prepared() for samples in every])


def _largest(sizes: Sequence[int]) -> list[int]:
    """The rows whose next batch has the length that most rows have (the longer one if two are as frequent)."""
    frequent = max({size for size in sizes if size}, key=lambda size: (sizes.count(size), size))
    return [row for row, size in enumerate(sizes) if size == frequent]


def _rows(chosen: Sequence[int]) -> Rows:
    if chosen[-1] - chosen[0] == len(chosen) - 1:
        return slice(chosen[0], chosen[-1] + 1)
    return torch.tensor(chosen)


class Losses:
    """The method's loss of several clients at once, each under its own row of weights."""

    def __init__(self, worker: Worker, scopes: Mapping[str, Any]) -> None:
        self.worker, self.scopes = worker, scopes
        self._net = Lent(worker.net, list(worker.layout.entries))
        speaking = [*worker.penalties, *([worker.objective] if worker.objective else [])]
        self.parts: list[Part] = speaking
        names = tuple(f"{part.name}." for part in speaking)
        self.remembered = [n for n in worker.experiment.messages.memory.names if n.startswith(names)] if names else []
        personal = worker.layout.personal > 0 or bool(worker.layout.personal_statistics)
        self._start = 0 if personal else None  # where all begin with the same weights, a teacher needs no rows
        self._teacher: Lent | None = None  # a net in the mode that evaluation uses; weights are given with every call
        if speaking:
            net, _ = worker.teacher(("", "stack"))
            worker.tell_round(net)
            self._teacher = Lent(net, list(worker.layout.entries))

    def __call__(
        self,
        drive: Drive,
        pieces: Sequence[Tensor],  # of the rows, that are trained
        w: Tensor,  # (n, total) whole rows
        start: Tensor,
        x: Tensor,  # (n, B, C, H, W)
        y: Tensor,
        index: Tensor,
        counts: Tensor,
        memory: Mapping[str, Tensor],
    ) -> Tensor:
        def one(
            pieces: Sequence[Tensor],
            w: Tensor,
            start: Tensor,
            x: Tensor,
            y: Tensor,
            index: Tensor,
            counts: Tensor,
            memory: Mapping[str, Tensor],
        ) -> Tensor:
            batch = StackedBatch(self, x, y, index, counts, self._tensors(drive, pieces, w), w, start, memory)
            scopes = {part.name: StackedScope(self.scopes[part.name], batch) for part in self.parts}
            batch.scopes = scopes
            return total(self.worker, scopes, batch, drive)

        if self._start is None:
            start = start[0]
        values: Tensor = vmap(one, in_dims=(0, 0, self._start, 0, 0, 0, 0, 0))(
            list(pieces), w, start, x.contiguous(), y, index, counts, dict(memory)
        )
        return values

    def _tensors(self, drive: Drive, pieces: Sequence[Tensor], w: Tensor) -> list[Tensor]:
        """The net's tensors in order: from the trained pieces, where gradients are wanted, else from the whole row."""
        tensors = self.worker.layout.views(w)
        for s, piece in zip(drive.stretches, pieces, strict=True):
            tensors.update(self.worker.layout.views(piece, s.start))
        return list(tensors.values())

    def ask(self, tensors: Sequence[Tensor], what: str, value: Tensor, teacher: bool = False) -> Tensor:
        called = self._teacher if teacher else self._net
        assert called is not None
        return called(tensors, what, value)


class Lent:
    """A net that is called with other weights than its own: they lie in its modules for the time of a call.

    As torch.func.functional_call does it, which looks every name up again in every call; here that is half of a tiny step.
    """

    def __init__(self, net: Net, names: Sequence[str]) -> None:
        self._net = net
        order = {id(_tensor(net, name)): i for i, name in enumerate(names)}
        self._places: list[tuple[dict[str, Any], str, int]] = []  # a tensor may have several
        for module in net.modules():
            for home in (module._parameters, module._buffers):
                self._places += [(home, leaf, order[id(t)]) for leaf, t in home.items() if id(t) in order]

    def __call__(self, tensors: Sequence[Tensor], what: str, value: Tensor) -> Tensor:
        own = [home[leaf] for home, leaf, _ in self._places]
        try:
            for home, leaf, i in self._places:
                home[leaf] = tensors[i]
            found: Tensor = self._net.features(value) if what == "features" else self._net.head(value)
            return found
        finally:
            for (home, leaf, _), tensor in zip(self._places, own, strict=True):
                home[leaf] = tensor


def _tensor(net: Net, name: str) -> Tensor | None:
    owner, _, leaf = name.rpartition(".")
    module = net.get_submodule(owner)
    return module._parameters[leaf] if leaf in module._parameters else module._buffers[leaf]


class StackedBatch:
    """One client's batch inside the stacked computation; see LocalBatch."""

    def __init__(
        self,
        losses: Losses,
        x: Tensor,
        y: Tensor,
        index: Tensor,
        counts: Tensor,
        tensors: Sequence[Tensor],
        w: Tensor,
        start: Tensor,
        memory: Mapping[str, Tensor],
    ) -> None:
        self.x, self.y, self.index, self.counts = x, y, index, counts
        self.tensors, self.w, self.start, self.memory = tensors, w, start, memory
        self.client: StackedScope
        self.scopes: Mapping[str, StackedScope] = {}
        self._losses = losses
        self._features: Tensor | None = None
        self._logits: Tensor | None = None
        self._teachers: dict[tuple[str, str], StackedTeacher] = {}

    @property
    def features(self) -> Tensor:
        if self._features is None:
            self._features = self._losses.ask(self.tensors, "features", self.x)
        return self._features

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            self._logits = self.head(self.features)
        return self._logits

    def head(self, features: Tensor) -> Tensor:
        return self._losses.ask(self.tensors, "head", features)

    def objective(self) -> Tensor:
        return objective(self._losses.worker, self.scopes, self)

    def teacher(self, name: str = "global") -> StackedTeacher:
        key = ("", name) if name == "global" else (self.client.name, name)
        if key not in self._teachers:
            whole = self.start if name == "global" else self.memory[".".join(key)]
            self._teachers[key] = StackedTeacher(self._losses, whole, self.x)
        return self._teachers[key]


class StackedTeacher:
    """What a teacher says of one client's batch, without gradient."""

    def __init__(self, losses: Losses, whole: Tensor, x: Tensor) -> None:
        self._losses = losses
        self._tensors = list(losses.worker.layout.views(whole).values())
        with torch.no_grad():
            self.features = losses.ask(self._tensors, "features", x, teacher=True)
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            with torch.no_grad():
                self._logits = self._losses.ask(self._tensors, "head", self.features, teacher=True)
        return self._logits


class StackedScope:
    """A client as the loss of one part sees it inside the stacked computation: what is a tensor, or the same for all."""

    def __init__(self, of: Any, batch: StackedBatch) -> None:
        self.name, self.task, self.round, self.lr = of.name, of.task, of.round, of.lr
        self.momentum, self.epochs, self.broadcast = of.momentum, of.epochs, of.broadcast
        self.memory = Slots(scoped(batch.memory, of.name), f"{of.name}: client memory")
        self.counts = batch.counts
        self._batch = batch

    @property
    def start(self) -> Tensor:
        return self._batch.start[: self._exchanged]

    @property
    def w(self) -> Tensor:
        return self._batch.w[: self._exchanged]  # without gradient, as for a client that stands alone

    @property
    def _exchanged(self) -> int:
        return self._batch._losses.worker.layout.exchanged

    def __getattr__(self, name: str) -> Any:
        raise FedloomError(
            f"method: the loss of {self.name} asks for client.{name}, which stacked clients do not have in common; "
            f"set stack to off"
        )
