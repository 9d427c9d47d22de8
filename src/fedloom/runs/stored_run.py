"""A run, read from its folder: recipe, rounds, numbers, weights, tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from fedloom.engine.store import checkpoint
from fedloom.errors import FedloomError, shown
from fedloom.io.files import read_json, read_lines, read_tensors
from fedloom.io.html import html_table
from fedloom.recipe import Recipe
from fedloom.runs.figures import curves_figure
from fedloom.runs.folder import RunFolder
from fedloom.runs.frames import client_rows, frame_of, plain_line
from fedloom.runs.labels import name_of
from fedloom.runs.names import metric_named

if TYPE_CHECKING:
    from pandas import DataFrame

Evaluated = Literal["test", "clean_test", "validation", "client", "personal"]


CURVES: dict[Evaluated, str] = {
    "test": "global model",
    "clean_test": "global model, without shifts",
    "validation": "on validation samples",
    "client": "global model on clients' data, mean",
    "personal": "clients' own models, mean",
}


@dataclass(frozen=True, repr=False)
class Run:
    """A run, read from its folder: `fl.run` returns it, `fl.load("runs/x")` reads it again.

    >>> run
    Run('runs/first': fedavg on digits, 5 clients, 2 rounds, accuracy ... %)
    >>> run.metric("accuracy", of="client") == run.summary["client_accuracy"]["mean"]
    True
    >>> list(run.curve())
    [1, 2]
    >>> run.frame()[["round", "test_accuracy"]].shape
    (2, 2)
    >>> run.plot().write_html("curve.html")
    """

    path: Path

    def __repr__(self) -> str:
        return f"Run('{self.path}'{self._brief()})"

    def _brief(self) -> str:
        """What is known of it in a few words; empty if the folder cannot be read."""
        folder = RunFolder(self.path)
        try:
            recipe = folder.recipe()
        except (FedloomError, OSError):
            return ""
        words = f": {self.method} on {recipe.data.name}, {recipe.clients} clients"
        summary = read_json(folder.summary)
        if not folder.finished or not isinstance(summary, dict):
            return f"{words}, unfinished: {len(read_lines(folder.rounds))} of {recipe.rounds} rounds"
        return f"{words}, {recipe.rounds} rounds, {self.reached}"

    @property
    def reached(self) -> str:
        """The headline of a finished run in words: `accuracy 87.3 %`, of the global model on the pooled test set."""
        name = self.recipe.headline
        metric = metric_named(name)
        unit = " %" if metric.format == "percent" else ""
        return f"{metric.title} {metric.text(self.summary.get(f'test_{name}'))}{unit}"

    def _repr_html_(self) -> str:
        folder = RunFolder(self.path)
        summary = read_json(folder.summary)
        if not self._brief() or not isinstance(summary, dict):
            return html_table(repr(self), (), ())
        recipe = folder.recipe()
        columns = [
            (title, prefix)
            for prefix, title in (("client", "on clients' data"), ("personal", "clients' own models"))
            if f"{prefix}_{recipe.headline}" in summary
        ]
        rows = []
        for name in recipe.metrics:
            metric, cells = metric_named(name), []
            for _, prefix in columns:
                each = summary.get(f"{prefix}_{name}") or {}
                cells.append(metric.text(each.get("mean"), each.get("std")))
            rows.append([metric.heading, metric.text(summary.get(f"test_{name}")), *cells])
        note = f"{self.path}; {recipe.rounds} rounds in {summary.get('seconds', 0):.1f} s; model {recipe.model}, split "
        return html_table(
            f"{self.method} on {recipe.data.name}",
            ["", "global model", *(title for title, _ in columns)],
            rows,
            note + recipe.split,
        )

    @property
    def finished(self) -> bool:
        """Whether it is at its last round; `fl.run(resume=run.path)` continues one that is not."""
        return RunFolder(self.path).finished

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
    def method(self) -> str:
        """The method as the user called it; `summary["method"]` is the sum of parts that it stands for."""
        folder = RunFolder(self.path)
        summary = read_json(folder.summary)
        stored = summary.get("method") if isinstance(summary, dict) else None
        return name_of(self.path, str(stored or folder.recipe().method.partition(" @ ")[0]))

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

    def frame(self) -> DataFrame:
        """The rounds as a pandas data frame: cohort, losses, tests, seconds and bytes. Metrics are shares, not percent."""
        return frame_of([plain_line(line) for line in self.rounds])

    def clients_frame(self) -> DataFrame:
        """Tests on every client's own data as a pandas data frame: a row per round in which they took place and client.

        Clients have a `name` where the data name them.
        """
        stored = read_json(RunFolder(self.path).inputs)
        names = stored.get("client_names") if isinstance(stored, dict) else None
        return frame_of(client_rows(self.clients, names or ()))

    def plot(self, metric: str | None = None) -> Any:
        """A plotly figure of a metric over the rounds, by default the headline; `.write_html(PATH)` saves it."""
        curves = {CURVES[of]: [curve] for of in CURVES if (curve := self.curve(metric, of))}
        recipe = self.recipe
        title = f"{self.method} on {recipe.data.name}, {recipe.split}"
        return curves_figure(title, self._known(metric), curves)

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
