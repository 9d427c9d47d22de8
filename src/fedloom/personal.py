"""Fine-tuning of finished runs: several parts, rates and losses at once, sharing what they have in common.

A run is loaded and its clients are tested once; each combination is one pass over the clients, on lanes, that gives the whole
curve over epochs; what an earlier call found for the same weights is read instead of done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.engine.files import read_lines
from fedloom.engine.folder import RunFolder
from fedloom.engine.local import Which
from fedloom.errors import FedloomError
from fedloom.measure.personal import (
    UNSEEN,
    Personal,
    Start,
    Tuned,
    check,
    fine_tune,
    restore_finished,
    store,
    stored,
    where_clients_start,
)
from fedloom.run import Run, federation

Told = Callable[[str, int, int], None]  # which combination, clients done, clients in all


@dataclass(frozen=True)
class Tuning:
    """One combination: what is trained, for how long, how fast, under which loss."""

    part: Tuned = "full"
    epochs: int = 5
    lr: float = 0.001
    loss: Which = "method"

    def __str__(self) -> str:
        other = "" if self.loss == "method" else f", {self.loss} loss"
        return f"{self.part} at lr {self.lr:g}{other}"


def personalize_run(
    run: Run | str | Path,
    tunings: Sequence[Tuning],
    told: Told | None = None,
    *,
    again: bool = False,
    unseen: int = UNSEEN,
    sample: int | None = None,
    done: Callable[[int], None] | None = None,
) -> list[Personal]:
    """Fine-tune every client of a finished run in each of these ways; outcomes are stored in its folder as they come.

    `sample`: only so many clients, drawn by the run's seed. `again`: do over what is stored already.
    """
    folder = RunFolder(run.path if isinstance(run, Run) else run)
    folder.recipe()  # or a sentence that this is no run folder
    if not folder.finished:
        raise FedloomError(f"{folder.path} is not finished; carry it on with: fedloom run --resume {folder.path}")
    if sample is not None and sample < 1:
        raise FedloomError(f"clients: must be 1 or more (got {sample})")
    if unseen < 0:
        raise FedloomError(f"unseen: must not be negative (got {unseen})")
    digest = Run(folder.path).summary["digest"] if unseen == UNSEEN else ""  # what is found otherwise is not for reuse
    found = {t: None if again else stored(folder, t.part, t.epochs, t.lr, t.loss, digest, sample) for t in tunings}
    if all(found.values()):
        return [outcome for outcome in found.values() if outcome]
    experiment = folder.experiment()
    for t in tunings:
        check(experiment.layout.regions, t.part, t.epochs, t.lr, t.loss)
    lines = read_lines(folder.clients)
    globally = lines[-1]["accuracy"] if lines else []
    clients = min(experiment.partition.clients, sample or experiment.partition.clients)
    with federation(experiment, folder) as fed:
        restore_finished(fed, folder)
        start: Start = where_clients_start(fed, unseen, sample)
        for t, known in found.items():
            if known is not None:
                continue
            count = 0

            def tick(client: int, t: Tuning = t) -> None:
                nonlocal count
                count += 1
                if done:
                    done(client)
                if told:
                    told(str(t), count, clients)

            outcome = fine_tune(
                fed,
                t.part,
                t.epochs,
                t.lr,
                tick,
                loss=t.loss,
                unseen=unseen,
                start=start,
                globally=globally,
                sample=sample,
            )
            store(folder, outcome, digest)
            found[t] = outcome
    return [outcome for outcome in found.values() if outcome]
