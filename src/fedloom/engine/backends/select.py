"""Which back-end runs the clients of a recipe.

device cpu,   workers N | auto     forked processes (fork.py), elsewhere than on Linux fresh ones (spawn.py); auto: one per core
device other, one worker           the main process
device other, more workers         fresh processes (spawn.py), spread over the devices; auto: one per device
workers ray                        actors of a Ray cluster (ray.py), one per core or per accelerator
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fedloom.engine.backends import fork as workers
from fedloom.engine.backends import ray, spawn
from fedloom.engine.backends.backend import Backend
from fedloom.engine.backends.blueprint import refuse_uncarried
from fedloom.engine.backends.fork import ForkBackend
from fedloom.engine.backends.remote import RemoteBackend
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.experiment import Experiment
from fedloom.recipe import Recipe


@contextmanager
def running(experiment: Experiment, rows: int, spawned: bool = False) -> Iterator[tuple[SharedBuffers, Backend]]:
    """Shared buffers for at least this many clients, and a back-end. `spawned`: fresh processes on any device."""
    recipe = experiment.recipe
    with ExitStack() as stack:
        if recipe.workers == "ray":
            cluster = stack.enter_context(ray.cluster())
            count = cluster.workers(recipe.device)
            buffers = SharedBuffers(experiment, max(rows, count))
            actors = ray.Actors(cluster, recipe.device)
            device = recipe.device.partition(":")[0]  # Ray shows each actor only its own accelerator
            yield buffers, stack.enter_context(RemoteBackend(Replica(experiment), buffers, actors, count, [device]))
            return
        count = workers.count(recipe.workers, recipe.device)
        buffers, replica = SharedBuffers(experiment, max(rows, count)), Replica(experiment)
        if spawned or _fresh(recipe, count):
            devices = workers.devices(recipe.device)
            yield buffers, stack.enter_context(RemoteBackend(replica, buffers, spawn.Processes(), count, devices))
        else:
            yield buffers, stack.enter_context(ForkBackend(replica, buffers, count))


def check(recipe: Recipe) -> None:
    """Refuse a recipe that cannot run on this machine."""
    workers.check(recipe.workers, recipe.device)
    if recipe.workers == "ray":
        ray.check()


def built_from_recipe(recipe: Recipe) -> bool:
    """Whether workers are fresh processes, which see only what the recipe names."""
    return recipe.workers == "ray" or _fresh(recipe, workers.count(recipe.workers, recipe.device))


def _fresh(recipe: Recipe, count: int) -> bool:
    return not workers.forks() if recipe.device == "cpu" else count > 1


def rehearse(experiment: Experiment) -> str | None:
    """Refuse what other machines would refuse, before anything is written; returns a note about them for the user."""
    recipe = experiment.recipe
    if built_from_recipe(recipe):
        refuse_uncarried(experiment)
    if recipe.workers != "ray":
        return None
    with ray.cluster() as cluster, running(experiment, 1) as (_, runner):
        return f"workers on Ray: {runner.count}; nodes: {cluster.nodes()}"


@contextmanager
def session() -> Iterator[None]:
    """Runs inside the block share what takes long to start."""
    with ray.kept(), spawn.kept():
        yield


def here(experiment: Experiment) -> tuple[Experiment, str | None]:
    """A stored recipe as it can run on this machine, and a note for the user. Workers do not change the bits."""
    recipe = experiment.recipe
    if recipe.workers == "ray" and not ray.installed():
        count = workers.count("auto", recipe.device)
        note = f"Ray is not installed here: continuing with {count} workers on this machine"
        return experiment.with_recipe(recipe.changed(workers="auto")), note
    if isinstance(recipe.workers, int) and (count := workers.count(recipe.workers, recipe.device)) < recipe.workers:
        note = f"the recipe asks for {recipe.workers} workers, this machine has {count} cores: continuing with {count}"
        return experiment.with_recipe(recipe.changed(workers=count)), note
    return experiment, None
