"""How long runs will take on this machine: a timed step per net, scaled by the number of samples.

A step is forward, backward and update on one thread; workers share the clients of a round. Methods that pass a batch through
the net more often are scaled by what benchmarks/methods.py measured. Tests and checkpoints are not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from fedloom.data import load
from fedloom.engine.backends.fork import count
from fedloom.engine.threads import one_thread
from fedloom.errors import FedloomError
from fedloom.methods import method
from fedloom.nets import build
from fedloom.papers import is_place, protocols
from fedloom.papers.schema import Sizes
from fedloom.recipe import Recipe
from fedloom.studies.reproduce.data import Availability, availability
from fedloom.studies.reproduce.jobs import Job

BATCH, PIXELS = 8, 2**16  # samples of the timed step; fewer of large images
STEPS = 2
# seconds relative to FedAvg, where they differ (benchmarks/results/methods.md)
COST = {"moon": 1.74, "ntd": 1.25, "kd": 1.21, "ld": 1.24, "fd": 1.28, "fedsol": 2.34, "agn": 1.22, "feddc": 1.18}
COST |= {"fedgen": 1.18, "fedftg": 3.1, "feddf": 5.0, "fnr": 1.9, "perfedavg": 2.0, "ditto": 2.0}


def seconds(jobs: Iterable[Job]) -> float:
    return sum(job_seconds(job) for job in jobs)


def job_seconds(job: Job) -> float:
    """Training and fine-tuning of one run."""
    return training_seconds(job) + tuning_seconds(job)


def training_seconds(job: Job) -> float:
    recipe, sizes = job.cell.recipe, sizes_of(job)
    each = sample_seconds(recipe.model, sizes.shape, sizes.classes)
    per_client = sizes.train / recipe.clients
    central = any(part.central_data == "all" for part in method(recipe.method).parts)
    if recipe.steps is None:
        trained = per_client * recipe.mean_work
    else:
        trained = recipe.mean_work * (recipe.batch if isinstance(recipe.batch, int) else per_client)
    samples = recipe.rounds * trained * (recipe.clients if central else recipe.cohort_size)
    workers = 1 if central else min(_workers(recipe), recipe.cohort_size)
    return each * _cost(recipe) * samples / workers


def tuning_seconds(job: Job) -> float:
    recipe, sizes = job.cell.recipe, sizes_of(job)
    each = sample_seconds(recipe.model, sizes.shape, sizes.classes)
    samples = sizes.train / recipe.clients * (job.tuned_clients or recipe.clients)
    return each * samples * sum(tuning.epochs for tuning in job.fine_tunings) / _workers(recipe)


def sizes_of(job: Job) -> Sizes:
    """Of the data set at hand, else those that the protocol states; the training samples are those that the recipe uses."""
    sizes, used = _whole_sizes(job), job.cell.recipe.data.images
    return sizes if used is None else sizes.model_copy(update={"train": min(sizes.train, used)})


def _whole_sizes(job: Job) -> Sizes:
    recipe, stated = job.cell.recipe, protocols()[job.protocol]
    ours = stated.recipe.get("data.name") == recipe.data.name
    elsewhere = is_place(recipe.data.name) and availability(recipe.data.name) is not Availability.HERE  # not downloaded
    if (ours or elsewhere) and stated.sizes is not None:
        return stated.sizes
    return _measured(recipe.data.name, recipe.data.resize, recipe.data.test_every)


@cache
def _measured(name: str, resize: int | None, test_every: int) -> Sizes:
    if availability(name) is not Availability.HERE:
        raise FedloomError(f"data {name} is not at hand, so its size is unknown")
    data: Any = load(name, resize, test_every)
    return Sizes(train=len(data.train_y), test=len(data.test_y), shape=data.shape, classes=data.classes)


@cache
def sample_seconds(model: str, shape: tuple[int, int, int], classes: int) -> float:
    """Seconds that one sample takes in a training step on one thread; the fastest of a few steps,
    in processor time, so that other processes do not count."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        net = build(model, shape, classes, "batch")
        net.train()
        batch = max(1, min(BATCH, PIXELS // math.prod(shape[1:])))
        x = torch.rand(batch, *shape)
        if len(shape) == 3:
            x = x.contiguous(memory_format=torch.channels_last)
        y = torch.arange(batch) % classes
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        times = []
        for _ in range(STEPS + 1):
            began = time.process_time()
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(net(x), y))
            optimizer.step()
            times.append(time.process_time() - began)
    return min(times[1:]) / batch


def _cost(recipe: Recipe) -> float:
    cost = 1.0
    for part in method(recipe.method).parts:
        cost *= COST.get(part.name, 1.0)
    return cost


@cache
def _cores() -> int:
    return count("auto", "cpu")


def _workers(recipe: Recipe) -> int:
    return recipe.workers if isinstance(recipe.workers, int) else _cores()


def duration(seconds: float) -> str:
    """About how long, in words."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36000 else f"{round(seconds / 3600)} h"
