"""Each client's share in a weighted mean: by `weighting`, and at most `deploy.max_share`."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.recipe import Recipe


def client_shares(samples: Sequence[int], recipe: Recipe) -> list[float]:
    """The shares of clients with these numbers of samples; they sum to 1."""
    sizes = [count if recipe.weighting == "samples" else 1 for count in samples]
    return bounded([size / sum(sizes) for size in sizes], recipe.deploy.max_share)


def bounded(shares: list[float], most: float) -> list[float]:
    """Cap shares at `most`; the excess goes to the other clients in proportion to their shares.

    Fewer than 1 / `most` clients cannot all stay below the cap: they get equal shares.
    """
    if max(shares, default=0.0) <= most:
        return shares
    if len(shares) * most <= 1:
        return [1 / len(shares)] * len(shares)
    capped: set[int] = set()
    bounded_shares = shares
    while over := {i for i, share in enumerate(bounded_shares) if share > most and i not in capped}:
        capped |= over
        rest = [0.0 if i in capped else share for i, share in enumerate(shares)]
        if not sum(rest):  # clients without samples get equal shares
            rest = [0.0 if i in capped else 1.0 for i in range(len(shares))]
        scale = (1 - most * len(capped)) / sum(rest)
        bounded_shares = [most if i in capped else share * scale for i, share in enumerate(rest)]
    return bounded_shares
