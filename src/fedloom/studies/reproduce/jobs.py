"""The runs behind published cells: one for each recipe and seed, with the fine-tunings that its cells need.

Several cells often read one run: FedBABU's Table 5 is two runs per split, seen after 0 to 10 epochs of fine-tuning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from fedloom.data import check_spec
from fedloom.finished.personalize import FineTuning
from fedloom.methods import method
from fedloom.methods.api.context import Objective
from fedloom.nets import spelled_model
from fedloom.papers import PublishedCell
from fedloom.recipe import Recipe
from fedloom.runs.folder import RunFolder
from fedloom.studies.cells import Cell

EPOCHS, RATE_SHARE = 5, 0.1  # of fine-tuning, where the paper prints neither


@dataclass(frozen=True)
class Job:
    """One run. `cells`: what reads it."""

    cell: Cell
    fine_tunings: tuple[FineTuning, ...]
    cells: tuple[PublishedCell, ...]
    protocol: str
    begins_with: str | None = None  # digest of the run whose weights it begins with
    tuned_clients: int | None = None  # how many clients are fine-tuned; None: all

    @property
    def weights(self) -> Path:
        return RunFolder(self.folder).final

    @cached_property
    def digest(self) -> str:
        return settled(self.cell.recipe).digest()

    @property
    def folder(self) -> Path:
        return Path(str(self.cell.recipe.out))

    def beginning(self, first: Job) -> Job:
        """The same run, from the weights in the folder of another."""
        return replace(self, cell=replace(self.cell, recipe=self.cell.recipe.changed(init=str(first.weights))))

    def at(self, folder: Path) -> Job:
        """The same run, in another folder."""
        return replace(self, cell=replace(self.cell, recipe=self.cell.recipe.changed(out=str(folder))))


def plan_jobs(
    cells: Sequence[PublishedCell],
    seeds: Sequence[int],
    scale: float,
    given: Mapping[str, Any],
    out: Path,
    tuned_clients: int | None = None,
) -> list[Job]:
    """Every run that these cells need, each once, in the order of the cells. All recipes are checked."""
    jobs: dict[str, Job] = {}
    for cell in cells:
        if cell.not_runnable:
            continue
        for seed in seeds:
            begun = None
            if (first := cell.first()) is not None:
                begun = _add(jobs, _job(first, seed, scale, given, out, cells=()))
            _add(jobs, _job(cell, seed, scale, given, out, cells=(cell,), begun=begun))
    return [replace(job, tuned_clients=_fewer(job, tuned_clients)) for job in jobs.values()]


def _fewer(job: Job, wanted: int | None) -> int | None:
    """None if that is all of them."""
    return wanted if wanted is not None and wanted < job.cell.recipe.clients else None


def _add(jobs: dict[str, Job], job: Job) -> Job:
    """A run that is known already gets more readers; the run as planned."""
    known = jobs.get(job.digest)
    if known is not None:
        tunings = _joined((*known.fine_tunings, *job.fine_tunings))
        job = replace(known, fine_tunings=tunings, cells=(*known.cells, *job.cells))
    jobs[job.digest] = job
    return job


def _job(
    cell: PublishedCell,
    seed: int,
    scale: float,
    given: Mapping[str, Any],
    out: Path,
    cells: tuple[PublishedCell, ...],
    begun: Job | None = None,
) -> Job:
    recipe = scaled(cell.recipe(given), scale).changed(seed=seed)
    place = _folder(out, recipe, begun)
    recipe = recipe.changed(out=str(place), name=None, **({"init": str(begun.weights)} if begun is not None else {}))
    title = _title(cell) if cells else f"{_title(cell)}, begin"
    tunings = _tuned(cell, recipe) if cells else ()
    return Job(Cell(title, seed, recipe), tunings, cells, cell.protocol or "", begun.digest if begun else None)


def scaled(recipe: Recipe, scale: float) -> Recipe:
    return recipe if scale == 1 else recipe.changed(rounds=max(1, round(scale * recipe.rounds)))


def settled(recipe: Recipe) -> Recipe:
    """As a run folder stores it: with the parameters of net, sum and split spelled out."""
    return recipe.changed(
        model=spelled_model(recipe.model), method=method(recipe.method).spelled(), split=check_spec(recipe.split)
    )


def fine_tuning(cell: PublishedCell, recipe: Recipe) -> FineTuning | None:
    """What a cell's number was fine-tuned by."""
    measure = cell.measure
    if measure.kind != "tuned":
        return None
    lr = measure.lr if measure.lr is not None else (measure.lr_share or RATE_SHARE) * recipe.lr
    assert measure.loss in get_args(Objective)
    return FineTuning(measure.part, measure.epochs or EPOCHS, float(f"{lr:.10g}"), measure.loss)  # type: ignore[arg-type]


def _tuned(cell: PublishedCell, recipe: Recipe) -> tuple[FineTuning, ...]:
    tuning = fine_tuning(cell, recipe)
    return () if tuning is None else (tuning,)


def _joined(tunings: Sequence[FineTuning]) -> tuple[FineTuning, ...]:
    """The longest of each kind: it passes through the shorter ones."""
    longest: dict[tuple[str, float, str], FineTuning] = {}
    for tuning in tunings:
        key = (tuning.part, tuning.lr, tuning.loss)
        longest[key] = max((tuning, longest.get(key, tuning)), key=lambda item: item.epochs)
    return tuple(longest.values())


def _folder(out: Path, recipe: Recipe, begun: Job | None) -> Path:
    """A name that says what it is, and the recipe's identity but for the seed."""
    words = [Path(recipe.data.name.replace(":", "-")).stem, recipe.model, recipe.split, recipe.method]
    text = "_".join(re.sub(r"[^A-Za-z0-9.=+-]+", "-", word).strip("-") for word in words)[:100]
    identity = settled(recipe.changed(seed=0)).digest()[:8]
    after = f"-after-{begun.folder.parent.name[-8:]}" if begun is not None else ""
    return out / "runs" / f"{text}-{identity}{after}" / f"seed{recipe.seed}"


def _title(cell: PublishedCell) -> str:
    return f"{cell.place} {cell.name or cell.sum}, {_setting(cell)}"


def _setting(cell: PublishedCell) -> str:
    return ", ".join(f"{axis}={label}" for axis, label in cell.labels.items() if not axis.startswith("method"))
