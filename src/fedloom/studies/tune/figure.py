"""The trials of a tuning as a plotly figure, for notebooks; the page has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedloom.evaluation.metrics import find_metric
from fedloom.studies.tune.chosen import Tuned
from fedloom.studies.tune.trial_row import TrialRow

SYMBOLS = {"finished": "circle", "stopped early": "circle-open", "diverged": "x"}


def figure(tuned: Tuned, trials: Sequence[TrialRow]) -> Any:
    """One panel per method, over the rate where it is tuned. Diverged trials have no value and lie at the bottom."""
    from plotly import graph_objects  # slow to import
    from plotly.subplots import make_subplots

    methods = [chosen for chosen in tuned.methods if chosen.ranges]
    metric = find_metric(tuned.metric)
    scale = 100 if metric.format == "percent" else 1
    drawn = make_subplots(rows=1, cols=len(methods), shared_yaxes=True, subplot_titles=[m.method for m in methods])
    for column, chosen in enumerate(methods, 1):
        name = "lr" if "lr" in chosen.ranges else next(iter(chosen.ranges))
        for state, symbol in SYMBOLS.items():
            rows = [t for t in trials if t.method == chosen.method and t.state == state]
            trace = graph_objects.Scatter(
                x=[trial.values[name] for trial in rows],
                y=[None if trial.value is None else scale * trial.value for trial in rows],
                mode="markers",
                name=state,
                marker={"symbol": symbol, "size": 9},
                showlegend=column == 1,
                text=[", ".join(f"{key}={value}" for key, value in trial.values.items()) for trial in rows],
            )
            drawn.add_trace(trace, row=1, col=column)
        logarithmic = chosen.ranges[name].startswith("log:")
        drawn.update_xaxes(title_text=name, type="log" if logarithmic else None, row=1, col=column)
    drawn.update_yaxes(title_text=f"validation {metric.heading}", row=1, col=1)
    return drawn
