"""Centralized training: all data in one place, an upper reference for federations (FedBABU, figure 2; FedFN, D.7).

    each round: the recipe's local work on the union of all clients' training samples, by the same local loop

`update = full` trains everything, `body` freezes the head, `head` freezes the body (its normalizers still update
their statistics, since evaluation needs them). It combines with parts that change head, loss or normalizer: `central
+ fn`; `central + fednn` and `central + norm(kind=gn)` are the centralized rows of FedNN's Table 12.

One replica, client 0 in `rounds.jsonl`, holds the samples in the order of the partition. With one client and full
participation it equals FedAvg bit for bit. As in every round of fedloom, momentum starts at zero, so with momentum 0.9
the first ten or so steps of a round are shorter; the original curves use one optimizer throughout, as `optimizer.keep`
does.
Nothing is sent: bytes are 0, `clients` and `split` only decide what each client is evaluated and fine-tuned on, and
`fraction` has no effect. Parts that need several clients are refused.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedloom.errors import FedloomError
from fedloom.methods.api.context import RunPlan
from fedloom.methods.api.part import Allows, Part
from fedloom.weights import BEFORE_HEAD, Regions


class Central(Part):
    """Centralized training on all clients' data."""

    paper = "reference point"
    central_data = "all"
    allows: ClassVar[Allows | None] = Allows(
        frozenset(
            {"build", "regions", "phases", "loss", "regularizer", "mix_share", "personalize", "check", "summary"}
            | {"own_logits", "queries", "answer", "extra_training", "final_tensors", "finalize", "at_round", "log"}
        ),
        otherwise="and with central there is one worker that holds all data",
    )
    variants: ClassVar[frozenset[str]] = frozenset({"update"})
    update: Literal["full", "body", "head"] = "full"
    """what is trained: full | body | head"""

    def regions(self, regions: Regions) -> Regions:
        which = {"full": (), "body": ("head",), "head": BEFORE_HEAD}[self.update]
        names = [name for name in regions.select(*which) if name not in regions.statistics]
        return regions.freeze(*names) if names else regions

    def check(self, plan: RunPlan) -> None:
        if plan.personal:
            raise FedloomError(
                "all data are in one place, so no client has anything of its own; leave out the part that keeps "
                "something with clients, and with bn: local choose running or batch"
            )
