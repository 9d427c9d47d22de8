"""The local training of a cohort as tasks: one per client, or one per group of vmapped clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from fedloom.engine.client.local_work import local_work
from fedloom.engine.server.machinery import Machinery
from fedloom.engine.tasks import Assignment, Report
from fedloom.engine.tasks.train import Train, TrainTogether
from fedloom.recipe import Recipe

Rows = list[int]  # places in the cohort, which are also rows of the buffers


def train_cohort(
    machinery: Machinery, cohort: Sequence[int], number: int, client_done: Callable[[int], None]
) -> list[Report | None]:
    """One report per client, in cohort order; None for a client whose worker died every time."""
    recipe = machinery.experiment.recipe
    sizes = [_size(machinery, client, number) for client in cohort]
    groups, trained = vmap_groups(sizes, recipe), 0

    def done(i: int) -> None:
        nonlocal trained
        trained += len(groups[i])
        client_done(trained)

    def train(groups: list[Rows], done: Callable[[int], None] | None = None) -> list[Report | None]:
        return machinery.work([_assignment(machinery, cohort, rows, number) for rows in groups], done)

    with machinery.interruptible():
        reports = train(groups, done)
        failed = [[row] for rows, report in zip(groups, reports, strict=True) if report is None for row in rows]
        # one client may have killed the worker of its whole group, so each of them gets a try alone
        if len(failed) > 1 and recipe.vmap != "off":
            groups += failed
            reports += train(failed)
    by_row: list[Report | None] = [None] * len(cohort)
    for rows, report in zip(groups, reports, strict=True):
        for place, row in enumerate(rows):
            by_row[row] = report["each"][place] if report and "each" in report else report
    return by_row


def vmap_groups(sizes: Sequence[int], recipe: Recipe) -> list[Rows]:
    """Which clients of a cohort train in one computation: one each, or groups of similar sizes, as even as possible.

    Clients with the most work train together, so that few wait for others. A function of the cohort alone.
    """
    if recipe.vmap == "off" or not sizes:
        return [[row] for row in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda row: -sizes[row])
    count = -(-len(order) // int(recipe.vmap))
    bounds = [len(order) * i // count for i in range(count + 1)]
    return [order[begin:end] for begin, end in pairwise(bounds)]


def _assignment(machinery: Machinery, cohort: Sequence[int], rows: Rows, number: int) -> Assignment:
    experiment, clients = machinery.experiment, [cohort[row] for row in rows]
    fill = [_fill_row(machinery, cohort[row], row) for row in rows]
    cost = sum(_size(machinery, client, number) for client in clients)
    if experiment.recipe.vmap == "off":
        return Assignment(Train(clients[0], number, rows[0]), cost, fill[0])

    def prepare(worker: int) -> None:
        for each in fill:
            each(worker)

    return Assignment(TrainTogether(clients, number, list(rows)), cost, prepare)


def _size(machinery: Machinery, client: int, number: int) -> int:
    """A client's work beside that of others: its samples where all have the same epochs, else its steps or all passes."""
    recipe = machinery.experiment.recipe
    if recipe.steps is None and not recipe.varied_work:
        return len(machinery.experiment.training(client, number))
    work = local_work(recipe, client, number)
    return work.steps or work.epochs * len(machinery.experiment.training(client, number))


def _fill_row(machinery: Machinery, client: int, row: int) -> Callable[[int], None]:
    """Fill a row with the client's state, and reset its upload, which holds what the row's last client sent."""
    load, buffers = machinery.load_state(client, row), machinery.buffers

    def prepare(worker: int) -> None:
        load(worker)
        upload = buffers.up(row)
        for name, first in machinery.experiment.program.messages.uploads.items():
            upload[name].copy_(first)

    return prepare
