"""One run from recipe to summary: create or resume the folder, run the rounds, test, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fedloom.analysis.collect.periodic import PeriodicAnalysis
from fedloom.engine.backends import select as where
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.initial_weights import describe_origin
from fedloom.engine.kernels import check_kernels
from fedloom.engine.resolve import resolve
from fedloom.engine.server.callback import Callbacks, RunCallback
from fedloom.engine.server.round import Federation
from fedloom.engine.store import checkpoint
from fedloom.errors import DISK, FedloomError, Interrupted, TooFew, Unwritable, shown
from fedloom.evaluation.clients import evaluate_clients, summarize_clients
from fedloom.evaluation.global_model import evaluate_global
from fedloom.evaluation.validation import validate_clients
from fedloom.io.files import read_json, read_lines, read_tensors, replace_lines
from fedloom.io.logs import RunLog
from fedloom.recipe import Recipe
from fedloom.runs.federation import federation
from fedloom.runs.folder import RunFolder, create, place
from fedloom.runs.interrupts import Interrupts
from fedloom.runs.metrics import check_metrics, describe_metrics
from fedloom.runs.summary import write_summary
from fedloom.track import Tracking, check

Evaluated = Literal["test", "clean_test", "validation", "client", "personal"]


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder."""

    path: Path

    @property
    def recipe(self) -> Recipe:
        return RunFolder(self.path).recipe()

    @property
    def summary(self) -> dict[str, Any]:
        folder = RunFolder(self.path)
        summary = read_json(folder.summary)
        if not isinstance(summary, dict):
            raise FedloomError(
                f"{folder.summary} is damaged or missing; remove it, and write it again with: {folder.resume_command}"
            )
        return summary

    @property
    def rounds(self) -> list[dict[str, Any]]:
        self._check_log()
        return read_lines(self.path / "rounds.jsonl")

    @property
    def clients(self) -> list[dict[str, Any]]:
        self._check_log()
        return read_lines(self.path / "clients.jsonl")

    def _check_log(self) -> None:
        folder = RunFolder(self.path)
        if flaw := checkpoint.disagreement(folder.checkpoints, folder.log()):
            raise FedloomError(
                f"{flaw}; put the file back as it was, or remove {folder.summary} and repeat those rounds with: "
                f"{folder.resume_command}"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of its recipe; the first is the headline."""
        return self.recipe.metrics

    def metric(self, name: str | None = None, of: Evaluated = "test") -> float | None:
        """A metric after the last round, by default the headline; of clients and personal models the mean over clients.

        None where it is undefined, or where there is no such evaluation.
        """
        value = self.summary.get(f"{of}_{self._known(name)}")
        if of == "validation":
            value = self.rounds[-1].get(f"validation_{self._known(name)}")
        mean: float | None = value.get("mean") if isinstance(value, dict) else value
        return mean

    def curve(self, name: str | None = None, of: Evaluated = "test") -> dict[int, float | None]:
        """A metric by round, for the rounds after which it was evaluated."""
        key = f"{of}_{self._known(name)}"
        return {line["round"]: line[key] for line in self.rounds if key in line}

    @property
    def best_round(self) -> int | None:
        """The round with the best headline metric on validation samples; None where none are held out."""
        best: int | None = self.summary.get("best_round")
        return best

    def _known(self, name: str | None) -> str:
        metrics = self.metrics
        if name is not None and name not in metrics:
            raise FedloomError(f"metrics: the run has no {shown(name)}; it has {', '.join(metrics)}")
        return name or metrics[0]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The served weights by name."""
        return read_tensors(self.path / "final.safetensors")[0]


def start(recipe: Recipe, callbacks: Sequence[RunCallback] = (), until: int | None = None) -> Run:
    """Run a recipe in a new folder, to its last round or until an earlier one."""
    check(recipe.track)
    where.check(recipe)
    callback = Callbacks(*callbacks)
    experiment, notes = resolve(prepare(recipe))
    metric_notes = check_metrics(experiment)
    with where.session():
        backend_note = where.rehearse(experiment)
        path = place(recipe, recipe.method)
        name = path.name.lstrip(".") or None  # a hidden folder, or the current one
        experiment = experiment.with_recipe(experiment.program.stored_recipe().changed(name=name, out=str(path)))
        origin = experiment.program.origin
        data_notes = [f"data: {note}" for note in experiment.data.dataset.notes]
        for note in (describe_origin(origin) if origin else None, backend_note, *notes, *data_notes, *metric_notes):
            if note:
                callback.note(note)
        return go(experiment, create(experiment, path), callback, until=until)


def resume(
    path: str | Path,
    callbacks: Sequence[RunCallback] = (),
    workers: int | str | None = None,
    until: int | None = None,
) -> Run:
    """Continue after any interruption, to the same bits; a finished run is returned as it is. `until`: as of `go`."""
    folder = RunFolder(path)
    stored = folder.recipe()
    if folder.finished:
        return Run(folder.path)
    if folder.sites.exists():
        raise FedloomError(
            f"{folder.path} runs on nodes; resume it with: flwr run APP NAME --stream --run-config resume=true"
        )
    if workers is not None:
        where.check(stored.changed(workers=workers))
    experiment, callback = folder.experiment(), Callbacks(*callbacks)
    check_kernels(stored, experiment.program.net)
    if workers is not None:
        experiment = experiment.with_recipe(stored.changed(workers=workers))
    experiment, note = where.here(experiment)
    if note:
        callback.note(note)
    return go(experiment, folder, callback, until=until)


MakeFederation = Callable[[Experiment, RunFolder], AbstractContextManager[Federation]]


def go(
    experiment: Experiment,
    folder: RunFolder,
    callback: RunCallback,
    make_federation: MakeFederation = federation,
    until: int | None = None,
) -> Run:
    """From the newest checkpoint, if there is one, to the last round; `make_federation` decides where clients run.

    `until`: evaluate after this round and stop there, with a checkpoint from which the run can go on.
    """
    recipe = experiment.recipe
    identity = recipe.digest()
    check_metrics(experiment)
    with (
        _resumable(folder),
        folder.held(),
        make_federation(experiment, folder) as fed,
        Interrupts() as interrupts,
    ):
        describe_metrics(folder, recipe)
        state, log = fed.state, folder.log()
        for text in checkpoint.restore(folder.checkpoints, state, fed.client_state, identity, log):
            callback.note(f"skipped a checkpoint: {text}")
        log.cut(state.round)
        analysis = PeriodicAnalysis(recipe.analyze_every, recipe.rounds, folder.analysis)
        analysis.truncate(state.round)
        fed.callback = Callbacks(analysis, callback, Tracking(recipe, callback.note))
        fed.interruptible = interrupts.now
        with _reporting_the_end(fed.callback, folder):
            fed.callback.run_started(experiment, folder.path, state.round)
            _rounds(fed, folder, log, identity, recipe.rounds if until is None else until)
            if state.round == recipe.rounds:
                write_summary(fed, folder)
    return Run(folder.path)


def _rounds(fed: Federation, folder: RunFolder, log: RunLog, identity: str, last: int) -> None:
    """The remaining rounds up to the last one, with tests, log and checkpoints."""
    state, recipe = fed.state, fed.experiment.recipe
    saved, saved_round = time.monotonic(), state.round
    writing = 0.0  # seconds spent on checkpoints since the last line
    try:
        while state.round < last:
            line = fed.round()
            line.update(_evaluate(fed, log, last))
            if writing:
                line["phase_seconds"]["checkpoint"], writing = round(writing, 6), 0.0
            log.add_round(line)
            fed.callback.round_ended(line)
            if time.monotonic() - saved >= recipe.checkpoint_seconds or state.round == last:
                began = time.perf_counter()
                checkpoint.save(folder.checkpoints, state, fed.client_state, identity, log.seal())
                writing += time.perf_counter() - began
                saved, saved_round = time.monotonic(), state.round
    except (KeyboardInterrupt, TooFew) as stop:
        if state.round > saved_round:
            began = time.perf_counter()
            checkpoint.save(folder.checkpoints, state, fed.client_state, identity, log.seal())
            _add_checkpoint_seconds(folder, writing + time.perf_counter() - began)
        if isinstance(stop, TooFew):
            raise
        raise Interrupted(
            f"stopped after round {state.round} of {recipe.rounds}; resume with: {folder.resume_command}"
        ) from None
    _add_checkpoint_seconds(folder, writing)


@contextmanager
def _reporting_the_end(callback: RunCallback, folder: RunFolder) -> Iterator[None]:
    """Callbacks are called at the end of a run, however it ends."""
    try:
        yield
    except BaseException:
        callback.run_ended(None)
        raise
    callback.run_ended(Run(folder.path).summary if folder.finished else None)


@contextmanager
def _resumable(folder: RunFolder) -> Iterator[None]:
    """A full disk ends a run with one sentence. A round that was not logged completely is repeated on resume."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        place = error.filename or folder.path
        raise Unwritable(
            f"{place} cannot be written ({error.strerror}), so the run stopped; make room, then resume with: "
            f"{folder.resume_command}"
        ) from None


def _add_checkpoint_seconds(folder: RunFolder, writing: float) -> None:
    """Add them to the last line: it has no next line, which is where the seconds of a checkpoint belong."""
    lines = read_lines(folder.rounds)
    if writing and lines:
        spent = lines[-1].setdefault("phase_seconds", {})
        spent["checkpoint"] = round(spent.get("checkpoint", 0.0) + writing, 6)
        replace_lines(folder.rounds, lines)


def _evaluate(fed: Federation, log: RunLog, until: int) -> dict[str, Any]:
    """The tests that are due after this round."""
    recipe, number = fed.experiment.recipe, fed.state.round
    last = number == until
    due = last or (recipe.eval_every > 0 and number % recipe.eval_every == 0)
    clients_due = last or (recipe.eval_clients > 0 and number % recipe.eval_clients == 0)
    if not (due or clients_due):
        return {}
    began = time.perf_counter()
    values: dict[str, Any] = {**evaluate_global(fed), **validate_clients(fed)}
    if clients_due and recipe.eval_test:
        each = evaluate_clients(fed)
        log.add_clients({"round": number, **each})
        summaries = summarize_clients(each, recipe.metrics)
        values |= {name: summary.get("mean") for name, summary in summaries.items()}
        if undefined := {name: summary["undefined"] for name, summary in summaries.items() if "undefined" in summary}:
            values["undefined"] = undefined
    return {**values, "evaluation_seconds": round(time.perf_counter() - began, 6)}
