"""Progress of runs: one bar in a terminal or a notebook, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fedloom.data.split.client_names import client_names
from fedloom.engine.experiment import Experiment
from fedloom.engine.server.callback import RunCallback
from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.report.notebook import NotebookProgress
from fedloom.runs.labels import name_of
from fedloom.studies.cells import Cell

QUIET = 10.0  # seconds between lines of a log


class Bar:
    """A bar with its time left in a terminal or a notebook, plain lines in a log. A context manager."""

    def __init__(self, console: Console, description: str = "") -> None:
        self.console = console
        self._clock = TimeLeft()
        self._progress = _shown_progress(console)
        self._task: Any = self._progress.add_task(description, total=1.0, status="", left="")
        self._last_line = time.monotonic() - QUIET  # when a line was last printed to a log

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._progress.disable:  # stopping a disabled bar prints an empty line in older versions of rich
            self._progress.stop()

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _log(self, text: str, last: bool = False) -> None:
        """A line where there is no bar, with the time left: every ten seconds, and the last one."""
        now = time.monotonic()
        if self._progress.disable and (now - self._last_line > QUIET or last):
            self._last_line = now
            left = f"  ({left})" if (left := self._clock.left()) else ""
            self.note(f"{text}{left}")


class ProgressBar(Bar, RunCallback):
    """Progress of one run, or of all runs of a comparison."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._rounds, self._share, self._title, self._headline = 1, (0.0, 1.0), "", "accuracy"
        self._training = 1.0  # share of the current cell's work
        self._trained = False
        self._names: tuple[str, ...] = ()  # of clients that have them
        self._noted: set[str] = set()

    def note(self, text: str) -> None:
        """Once, where all runs of a comparison say the same, such as how a table became inputs."""
        if not self._title or text not in self._noted:
            super().note(text)
        self._noted.add(text)

    def cell_started(self, cell: Cell, number: int, total: int) -> None:
        if self._trained:
            self._clock.reach(cell.share[0])  # work after the rounds of the last cell
        else:
            self._clock.skip(cell.share[0])
        self._trained = False
        self._rounds, self._share, self._training = cell.recipe.rounds, cell.share, cell.training
        self._title = f"{number + 1}/{total} {cell.title}"
        self._progress.update(self._task, description=self._title, status="")
        self._move(0)

    def run_started(self, experiment: Experiment, folder: Path, rounds_done: int) -> None:
        recipe = experiment.recipe
        self._headline, self._names = recipe.headline, client_names(experiment.data.stages[0])
        if not self._title:
            self._rounds = recipe.rounds
            name = name_of(folder, str(experiment.program.method))
            self._progress.update(self._task, description=name)
            self.note(f"{name} on {recipe.data.name} ({recipe.split}, {recipe.clients} clients), into {folder}")
        if rounds_done:
            self.note(f"{self._named}continuing after round {rounds_done}")
        self._trained = True
        self._clock.skip(self._at(rounds_done))
        self._move(rounds_done)

    def round_ended(self, line: dict[str, Any]) -> None:
        status = _status(line, find_metric(self._headline))
        self._clock.reach(self._at(line["round"]))
        self._move(line["round"])
        self._progress.update(self._task, status=f"round {line['round']}/{self._rounds}  {status}")
        if line["lost"]:
            reasons = "; ".join(f"{self._client(int(client))}: {why}" for client, why in line["lost_clients"].items())
            self.note(f"{self._named}round {line['round']}: {line['lost']} uploads lost ({reasons})")
        self._log(f"{self._named}round {line['round']}/{self._rounds}  {status}", line["round"] == self._rounds)

    def client_tuned(self, done: int, total: int) -> None:
        begin, end = self._share
        position = begin + (end - begin) * (self._training + (1 - self._training) * done / total)
        if self._trained:
            self._clock.reach(position)
        else:  # the run was there already
            self._clock.skip(position)
            self._trained = True
        status = f"fine-tuned {done} of {total} clients"
        self._progress.update(self._task, completed=position, left=self._clock.left(), status=status)
        self._log(f"{self._named}{status}", done == total)

    @property
    def _named(self) -> str:
        """The cell, where there are several, before what is printed of it."""
        return f"{self._title}: " if self._title else ""

    def _client(self, number: int) -> str:
        return f"client {number} ({self._names[number]})" if self._names else f"client {number}"

    def _at(self, done: int) -> float:
        """Share of all work that is done after this round of the current run."""
        begin, end = self._share
        return begin + (end - begin) * self._training * done / self._rounds

    def _move(self, done: int) -> None:
        self._progress.update(self._task, completed=self._at(done), left=self._clock.left())


class TimeLeft:
    """Estimates the time left from the work done since the start. Work that was already done is not counted."""

    def __init__(self) -> None:
        self._position, self._worked, self._seconds, self._since = 0.0, 0.0, 0.0, time.monotonic()

    def skip(self, position: float) -> None:
        """Work up to this position was already done."""
        self._position, self._since = position, time.monotonic()

    def reach(self, position: float) -> None:
        """Work up to this position was done since the last call."""
        now = time.monotonic()
        self._worked += position - self._position
        self._seconds += now - self._since
        self._position, self._since = position, now

    def left(self) -> str:
        if self._worked <= 0 or self._position >= 1:
            return ""
        minutes, seconds = divmod(round(self._seconds / self._worked * (1 - self._position)), 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return f"{hours} h {minutes} min left"
        return f"{minutes} min {seconds} s left" if minutes else f"{seconds} s left"


def _status(line: dict[str, Any], metric: Metric) -> str:
    loss, unit = line["train_loss"], " %" if metric.format == "percent" else ""
    words = [f"loss {loss:.3f}"] if loss is not None else []
    for title, name in ((metric.title, f"test_{metric.name}"), ("clients' own", f"personal_{metric.name}")):
        if line.get(name) is not None:
            words.append(f"{title} {metric.text(line[name])}{unit}")
    return "  ".join(words)


def _shown_progress(console: Console) -> Progress | NotebookProgress:
    """What shows a share of work that is done; disabled in a log, where lines are printed."""
    if console.is_jupyter:
        return NotebookProgress()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[status]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def watching(progress: bool | None, callbacks: Sequence[RunCallback]) -> Iterator[list[RunCallback]]:
    """The callbacks of a run in Python with a bar before them. None: in a terminal or a notebook, unless there is one."""
    console = Console(stderr=True, emoji=False)
    if progress is None:
        progress = shows_progress(console) and not any(isinstance(callback, ProgressBar) for callback in callbacks)
    if not progress:
        yield list(callbacks)
        return
    with ProgressBar(console) as shown:
        yield [shown, *callbacks]


def shows_progress(console: Console) -> bool:
    return console.is_terminal or console.is_jupyter
