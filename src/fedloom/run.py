"""One run from recipe to summary: create or resume the folder, make the rounds, test, checkpoint, hand out."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedloom import __version__
from fedloom.engine import checkpoint, where
from fedloom.engine.clock import seconds_by
from fedloom.engine.files import keep_lines, read_json, read_lines, read_tensors, write_json, write_tensors
from fedloom.engine.folder import RunFolder, create, place
from fedloom.engine.ledger import Ledger
from fedloom.engine.logs import RunLog
from fedloom.engine.memory import ClientMemory
from fedloom.engine.precision import decide
from fedloom.engine.rounds import Federation
from fedloom.engine.setup import Experiment, one_thread, prepare
from fedloom.engine.start import told_origin
from fedloom.engine.state import State
from fedloom.errors import DISK, FedloomError, Interrupted, TooFew, Unwritable
from fedloom.measure.accuracy import by_client, is_personal, pooled, spread
from fedloom.measure.during import Periodic
from fedloom.recipe import Recipe
from fedloom.track import check, tracking
from fedloom.weights import digest


class Watcher(Protocol):
    """Somebody who looks on: a progress bar, a notebook, a tracker."""

    def begin(self, experiment: Experiment, folder: Path, done: int) -> None: ...
    def client(self, done: int) -> None: ...
    def round(self, line: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    def begin(self, experiment: Experiment, folder: Path, done: int) -> None: ...
    def client(self, done: int) -> None: ...
    def round(self, line: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder."""

    path: Path

    @property
    def recipe(self) -> Recipe:
        return RunFolder(self.path).recipe()

    @property
    def summary(self) -> dict[str, Any]:
        found = read_json(self.path / "summary.json")
        if not isinstance(found, dict):
            raise FedloomError(
                f"{self.path / 'summary.json'} is damaged or not there; remove it, and write it again with: "
                f"fedloom run --resume {self.path}"
            )
        return found

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
                f"{flaw}; put the file back as it was, or remove {folder.summary} and make those rounds again with: "
                f"fedloom run --resume {self.path}"
            )

    @property
    def weights(self) -> dict[str, Tensor]:
        """The served weights by name."""
        return read_tensors(self.path / "final.safetensors")[0]


def start(recipe: Recipe, watcher: Watcher | None = None) -> Run:
    """Run a recipe in a new folder."""
    check(recipe.track)
    where.check(recipe)
    experiment = prepare(recipe)
    with where.session():
        told = where.rehearse(experiment)
        path = place(recipe, recipe.method)
        name = path.name.lstrip(".") or None  # a hidden folder, or the one we stand in
        experiment = replace(experiment, recipe=experiment.told().changed(name=name, out=str(path)))
        if experiment.origin and watcher:
            watcher.note(told_origin(experiment.origin))
        if told and watcher:
            watcher.note(told)
        if recipe.precision == "auto" and watcher:
            watcher.note(
                "precision: auto is {} here: {}".format(*decide(recipe, experiment.net, experiment.task.shape))
            )
        if recipe.stack == "auto" and watcher:
            watcher.note(f"stack: auto is {experiment.recipe.stack} here: {experiment.stacked_because}")
        return go(experiment, create(experiment, path), watcher or Silent())


def resume(path: str | Path, watcher: Watcher | None = None, lanes: int | str | None = None) -> Run:
    """Carry on after any interruption, to the same bits; a finished run is returned as it is."""
    folder = RunFolder(path)
    stored = folder.recipe()
    if folder.finished:
        return Run(folder.path)
    if folder.sites.exists():
        raise FedloomError(
            f"{folder.path} runs on nodes; carry it on with: flwr run APP NAME --stream --run-config resume=true"
        )
    if lanes is not None:
        where.check(stored.changed(lanes=lanes))
    experiment = folder.experiment()
    if lanes is not None:
        experiment = replace(experiment, recipe=stored.changed(lanes=lanes))
    experiment, told = where.here(experiment)
    if told and watcher:
        watcher.note(told)
    return go(experiment, folder, watcher or Silent())


@contextmanager
def federation(experiment: Experiment, folder: RunFolder, rows: int = 0, spawned: bool = False) -> Iterator[Federation]:
    """The machinery of a run, not yet at any round. `rows`: room for as many clients at once, where that is more.
    `spawned`: lanes as accelerators need them, fresh processes in place of forked ones."""
    experiment, _ = where.here(experiment)
    sited = folder.sites.exists()
    with one_thread():
        budget = experiment.recipe.memory_mb * 1e6
        kind = Ledger if sited else ClientMemory
        memory = kind(experiment.messages.memory, experiment.messages.memory_row, folder.client_memory, budget)
        if sited and experiment.recipe.lanes == "ray":  # what stands for the sites' images is here alone
            experiment = replace(experiment, recipe=experiment.recipe.changed(lanes="auto"))
        with where.running(experiment, max(experiment.recipe.cohort_size, rows), spawned) as (board, lanes):
            yield Federation(experiment, State(experiment), memory, board, lanes)


Machinery = Callable[[Experiment, RunFolder], AbstractContextManager[Federation]]


def go(experiment: Experiment, folder: RunFolder, watcher: Watcher, machinery: Machinery = federation) -> Run:
    """From the newest checkpoint, if there is one, to the last round; `machinery` decides where clients run."""
    recipe = experiment.recipe
    identity = recipe.digest()
    with (
        _resumable(folder),
        folder.held(),
        machinery(experiment, folder) as fed,
        Interrupts() as interrupts,
        ExitStack() as stack,
    ):
        state = fed.state
        log = folder.log()
        for text in checkpoint.restore(folder.checkpoints, state, fed.memory, identity, log):
            watcher.note(f"passed over a checkpoint: {text}")
        log.cut(state.round)
        analysis = Periodic(recipe.analyze_every, recipe.rounds, folder.analysis)
        analysis.cut(state.round)
        fed.observer = analysis
        watcher.begin(experiment, folder.path, state.round)
        fed.progress, fed.interruptible = watcher.client, interrupts.now
        saved, saved_round = time.monotonic(), state.round
        writing = 0.0  # seconds of checkpoints that no line tells yet
        tracker = stack.enter_context(tracking(recipe, folder.path, state.round, watcher.note))
        try:
            while state.round < recipe.rounds:
                line = fed.round()
                analysis.write()
                line.update(_evaluate(fed, log))
                if writing:
                    line["phase_seconds"]["checkpoint"], writing = round(writing, 6), 0.0
                log.add_round(line)
                watcher.round(line)
                tracker.round(line)
                if time.monotonic() - saved >= recipe.checkpoint_seconds or state.round == recipe.rounds:
                    began = time.perf_counter()
                    checkpoint.save(folder.checkpoints, state, fed.memory, identity, log.seal())
                    writing += time.perf_counter() - began
                    saved, saved_round = time.monotonic(), state.round
        except (KeyboardInterrupt, TooFew) as stop:
            if state.round > saved_round:
                began = time.perf_counter()
                checkpoint.save(folder.checkpoints, state, fed.memory, identity, log.seal())
                _told_late(folder, writing + time.perf_counter() - began)
            if isinstance(stop, TooFew):
                raise
            raise Interrupted(
                f"stopped after round {state.round} of {recipe.rounds}; carry on with: fedloom run --resume {folder.path}"
            ) from None
        _told_late(folder, writing)
        _finish(fed, folder)
        tracker.close(Run(folder.path).summary)
    return Run(folder.path)


@contextmanager
def _resumable(folder: RunFolder) -> Iterator[None]:
    """A full disk ends a run with one sentence. The round that was not written down whole is made again on resume."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        place = error.filename or folder.path
        raise Unwritable(
            f"{place} cannot be written ({error.strerror}), so the run stopped; make room, then carry on with: "
            f"fedloom run --resume {folder.path}"
        ) from None


def _told_late(folder: RunFolder, writing: float) -> None:
    """A checkpoint is told in the line of the round after it; where none follows, the last line gets it. So the summary
    is made of the lines alone, whenever it is made."""
    lines = read_lines(folder.rounds)
    if writing and lines:
        spent = lines[-1].setdefault("phase_seconds", {})
        spent["checkpoint"] = round(spent.get("checkpoint", 0.0) + writing, 6)
        keep_lines(folder.rounds, lines)


def _evaluate(fed: Federation, log: RunLog) -> dict[str, Any]:
    """The tests that are due after this round."""
    recipe, number = fed.experiment.recipe, fed.state.round
    last = number == recipe.rounds
    due = last or (recipe.eval_every > 0 and number % recipe.eval_every == 0)
    clients_due = last or (recipe.eval_clients > 0 and number % recipe.eval_clients == 0)
    if not (due or clients_due):
        return {}
    began = time.perf_counter()
    found: dict[str, Any] = dict(pooled(fed))
    if clients_due:
        each = by_client(fed)
        log.add_clients({"round": number, **each})
        found["client_accuracy"] = spread(each["accuracy"]).get("mean")
        if "personal_accuracy" in each:
            found["personal_accuracy"] = spread(each["personal_accuracy"]).get("mean")
    return {**found, "evaluation_seconds": round(time.perf_counter() - began, 6)}


def _finish(fed: Federation, folder: RunFolder) -> None:
    """final.safetensors and summary.json."""
    experiment, state = fed.experiment, fed.state
    tensors = experiment.layout.tensors(state.whole(state.served()["w"]))
    lines, each = read_lines(folder.rounds), read_lines(folder.clients)[-1]
    write_tensors(folder.final, tensors, {"recipe": experiment.recipe.digest(), "round": str(state.round)})
    summary: dict[str, Any] = {
        "method": str(experiment.method),
        "test_accuracy": lines[-1]["test_accuracy"],
        "client_accuracy": spread(each["accuracy"]),
    }
    summary |= {name: lines[-1][name] for name in ("clean_test_accuracy", "domain_accuracy") if name in lines[-1]}
    if is_personal(fed):
        summary["personal_accuracy"] = spread(each["personal_accuracy"])
    if len(experiment.validation):
        best = max(
            (line for line in lines if "validation_accuracy" in line), key=lambda line: line["validation_accuracy"]
        )
        names = ("round", "validation_accuracy", "test_accuracy")
        summary["best_by_validation"] = {name: best[name] for name in names}
    summary |= {
        "train_loss": lines[-1]["train_loss"],
        "rounds": state.round,
        "lost": sum(line["lost"] for line in lines),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "evaluation_seconds": round(sum(line.get("evaluation_seconds", 0) for line in lines), 3),
        "seconds_by": seconds_by(lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "lanes": fed.lanes.count,
        "lanes_replaced": fed.lanes.deaths,
        "parameters": experiment.layout.parameters,
        "exchanged": 0 if experiment.pooled else experiment.layout.exchanged,
        "personal": experiment.layout.personal,
        "digest": digest(tensors),
        "recipe_digest": experiment.recipe.digest(),
        "data_digest": experiment.images.digest,
        "versions": {
            "fedloom": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "device": experiment.recipe.device,
        },
    }
    if experiment.origin:
        summary["init"] = experiment.origin
    for part in experiment.method.hooked("summary"):
        summary = {**part.summary(experiment.plan()), **summary}
    write_json(folder.summary, summary)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Interrupts:
    """Ctrl-C and SIGTERM take effect only where the state is whole; a second one is obeyed at once."""

    def __init__(self) -> None:
        self._asked: int | None = None
        self._open = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for sign in (signal.SIGINT, signal.SIGTERM):
                self._before[sign] = signal.signal(sign, self._hear)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for sign, handler in self._before.items():
            signal.signal(sign, handler)
        if self._asked is not None and kind is None:
            signal.raise_signal(self._asked)  # too late to stop this run, but not what its caller does next

    def _hear(self, sign: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            os._exit(130)  # in the middle of something, but the last checkpoint is whole and lanes end by themselves
        self._asked = sign
        if self._open:
            raise KeyboardInterrupt

    @contextmanager
    def now(self) -> Iterator[None]:
        """A stretch in which stopping is harmless."""
        if self._asked is not None:
            raise KeyboardInterrupt
        self._open = True
        try:
            yield
        finally:
            self._open = False
