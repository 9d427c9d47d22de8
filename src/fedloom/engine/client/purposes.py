"""The purposes in the keys of random generators: (seed, purpose, round, client).

Each string is part of a random stream. Another string gives other draws and so other weights: rename the constant, never
the string. The `FORWARD` purposes seed torch's default generator, from which layers such as dropout draw.
"""

from __future__ import annotations

TRAINING = "local"
WORK = "work"  # the local work of a client, where the recipe gives a range
REFINING = "act"  # a query that trains
ASKING = "tell"  # a query that trains nothing
DELIVERING = "deliver"  # a message to one client
FINE_TUNING = "tune"
DETACHED = "aside"  # training of other weights than the client's own

FORWARD_BEFORE_TRAINING = "forward-before"
FORWARD_TRAINING = "forward"
FORWARD_AFTER_STEP = "forward-after-step"
FORWARD_REFINING = "forward-act"
FORWARD_DELIVERING = "forward-deliver"
FORWARD_FINE_TUNING = "forward-tune"
FORWARD_PERSONALIZING = "forward-own"
FORWARD_DETACHED = "forward-aside"
FORWARD_EVALUATING = "test"


def forward_asking(part: str) -> str:
    return f"forward-tell-{part}"


def server_training(part: str) -> str:
    return f"refine-{part}"


def forward_server_training(part: str) -> str:
    return f"forward-refine-{part}"
