"""Several clients in one computation: their weight vectors are the rows of a matrix, and one step updates all rows.

With a tiny net most of a step's time goes into starting operations; vmap turns K small products into one batched product.
Every client keeps its own generator, order of samples, state, optimizer and corrections, so a vmapped round is the same
mathematics as an eager one and agrees with it up to rounding. Clients may have different numbers of samples, epochs and steps:
those whose next batches have the same length step together, and the others wait.

The cohort alone decides which clients train together, so vmapped runs have the same bits for any number of workers and
after any interruption. Only local training is vmapped; evaluation, queries and fine-tuning are not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.engine.client.client import Client
from fedloom.engine.client.loop import LocalLoop, Trained
from fedloom.engine.client.losses import Contexts
from fedloom.engine.client.moments import Moments, StepGroup
from fedloom.engine.client.optimizers import adam, sgd
from fedloom.engine.client.purposes import FORWARD_TRAINING
from fedloom.engine.client.replica import MessageViews, Replica
from fedloom.engine.client.samples import PREPARED_BYTES, Samples
from fedloom.engine.client.vmap.context import VmapLoss
from fedloom.engine.timing import preparing
from fedloom.errors import FedloomError
from fedloom.methods.api.context import ClientContext, Phase, TrainSpec
from fedloom.rng import seeded

Rows = slice | Tensor  # rows of the matrix: a slice where possible, since it needs no copy


@dataclass(frozen=True)
class Batches:
    """Batches of equal length of some clients, side by side."""

    rows: Rows
    x: Tensor  # (n, B) and the shape of an input
    y: Tensor  # (n, B)
    index: Tensor

    @property
    def numbers(self) -> Sequence[int]:
        return range(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows.tolist()


class VmapClients(LocalLoop[Batches]):
    """Clients of one cohort side by side; `run` returns one report per client."""

    def __init__(self, replica: Replica, clients: Sequence[int], round: int, views: Sequence[MessageViews]) -> None:
        self.replica, self.views = replica, views
        layout, count = replica.layout, len(clients)
        self.w = replica.weights.storage.new_empty(count, layout.total)
        self.clients: list[Client] = []
        replica.weights.train_only(layout.trainable())  # undo what the replica's last client froze
        adapting = replica.experiment.program.method.hooked("before_training")
        self.start = torch.empty_like(self.w)
        for row, client in enumerate(clients):
            if not row or views[row].state or adapting:
                replica.receive(views[row].down, views[row].state, round)
            self.start[row].copy_(replica.weights.storage)
            one = Client(replica, client, round, views[row], vmapped=not adapting)
            one.before_training(adapting)
            self.w[row].copy_(replica.weights.storage)
            self.clients.append(one)
        for row, one in enumerate(self.clients):
            one.rebind(self.w[row], self.start[row])
        self.lr = self.clients[0].lr
        self.moments = Moments(layout, self.w[:, : layout.trained], replica.rule.adaptive)
        for row, view in enumerate(views):
            self.moments.load(view.state, row)
        self.plans = [one.phases() for one in self.clients]  # clients may have different numbers of epochs or steps
        self._place = -1  # of the current phase in them
        self._groups: list[StepGroup] = []
        self.flat = torch.zeros_like(self.w[:, : layout.trained])
        self.loss = torch.zeros(count, device=replica.device)
        self.losses = VmapLoss(replica, replica.loss, self.clients[0].contexts)
        self.counts = torch.zeros(count, 0)
        if replica.loss.parts:  # nothing else needs them
            self.counts = torch.stack([one.own.counts for one in self.clients])
        self.state = {name: torch.stack([view.state[name] for view in views]) for name in self.losses.states}

    def run(self) -> list[dict[str, Any]]:
        began = time.perf_counter()
        replica = self.replica
        replica.net.train()
        self.train(TrainSpec(self._common_phases()))
        for row, view in enumerate(self.views):
            self.moments.save(view.state, row)
        reports = []
        finishing = replica.experiment.program.method.hooked("after_training")
        for row, (one, views) in enumerate(zip(self.clients, self.views, strict=True)):
            replica.weights.load(self.w[row])
            one.loss = self.loss[row]
            if finishing:
                replica.start.copy_(self.start[row])
                one.rebind(replica.weights.storage, replica.start)
                replica.moments.reset()
                with seeded(one.recipe.seed, FORWARD_TRAINING, one.round, str(one.client)):
                    one.after_training(finishing)
            replica.send(views)
            reports.append({"loss": one.mean_loss(), "steps": one.steps})
        seconds = (time.perf_counter() - began) / len(reports)
        return [{**report, "seconds": seconds} for report in reports]

    def _common_phases(self) -> tuple[Phase, ...]:
        """The phases of the first client; those of the others train the same regions in the same order."""
        first, *others = [[phase.regions for phase in plan] for plan in self.plans]
        if any(regions != first for regions in others):
            raise FedloomError(
                "vmap: clients with different numbers of local epochs have different phases; set vmap to off"
            )
        return self.plans[0]

    # the steps of the loop

    def begin(self, phase: Phase, spec: TrainSpec, caller: ClientContext | None) -> Trained:
        layout = self.replica.layout
        names = layout.trainable(*phase.regions)
        slices = layout.slices(names)
        self._place += 1
        self._groups = self.moments.groups(names) if self.replica.rule.adaptive else []
        return Trained(slices, bool(slices) and slices[0].start < layout.shared)

    def batches(self, phase: Phase, spec: TrainSpec) -> Iterator[Batches]:
        return preparing(aligned_batches(self.clients, [plan[self._place] for plan in self.plans]))

    def gradient(self, batch: Batches, trained: Trained, spec: TrainSpec, caller: ClientContext | None) -> list[Tensor]:
        rows, w = batch.rows, self.w[batch.rows]
        pieces = [w[:, s].detach().requires_grad_() for s in trained.slices]
        state = {name: value[rows] for name, value in self.state.items()}
        with self.replica.autocast():
            values = self.losses(
                spec, trained, pieces, w, self.start[rows], batch.x, batch.y, batch.index, self.counts[rows], state
            )
        gradient = torch.autograd.grad(values.sum(), pieces, materialize_grads=True)
        with torch.no_grad():
            self.loss[rows] += values.detach()
        return list(gradient)

    def shared_gradients(
        self, batch: Batches, gradient: list[Tensor], trained: Trained
    ) -> Iterator[tuple[Contexts, Tensor]]:
        for s, piece in zip(trained.slices, gradient, strict=True):
            self.flat[batch.rows, s] = piece
        for row in batch.numbers:
            yield self.clients[row].contexts, self.flat[row, : self.replica.layout.shared]
        gradient[:] = [self.flat[batch.rows, s] for s in trained.slices]

    def optimizer_step(self, gradient: Sequence[Tensor], batch: Batches, trained: Trained, rate: float) -> None:
        rule, rows = self.replica.rule, batch.rows
        pieces = zip(trained.slices, gradient, strict=True)
        if not rule.adaptive:
            for s, piece in pieces:  # without `_rows`: a step of a tiny net is short
                w, velocity = self.w[rows, s], self.moments.first[rows, s]
                sgd(w, piece, velocity, rule.decay, rule.momentum, rate)
                if not isinstance(rows, slice):
                    self.w[rows, s], self.moments.first[rows, s] = w, velocity
        else:
            self._adam(list(pieces), rows, rate)
        for row in batch.numbers:
            self.clients[row].segments[-1] += trained.shared
            self.clients[row].losses += 1

    def _adam(self, pieces: Sequence[tuple[slice, Tensor]], rows: Rows, rate: float) -> None:
        second = self.moments.second
        assert second is not None
        for group in self._groups:
            group.done[rows] += 1
            step = group.done[rows][:, None]
            for inside in group.slices:
                begin, piece = next((s.start, piece) for s, piece in pieces if s.start <= inside.start < s.stop)
                own = piece[:, inside.start - begin : inside.stop - begin]
                with (
                    self._rows(self.w, rows, inside) as w,
                    self._rows(self.moments.first, rows, inside) as first,
                    self._rows(second, rows, inside) as squares,
                ):
                    adam(w, own, first, squares, step, self.replica.rule, rate)

    @staticmethod
    @contextmanager
    def _rows(matrix: Tensor, rows: Rows, columns: slice) -> Iterator[Tensor]:
        """A part of a matrix, to be changed in place."""
        view = matrix[rows, columns]
        yield view
        if not isinstance(rows, slice):  # rows by index are copies
            matrix[rows, columns] = view

    def end(self, spec: TrainSpec) -> None:
        self.moments.count(self._groups)


def aligned_batches(clients: Sequence[Client], work: Sequence[Phase]) -> Iterator[Batches]:
    """Batches of equal length side by side; the largest group of clients that can step together goes first.

    `work`: one phase per client.
    """
    recipe = clients[0].recipe
    total = sum(len(one.own) for one in clients) * clients[0].own.x[0].numel() * 4
    if recipe.augment == "none" and total <= PREPARED_BYTES:
        yield from _prepared_batches(clients, work)
        return
    epochs_of = [one.own.work(one.generator, phase) for one, phase in zip(clients, work, strict=True)]
    waiting = [next(batches, None) for batches in epochs_of]
    while any(batch is not None for batch in waiting):
        chosen = _largest([0 if batch is None else len(batch[1]) for batch in waiting])
        ready = [batch for row in chosen if (batch := waiting[row]) is not None]
        for row in chosen:
            waiting[row] = next(epochs_of[row], None)
        yield Batches(_rows(chosen), *(torch.stack(column) for column in zip(*ready, strict=True)))


def _prepared_batches(clients: Sequence[Client], work: Sequence[Phase]) -> Iterator[Batches]:
    """The same with samples that are converted once: a step then gathers all its samples with one index."""
    samples_of = [one.own for one in clients]
    x, pipeline = _prepared(samples_of), samples_of[0].pipeline
    y = torch.cat([samples.y for samples in samples_of])
    orders: list[list[Tensor]] = []  # by client: the indices of each of its batches
    begins, begin = [], 0
    for one, samples, phase in zip(clients, samples_of, work, strict=True):
        orders.append(samples.work_orders(one.generator, phase))
        begins.append(begin)
        begin += len(samples)
    first = torch.tensor(begins)
    position = [0] * len(clients)
    while True:
        sizes = [len(order[at]) if at < len(order) else 0 for order, at in zip(orders, position, strict=True)]
        if not any(sizes):
            return
        chosen = _largest(sizes)
        index = torch.stack([orders[row][position[row]] for row in chosen])
        rows = _rows(chosen)
        pooled_index = index + first[rows][:, None]
        yield Batches(rows, pipeline.inputs(x[pooled_index]), y[pooled_index], index)
        for row in chosen:
            position[row] += 1


def _prepared(samples_of: Sequence[Samples]) -> Tensor:
    """The samples of several clients one after the other, as rows of the pipeline; in one conversion where they share one
    array."""
    one = samples_of[0]
    if all(samples.x is one.x for samples in samples_of):
        rows = torch.cat([samples.rows for samples in samples_of])
        return one.pipeline.rows(one.x[rows]).to(one.device)
    return torch.cat([samples.prepared() for samples in samples_of])


def _largest(sizes: Sequence[int]) -> list[int]:
    """The rows whose next batch has the most frequent length (the longer one of two that are equally frequent)."""
    frequent = max({size for size in sizes if size}, key=lambda size: (sizes.count(size), size))
    return [row for row, size in enumerate(sizes) if size == frequent]


def _rows(chosen: Sequence[int]) -> Rows:
    if chosen[-1] - chosen[0] == len(chosen) - 1:
        return slice(chosen[0], chosen[-1] + 1)
    return torch.tensor(chosen)
