"""What a person sees while runs go: one bar in a terminal, a few plain lines in a log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fedloom.compare import Cell
from fedloom.engine.setup import Experiment


class Bar:
    """Watches one run, or all cells of a comparison in turn; use as a context."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[told]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=1.0, told="", left="")
        self._rounds, self._share, self._title = 1, (0.0, 1.0), ""
        self._clock, self._ran = Clock(), False
        self._said = 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._progress.disable:  # where it is, older versions of rich print an empty line
            self._progress.stop()

    def cell(self, cell: Cell, number: int, total: int) -> None:
        if self._ran:
            self._clock.reach(cell.share[0])  # what the last cell did after its rounds was work as well
        else:
            self._clock.skip(cell.share[0])
        self._ran = False
        self._rounds, self._share = cell.recipe.rounds, cell.share
        self._title = f"{number + 1}/{total} {cell.title}"
        self._progress.update(self._task, description=self._title, told="")
        self._move(0)

    def begin(self, experiment: Experiment, folder: Path, done: int) -> None:
        recipe = experiment.recipe
        if not self._title:
            self._rounds = recipe.rounds
            self._progress.update(self._task, description=str(experiment.method))
            self.note(
                f"{experiment.method} on {recipe.data.name} ({recipe.split}, {recipe.clients} clients), into {folder}"
            )
        if done:
            self.note(f"going on after round {done}")
        self._ran = True
        self._clock.skip(self._at(done))
        self._move(done)

    def client(self, done: int) -> None:
        """Clients are too many to show one by one."""

    def round(self, line: dict[str, Any]) -> None:
        told = _told(line)
        self._clock.reach(self._at(line["round"]))
        self._move(line["round"])
        self._progress.update(self._task, told=f"round {line['round']}/{self._rounds}  {told}")
        if line["lost"]:
            reasons = "; ".join(f"client {client}: {why}" for client, why in line["lost_clients"].items())
            self.note(f"round {line['round']}: {line['lost']} uploads lost ({reasons})")
        now = time.monotonic()
        if not self.console.is_terminal and (now - self._said > 10 or line["round"] == self._rounds):
            self._said = now
            left = f"  ({left})" if (left := self._clock.left()) else ""
            self.note(f"{self._title + ': ' if self._title else ''}round {line['round']}/{self._rounds}  {told}{left}")

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _at(self, done: int) -> float:
        """How much of the whole job is done after this round of the present run."""
        begin, end = self._share
        return begin + (end - begin) * done / self._rounds

    def _move(self, done: int) -> None:
        self._progress.update(self._task, completed=self._at(done), left=self._clock.left())


class Clock:
    """Time left, from the work that was really done since it was started: what was found done costs nothing."""

    def __init__(self) -> None:
        self._position, self._worked, self._seconds, self._since = 0.0, 0.0, 0.0, time.monotonic()

    def skip(self, position: float) -> None:
        """Found done already."""
        self._position, self._since = position, time.monotonic()

    def reach(self, position: float) -> None:
        """Done just now, since the last call."""
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


def _told(line: dict[str, Any]) -> str:
    loss = line["train_loss"]
    words = [f"loss {loss:.3f}"] if loss is not None else []
    if "test_accuracy" in line:
        words.append(f"accuracy {100 * line['test_accuracy']:.1f} %")
    if "personal_accuracy" in line:
        words.append(f"clients' own {100 * line['personal_accuracy']:.1f} %")
    return "  ".join(words)
