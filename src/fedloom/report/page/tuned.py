"""Tunings for the page: every trial of every method, and what was chosen. One that still runs is shown as far as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.evaluation.metrics import METRICS
from fedloom.io.files import read_lines
from fedloom.report.page.gather import read_json, tuning_folders
from fedloom.studies.tune import chosen
from fedloom.studies.tune.record import ASKED, OUTCOMES

# raised when a damaged or edited folder is read
DAMAGE = (FedloomError, OSError, ValueError, TypeError, LookupError, AttributeError)


def tunings(paths: Sequence[str | Path], problems: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Every tuning in these folders or below them; a damaged one becomes a problem."""
    shown = []
    for folder in tuning_folders(paths):
        try:
            shown.append(_tuning(folder))
        except DAMAGE as error:
            reason = (
                str(error) if isinstance(error, FedloomError) else f"a file in it is damaged ({type(error).__name__})"
            )
            problems.append({"path": str(folder), "reason": reason})
    return shown


def _tuning(folder: Path) -> dict[str, Any]:
    asked, lines = read_json(folder / ASKED), read_lines(folder / OUTCOMES)
    marks, name = [int(mark) for mark in asked["rungs"]], str(asked["metric"])
    done = chosen.read(folder) if (folder / chosen.FILE).is_file() else None
    by_method = {one.method: one for one in done.methods} if done else {}
    methods = []
    for number, row in enumerate(asked["methods"]):
        choice = by_method.get(row)
        trials = _trials(
            [line for line in lines if line["method"] == number and "trial" in line], marks, done is not None
        )
        methods.append(
            {
                "method": str(row),
                "ranges": [_range(setting, text) for setting, text in asked["spaces"][number].items()],
                "trials": trials,
                "chosen": dict(choice.tuned) if choice is not None and choice.sum is not None else None,
                "row": choice.row if choice is not None and choice.sum is not None else None,
                "value": choice.value if choice is not None else None,
                "selected_on": choice.selected_on if choice is not None else "",
                "warnings": list(choice.warnings) if choice is not None else [],
                "rounds": sum(trial["done"] for trial in trials),
                "seconds": round(sum(trial["seconds"] for trial in trials), 3),
            }
        )
    known = METRICS.get(name)
    metric = {"name": name, "title": name.replace("_", " "), "better": "higher", "format": "number"}
    if known is not None:
        metric |= {"title": known.title, "better": known.better, "format": known.format}
    trials_each = f"{asked['trials']} trials for each method"
    return {
        "path": str(folder),
        "metric": metric,
        "rungs": marks,
        "budget": trials_each if asked.get("trials") is not None else str(asked.get("budget")),
        "samples": done.validation_samples if done else None,
        "finished": done is not None,
        "methods": methods,
    }


def _trials(lines: Sequence[dict[str, Any]], marks: Sequence[int], finished: bool) -> list[dict[str, Any]]:
    """Each trial with its outcome at every round after which it was compared."""
    trials: dict[int, dict[str, Any]] = {}
    for line in lines:
        trial = trials.setdefault(line["trial"], {"trial": line["trial"], "values": line["values"], "curve": []})
        trial["curve"].append([line["round"], line["value"]])
        trial |= {"value": line["value"], "done": int(line["done"]), "seconds": float(line["seconds"])}
        stopped = "stopped early" if finished else "running"
        reached = "finished" if line["round"] == marks[-1] else stopped
        trial["state"] = "diverged" if line["value"] is None else reached
    return [trials[number] for number in sorted(trials)]


def _range(name: str, text: str) -> dict[str, Any]:
    """What the page needs for an axis."""
    low, dots, high = text.removeprefix("log:").partition("..")
    if not dots:
        return {"name": name, "text": text, "log": False}
    return {"name": name, "text": text, "log": text.startswith("log:"), "low": float(low), "high": float(high)}
