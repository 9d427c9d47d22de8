"""A federation for the recipe of a run folder: its server, its buffers and the workers that train its clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.engine.backends import select as where
from fedloom.engine.experiment import Experiment
from fedloom.engine.server.cohort import largest_cohort
from fedloom.engine.server.round import Federation
from fedloom.engine.store.client_state import ClientStateStore
from fedloom.engine.store.ledger import Ledger
from fedloom.engine.store.state import State
from fedloom.engine.threads import one_thread
from fedloom.runs.folder import RunFolder


@contextmanager
def federation(experiment: Experiment, folder: RunFolder, rows: int = 0, spawned: bool = False) -> Iterator[Federation]:
    """A run's server, buffers and workers, at round 0.

    `rows`: least number of clients that the buffers have room for. `spawned`: fresh processes in place of forked ones, as
    accelerators need them.
    """
    experiment, _ = where.here(experiment)
    on_sites = folder.sites.exists()
    with one_thread():
        budget = experiment.recipe.memory_mb * 1e6
        kind = Ledger if on_sites else ClientStateStore
        client_state = kind(
            experiment.program.messages.state, experiment.program.messages.state_row, folder.client_memory, budget
        )
        if (
            on_sites and experiment.recipe.workers == "ray"
        ):  # what stands for the sites' data exists in this process only
            experiment = experiment.with_recipe(experiment.recipe.changed(workers="auto"))
        with where.running(experiment, max(largest_cohort(experiment.recipe), rows), spawned) as (buffers, workers):
            yield Federation(experiment, State(experiment), client_state, buffers, workers)
