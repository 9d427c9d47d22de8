"""A folder that holds a run already: the same recipe's run is returned or resumed, another recipe is refused."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedloom.engine.experiment import prepare
from fedloom.engine.resolve import resolve
from fedloom.engine.server.callback import Callbacks, RunCallback
from fedloom.errors import FedloomError, shown
from fedloom.io.files import read_lines, read_metadata
from fedloom.papers import flat
from fedloom.recipe import NO_EFFECT_FIELDS, Recipe
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import Run, resume, start


def start_or_return(recipe: Recipe, callbacks: Sequence[RunCallback] = (), resuming: bool = False) -> Run:
    """Run a recipe. A named folder that holds its finished run is read; an unfinished one is resumed if `resuming`."""
    path = Path(recipe.out) if recipe.out else Path("runs") / recipe.name if recipe.name else None
    if path is None or not RunFolder(path).recipe_yaml.exists():
        return start(recipe, callbacks)
    folder = RunFolder(path)
    refuse_other_recipe(folder, recipe)
    if folder.finished:
        Callbacks(*callbacks).note(f"{path} is finished and has the same recipe: this is its result")
        return Run(path)
    if not resuming:
        done = len(read_lines(folder.rounds))
        raise FedloomError(
            f"out: {path} holds this run, stopped after round {done} of {recipe.rounds}; continue it with: "
            f"{folder.resume_command} (in Python: resume=True)"
        )
    return resume(path, callbacks, recipe.workers)


def resume_or_return(path: str | Path, callbacks: Sequence[RunCallback] = (), workers: int | str | None = None) -> Run:
    """Continue the run in a folder; of a finished one, say what it reached."""
    folder = RunFolder(path)
    recipe = folder.recipe()
    if not folder.finished:
        return resume(path, callbacks, workers)
    done = Run(folder.path)
    longer = f"fedloom run {shlex.quote(str(folder.recipe_yaml))} --rounds {2 * recipe.rounds} --name NAME"
    Callbacks(*callbacks).note(
        f"{folder.path} is complete: round {recipe.rounds} of {recipe.rounds}, global {done.reached}; "
        f"more rounds are another run: {longer}"
    )
    return done


def refuse_other_recipe(folder: RunFolder, wanted: Recipe) -> None:
    """Refuse a folder whose run differs from the wanted one in recipe, data or metrics."""
    stored = folder.recipe()
    if wanted.precision == "auto":  # decided where the run began, which may have been another machine
        wanted = wanted.changed(precision=stored.precision)
    if wanted.kernels == "auto":
        wanted = wanted.changed(kernels="portable" if stored.kernels == "auto" else stored.kernels)
    experiment = resolve(prepare(wanted))[0]
    now = experiment.program.stored_recipe()
    if stored.digest() != now.digest():
        raise FedloomError(
            f"out: {folder.path} holds a run of another recipe{_difference(stored, now)}; choose another --name or --out"
        )
    data = read_metadata(folder.initial).get("data")
    if data is not None and data != experiment.data.dataset.digest and not folder.sites.exists():
        raise FedloomError(
            f"data: {wanted.data.name} is no longer what {folder.path} was trained on; choose another --name or --out"
        )
    if lacking := [metric for metric in wanted.metrics if metric not in stored.metrics]:
        raise FedloomError(
            f"metrics: the run in {folder.path} has no {lacking[0]}, only {', '.join(stored.metrics)}; choose another "
            f"--name or --out"
        )


def _difference(stored: Recipe, now: Recipe) -> str:
    """The first field that differs."""
    before, after = (flat(recipe.model_dump(mode="json", exclude={*NO_EFFECT_FIELDS})) for recipe in (stored, now))
    for name in after:
        if before.get(name) != after[name]:
            return f" ({name} was {_text(before.get(name))}, and now is {_text(after[name])})"
    return ""


def _text(value: object) -> str:
    return shown(value) if isinstance(value, str) else str(value)
