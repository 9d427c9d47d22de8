"""Whether a method can live with sums: all that a server learns under secure aggregation.

Decided by hooks, not by names. A part without a hook that sees uploads needs nothing. One that has such a hook is taken at
its word: `sums` says that these hooks make nothing but a sum of what clients send, weighted as the average is or all
alike. A part that says nothing is refused; one that is wrong gets sums all the same, since nothing else reaches the server.
"""

from __future__ import annotations

from typing import Literal

from fedloom.errors import FedloomError
from fedloom.methods.method import Method
from fedloom.methods.part import DOES

ASKS = ("messages", "act")  # a second act goes to single clients, whatever a part says
SEES = ("after_uploads", "combine", "uploads", "after_combine", "refine", "conclude", "log")
Weighing = Literal["shares", "equal"]


def check_sums(method: Method, weighting: str, surveys: bool) -> None:
    """Refuse, by name, a method that needs more of its clients than weighted sums."""
    for part in method.parts:
        hook = next((name for name in ASKS if part.hooks(name)), None)
        if hook is None and part.sums is None:
            hook = next((name for name in SEES if part.hooks(name)), None)
        if hook is not None:
            does = DOES.get(hook, f"uses {hook}")
            raise FedloomError(
                f"{part.name} {does}, which takes more than the sums over clients that the server would learn; "
                f"leave out one of the two"
            )
        if part.sums == "equal" and part.hooks("combine") and weighting != "uniform":
            raise FedloomError(
                f"{part.name} adds up all clients' weights alike, beside an average by samples, which is a second sum; "
                f"set weighting to uniform"
            )
        if surveys and part.hooks("tell"):
            raise FedloomError(
                f"{part.name} asks every client at the end of the run for sums over its data, which are not masked; "
                f"leave out one of the two"
            )


def weighing(method: Method, tensor: str) -> Weighing:
    """How an uploaded tensor is summed."""
    owner = tensor.partition(".")[0]
    part = next((part for part in method.parts if "." in tensor and part.name == owner), None)
    return (part.sums or "shares") if part else "shares"
