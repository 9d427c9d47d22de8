"""Results on record: JSON files with a run's flags, summary and fine-tunings, as full-scale runs leave them.

    {"cell": NAME, "run": ["--data", "cifar100", ...], "summary": {...}, "personal": {NAME: {...}}}
    {"cell": NAME, "domains": SEEDS, "table": MARKDOWN}        the table of benchmarks/domains.py

A result belongs to a published cell if their recipes agree in everything but what is listed in `TOLERATED`, whose differences
are named beside the number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.io.files import read_json
from fedloom.papers import PublishedCell, flat, nested, protocol
from fedloom.papers.apply import apply
from fedloom.recipe import NO_EFFECT_FIELDS, Recipe, assign, recipe
from fedloom.studies.reproduce.jobs import fine_tuning, settled
from fedloom.studies.reproduce.outcome import CellOutcome
from fedloom.studies.reproduce.read import accuracy

TOLERATED = ("data.normalize", "kernels")
DIGITS = "fednn-digit"
DIGITS_DIFFER = (
    "stand-ins for SynthDigits and most of SVHN",
    "cohorts of exactly two",
    "371 images of each domain drawn once",
)
ROW = re.compile(r"\| [^|]+ \| `(?P<method>[^`]+)` \| [^|]+ \| (?P<mean>[\d.]+)(?: ± (?P<deviation>[\d.]+))? \|")


@dataclass(frozen=True)
class StoredResult:
    """One run on record."""

    name: str
    recipe: Recipe
    summary: Mapping[str, Any]
    personal: Sequence[Mapping[str, Any]]
    failure: str = ""

    def differences(self, cell: PublishedCell, wanted: Recipe) -> list[str]:
        """Where it departs from the recipe and the fine-tuning of a cell."""
        other = ["fine-tuned by the method's own loss"] if self._curve(cell, exact=True) is None else []
        return [*_differences(self.recipe, settled(wanted)), *(other if cell.measure.kind == "tuned" else [])]

    def value(self, cell: PublishedCell) -> float | None:
        """In percent, or seconds; None if the file does not have the cell's measure."""
        if cell.measure.kind == "tuned":
            return self._curve(cell, exact=True) or self._curve(cell, exact=False)
        if cell.measure.kind == "seconds":
            return float(self.summary["seconds"]) / float(self.summary["rounds"])
        try:
            return 100 * accuracy(dict(self.summary), cell.measure.kind)
        except FedloomError:
            return None

    def _curve(self, cell: PublishedCell, exact: bool) -> float | None:
        """The accuracy after the cell's fine-tuning; unless `exact`, also by the method's loss where the cell has another."""
        tuning = fine_tuning(cell, self.recipe)
        if tuning is None:
            return None
        for stored in self.personal:
            curve, loss = stored.get("curve") or [], stored.get("loss", "method")
            same = (stored.get("part"), stored.get("lr")) == (tuning.part, tuning.lr) and len(curve) > tuning.epochs
            if same and (loss == tuning.loss or (loss == "method" and not exact)):
                return 100 * float(curve[tuning.epochs]["mean"])
        return None


@dataclass(frozen=True)
class DigitsResult:
    """One row of the table of benchmarks/domains.py."""

    name: str
    method: str
    mean: float
    deviation: float | None
    seeds: int


class Results:
    """All results in a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.runs: dict[str, list[StoredResult]] = {}
        self.digits: dict[str, DigitsResult] = {}
        for path in sorted(Path(folder).glob("*.json")) + sorted(Path(folder).glob("*.failed")):
            stored = read_json(path)
            if not isinstance(stored, dict) or "cell" not in stored:  # not a result on record
                continue
            try:
                self._add(stored)
            except (LookupError, TypeError, ValueError) as error:  # FedloomError among them
                raise FedloomError(f"{path} is no result that can be read: {error}") from None

    def _add(self, stored: Mapping[str, Any]) -> None:
        if "table" in stored:
            self._add_digits(stored)
        elif "run" in stored:
            result = _read(stored)
            self.runs.setdefault(_identity(result.recipe), []).append(result)

    def _add_digits(self, stored: Mapping[str, Any]) -> None:
        seeds = int(stored["domains"])
        for row in ROW.finditer(str(stored["table"])):
            key = _digits_method(row["method"])
            if key not in self.digits or seeds >= self.digits[key].seeds:
                # the table has the deviation of all values; a sample's is larger
                deviation = float(row["deviation"]) * math.sqrt(seeds / (seeds - 1)) if row["deviation"] else None
                self.digits[key] = DigitsResult(
                    str(stored["cell"]), row["method"], float(row["mean"]), deviation, seeds
                )

    def find(self, wanted: Recipe) -> StoredResult | None:
        """The result of this recipe and seed."""
        same = self.runs.get(_identity(settled(wanted)), ())
        return next((item for item in same if item.recipe.seed == wanted.seed and not item.failure), None)

    def outcome(self, cell: PublishedCell, test_samples: int) -> CellOutcome:
        """What is on record for a cell; without values if there is nothing."""
        if cell.not_runnable:
            return CellOutcome(cell)
        if cell.protocol == DIGITS and cell.measure.kind == "global":
            return self._digits(cell, test_samples)
        wanted = settled(cell.recipe())
        values: list[float] = []
        failures: list[str] = []
        differs: list[str] = []
        for result in self.runs.get(_identity(wanted), ()):
            value = None if result.failure else result.value(cell)
            if value is not None:
                values.append(value)
                differs += result.differences(cell, wanted)
            elif result.failure:
                failures.append(result.failure)
        unique = tuple(dict.fromkeys(differs))
        return CellOutcome(cell, tuple(values), test_samples, "" if values else "; ".join(failures), unique)

    def _digits(self, cell: PublishedCell, test_samples: int) -> CellOutcome:
        result = self.digits.get(_digits_method(cell.recipe().method))
        if result is None:
            return CellOutcome(cell)
        spread = result.deviation if result.seeds > 1 else None
        return CellOutcome(
            cell, (result.mean,), test_samples, "", DIGITS_DIFFER, stated_seeds=result.seeds, stated_deviation=spread
        )


def _read(stored: Mapping[str, Any]) -> StoredResult:
    fields = _fields([str(word) for word in stored["run"]])
    personal = stored.get("personal") or {}
    failure = str(stored.get("failed", ""))
    diverged = re.search(r"round (\d+): .*diverged", failure)
    return StoredResult(
        str(stored["cell"]),
        settled(recipe(fields)),
        stored.get("summary") or {},
        list(personal.values()),
        f"diverged in round {diverged.group(1)}" if diverged else failure,
    )


def _fields(words: Sequence[str]) -> dict[str, Any]:
    """Flags of `fedloom run` as fields of a recipe."""
    fields: dict[str, Any] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if flag == "--set":
            assign(fields, value)
        else:
            fields[flag.removeprefix("--").replace("-", "_")] = value
    return fields


def _deciding(recipe: Recipe) -> dict[str, Any]:
    return flat(recipe.model_dump(mode="json", exclude={*NO_EFFECT_FIELDS, "seed", "deploy"}))


def _identity(recipe: Recipe) -> str:
    deciding = {name: value for name, value in _deciding(recipe).items() if name not in TOLERATED}
    return json.dumps(deciding, sort_keys=True)


def _differences(ours: Recipe, wanted: Recipe) -> Iterable[str]:
    mine, theirs = _deciding(ours), _deciding(wanted)
    return [
        f"{name} {mine.get(name)} in place of {theirs.get(name)}"
        for name in TOLERATED
        if mine.get(name) != theirs.get(name)
    ]


def _digits_method(text: str) -> str:
    """A sum with the hyper-parameters of the protocol."""
    fields = apply(protocol(DIGITS), text, {})
    return settled(recipe(nested(fields))).method
