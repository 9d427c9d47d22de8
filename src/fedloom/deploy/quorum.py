"""How many nodes a masked round needs: what follows from the recipe, so that every node works it out for itself."""

from __future__ import annotations

from fedloom.recipe import SecAgg


def counts(settings: SecAgg, cohort: int) -> tuple[int, int]:
    """Into how many shares a node's keys go in a round, and how many of them bring them back."""
    shares = cohort if settings.num_shares is None else min(settings.num_shares, cohort)
    return shares, max(round(settings.reconstruction_threshold * shares), shares // 2 + 1, 2)


def floor(settings: SecAgg, cohort_size: int) -> int:
    """The fewest sites in a sum, and that sign it, by a recipe whose full rounds have so many clients.

    Never below the threshold of a full round: above a half of it, so that two sums of one round have a site in common.
    """
    return max(counts(settings, cohort_size)[1], settings.min_clients or 0)
