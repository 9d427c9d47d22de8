"""Many runs as one job: several methods, seeds and settings on the same clients.

    plan("fedavg; fn @ lr=0.3; dr + fd @ lr=1 epochs=2", seeds=3, fields)
    plan("fedavg; fn", seeds=3, fields, over={"lr": ["0.01", "0.03"], "epochs": ["1", "5"]})

A method may carry settings of its own behind an @, because rates must be tuned per method to compare them fairly. Every
cell is a run folder of its own: one that is finished is read, one that was interrupted is carried on. All is checked
before the first run starts; a cell that fails later says why and does not stop the others. Images are decoded
once and mapped into memory by every cell; a split is a function of the seed, so cells of one seed have the same clients.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fedloom.engine import where
from fedloom.engine.folder import RunFolder
from fedloom.engine.setup import prepare
from fedloom.errors import FedloomError, Interrupted, shown
from fedloom.measure.personal import Personal, Tuned
from fedloom.personal import Tuning as FineTuning
from fedloom.personal import personalize_run
from fedloom.recipe import Recipe, assign, recipe
from fedloom.run import Run, Silent, Watcher, resume, start

Point: TypeAlias = tuple[tuple[str, str], ...]  # (("lr", "0.1"), ("epochs", "5"))


@dataclass(frozen=True)
class Tuning:
    """How personal accuracy is taken: fine-tuning with a share of the method's own rate."""

    part: Tuned = "full"
    epochs: int = 5
    rate_share: float = 0.1


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    row: str  # what the table calls it
    seed: int
    recipe: Recipe
    point: Point = ()  # the swept values
    share: tuple[float, float] = (0.0, 1.0)  # the stretch of the whole job's work that this cell is

    @property
    def title(self) -> str:
        return " ".join([f"{self.row},", *(f"{field}={value}" for field, value in self.point), f"seed {self.seed}"])


@dataclass(frozen=True)
class Result:
    cell: Cell
    run: Run
    personal: Personal | None
    failure: str | None = None  # why there are no values

    def values(self) -> dict[str, float]:
        """The numbers that a table shows, as fractions, seconds and bytes; none of a cell that failed."""
        if self.failure is not None:
            return {}
        summary = self.run.summary
        found = {
            "global": float(summary["test_accuracy"]),
            "client": float(summary["client_accuracy"]["mean"]),
            "seconds": summary["seconds"] / summary["rounds"],
            "bytes": (summary["bytes_down"] + summary["bytes_up"]) / summary["rounds"],
            "lost": float(summary["lost"]),
        }
        if "best_by_validation" in summary:
            found["validation"] = float(self.run.rounds[-1]["validation_accuracy"])
        if "personal_accuracy" in summary:  # its clients keep regions of their own
            found["client"] = float(summary["personal_accuracy"]["mean"])
        if self.personal is not None:
            found["personal"] = float(self.personal.personal["mean"])
            found["personal_spread"] = float(self.personal.personal["std"])
            found["worst"] = float(self.personal.personal["worst"])
            found["unseen"] = float(self.personal.unseen[1].get("mean", math.nan))  # nan: every client saw every class
        return found


class CellWatcher(Watcher, Protocol):
    """Looks on at a whole comparison."""

    def cell(self, cell: Cell, number: int, total: int) -> None: ...


@dataclass(frozen=True)
class Comparison:
    """What came out: one row a method, one column a point of the swept values, over all seeds."""

    results: list[Result]
    tuning: Tuning | None
    root: Path = Path("runs")

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(result.cell.row for result in self.results))

    @property
    def points(self) -> list[Point]:
        return list(dict.fromkeys(result.cell.point for result in self.results))

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(result.cell.seed for result in self.results))

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.failure is not None]

    def of(self, row: str, point: Point | None = None) -> list[dict[str, float]]:
        """The values of every seed that did not fail."""
        return list(self.by_seed(row, point).values())

    def by_seed(self, row: str, point: Point | None = None) -> dict[tuple[int, Point], dict[str, float]]:
        chosen = [r for r in self.results if r.cell.row == row and point in (None, r.cell.point)]
        return {(r.cell.seed, r.cell.point): r.values() for r in chosen if r.failure is None}

    def mean(self, row: str, name: str, point: Point | None = None) -> float:
        """Over seeds; not a number where every one failed."""
        found = [values[name] for values in self.of(row, point)]
        return statistics.fmean(found) if found else math.nan

    def deviation(self, row: str, name: str, point: Point | None = None) -> float:
        """Over seeds; 0 for a single one."""
        found = [values[name] for values in self.of(row, point)]
        if any(math.isnan(value) for value in found):
            return math.nan
        return statistics.stdev(found) if len(found) > 1 else 0.0


def plan(
    methods: str | Sequence[str],
    seeds: int | Sequence[int],
    fields: Mapping[str, Any],
    over: Mapping[str, Sequence[str]] | None = None,
    tuning: Tuning | None = None,
) -> list[Cell]:
    """All cells, checked: every method is made and every split dealt before the first run starts."""
    texts = methods.split(";") if isinstance(methods, str) else list(methods)
    rows = [text.strip() for text in texts if text.strip()]
    if not rows:
        raise FedloomError('methods: none given; write them with semicolons between, as in "fedavg; fn; dr + fd"')
    if len(set(rows)) < len(rows):
        raise FedloomError(f"methods: {next(row for row in rows if rows.count(row) > 1)} stands twice in the list")
    if isinstance(seeds, int) and seeds < 1:
        raise FedloomError(f"seeds: must be 1 or more (got {seeds})")
    base = recipe(fields)
    numbers = range(base.seed, base.seed + seeds) if isinstance(seeds, int) else seeds
    kind = "sweep" if over else "compare"
    root = Path(base.out) if base.out else Path("runs") / (base.name or _root_name(kind, base))
    cells = []
    for row in rows:
        text, _, settings = row.partition("@")
        own = [setting for setting in re.split(r"[\s,]+", settings.strip()) if setting]
        if twice := [name for name in over or () if name in (setting.partition("=")[0] for setting in own)]:
            raise FedloomError(
                f"over: {twice[0]} is swept, but the method {shown(row)} sets it too; leave out one of them"
            )
        for point in _points(over or {}):
            changed = base.model_dump()
            for setting in [*own, *(f"{_full(field)}={value}" for field, value in point)]:
                assign(changed, setting)
            for seed in numbers:
                place = [_slug(row), *([_slug(" ".join(f"{f}={v}" for f, v in point))] if point else [])]
                out = root.joinpath(*place, f"seed{seed}")
                whole = recipe({**changed, "method": text.strip(), "seed": seed, "out": str(out)})
                cells.append(Cell(row, seed, whole, point))
    _refuse_shared_folders(cells)
    for cell in cells[:: len(numbers)]:
        where.check(cell.recipe)
        prepare(cell.recipe)
    return _weighed(cells, tuning)


def compare_cells(cells: Sequence[Cell], tuning: Tuning | None, watcher: CellWatcher | None = None) -> Comparison:
    """Do what is not done yet, one cell after the other."""
    with where.session():
        return _compare(cells, tuning, watcher)


def _compare(cells: Sequence[Cell], tuning: Tuning | None, watcher: CellWatcher | None) -> Comparison:
    _refuse_other_recipes(cells)
    results = []
    for number, cell in enumerate(cells):
        if watcher:
            watcher.cell(cell, number, len(cells))
        assert cell.recipe.out is not None
        done, personal, failure = Run(Path(cell.recipe.out)), None, None
        try:
            with _alone(cell, tuning, watcher or Silent()):
                done = _run(cell, watcher or Silent())
                personal = _personal(cell, done, tuning) if tuning else None
        except Interrupted as error:
            told = str(error).partition(";")[0]
            raise Interrupted(f"cell {number + 1} of {len(cells)} {told}; the same command carries on") from None
        except Exception as error:  # whatever went wrong in one cell, the others can still be run
            failure = str(error) if isinstance(error, FedloomError) else f"{type(error).__name__}: {error}"
            if watcher:
                watcher.note(f"{cell.title} failed: {failure}")
        results.append(Result(cell, done, personal, failure))
    return Comparison(results, tuning, _root(cells))


def _points(over: Mapping[str, Sequence[str]]) -> list[Point]:
    """Every combination; the field named last changes fastest."""
    points: list[Point] = [()]
    for field, values in over.items():
        points = [(*point, (field, value)) for point in points for value in values]
    return points


def _full(field: str) -> str:
    return "data.name" if field == "data" else field  # the set changes, its preparation stays


def _weighed(cells: Sequence[Cell], tuning: Tuning | None) -> list[Cell]:
    """Each with its share of the work, counted in passes over all clients, so that time left can be told."""
    works = []
    for cell in cells:
        r = cell.recipe
        works.append(r.rounds * r.epochs * r.cohort_size / r.clients + (tuning.epochs if tuning else 0))
    whole, before, found = sum(works), 0.0, []
    for cell, work in zip(cells, works, strict=True):
        found.append(replace(cell, share=(before / whole, (before + work) / whole)))
        before += work
    return found


def _run(cell: Cell, watcher: Watcher) -> Run:
    """A finished cell is read, an interrupted one carried on, a new one started."""
    assert cell.recipe.out is not None
    folder = RunFolder(cell.recipe.out)
    if folder.recipe_yaml.exists():
        return resume(folder.path, watcher, cell.recipe.lanes)
    return start(cell.recipe, watcher)


@contextmanager
def _alone(cell: Cell, tuning: Tuning | None, watcher: Watcher) -> Iterator[None]:
    """One process at a time works on a cell; another comparison into the same folder waits here, then finds it done.

    The lock belongs to the process, so it is gone when that is, however it ended.
    """
    assert cell.recipe.out is not None
    folder = RunFolder(cell.recipe.out)
    if folder.finished and tuning is None:  # nothing will be written
        yield
        return
    path = folder.path.with_name(f".{folder.path.name}.lock")
    descriptor = _locked(
        path, lambda: watcher.note(f"waiting for {cell.title}: another process works on {folder.path}")
    )
    try:
        _refuse_other_recipe(cell)  # what another has put there while we waited
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, wait: Callable[[], None]) -> int:
    """Hold a lock file; `wait` is called once if that takes time. Whoever releases one removes it, so it may be another's."""
    told = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    wait()
                    told = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                return descriptor  # a file system without locks
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _refuse_shared_folders(cells: Sequence[Cell]) -> None:
    seen: dict[str | None, Cell] = {}
    for cell in cells:
        if cell.recipe.out in seen:
            raise FedloomError(
                f"methods: {seen[cell.recipe.out].title!r} and {cell.title!r} would share a folder; they say the same"
            )
        seen[cell.recipe.out] = cell


def _refuse_other_recipes(cells: Sequence[Cell]) -> None:
    for cell in cells:
        _refuse_other_recipe(cell)


def _refuse_other_recipe(cell: Cell) -> None:
    assert cell.recipe.out is not None
    folder = RunFolder(cell.recipe.out)
    if not folder.recipe_yaml.exists():
        return
    stored, wanted = folder.recipe(), cell.recipe
    if wanted.precision == "auto":  # decided where the run began, which may have been another machine
        wanted = wanted.changed(precision=stored.precision)
    if stored.digest() != prepare(wanted).told().digest():
        raise FedloomError(f"out: {folder.path} holds a run of another recipe; choose another --name or --out")


def _personal(cell: Cell, done: Run, tuning: Tuning) -> Personal:
    return personalize_run(done, [FineTuning(tuning.part, tuning.epochs, tuning.rate_share * cell.recipe.lr)])[0]


def _root(cells: Sequence[Cell]) -> Path:
    first = cells[0]
    path = Path(first.recipe.out or ".")
    return path.parents[2 if first.point else 1]


def _root_name(kind: str, base: Recipe) -> str:
    return _slug(f"{kind} {Path(base.data.name).stem} {base.split} {base.model}")


def _slug(text: str) -> str:
    """A folder's name that differs where the text does, but for spaces and brackets."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", re.sub(r"\s*([+,;])\s*", r"\1", text)).strip("-")
