"""Many runs as one job: several methods, seeds and settings on the same clients.

Every cell is a run folder of its own: a finished one is read, an interrupted one resumed. A cell that fails reports why and
does not stop the others. Samples are decoded once and mapped into memory by every cell; a split is a function of the seed,
so cells of one seed have the same clients.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fedloom.engine.backends import select as where
from fedloom.engine.server.callback import Callbacks, RunCallback
from fedloom.errors import FedloomError, Interrupted
from fedloom.evaluation.fine_tuned import PersonalizationResult
from fedloom.finished.personalize import FineTuning, personalize_run
from fedloom.io.locks import lock
from fedloom.runs.existing import refuse_other_recipe
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import Run, resume, start
from fedloom.studies.cells import Cell, RelativeFineTuning
from fedloom.studies.comparison import Comparison, Result

T = TypeVar("T")


def compare_cells(
    cells: Sequence[Cell], fine_tuning: RelativeFineTuning | None, callbacks: Sequence[RunCallback] = ()
) -> Comparison:
    """Run the cells that are not finished, one after the other."""
    with where.session():
        return _compare(cells, fine_tuning, Callbacks(*callbacks))


def _compare(cells: Sequence[Cell], fine_tuning: RelativeFineTuning | None, callback: RunCallback) -> Comparison:
    def personal(cell: Cell, done: Run) -> PersonalizationResult:
        assert fine_tuning is not None
        rate = fine_tuning.rate_share * cell.recipe.lr
        return tune_clients(done, [FineTuning(fine_tuning.part, fine_tuning.epochs, rate)], callback)[0]

    results = [Result(*item) for item in each_cell(cells, personal if fine_tuning else None, callback)]
    return Comparison(results, fine_tuning, _root(cells))


def each_cell(
    cells: Sequence[Cell], finish: Callable[[Cell, Run], T] | None, callback: RunCallback
) -> Iterator[tuple[Cell, Run, T | None, str | None]]:
    """Every cell with its run, what `finish` made of it, and why it failed, if it did; the next ones then go on."""
    _refuse_other_recipes(cells)
    for number, cell in enumerate(cells):
        callback.cell_started(cell, number, len(cells))
        assert cell.recipe.out is not None
        done, finished, failure = Run(Path(cell.recipe.out)), None, None
        try:
            with _alone(cell, finish is None, callback):
                done = _run(cell, callback)
                finished = finish(cell, done) if finish else None
        except Interrupted as error:
            reason = str(error).partition(";")[0]
            raise Interrupted(f"cell {number + 1} of {len(cells)} {reason}; the same command resumes") from None
        except Exception as error:  # whatever went wrong in one cell, the others can still be run
            failure = str(error) if isinstance(error, FedloomError) else f"{type(error).__name__}: {error}"
            callback.note(f"{cell.title} failed: {failure}")
        yield cell, done, finished, failure


def _run(cell: Cell, callback: RunCallback) -> Run:
    """A finished cell is read, an interrupted one resumed, a new one started."""
    assert cell.recipe.out is not None
    folder = RunFolder(cell.recipe.out)
    if folder.recipe_yaml.exists():
        return resume(folder.path, [callback], cell.recipe.workers)
    return start(cell.recipe, [callback])


@contextmanager
def _alone(cell: Cell, only_read: bool, callback: RunCallback) -> Iterator[None]:
    """One process at a time works on a cell; another comparison into the same folder waits here, then reads the result.

    `only_read`: a finished run is left as it is. The lock ends with the process, however it ends.
    """
    assert cell.recipe.out is not None
    folder = RunFolder(cell.recipe.out)
    if folder.finished and only_read:  # nothing will be written
        yield
        return
    path = folder.path.with_name(f".{folder.path.name}.lock")
    descriptor = _locked(
        path, lambda: callback.note(f"waiting for {cell.title}: another process works on {folder.path}")
    )
    try:
        _refuse_other_recipe(cell)  # another process may have written it meanwhile
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, wait: Callable[[], None]) -> int:
    """Hold a lock file; `wait` is called once if another process holds it. A released file is removed, so the one that was
    opened may no longer be the one at the path."""
    waiting = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not lock(descriptor):
                if not waiting:
                    wait()
                    waiting = True
                lock(descriptor, wait=True)
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _refuse_other_recipes(cells: Sequence[Cell]) -> None:
    for cell in cells:
        _refuse_other_recipe(cell)


def _refuse_other_recipe(cell: Cell) -> None:
    assert cell.recipe.out is not None
    folder = RunFolder(cell.recipe.out)
    if folder.recipe_yaml.exists():
        refuse_other_recipe(folder, cell.recipe)


def tune_clients(
    run: Run, tunings: Sequence[FineTuning], callback: RunCallback, sample: int | None = None
) -> list[PersonalizationResult]:
    """Fine-tune the clients of a finished run; the callback is told of each."""
    clients = run.recipe.clients if sample is None else min(sample, run.recipe.clients)
    total, done = clients * len(tunings), 0

    def tick(_: int) -> None:
        nonlocal done
        done += 1
        callback.client_tuned(done, total)

    return personalize_run(run, tunings, sample=sample, done=tick)


def _root(cells: Sequence[Cell]) -> Path:
    first = cells[0]
    path = Path(first.recipe.out or ".")
    return path.parents[2 if first.point else 1]
