"""`fedloom reproduce`: the papers' tables from the papers' own protocols."""

from fedloom.studies.reproduce.outcome import CellOutcome, Ordering, Verdict, compared, marks, noise, orderings
from fedloom.studies.reproduce.reproduction import OUT, Plan, Reproduction, carry_out, plan

__all__ = [
    "OUT",
    "CellOutcome",
    "Ordering",
    "Plan",
    "Reproduction",
    "Verdict",
    "carry_out",
    "compared",
    "marks",
    "noise",
    "orderings",
    "plan",
]
