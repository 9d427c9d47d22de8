"""Fields of a recipe by what they are about: the panels of `--help`, and the order of `fedloom recipe --explain`."""

from __future__ import annotations

from fedloom.recipe.fields import Recipe

OTHER = "Other"
GROUPS: dict[str, tuple[str, ...]] = {
    "Data and clients": ("data", "split", "clients", "augment"),
    "Model and method": ("model", "method", "parts", "init", "init_digest", "head_init", "bn"),
    "Rounds and local training": (
        *("rounds", "fraction", "participation", "epochs", "steps", "batch", "optimizer", "lr", "momentum"),
        *("weight_decay", "schedule", "clip", "weighting"),
    ),
    "Evaluation": ("metrics", "eval_every", "eval_clients", "eval_batch", "eval_test", "analyze_every", "track"),
    "Machine": ("seed", "workers", "vmap", "precision", "kernels", "device", "memory_mb", "checkpoint_seconds"),
    "Where results go": ("name", "out"),
    "Deployment": ("deploy",),
}


def group_of(field: str) -> str:
    return next((title for title, names in GROUPS.items() if field in names), OTHER)


def grouped() -> dict[str, list[str]]:
    """Every field once; one that no group names comes last."""
    rest = [name for name in Recipe.model_fields if group_of(name) == OTHER]
    groups = {title: list(names) for title, names in GROUPS.items()}
    return {**groups, OTHER: rest} if rest else groups
