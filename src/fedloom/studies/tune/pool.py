"""Trials at the same time: one forked process for each, with as many workers as there are cores for it.

Bits do not depend on workers, so neither do choices. A process per trial was as fast as all workers on one trial, or faster
(docs/tune.md has the measurements). Trials on accelerators or on a Ray cluster run one after the other in this process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedloom.engine.backends.fork import count, end_with_main
from fedloom.engine.backends.select import built_from_recipe
from fedloom.engine.server.callback import RunCallback
from fedloom.errors import CodeFailed, FedloomError, Interrupted, Unwritable
from fedloom.recipe import Recipe
from fedloom.studies.tune.search import Job, Outcome
from fedloom.studies.tune.trial import run_trial

PATIENCE = 10.0  # seconds that interrupted trials have to write their checkpoints


@dataclass(frozen=True)
class Work:
    """A trial to run: whose it is, the trial and its recipe."""

    method: int
    job: Job
    recipe: Recipe


Progress = Callable[[Work, dict[str, Any]], None]  # called after every round with its line


def processes(recipe: Recipe) -> int:
    """Number of trials that run at the same time."""
    if built_from_recipe(recipe) or recipe.device != "cpu":
        return 1
    return count(recipe.workers, recipe.device)


def perform(waiting: deque[Work], recipe: Recipe, progress: Progress) -> Generator[tuple[Work, Outcome], None, None]:
    """Outcomes as they come. The caller may append to `waiting` meanwhile."""
    if built_from_recipe(recipe) or recipe.device != "cpu":
        while waiting:
            work = waiting.popleft()
            yield work, run_trial(work.recipe, work.job.until, [_Rounds(partial(progress, work))])
        return
    with _interruptible(), _Pool(processes(recipe)) as pool:
        yield from pool.run(waiting, progress)


@dataclass
class _Pool:
    size: int
    busy: dict[Connection, tuple[Work, BaseProcess]] = field(default_factory=dict)

    def __enter__(self) -> _Pool:
        self._context = multiprocessing.get_context("fork")
        self._alive = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        """Trials that still run are asked to stop, and write a checkpoint."""
        for _work, process in self.busy.values():
            process.terminate()
        for pipe, (_work, process) in self.busy.items():
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        for end in self._alive:
            os.close(end)

    def run(self, waiting: deque[Work], progress: Progress) -> Iterator[tuple[Work, Outcome]]:
        while waiting or self.busy:
            while waiting and len(self.busy) < self.size:
                share = self.size // min(self.size, len(waiting) + len(self.busy))
                self._start(waiting.popleft(), share)
            for pipe in wait(list(self.busy)):
                assert isinstance(pipe, Connection)
                work, process = self.busy[pipe]
                try:
                    kind, content = pipe.recv()
                except (EOFError, OSError):
                    kind, content = "died", None
                if kind == "round":
                    progress(work, content)
                    continue
                del self.busy[pipe]
                pipe.close()
                process.join()
                if kind != "done":
                    raise _failure(work, kind, content)
                yield work, Outcome(**content)

    def _start(self, work: Work, workers: int) -> None:
        mine, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_serve, args=(work, workers, theirs, self._alive), name=f"fedloom-trial-{work.job.trial.number}"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forking a process that has threads
            process.start()
        theirs.close()
        self.busy[mine] = work, process


def _serve(work: Work, workers: int, pipe: Connection, alive: tuple[int, int]) -> None:
    """A trial in a process of its own. It ends with the main process, however that ends."""
    # Ctrl-C reaches the whole process group; only the main process hears it, and asks its trials to stop
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(alive[1])
    threading.Thread(target=end_with_main, args=(alive[0],), daemon=True).start()
    torch.set_num_threads(1)

    def send(kind: str, content: Any) -> None:
        with suppress(OSError):
            pipe.send((kind, content))

    recipe = work.recipe.changed(workers=workers)
    try:
        outcome = run_trial(recipe, work.job.until, [_Rounds(lambda line: send("round", _brief(line)))])
        send("done", vars(outcome))
    except Interrupted:
        send("stopped", None)
    except Unwritable as error:
        send("unwritable", str(error))
    except CodeFailed as error:
        send("code", str(error))
    except FedloomError as error:
        send("refused", str(error))
    except BaseException as error:
        send("code", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    os._exit(0)


def _brief(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: line.get(name) for name in ("round", "train_loss", "seconds")}


def _failure(work: Work, kind: str, content: str | None) -> FedloomError:
    named = f"trial {work.job.trial.number} of {work.recipe.method}"
    if kind == "unwritable":
        return Unwritable(str(content))
    if kind == "code":
        message, _, trace = str(content).partition("\n")
        return CodeFailed(f"{named} failed: {message}", trace)
    if kind == "refused":
        return FedloomError(f"{named} failed: {content}")
    return Interrupted(f"{named} was stopped from outside; the same command resumes")


class _Rounds(RunCallback):
    def __init__(self, ended: Callable[[dict[str, Any]], None]) -> None:
        self._ended = ended

    def round_ended(self, line: dict[str, Any]) -> None:
        self._ended(line)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the trials, which write checkpoints; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(130)  # trials end by themselves, and resume from their last checkpoint
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
