"""What a person sees while runs go: one bar in a terminal, a few plain lines in a log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedloom.compare import Cell
from fedloom.engine.setup import Experiment


class Bar:
    """Watches one run, or all cells of a comparison in turn; use as a context."""

    def __init__(self, console: Console, cells: int = 1) -> None:
        self.console, self.cells = console, cells
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, told="")
        self._rounds, self._base, self._title = 1, 0, ""
        self._said = 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def cell(self, cell: Cell, number: int, total: int) -> None:
        self.cells, self._rounds = total, cell.recipe.rounds
        self._base = number * self._rounds
        self._title = f"{number + 1}/{total} {cell.row}, seed {cell.seed}"
        self._progress.update(self._task, description=self._title, total=total * self._rounds, completed=self._base)

    def begin(self, experiment: Experiment, folder: Path, done: int) -> None:
        recipe = experiment.recipe
        if not self._title:
            self._rounds = recipe.rounds
            self._progress.update(self._task, description=str(experiment.method), total=recipe.rounds)
            self.note(
                f"{experiment.method} on {recipe.data.name} ({recipe.split}, {recipe.clients} clients), into {folder}"
            )
        if done:
            self.note(f"going on after round {done}")
        self._progress.update(self._task, completed=self._base + done)

    def client(self, done: int) -> None:
        """Clients are too many to show one by one."""

    def round(self, line: dict[str, Any]) -> None:
        told = _told(line)
        self._progress.update(self._task, completed=self._base + line["round"], told=told)
        if line["lost"]:
            reasons = "; ".join(f"client {client}: {why}" for client, why in line["lost_clients"].items())
            self.note(f"round {line['round']}: {line['lost']} uploads lost ({reasons})")
        now = time.monotonic()
        if not self.console.is_terminal and (now - self._said > 10 or line["round"] == self._rounds):
            self._said = now
            self.note(f"{self._title + ': ' if self._title else ''}round {line['round']}/{self._rounds}  {told}")

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _told(line: dict[str, Any]) -> str:
    loss = line["train_loss"]
    words = [f"loss {loss:.3f}"] if loss is not None else []
    if "test_accuracy" in line:
        words.append(f"accuracy {100 * line['test_accuracy']:.1f} %")
    if "personal_accuracy" in line:
        words.append(f"clients' own {100 * line['personal_accuracy']:.1f} %")
    return "  ".join(words)
