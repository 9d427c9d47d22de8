"""Fine-tuning of finished runs: several parts, rates and losses at once, sharing what they have in common.

A run is loaded and its clients are tested once; each combination is one pass over the clients, on workers, that gives the whole
curve over epochs; a stored outcome for the same weights is read instead of computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.errors import FedloomError
from fedloom.evaluation.fine_tuned import PersonalizationResult, TunedPart
from fedloom.evaluation.personalization import check, fine_tune, initial_values
from fedloom.evaluation.unseen import UNSEEN
from fedloom.finished.restore import check_finished, restore_finished
from fedloom.io.files import read_json, read_lines, write_json
from fedloom.methods.api.context import Objective
from fedloom.runs.federation import federation
from fedloom.runs.folder import RunFolder
from fedloom.runs.metrics import import_metrics
from fedloom.runs.run import Run

Progress = Callable[[str, int, int], None]  # which combination, clients done, clients in all


@dataclass(frozen=True)
class FineTuning:
    """One combination: what is trained, for how long, how fast, under which loss.

    >>> str(fl.FineTuning("head", epochs=5, lr=0.01))
    'head at lr 0.01'
    """

    part: TunedPart = "full"
    epochs: int = 5
    lr: float = 0.001
    loss: Objective = "method"

    def __str__(self) -> str:
        other = "" if self.loss == "method" else f", {self.loss} loss"
        return f"{self.part} at lr {self.lr:g}{other}"


def personalize_run(
    run: Run | str | Path,
    fine_tunings: Sequence[FineTuning],
    progress: Progress | None = None,
    *,
    again: bool = False,
    unseen: int = UNSEEN,
    sample: int | None = None,
    done: Callable[[int], None] | None = None,
) -> list[PersonalizationResult]:
    """Fine-tune every client of a finished run in each of these ways; outcomes are stored in its folder as they come.

    `sample`: number of clients, sampled by the run's seed. `again`: repeat what is stored already.

    >>> ways = [fl.FineTuning("head", 1, 0.01), fl.FineTuning("full", 1, 0.01)]
    >>> [result.part for result in fl.personalize_run(run, ways)]
    ['head', 'full']
    """
    folder = RunFolder(run.path if isinstance(run, Run) else run)
    check_finished(folder)
    if sample is not None and sample < 1:
        raise FedloomError(f"clients: must be 1 or more (got {sample})")
    if unseen < 0:
        raise FedloomError(f"unseen: must not be negative (got {unseen})")
    digest = Run(folder.path).summary["digest"] if unseen == UNSEEN else ""  # other outcomes are not reused
    recipe = folder.recipe()
    import_metrics(recipe)
    outcomes = {
        t: None if again else stored(folder, t.part, t.epochs, t.lr, t.loss, digest, sample, recipe.metrics)
        for t in fine_tunings
    }
    if all(outcomes.values()):
        return [outcome for outcome in outcomes.values() if outcome]
    experiment = folder.experiment()
    for t in fine_tunings:
        check(experiment.program.layout.regions, t.part, t.epochs, t.lr, t.loss, experiment.program.method.parts)
    lines = read_lines(folder.clients)
    on_global = {metric: lines[-1].get(metric, []) for metric in experiment.recipe.metrics} if lines else {}
    clients = min(experiment.data.partition.clients, sample or experiment.data.partition.clients)
    with federation(experiment, folder) as fed:
        restore_finished(fed, folder)
        initial = initial_values(fed, unseen, sample)
        for t, stored_outcome in outcomes.items():
            if stored_outcome is not None:
                continue
            count = 0

            def tick(client: int, t: FineTuning = t) -> None:
                nonlocal count
                count += 1
                if done:
                    done(client)
                if progress:
                    progress(str(t), count, clients)

            outcome = fine_tune(
                fed,
                t.part,
                t.epochs,
                t.lr,
                tick,
                loss=t.loss,
                unseen=unseen,
                initial=initial,
                on_global=on_global,
                sample=sample,
            )
            store(folder, outcome, digest)
            outcomes[t] = outcome
    return [outcome for outcome in outcomes.values() if outcome]


def store(folder: RunFolder, outcome: PersonalizationResult, digest: str = "") -> Path:
    """personal/PART-EPOCHS-LR.json, with the loss behind it where that is not the method's own."""
    path = _place(folder, outcome.part, outcome.epochs, outcome.lr, outcome.loss, outcome.sample)
    write_json(path, {**outcome.to_json(), "weights": digest})
    return path


def _place(folder: RunFolder, part: TunedPart, epochs: int, lr: float, loss: Objective, sample: int | None) -> Path:
    other = "" if loss == "method" else f"-{loss}"
    few = "" if sample is None else f"-of{sample}"
    return folder.path / "personal" / f"{part}-{epochs}-{lr:g}{other}{few}.json"


def stored(
    folder: RunFolder,
    part: TunedPart,
    epochs: int,
    lr: float,
    loss: Objective,
    digest: str,
    sample: int | None = None,
    metrics: Sequence[str] = ("accuracy",),
) -> PersonalizationResult | None:
    """The stored outcome for these weights, with all of these metrics, if there is one."""
    stored_json = read_json(_place(folder, part, epochs, lr, loss, sample))
    if (
        not isinstance(stored_json, dict)
        or not digest
        or stored_json.get("weights") != digest
        or stored_json.get("lr") != lr
    ):
        return None
    try:
        return PersonalizationResult.from_json(stored_json, metrics)
    except (KeyError, TypeError, ValueError):
        return None  # written by another version, or without one of the metrics: it is made again
