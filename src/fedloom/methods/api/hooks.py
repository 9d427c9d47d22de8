"""Every hook of a part, in the order of a round, and the rule by which several parts' hooks combine in a sum.

This table is the one list of hooks. What a hook receives and returns is documented at its method in `part.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["structure", "state", "client", "server", "report", "personal model"]
Rule = Literal["in order", "added", "exclusive", "own"]


@dataclass(frozen=True)
class Hook:
    """How the hook behaves in a sum, and how a refusal names it.

    `in order`: every part's hook is called, in the order of the sum. `added`: results are added to the loss. `exclusive`: only
    one part of a sum may define it. `own`: it concerns this part's own state and messages alone.
    """

    place: Place
    rule: Rule
    decides: str = ""  # exclusive hooks: what only one part may decide
    does: str = ""  # how a refusal says that a part uses this hook
    needs_shared: bool = False  # it has no effect where clients share nothing


HOOKS: dict[str, Hook] = {
    "build": Hook("structure", "in order"),
    "regions": Hook("structure", "in order"),
    "check": Hook("structure", "in order"),
    "at_round": Hook("structure", "in order"),
    "server_state": Hook("state", "own", does="keeps state at the server between rounds"),
    "client_state": Hook("state", "own", does="keeps more than personal regions on clients"),
    "uploads": Hook("state", "own", does="lets clients send more than weights"),
    "broadcast": Hook("state", "own", does="sends clients more than weights"),
    "queries": Hook("state", "own", does="asks clients a second time"),
    "final_tensors": Hook("state", "own"),
    "extra_training": Hook("state", "own"),
    "before_training": Hook("client", "in order", does="adapts weights before training"),
    "phases": Hook("client", "exclusive", decides="how the local epochs are arranged"),
    "loss": Hook("client", "exclusive", decides="what the local loss is"),
    "regularizer": Hook("client", "added"),
    "mix_share": Hook("client", "in order"),
    "gradient": Hook(
        "client",
        "exclusive",
        decides="how the gradient is computed",
        does="computes clients' gradients in its own way",
        needs_shared=True,
    ),
    "correct_gradient": Hook("client", "in order", does="corrects clients' gradients", needs_shared=True),
    "after_step": Hook("client", "in order", does="works after every step of clients", needs_shared=True),
    "after_training": Hook("client", "in order"),
    "answer": Hook("client", "own", does="asks clients a second time"),
    "initialize": Hook("server", "in order", does="asks clients before the first round"),
    "after_uploads": Hook("server", "in order", does="works on the uploads of single clients"),
    "weigh_uploads": Hook(
        "server",
        "exclusive",
        decides="how much each upload counts",
        does="weighs uploads in its own way",
        needs_shared=True,
    ),
    "aggregate": Hook(
        "server",
        "exclusive",
        decides="how uploads are aggregated",
        does="aggregates uploads in its own way",
        needs_shared=True,
    ),
    "server_step": Hook(
        "server",
        "exclusive",
        decides="what the server does with the aggregate",
        does="takes a step of its own at the server",
        needs_shared=True,
    ),
    "after_aggregation": Hook("server", "in order", does="continues at the server after aggregation"),
    "server_training": Hook("server", "in order", does="trains on at the server", needs_shared=True),
    "finalize": Hook("server", "in order"),
    "served_weights": Hook(
        "server",
        "exclusive",
        decides="which weights are served",
        does="serves other weights than the training state",
        needs_shared=True,
    ),
    "log": Hook("report", "in order"),
    "summary": Hook("report", "in order"),
    "personalize": Hook("personal model", "exclusive", decides="what a client's own model is"),
    "own_logits": Hook("personal model", "exclusive", decides="how a client reads its own logits"),
}


def does(hook: str) -> str:
    """The verb phrase of a refusal: what a part that defines this hook does."""
    return HOOKS[hook].does or f"uses {hook}"
