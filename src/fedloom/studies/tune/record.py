"""The record of a tuning: what was asked for (tune.json), and every outcome as it came (trials.jsonl).

A tuning that is run again takes outcomes from the record instead of running trials. So it goes on after a kill at any moment,
and comes to the same choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError, shown
from fedloom.io.files import append_line, read_json, read_lines, replace_lines, sync, write_json
from fedloom.studies.tune.search import Job, Outcome

ASKED, OUTCOMES = "tune.json", "trials.jsonl"
WORDS = {"methods": "methods", "over": "ranges", "trials": "trials", "budget": "budget", "halving": "halving"}


class Record:
    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        """Begin a record, or go on with one of the same tuning; another one in the folder is refused."""
        self.folder = folder
        refuse_other(folder, asked)
        if not (folder / ASKED).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / ASKED, asked)
        self._path = folder / OUTCOMES
        lines = read_lines(self._path)
        replace_lines(self._path, lines)  # without a line that a kill left incomplete
        self._outcomes = {(line["method"], line["trial"], line["round"]): line for line in lines if "trial" in line}
        self._numbers = {line["method"]: line["trials"] for line in lines if "trials" in line}

    @property
    def trials(self) -> int:
        """Number of trials that were evaluated at least once."""
        return len({(method, trial) for method, trial, _ in self._outcomes})

    def outcome(self, method: int, job: Job) -> Outcome | None:
        """Of this trial after this round, if it is known."""
        line = self._outcomes.get((method, job.trial.number, job.until))
        if line is None:
            return None
        if line["values"] != job.trial.point:
            raise FedloomError(
                f"tune: {self._path} has other settings of trial {job.trial.number} ({shown(line['values'])}, and now "
                f"{shown(job.trial.point)}); it comes from another version of fedloom or Optuna: choose another --out"
            )
        return Outcome(**{name: line[name] for name in Outcome.__dataclass_fields__ if name in line})

    def add(self, method: int, job: Job, outcome: Outcome) -> None:
        line = {"method": method, "trial": job.trial.number, "values": job.trial.point, **vars(outcome)}
        append_line(self._path, line)
        sync(self._path)
        self._outcomes[method, job.trial.number, job.until] = line

    def number(self, method: int, decide: int) -> int:
        """The number of trials that a budget of time gives a method: decided once."""
        if method not in self._numbers:
            append_line(self._path, {"method": method, "trials": decide})
            self._numbers[method] = decide
        return int(self._numbers[method])


def refuse_other(folder: Path, asked: Mapping[str, Any]) -> None:
    """Refuse a folder of another tuning, or of something else."""
    path = folder / ASKED
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FedloomError(f"out: {folder} exists already and holds no tuning; choose another --name or --out")
        return
    stored = read_json(path)
    if not isinstance(stored, dict):
        raise FedloomError(f"{path} is damaged; choose another --name or --out")
    for name in {**asked, **stored}:
        if name in ("recipe", "versions", "rungs", "spaces") or stored.get(name) == asked.get(name):
            continue
        raise FedloomError(
            f"out: {folder} holds a tuning with other {WORDS.get(name, name)} ({shown(stored.get(name))}, and now "
            f"{shown(asked.get(name))}); choose another --name or --out"
        )
    before, now = stored.get("recipe", {}), asked["recipe"]
    if changed := [name for name in {**now, **before} if before.get(name) != now.get(name)]:
        name = changed[0]
        raise FedloomError(
            f"out: {folder} holds a tuning of another recipe ({name} was {shown(before.get(name))}, and now is "
            f"{shown(now.get(name))}); choose another --name or --out"
        )
