"""All measurements, by name; a name of a single figure runs the measurement that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedloom.bench.aggregation import aggregation
from fedloom.bench.evaluation import evaluation
from fedloom.bench.figure import Effort, Figure
from fedloom.bench.kinds import kinds
from fedloom.bench.ray import ray
from fedloom.bench.start import start
from fedloom.bench.tiny import tiny
from fedloom.bench.training import WORKLOADS, training
from fedloom.bench.tuning import tuning
from fedloom.errors import FedloomError, shown

DAY = 86_400  # seconds, the longest that a workload may be measured
Say = Callable[[str], None]


@dataclass(frozen=True)
class Measurement:
    title: str
    run: Callable[[Effort, Say], Iterator[Figure]]


MEASUREMENTS = {
    **{w.name: Measurement(w.title, training(w)) for w in WORKLOADS},
    "kinds": Measurement("training on tokens, signals and tables", kinds),
    "tiny": Measurement("rounds of a tiny net, eager and vmapped", tiny),
    "evaluation": Measurement("evaluation of LeNet", evaluation),
    "aggregation": Measurement("aggregation of 10 clients x 10 million parameters", aggregation),
    "start": Measurement("start-up, and a comparison of twelve short runs", start),
    "ray": Measurement("rounds on Ray and on forked workers", ray),
    "tuning": Measurement("trials of `fedloom tune`", tuning),
}


def bench(effort: Effort, only: str | None, say: Say) -> Iterator[Figure]:
    """Measure everything, or one thing; figures as they come."""
    if only is not None and only not in MEASUREMENTS:
        raise FedloomError(f"only: {shown(only)} is unknown; allowed are {', '.join(MEASUREMENTS)}")
    if not 0 <= effort.seconds <= DAY:
        raise FedloomError(f"seconds: must be 0 to {DAY} (got {effort.seconds:g})")
    for name, measurement in MEASUREMENTS.items():
        if only in (None, name):
            say(f"measuring {measurement.title} …")
            yield from measurement.run(effort, say)
