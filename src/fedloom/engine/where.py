"""Where the clients of a recipe run: forked lanes, the main process, fresh processes on accelerators, or a Ray cluster.

device cpu,   lanes N | auto     forked processes (lanes.py)
device other, one lane           the main process
device other, more lanes         fresh processes, dealt out over the devices; auto: one for each device
lanes ray                        actors of a Ray cluster, one core each (or one accelerator each)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from fedloom.engine import lanes, ray_lanes
from fedloom.engine.blueprint import refuse_uncarried
from fedloom.engine.board import Board
from fedloom.engine.lanes import Lanes
from fedloom.engine.remote import RemoteLanes
from fedloom.engine.rounds import Runner
from fedloom.engine.setup import Experiment
from fedloom.engine.spawned import Processes
from fedloom.engine.worker import Worker
from fedloom.recipe import Recipe


@contextmanager
def running(experiment: Experiment, rows: int, spawned: bool = False) -> Iterator[tuple[Board, Runner]]:
    """A board with room for so many clients or more, and lanes. `spawned`: fresh processes whatever the device."""
    recipe = experiment.recipe
    with ExitStack() as stack:
        if recipe.lanes == "ray":
            cluster = stack.enter_context(ray_lanes.cluster())
            count = cluster.lanes(recipe.device)
            board = Board(experiment, max(rows, count))
            actors = ray_lanes.Actors(cluster, recipe.device)
            place = recipe.device.partition(":")[0]  # Ray shows each actor its own accelerator and no other
            yield board, stack.enter_context(RemoteLanes(Worker(experiment), board, actors, count, [place]))
            return
        count = lanes.count(recipe.lanes, recipe.device)
        board, worker = Board(experiment, max(rows, count)), Worker(experiment)
        if spawned or (recipe.device != "cpu" and count > 1):
            places = lanes.devices(recipe.device)
            yield board, stack.enter_context(RemoteLanes(worker, board, Processes(), count, places))
        else:
            yield board, stack.enter_context(Lanes(worker, board, count))


def check(recipe: Recipe) -> None:
    """Refuse what cannot run here, before anything is made."""
    lanes.check(recipe.lanes, recipe.device)
    if recipe.lanes == "ray":
        ray_lanes.check()


def rehearse(experiment: Experiment) -> str | None:
    """Refuse what other machines would refuse, before anything is written; what is to be said about them."""
    recipe = experiment.recipe
    if recipe.lanes == "ray" or (recipe.device != "cpu" and lanes.count(recipe.lanes, recipe.device) > 1):
        refuse_uncarried(experiment)
    if recipe.lanes != "ray":
        return None
    with ray_lanes.cluster() as cluster, running(experiment, 1) as (_, runner):
        return f"lanes on Ray: {runner.count}; nodes: {cluster.nodes()}"


def session() -> AbstractContextManager[None]:
    """Runs inside of it share what takes long to start."""
    return ray_lanes.kept()


def here(experiment: Experiment) -> tuple[Experiment, str | None]:
    """A stored recipe as it can run on this machine, and what is to be said about that: lanes do not change the bits."""
    recipe = experiment.recipe
    if recipe.lanes == "ray" and not ray_lanes.installed():
        found = lanes.count("auto", recipe.device)
        told = f"Ray is not installed here: going on with {found} lanes of this machine"
        return replace(experiment, recipe=recipe.changed(lanes="auto")), told
    if isinstance(recipe.lanes, int) and (found := lanes.count(recipe.lanes, recipe.device)) < recipe.lanes:
        told = f"the recipe wants {recipe.lanes} lanes, and this machine has {found} cores: going on with {found}"
        return replace(experiment, recipe=recipe.changed(lanes=found)), told
    return experiment, None
