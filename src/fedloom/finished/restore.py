"""Finished runs: the check that a run is finished, and its federation restored to the end."""

from __future__ import annotations

from fedloom.engine.server.round import Federation
from fedloom.engine.store import checkpoint
from fedloom.engine.store.ledger import Ledger
from fedloom.errors import FedloomError
from fedloom.runs.folder import RunFolder


def check_finished(folder: RunFolder) -> None:
    folder.recipe()  # or a sentence that this is no run folder
    if not folder.finished:
        raise FedloomError(f"{folder.path} is not finished; resume it with: {folder.resume_command}")


def restore_finished(fed: Federation, folder: RunFolder) -> None:
    """Restore a federation to the end of its finished run."""
    check_finished(folder)
    if isinstance(fed.client_state, Ledger):
        _check_sites(fed, folder)
    checkpoint.restore(folder.checkpoints, fed.state, fed.client_state, fed.experiment.recipe.digest())
    if fed.state.round != fed.experiment.recipe.rounds:
        raise FedloomError(f"{folder.path} has lost its last checkpoint, so the state of its clients is unknown")


def _check_sites(fed: Federation, folder: RunFolder) -> None:
    """For a run on real machines, refuse what needs the sites' samples or their clients' state."""
    instead = "at each site, use: fedloom flower personalize"
    if not len(fed.experiment.data.dataset.train_y):
        raise FedloomError(f"{folder.path}: the samples of this run are at its sites; {instead}")
    method, layout = fed.experiment.program.method, fed.experiment.program.layout
    remembering = {item.name.partition(".")[0] for item in fed.experiment.program.messages.state.items}
    needed = {part.name for hook in ("loss", "regularizer", "personalize") for part in method.hooked(hook)}
    if layout.personal or layout.personal_statistics or remembering & needed:
        raise FedloomError(f"{folder.path}: the personal state of clients of {method} is at their sites; {instead}")
