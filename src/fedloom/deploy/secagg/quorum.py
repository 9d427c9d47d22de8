"""How many nodes a round with secure aggregation needs. It follows from the recipe, so every node computes it itself."""

from __future__ import annotations

from fedloom.recipe import SecAgg


def share_counts(settings: SecAgg, cohort: int) -> tuple[int, int]:
    """Number of shares that a node's secrets are split into in a round, and how many of them reconstruct a secret."""
    shares = cohort if settings.num_shares is None else min(settings.num_shares, cohort)
    return shares, max(round(settings.reconstruction_threshold * shares), shares // 2 + 1, 2)


def least_sites(settings: SecAgg, cohort_size: int) -> int:
    """The fewest sites that a sum may have, and that must sign it; `cohort_size` is that of a full round.

    It is at least the threshold of a full round, which is above one half: so two sums of one round share a site.
    """
    return max(share_counts(settings, cohort_size)[1], settings.min_clients or 0)
