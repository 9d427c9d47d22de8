"""What a part changes, in a word: the group that lists and tables put it into. Decided by hooks, not by names."""

from __future__ import annotations

from collections.abc import Callable

from fedloom.methods.api.part import Part

Defines = Callable[..., bool]  # whether the part overrides any of these hooks

# The first that holds.
_GROUPS: dict[str, Callable[[type[Part], Defines], bool]] = {
    "head": lambda part, _: "head" in part.replaces,
    "normalizer": lambda part, defines: defines("build") and not defines("regularizer", "regions"),
    "data": lambda part, defines: part.central_data == "all" or not (part.shares or defines("uploads")),
    "personal model": lambda part, defines: defines("personalize"),
    "queries": lambda part, defines: defines("queries") and not defines("regularizer"),
    "shared weights": lambda part, defines: defines("regions"),
    "aggregation": lambda part, defines: (
        defines("weigh_uploads") or (defines("aggregate") and not defines("correct_gradient"))
    ),
    "server step": lambda part, defines: defines("server_step"),
    "server training": lambda part, defines: defines("server_training"),
    "gradient": lambda part, defines: defines("gradient", "correct_gradient"),
    "loss": lambda part, defines: defines("loss", "regularizer"),
    "other": lambda part, defines: True,
}
GROUPS = (  # in the order of tables
    *("gradient", "loss", "head", "normalizer", "aggregation", "server step", "server training"),
    *("queries", "shared weights", "personal model", "data", "other"),
)

# What a user looks for in a list, the broadest first; decided by group, and for aggregation by what it protects from.
FAMILIES = (
    "Local training, one global model",
    "Heads",
    "Normalizers",
    "Server",
    "Robust and private",
    "Personal models",
    "Reference points",
)
_FAMILY_OF = {
    "gradient": 0,
    "loss": 0,
    "head": 1,
    "normalizer": 2,
    "aggregation": 3,
    "server step": 3,
    "server training": 3,
    "queries": 3,
    "shared weights": 5,
    "personal model": 5,
    "data": 6,
    "other": 0,
}


def family_of(part: type[Part]) -> str:
    return FAMILIES[4 if part.bounds else _FAMILY_OF[group_of(part)]]


def group_of(part: type[Part]) -> str:
    def defines(*hooks: str) -> bool:
        return any(getattr(part, hook) is not getattr(Part, hook) for hook in hooks)

    return next(name for name, holds in _GROUPS.items() if holds(part, defines))
