"""Whether a method works under secure aggregation, where the server learns nothing but sums over clients.

Decided by hooks, not by names. A part without a hook that sees uploads needs nothing. A part with such a hook
declares by `sums` that these hooks use nothing but a sum of uploads, weighted as in the average or with equal
weights. A part that declares nothing is refused. A wrong declaration does no harm to privacy: only sums reach the
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedloom.errors import FedloomError
from fedloom.methods.api.context import Query
from fedloom.methods.api.hooks import does
from fedloom.methods.api.part import Method, Part

SEES = (
    "initialize",
    "after_uploads",
    "weigh_uploads",
    "aggregate",
    "server_step",
    "uploads",
    "after_aggregation",
    "server_training",
    "finalize",
    "log",
)
Weighing = Literal["shares", "equal"]


def check_sums(method: Method, weighting: str, queries: Mapping[str, Query]) -> None:
    """Refuse, by name, a method that needs more of its clients than weighted sums. `queries`: of all parts, "part.query"."""
    for part in method.parts:
        asked = [query for name, query in queries.items() if name.startswith(part.name + ".")]
        if any(query.trains or query.delivers for query in asked):  # goes to single clients, whatever a part says
            _refuse(part, "queries")
        if part.sums is None and (hook := next((name for name in SEES if part.defines(name)), None)):
            _refuse(part, hook)
        if part.sums == "equal" and part.defines("aggregate") and weighting != "uniform":
            raise FedloomError(
                f"{part.name} adds up all clients' weights alike, beside an average by samples, which is a second sum; "
                f"set weighting to uniform"
            )
        if asked:
            raise FedloomError(
                f"{part.name} asks every client for sums over its data, which are not masked; leave out one of the two"
            )


def _refuse(part: Part, hook: str) -> None:
    raise FedloomError(
        f"{part.name} {does(hook)}, which takes more than the sums over clients that the server would "
        f"learn; leave out one of the two"
    )


def weighing(method: Method, tensor: str) -> Weighing:
    """How an uploaded tensor is summed."""
    owner = tensor.partition(".")[0]
    part = next((part for part in method.parts if "." in tensor and part.name == owner), None)
    return (part.sums or "shares") if part else "shares"
