"""How much every method may search: a number of trials, or a share of a total of rounds or of time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedloom.errors import FedloomError, shown

DEFAULT_TRIALS = 16
UNITS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)")


@dataclass(frozen=True)
class Budget:
    """One of the three is given. Rounds and seconds are of all methods together, which share them equally."""

    trials: int | None = None
    rounds: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.trials is not None:
            return f"{self.trials} trial{'s' if self.trials > 1 else ''} for each method"
        if self.rounds is not None:
            return f"{self.rounds} rounds for all methods together"
        return f"{self.seconds:g} s for all methods together"


def read_budget(trials: int | None, budget: str | float | None) -> Budget:
    if trials is not None and budget is not None:
        raise FedloomError("budget: trials and budget are given; leave out one of them")
    if budget is None:
        number = DEFAULT_TRIALS if trials is None else trials
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 10_000:
            raise FedloomError(f"trials: must be a whole number from 1 to 10000 (got {shown(trials)})")
        return Budget(trials=number)
    text = f"{budget}s" if isinstance(budget, int | float) else budget.strip().lower()
    if matched := re.fullmatch(r"(\d+)\s*(?:rounds?|r)", text):
        if int(matched[1]) > 0:
            return Budget(rounds=int(matched[1]))
    elif re.fullmatch(rf"(?:{_TIME.pattern}\s*)+", text):
        seconds = sum(float(number) * UNITS[unit] for number, unit in _TIME.findall(text))
        if seconds > 0:
            return Budget(seconds=seconds)
    raise FedloomError(
        f"budget: cannot read {shown(budget)}; write a time such as 2h, 90m or 1h30m, or a number of rounds such as 5000rounds"
    )
