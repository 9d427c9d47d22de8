"""The outcome of a fine-tuning: every metric of the recipe, per client and epoch, as a value that is stored as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedloom.errors import FedloomError, shown
from fedloom.evaluation.measure import Column, count_undefined, summarize
from fedloom.evaluation.metrics import find_metric
from fedloom.methods.api.context import Objective

TunedPart = Literal["full", "head", "body", "adapter", "alternate"]


@dataclass(frozen=True)
class FineTunedMetric:
    """One metric over a fine-tuning: values[epoch][client]; epoch 0 is the client's own model before fine-tuning."""

    metric: str
    values: list[Column]
    on_global: Column = field(default_factory=list)  # the served model on each client's test samples
    # on classes without training samples: before and after fine-tuning
    on_unseen: tuple[Column, Column] = field(default_factory=lambda: ([], []))
    tested: list[int | None] = field(default_factory=list)  # test samples per client
    tested_unseen: list[int | None] = field(default_factory=list)

    @property
    def curve(self) -> list[dict[str, float | int]]:
        """Mean and quartiles over clients after each epoch."""
        return [self._summary(row, self.tested) for row in self.values]

    @property
    def initial(self) -> dict[str, float | int]:
        return self._summary(self.values[0], self.tested)

    @property
    def personal(self) -> dict[str, float | int]:
        return self._summary(self.values[-1], self.tested)

    @property
    def global_model(self) -> dict[str, float | int]:
        return self._summary(self.on_global, self.tested)

    @property
    def unseen(self) -> tuple[dict[str, float | int], dict[str, float | int]]:
        """On classes without training samples: before and after fine-tuning."""
        before, after = (self._summary(column, self.tested_unseen) for column in self.on_unseen)
        return before, after

    def _summary(self, column: Column, tested: list[int | None]) -> dict[str, float | int]:
        return summarize(column, find_metric(self.metric).better, count_undefined(column, tested))

    def to_json(self) -> dict[str, Any]:
        """The keys of accuracy are global_accuracy, curve, clients ...; those of loss global_loss, curve_loss, clients_loss."""
        end = "" if self.metric == "accuracy" else f"_{self.metric}"
        before, after = self.unseen
        return {
            f"global_{self.metric}": self.global_model,
            f"initial_{self.metric}": self.initial,
            f"personal_{self.metric}": self.personal,
            f"unseen_before{end}": before,
            f"unseen_after{end}": after,
            f"curve{end}": self.curve,
            f"clients{end}": np.array(self.values, dtype=object).T.tolist(),
            f"clients_global{end}": self.on_global,
            f"clients_unseen{end}": [list(pair) for pair in zip(*self.on_unseen, strict=True)],
        }

    @staticmethod
    def from_json(metric: str, stored: Mapping[str, Any]) -> FineTunedMetric:
        end = "" if metric == "accuracy" else f"_{metric}"
        values: list[Column] = [list(row) for row in zip(*stored[f"clients{end}"], strict=True)]
        before, after = ([pair[i] for pair in stored[f"clients_unseen{end}"]] for i in (0, 1))
        tested, unseen = stored.get("tested", []), stored.get("tested_unseen", [])
        return FineTunedMetric(metric, values, list(stored[f"clients_global{end}"]), (before, after), tested, unseen)


@dataclass(frozen=True, repr=False)
class PersonalizationResult:
    """A fine-tuning of every client, in every metric of the run's recipe; the headline is first.

    `curve`, `initial`, `personal` and `unseen` are those of the headline; `of("macro_f1").curve` is that of another.
    """

    part: TunedPart
    epochs: int
    lr: float
    metrics: tuple[FineTunedMetric, ...]
    loss: Objective = "method"
    sample: int | None = None  # number of clients, where only a random sample was fine-tuned
    turns: tuple[str, ...] = ()  # of an alternating fine-tuning: what each epoch trained

    def __repr__(self) -> str:
        tuned = self.headline
        metric = find_metric(tuned.metric)
        before, after = (metric.text(row.get("mean")) for row in (tuned.initial, tuned.personal))
        how = f"{self.part}, {self.epochs} epochs at lr {self.lr:g}"
        return f"PersonalizationResult({how}: mean {metric.heading} {before} before, {after} after)"

    def of(self, metric: str) -> FineTunedMetric:
        for result in self.metrics:
            if result.metric == metric:
                return result
        raise FedloomError(
            f"metrics: the run has no {shown(metric)}; it has {', '.join(result.metric for result in self.metrics)}"
        )

    @property
    def headline(self) -> FineTunedMetric:
        return self.metrics[0]

    @property
    def accuracy(self) -> list[Column]:
        """accuracy[epoch][client]"""
        return self.of("accuracy").values

    @property
    def global_accuracy(self) -> Column:
        return self.of("accuracy").on_global

    @property
    def unseen_accuracy(self) -> tuple[Column, Column]:
        return self.of("accuracy").on_unseen

    @property
    def curve(self) -> list[dict[str, float | int]]:
        return self.headline.curve

    @property
    def initial(self) -> dict[str, float | int]:
        return self.headline.initial

    @property
    def personal(self) -> dict[str, float | int]:
        return self.headline.personal

    @property
    def unseen(self) -> tuple[dict[str, float | int], dict[str, float | int]]:
        return self.headline.unseen

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "part": self.part,
            "epochs": self.epochs,
            "lr": self.lr,
            "loss": self.loss,
            "sample": self.sample,
        }
        if self.turns:
            content["turns"] = list(self.turns)
        if [result.metric for result in self.metrics] != ["accuracy"]:
            content |= {"tested": self.headline.tested, "tested_unseen": self.headline.tested_unseen}
        for result in self.metrics:
            content |= result.to_json()
        return content

    @staticmethod
    def from_json(stored: Mapping[str, Any], metrics: Sequence[str] = ("accuracy",)) -> PersonalizationResult:
        """Raises KeyError if one of the metrics is not stored."""
        results = tuple(FineTunedMetric.from_json(metric, stored) for metric in metrics)
        return PersonalizationResult(
            stored["part"],
            stored["epochs"],
            stored["lr"],
            results,
            stored["loss"],
            stored["sample"],
            tuple(stored.get("turns", ())),
        )
