"""Learning curves as plotly figures, for notebooks; the page has its own."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.errors import FedloomError
from fedloom.evaluation.metrics import Metric
from fedloom.runs.names import metric_named

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
Curve = Mapping[int, float | None]  # value by round


def curves_figure(title: str, metric_name: str, curves: Mapping[str, Sequence[Curve]]) -> Any:
    """One line per name: the mean over its curves, with a band of one standard deviation where there are several."""
    try:
        from plotly import graph_objects
    except ImportError:
        raise FedloomError("plot: needs plotly; install it with: pip install plotly") from None
    metric = metric_named(metric_name)
    bands, lines = [], []
    for number, (name, runs) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        rounds, means, deviations = _over_seeds(metric, runs)
        if any(deviations):
            upper = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
            lower = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
            band = graph_objects.Scatter(
                x=[*rounds, *reversed(rounds)],
                y=[*upper, *reversed(lower)],
                fill="toself",
                fillcolor=color,
                opacity=0.15,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                legendgroup=name,
            )
            bands.append(band)
        mode = "lines" if len(rounds) > 1 else "markers"
        line = graph_objects.Scatter(x=rounds, y=means, name=name, mode=mode, line={"color": color}, legendgroup=name)
        lines.append(line)
    figure = graph_objects.Figure([*bands, *lines])  # no band hides a line
    figure.update_layout(title=title, xaxis_title="round", yaxis_title=metric.heading, template="plotly_white")
    return figure


def _over_seeds(metric: Metric, runs: Sequence[Curve]) -> tuple[list[int], list[float], list[float]]:
    """Mean and deviation at every round that all curves have."""
    scale = 100 if metric.format == "percent" else 1
    known = [{number: value for number, value in curve.items() if value is not None} for curve in runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in known))) if known else []
    values = [[scale * curve[number] for curve in known] for number in rounds]
    deviations = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
    return rounds, [statistics.fmean(each) for each in values], deviations
