"""Results from their folders: a run, a comparison or sweep, a tuning, a reproduction, or a stored split."""

from __future__ import annotations

import csv
from pathlib import Path

from fedloom.errors import FedloomError
from fedloom.runs.run import Run
from fedloom.runs.split import Split, read_split
from fedloom.studies import comparison_file
from fedloom.studies.comparison import Comparison
from fedloom.studies.reproduce import Reproduction, stored
from fedloom.studies.tune import chosen, record
from fedloom.studies.tune.study import TRIALS, Study
from fedloom.studies.tune.trial_row import TrialRow
from fedloom.values import parse

Loaded = Run | Comparison | Study | Reproduction | Split
DEPTHS = ("*/", "*/*/", "*/*/*/")  # of runs in the folder of a comparison or a sweep
COLUMNS = ("method", "trial", "state", "rounds", "seconds", "folder")


def load(path: str | Path) -> Loaded:
    """Read a result from its folder, whatever it is: a run, a comparison or sweep, a tuning, a reproduction; or a split from
    its .npz file.

    >>> fl.load("runs/first")
    Run('runs/first': fedavg on digits, 5 clients, 2 rounds, accuracy ... %)
    >>> fl.load("runs/both").rows
    ['fedavg', 'fn']
    """
    place = Path(path)
    if place.suffix == ".npz" and place.is_file():
        return read_split(place, {})
    if not place.is_dir():
        raise FedloomError(f"load: there is no folder {place}")
    if (place / "recipe.yaml").is_file():
        return Run(place)
    if (place / chosen.FILE).is_file():
        return _study(place)
    if (place / comparison_file.FILE).is_file():
        return comparison_file.read_comparison(place)
    if (place / stored.FILE).is_file():
        return stored.read_reproduction(place)
    if (place / record.ASKED).is_file():
        raise FedloomError(f"load: the tuning in {place} is not finished; the call that began it resumes it")
    inside = sorted(file.parent for depth in DEPTHS for file in place.glob(f"{depth}recipe.yaml"))
    if inside:
        raise FedloomError(
            f"load: {place} holds {len(inside)} runs, but no finished comparison, tuning or reproduction; load one of them, "
            f"as in fl.load({str(inside[0])!r}), or repeat the call that made them, which reads what is finished"
        )
    raise FedloomError(f"load: {place} holds no run, comparison, tuning or reproduction")


def _study(root: Path) -> Study:
    tuned = chosen.read(root)
    if not (root / TRIALS).is_file():
        return Study(root, tuned, ())
    value = f"validation_{tuned.metric}"
    with (root / TRIALS).open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    try:
        trials = tuple(
            TrialRow(
                method=line["method"],
                trial=int(line["trial"]),
                values={name: parse(text) for name, text in line.items() if text and name not in (*COLUMNS, value)},
                state=line["state"],
                rounds=int(line["rounds"]),
                value=float(line[value]) if line[value] else None,
                seconds=float(line["seconds"]),
                folder=line["folder"],
            )
            for line in lines
        )
    except (KeyError, ValueError) as error:
        raise FedloomError(f"{root / TRIALS} is damaged ({error}); the call that tuned writes it again") from None
    return Study(root, tuned, trials)
