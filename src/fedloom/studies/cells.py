"""The cells of a comparison: methods x swept settings x seeds, each one run, all checked before the first starts.

    plan("fedavg; fn @ lr=0.3; dr + fd @ lr=1 epochs=2", seeds=3, fields)
    plan("fedavg; fn", seeds=3, fields, over={"lr": ["0.01", "0.03"], "epochs": ["1", "5"]})

A method may bring settings of its own behind an @, since a fair comparison tunes rates per method.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from fedloom.engine.backends import select as where
from fedloom.engine.experiment import prepare
from fedloom.engine.given import given_recipe
from fedloom.engine.resolve import resolve
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.fine_tuned import TunedPart
from fedloom.evaluation.metrics import check as check_metrics
from fedloom.recipe import NAMED_GROUPS, Recipe, assign

Point: TypeAlias = tuple[tuple[str, str], ...]  # (("lr", "0.1"), ("epochs", "5"))


@dataclass(frozen=True)
class RelativeFineTuning:
    """How personal accuracy is measured: fine-tuning at a fraction of the method's own rate."""

    part: TunedPart = "full"
    epochs: int = 5
    rate_share: float = 0.1


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    row: str  # what the table calls it
    seed: int
    recipe: Recipe
    point: Point = ()  # the swept values
    share: tuple[float, float] = (0.0, 1.0)  # where this cell's work begins and ends in that of the total job
    training: float = 1.0  # share of this cell's work; the rest is fine-tuning

    @property
    def title(self) -> str:
        return " ".join([f"{self.row},", *(f"{field}={value}" for field, value in self.point), f"seed {self.seed}"])


def plan(
    methods: str | Sequence[str],
    seeds: int | Sequence[int],
    fields: Mapping[str, Any],
    over: Mapping[str, Sequence[str]] | None = None,
    fine_tuning: RelativeFineTuning | None = None,
) -> list[Cell]:
    """All cells, checked: every method and every split is built before the first run starts."""
    texts = methods.split(";") if isinstance(methods, str) else list(methods)
    rows = [text.strip() for text in texts if text.strip()]
    if not rows:
        raise FedloomError('methods: none given; separate them by semicolons, as in "fedavg; fn; dr + fd"')
    if len(set(rows)) < len(rows):
        raise FedloomError(f"methods: {next(row for row in rows if rows.count(row) > 1)} is given twice")
    if isinstance(seeds, int) and seeds < 1:
        raise FedloomError(f"seeds: must be 1 or more (got {seeds})")
    base = given_recipe(fields)
    free = {name for name in ("split", "clients") if name not in fields}  # decided by each cell's data
    numbers = range(base.seed, base.seed + seeds) if isinstance(seeds, int) else seeds
    kind = "sweep" if over else "compare"
    root = Path(base.out) if base.out else Path("runs") / (base.name or _root_name(kind, base))
    cells = []
    for row in rows:
        text, _, settings = row.partition("@")
        own = row_settings(settings)
        if twice := [name for name in over or () if name in (setting.partition("=")[0] for setting in own)]:
            raise FedloomError(
                f"over: {twice[0]} is swept, but the method {shown(row)} sets it too; leave out one of them"
            )
        for point in _points(over or {}):
            changed = base.model_dump(exclude=free)
            if "split" in fields:
                changed["split"] = fields["split"]  # a function is called for every seed
            for setting in [*own, *(f"{_full(field)}={value}" for field, value in point)]:
                assign(changed, setting)
            for seed in numbers:
                place = [folder_name(row), *([folder_name(" ".join(f"{f}={v}" for f, v in point))] if point else [])]
                out = root.joinpath(*place, f"seed{seed}")
                cell_recipe = given_recipe({**changed, "method": text.strip(), "seed": seed, "out": str(out)})
                cells.append(Cell(row, seed, cell_recipe, point))
    _refuse_shared_folders(cells)
    for cell in cells[:: len(numbers)]:
        where.check(cell.recipe)
        resolve(prepare(cell.recipe))
        check_metrics(cell.recipe.metrics)
    return _estimated(cells, fine_tuning)


def row_settings(text: str) -> list[str]:
    """Settings separated by spaces or commas outside of brackets: `lr=0.3 model=lstm(hidden=8, layers=2)`."""
    return [setting for setting in re.split(r"[\s,]+(?![^()]*\))", text.strip()) if setting]


def _points(over: Mapping[str, Sequence[str]]) -> list[Point]:
    """Every combination; the field named last changes fastest."""
    points: list[Point] = [()]
    for field, values in over.items():
        points = [(*point, (field, value)) for point in points for value in values]
    return points


def _full(field: str) -> str:
    return f"{field}.name" if field in NAMED_GROUPS else field  # the data set changes, its preparation stays


def _estimated(cells: Sequence[Cell], fine_tuning: RelativeFineTuning | None) -> list[Cell]:
    """Each with its share of the work, counted in passes over all clients, for the estimate of the time left."""
    recipes = [cell.recipe for cell in cells]
    trainings = [r.rounds * r.mean_work * r.cohort_size / r.clients for r in recipes]
    return weighed(cells, trainings, [fine_tuning.epochs if fine_tuning else 0] * len(cells))


def weighed(cells: Sequence[Cell], training: Sequence[float], tuning: Sequence[float]) -> list[Cell]:
    """Each with its share of the work, given that of its training and that of its fine-tuning."""
    total, before, made = (sum(training) + sum(tuning)) or 1.0, 0.0, []
    for cell, trained, tuned in zip(cells, training, tuning, strict=True):
        after = before + trained + tuned
        share = trained / (trained + tuned) if trained + tuned else 1.0
        made.append(replace(cell, share=(before / total, after / total), training=share))
        before = after
    return made


def _refuse_shared_folders(cells: Sequence[Cell]) -> None:
    seen: dict[str | None, Cell] = {}
    for cell in cells:
        if cell.recipe.out in seen:
            raise FedloomError(
                f"methods: {seen[cell.recipe.out].title!r} and {cell.title!r} would share a folder; they say the same"
            )
        seen[cell.recipe.out] = cell


def _root_name(kind: str, base: Recipe) -> str:
    return folder_name(f"{kind} {Path(base.data.name.partition('?')[0]).stem} {base.split} {base.model}")


def folder_name(text: str) -> str:
    """A folder's name that differs where the text does, but for spaces and brackets."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", re.sub(r"\s*([+,;])\s*", r"\1", text)).strip("-")
