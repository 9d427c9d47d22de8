"""A finished tuning in Python: what was chosen, every trial, and a figure of them."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.io.files import write
from fedloom.io.html import html_table
from fedloom.runs.frames import frame_of
from fedloom.runs.names import metric_named
from fedloom.studies.tune.chosen import Tuned
from fedloom.studies.tune.figure import figure
from fedloom.studies.tune.trial_row import TrialRow

if TYPE_CHECKING:
    from pandas import DataFrame

TRIALS = "trials.csv"


@dataclass(frozen=True, repr=False)
class Study:
    """What `fl.tune` chose, with every trial; `fl.load("runs/tune")` reads it again.

    >>> study = fl.tune("fedavg", over={"lr": [0.05, 0.2]}, clients=5, rounds=1, model="linear", name="tuned")
    >>> study
    Study('runs/tuned': fedavg @ lr=...)
    >>> list(study.best)
    ['fedavg']
    >>> study.frame().shape[0]
    2
    """

    root: Path
    tuned: Tuned
    trials: tuple[TrialRow, ...]

    def __repr__(self) -> str:
        chosen = "; ".join(item.row if item.sum else f"{item.method}: diverged" for item in self.tuned.methods)
        return f"Study('{self.root}': {chosen})"

    def _repr_html_(self) -> str:
        metric = metric_named(self.tuned.metric)
        columns = ("method", "chosen", "validation", "untuned", "trials")
        rows = [
            [
                item.method,
                ", ".join(f"{name}={value}" for name, value in item.tuned.items()) if item.sum else "diverged",
                metric.text(item.value),
                metric.text(item.default_value),
                item.trials,
            ]
            for item in self.tuned.methods
        ]
        title = f"{metric.heading} on {self.tuned.validation_samples} validation samples"
        return html_table(title, columns, rows, f"{self.root}; {self.tuned.budget}")

    @property
    def best(self) -> dict[str, str]:
        """The chosen row of every method, as `fl.compare` takes it; a method all of whose trials diverged is left out."""
        return {chosen.method: chosen.row for chosen in self.tuned.methods if chosen.sum is not None}

    @property
    def warnings(self) -> dict[str, tuple[str, ...]]:
        return {chosen.method: chosen.warnings for chosen in self.tuned.methods if chosen.warnings}

    def rows(self) -> list[dict[str, Any]]:
        """Every trial as a row of a table; a setting that a method does not have is empty."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.values))
        return [
            {
                "method": trial.method,
                "trial": trial.trial,
                **{name: trial.values.get(name) for name in names},
                f"validation_{self.tuned.metric}": trial.value,
                "state": trial.state,
                "rounds": trial.rounds,
                "seconds": trial.seconds,
                "folder": trial.folder,
            }
            for trial in self.trials
        ]

    def frame(self) -> DataFrame:
        """Every trial as a row of a pandas data frame."""
        return frame_of(self.rows())

    def plot(self) -> Any:
        """A plotly figure: the validation value of every trial over its first tuned setting, one panel per method."""
        return figure(self.tuned, self.trials)

    def save(self) -> Path:
        """Write trials.csv beside tuned.json."""
        rows, text = self.rows(), io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write(self.root / TRIALS, text.getvalue())
        return self.root / TRIALS
