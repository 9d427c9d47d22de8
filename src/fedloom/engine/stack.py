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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.engine.clock import preparing
from fedloom.engine.descent import clip, sgd
from fedloom.engine.local import ClientJob, Drive
from fedloom.engine.samples import PREPARED_BYTES, Samples
from fedloom.engine.scope import Views
from fedloom.engine.stacked import Losses
from fedloom.keys import seeded
from fedloom.methods.seen import Phase

if TYPE_CHECKING:
    from fedloom.engine.worker import Worker

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
            job.loss = self.loss[row]
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
            for row in _numbers(rows):
                self.jobs[row].segments[-1] += exchanged
                self.jobs[row].losses += 1

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
                for row in _numbers(rows):
                    for part in worker.corrections:
                        part.correct(gradient[row, : worker.layout.exchanged], self.jobs[row].scopes[part.name])
                found = tuple(gradient[rows, s] for s in drive.stretches)
            if recipe.clip is not None:
                clip(found, recipe.clip)
            for s, move in zip(drive.stretches, found, strict=True):
                moved, velocity = w[:, s], self.velocity[rows, s]
                sgd(moved, move, velocity, recipe.weight_decay, recipe.momentum, drive.lr)
                if not isinstance(rows, slice):  # then these are copies
                    self.w[rows, s], self.velocity[rows, s] = moved, velocity


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


def _numbers(rows: Rows) -> Sequence[int]:
    return range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()


def _rows(chosen: Sequence[int]) -> Rows:
    if chosen[-1] - chosen[0] == len(chosen) - 1:
        return slice(chosen[0], chosen[-1] + 1)
    return torch.tensor(chosen)
