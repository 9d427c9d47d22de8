"""What a reader of the choices should know: warnings about a search that may not have found the best setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedloom.evaluation.metrics import Metric
from fedloom.methods.api.search import Choices, Span
from fedloom.studies.tune.sampler import all_points
from fedloom.studies.tune.search import Outcome, Trial, ranked
from fedloom.studies.tune.space import Space

NEAR = 0.05  # of a range: so near to its end counts as the edge
LAST = 0.2  # of a range: so near counts as the edge too, if nothing was tried beyond


def cautions(
    space: Space, trials: Sequence[Trial], metric: Metric, samples: int, baseline: float = math.nan
) -> list[str]:
    """`baseline`: the value of a model that learned nothing."""
    warnings = [
        f"{name}: the value without tuning, {_shown(space.default[name])}, is outside of the declared range {values}"
        + (f", which was widened to {space.ranges[name]}" if space.ranges[name] != values else "")
        for name, values in space.widened.items()
    ]
    best = [trial for trial in ranked(trials, metric) if trial.finished]
    diverged = [trial for trial in trials if trial.diverged]
    if 2 * len(diverged) > len(trials):
        rate = space.ranges.get("lr")
        lower = "; try lower rates"
        if isinstance(rate, Span) and rate.log:
            lower += f": --over lr={replace(rate, low=rate.low * 0.1, high=rate.high * 0.1)}"
        warnings.append(f"{len(diverged)} of {len(trials)} trials diverged{lower}")
    if not best:
        return warnings
    if text := _nothing_learned(best[0].last, metric, samples, baseline):
        warnings.append(text)
    for name in space.ranges:
        if text := _edge(space, name, best[0], trials):
            warnings.append(text)
    enough = 4 * (len(space.ranges) + 1)
    if len(trials) < enough and all_points(space, len(trials)) is None:
        are, what = "trial is" if len(trials) == 1 else "trials are", "value" if len(space.ranges) == 1 else "values"
        warnings.append(
            f"{len(trials)} {are} few for {len(space.ranges)} tuned {what}; take {enough} or more with --trials"
        )
    if len(best) > 1 and (text := _noise(best, metric, samples)):
        warnings.append(text)
    return warnings


def _nothing_learned(best: Outcome, metric: Metric, samples: int, baseline: float) -> str | None:
    """A value that is within twice its standard error of what constant predictions give."""
    if best.value is None or math.isnan(baseline):
        return None
    error = best.error if best.error is not None else _binomial(best, metric, samples)
    gain = best.value - baseline if metric.better == "higher" else baseline - best.value
    if gain > (0.0 if math.isnan(error) else 2 * error):
        return None
    return (
        f"no trial learned much: the best value is {metric.text(best.value)}, and predicting the same for every sample gives "
        f"{metric.text(baseline)}; try other ranges, or more rounds"
    )


def _edge(space: Space, name: str, best: Trial, trials: Sequence[Trial]) -> str | None:
    values, chosen = space.ranges[name], best.point[name]
    if isinstance(values, Choices):
        numbers = sorted(v for v in values.values if isinstance(v, int | float) and not isinstance(v, bool))
        if len(numbers) < max(len(values.values), 2) or chosen not in (numbers[0], numbers[-1]):
            return None
        side, beyond = ("lowest", "lower") if chosen == numbers[0] else ("highest", "higher")
        return f"{name}: the best value, {_shown(chosen)}, is the {side} of {values}; try {beyond} ones"
    place, places = _place(values, chosen), [_place(values, trial.point[name]) for trial in trials]
    low = place <= NEAR or (place <= LAST and place == min(places))
    high = place >= 1 - NEAR or (place >= 1 - LAST and place == max(places))
    if len(set(places)) < 2 or not (low or high):
        return None
    wider = _wider(values, low)
    possible = space.allows(name, wider.low if low else wider.high)
    proposal = f"widen it, for instance with --over {name}={wider}" if possible else "widen it, if it has room"
    edge = f"the {'lower' if low else 'upper'} edge of its range {values}"
    return f"{name}: the best value, {_shown(chosen)}, is at {edge}; {proposal}"


def _place(span: Span, value: float) -> float:
    """0 at the lower end of a range, 1 at the upper one."""
    if not span.low < value < span.high:
        return 0.0 if value <= span.low else 1.0
    if span.log:
        return math.log(value / span.low) / math.log(span.high / span.low)
    return (value - span.low) / (span.high - span.low)


def _wider(span: Span, low: bool) -> Span:
    """The range with one end a decade further; a plain range is twice as long."""
    if span.log:
        return replace(span, low=span.low * 0.1) if low else replace(span, high=span.high * 10)
    if low:
        return replace(span, low=span.low / 10 if span.low > 0 else span.low - (span.high - span.low))
    return replace(span, high=span.high + (span.high - span.low))


def _noise(best: Sequence[Trial], metric: Metric, samples: int) -> str | None:
    """Trials that the winner is not clearly better than: by less than one standard error of the difference."""
    winner = best[0].last
    near = [
        trial for trial in best[1:] if _difference(winner, trial.last) <= _error(winner, trial.last, metric, samples)
    ]
    if not near:
        return None
    second, others = near[0], "one other setting is" if len(near) == 1 else f"{len(near)} other settings are"
    other = ", ".join(f"{name}={_shown(value)}" for name, value in second.point.items())
    return (
        f"the best is within noise of the second ({other}: {metric.text(second.last.value)} beside "
        f"{metric.text(winner.value)}, {samples} validation samples); {others} this near"
    )


def _difference(a: Outcome, b: Outcome) -> float:
    return abs((a.value or 0.0) - (b.value or 0.0))


def _error(a: Outcome, b: Outcome, metric: Metric, samples: int) -> float:
    """Standard error of the difference, as if the two were evaluated on different samples, which is cautious. -1: unknown."""
    errors = [outcome.error if outcome.error is not None else _binomial(outcome, metric, samples) for outcome in (a, b)]
    return -1.0 if any(math.isnan(error) for error in errors) else math.hypot(*errors)


def _binomial(outcome: Outcome, metric: Metric, samples: int) -> float:
    value = outcome.value
    if value is None or not samples or metric.format != "percent" or not 0 <= value <= 1:
        return math.nan
    return math.sqrt(value * (1 - value) / samples)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
