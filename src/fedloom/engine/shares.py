"""How much each client of a round counts in an average: by `weighting`, and no more than `deploy.max_share`."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.recipe import Recipe


def client_shares(samples: Sequence[int], recipe: Recipe) -> list[float]:
    """The shares of clients with these numbers of samples; they add up to 1."""
    sizes = [count if recipe.weighting == "samples" else 1 for count in samples]
    return bounded([size / sum(sizes) for size in sizes], recipe.deploy.max_share)


def bounded(shares: list[float], most: float) -> list[float]:
    """No share above `most`; what is cut off goes to the others in proportion to theirs.

    Fewer than 1 / `most` clients cannot all stay below it: they count alike.
    """
    if max(shares, default=0.0) <= most:
        return shares
    if len(shares) * most <= 1:
        return [1 / len(shares)] * len(shares)
    capped: set[int] = set()
    found = shares
    while over := {i for i, share in enumerate(found) if share > most and i not in capped}:
        capped |= over
        rest = [0.0 if i in capped else share for i, share in enumerate(shares)]
        if not sum(rest):  # clients without samples: alike among themselves
            rest = [0.0 if i in capped else 1.0 for i in range(len(shares))]
        scale = (1 - most * len(capped)) / sum(rest)
        found = [most if i in capped else share * scale for i, share in enumerate(rest)]
    return found
