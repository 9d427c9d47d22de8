"""All training data in one place: the reference point that no federation beats (FedBABU's figure 2, FedFN's D.7).

    each round: the recipe's epochs of SGD on the union of all clients' training images, by the same local loop

`update = full` trains everything, `body` leaves the head as drawn, `head` leaves the body as drawn (its normalisers still
gather statistics, else they would be tested with those of no data). Sums: `central + fn`, or with another head, loss or
normalizer: `central + fednn` and `central + norm(kind=gn)` are the centralized rows of FedNN's Table 12.

One worker, number 0 in `rounds.jsonl`, holds the images in the order of the partition: with one client and full
participation it is FedAvg to the last bit. As in every round of fedloom momentum starts at zero; the original curves have
one optimiser throughout, so with momentum 0.9 the first ten or so steps of each round are shorter than theirs. Nothing
travels: bytes are 0, `clients` and `split` decide only what each client is tested and fine-tuned on, `fraction` nothing.
Parts about how many clients work together have no meaning here and are refused.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedloom.errors import FedloomError
from fedloom.methods.part import Part
from fedloom.methods.seen import Plan
from fedloom.weights import Regions


class Central(Part):
    """All clients' training data in one place, trained by the same loop."""

    paper = "reference point"
    pooled: ClassVar[bool] = True
    beside: ClassVar[frozenset[str] | None] = frozenset(
        {"build", "regions", "phases", "objective", "penalty", "mix", "personalise", "check", "summary"}
        | {"own_logits"}
        | {"findings", "fixes", "tell", "conclude"}
        | {"at_round", "log"}
    )
    variants: ClassVar[frozenset[str]] = frozenset({"update"})
    because: ClassVar[str] = "and with central there is one worker that holds all data"
    update: Literal["full", "body", "head"] = "full"

    def regions(self, regions: Regions) -> Regions:
        which = {"full": (), "body": ("head",), "head": ("body", "norm")}[self.update]
        names = [name for name in regions.select(*which) if name not in regions.statistics]
        return regions.freeze(*names) if names else regions

    def check(self, plan: Plan) -> None:
        if plan.personal:
            raise FedloomError(
                "all data lie in one place, so no client has anything of its own; leave out the part that keeps "
                "something with clients, and with bn: local choose running or batch"
            )
