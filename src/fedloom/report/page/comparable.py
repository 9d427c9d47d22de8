"""Our value for a published number: only values of the same measure are compared.

global   the global model on the pooled test set
clean    the same on test samples without the split's shifts
client   the global model on each client's own test samples, mean over clients, before any fine-tuning
own      each client's own model on its own test samples, mean over clients
tuned    the same after some epochs of fine-tuning a part of the net; a longer fine-tuning includes that epoch
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.report.page.gather import RunFiles
from fedloom.report.page.measured import number

Measure = Mapping[str, Any]
NAMES = {  # keys in the summary and in rounds.jsonl
    "global": "test_accuracy",
    "clean": "clean_test_accuracy",
    "client": "client_accuracy",
    "own": "personal_accuracy",
}
LABELS = {
    "global": "global model, pooled test set",
    "clean": "global model, test samples without noise",
    "client": "global model, mean over clients before fine-tuning",
    "own": "clients' own models, mean over clients",
}


@dataclass(frozen=True)
class OurValues:
    """Our values for a published number, one per run; or why there are none; and how the measure differs."""

    values: list[float]
    lacking: str = ""
    differs: tuple[str, ...] = ()


def label(measure: Measure) -> str:
    if measure["kind"] != "tuned":
        return LABELS[measure["kind"]]
    epochs = f"{measure['epochs']} epochs" if measure["epochs"] else "epochs not printed"
    loss = {"method": "", "objective": ", without regularizers"}.get(measure["loss"], f", loss of {measure['loss']}")
    return f"fine-tuned ({measure['part']}, {epochs}{loss}), mean over clients"


def our_values(runs: Sequence[RunFiles], measure: Measure) -> OurValues:
    """The values of this measure in runs of one recipe."""
    if measure["kind"] != "tuned":
        values = [value for run in runs if (value := _accuracy(run, NAMES[measure["kind"]])) is not None]
        return OurValues(values) if values else OurValues([], _lacking(measure, runs))
    chosen = [item for run in runs if (item := _nearest_tuning(run, measure)) is not None]
    if not chosen:
        return OurValues([], _lacking(measure, runs))
    values = [value for item in chosen if (value := _after(item, measure)) is not None]
    return OurValues(
        values, differs=tuple(dict.fromkeys(text for item in chosen for text in _differences(item, measure)))
    )


def _accuracy(run: RunFiles, name: str) -> float | None:
    stored = run.summary.get(name)
    accuracy = number(stored.get("mean") if isinstance(stored, dict) else stored)
    if accuracy is not None or run.finished:
        return accuracy
    evaluated = [value for line in run.rounds if (value := number(line.get(name))) is not None]
    return evaluated[-1] if evaluated else None


def _nearest_tuning(run: RunFiles, measure: Measure) -> Mapping[str, Any] | None:
    """The stored fine-tuning of the same part and loss, long enough, whose learning rate is nearest to the published one."""

    def fits(item: Mapping[str, Any]) -> bool:
        same = (item.get("part"), item.get("loss", "method")) == (measure["part"], measure["loss"])
        stale = item.get("weights") not in (None, "", run.summary.get("digest"))
        readable = (number(item.get("lr")) or 0) > 0 and _after(item, measure) is not None
        return same and readable and not stale and not item.get("sample")

    def distance(item: Mapping[str, Any]) -> tuple[float, float]:
        rate = float(item["lr"])
        return (abs(math.log(rate / measure["lr"])) if measure["lr"] else 0.0, rate)

    return min(filter(fits, run.fine_tunings), key=distance, default=None)


def _after(item: Mapping[str, Any], measure: Measure) -> float | None:
    """The mean over clients after the published number of epochs, or after the last one if the paper does not say."""
    curve = item.get("curve")
    if not isinstance(curve, list) or not all(isinstance(one, dict) for one in curve):
        return None
    epoch = measure["epochs"] or len(curve) - 1
    return number(curve[epoch].get("mean")) if 0 < epoch < len(curve) else None


def _differences(item: Mapping[str, Any], measure: Measure) -> list[str]:
    differences = [] if measure["epochs"] else [f"fine-tuning epochs {len(item['curve']) - 1} (not printed)"]
    rate = float(item["lr"])
    if rate != measure["lr"]:
        printed = "not printed" if measure["lr"] is None else f"published {measure['lr']:g}"
        differences.append(f"fine-tuning lr {rate:g} ({printed})")
    return differences


def _lacking(measure: Measure, runs: Sequence[RunFiles]) -> str:
    """Why there is no value, with the command that would measure it."""
    kind = measure["kind"]
    if not any(metric["name"] == "accuracy" for run in runs for metric in run.metrics):
        return "not measured; accuracy is not among this run's metrics"
    if kind == "tuned" and measure["loss"] in ("method", "objective", "ce"):
        loss = "" if measure["loss"] == "method" else f" --loss {measure['loss']}"
        rate = f" --lr {measure['lr']:g}" if measure["lr"] else ""
        return f"not measured; fedloom personalize RUN --part {measure['part']} --epochs {measure['epochs'] or 5}{rate}{loss}"
    if kind == "tuned":
        return "not measured; fine-tuning with another method's loss is not offered"
    if kind == "own":
        return "not measured; this run's clients have no models of their own"
    return "not measured; known after the last round"
