"""An analysis as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.report.table import percent, plain_table

Section = Mapping[str, Any]


def analysis_tables(summary: Section, quantities: Sequence[str]) -> list[Table]:
    """One table per quantity that was asked for."""
    makers = {
        "factors": _factors,
        "norms": _norms,
        "alignment": _alignment,
        "drift": _drift,
        "collapse": _collapse,
        "consistency": _consistency,
        "refinement": lambda section: _refinement(section, summary["classes"]),
        "cost": _cost,
    }
    return [makers[name](summary[name]) for name in makers if name in quantities and summary.get(name)]


def _number(value: float | None, form: str = "{:.3f}") -> str:
    return "–" if value is None else form.format(value)


def _factors(section: Section) -> Table:
    table = plain_table(
        f"four factors of the global model ({section['images']} test samples)", ["", "mean cosine", "better"]
    )
    for name, title, better in (
        ("weight_similarity", "weight similarity, between rows of the head", "lower"),
        ("inter_class", "inter-class, between prototypes", "lower"),
        ("intra_class", "intra-class, features to their prototype", "higher"),
        ("prototype_weight", "prototype-weight, prototype to its row", "higher"),
    ):
        table.add_row(title, _number(section[name]), better)
    return table


def _norms(section: Section) -> Table:
    title = f"norms of the global and of {_clients(section)}' models"
    table = plain_table(title, ["", "global", "local, seen", "local, unseen"])
    for kind, name in (("feature", "features"), ("weight", "rows of the head")):
        table.add_row(name, *(_number(section[f"{kind}_{part}"]) for part in ("global", "seen", "unseen")))
    return table


def _alignment(section: Section) -> Table:
    table = plain_table(f"alignment of {_clients(section)} after local training", ["", "seen", "unseen"])
    for name, title in (
        ("", "cosine of feature and its class's row"),
        ("gap_", "its change in local training"),
        ("distance_", "distance to the feature before"),
        ("angle_", "angle to the feature before, degrees"),
    ):
        form = "{:+.3f}" if name == "gap_" else "{:.1f}" if name == "angle_" else "{:.3f}"
        table.add_row(title, _number(section[f"{name}seen"], form), _number(section[f"{name}unseen"], form))
    table.add_row("the same cosine, global model, all classes", _number(section["global"]), "")
    return table


def _drift(section: Section) -> Table:
    table = plain_table(f"drift: updates of {_clients(section)}", ["", "value"])
    for name, title in (
        ("norm", "length of an update"),
        ("mean_norm", "length of their mean"),
        ("to_mean", "distance to the mean"),
        ("cosine_to_mean", "cosine to the mean"),
        ("cosine_pairwise", "cosine of two updates"),
    ):
        table.add_row(title, _number(section[name]))
    return table


def _collapse(section: Section) -> Table:
    table = plain_table(f"dimensions used, of {section['dimensions']}", ["", "global", "local"])
    table.add_row("effective rank", *(_number(section[f"effective_rank_{m}"], "{:.1f}") for m in ("global", "local")))
    table.add_row(
        "dimensions for 99 % of variance", *(_number(section[f"rank99_{m}"], "{:.1f}") for m in ("global", "local"))
    )
    return table


def _consistency(section: Section) -> Table:
    title = "consistency, mean over layers"
    table = plain_table(title, ["", "weights", "activations"])
    table.add_row(
        "cosine of two clients, before", *(_number(section[f"{k}_clients"]) for k in ("weight", "activation"))
    )
    table.add_row(
        "cosine of client and aggregate", *(_number(section[f"{k}_global"]) for k in ("weight", "activation"))
    )
    table.add_row("scale, aggregate to client", *(_number(section[f"{k}_scale"]) for k in ("weight", "activation")))
    table.add_row("shift, in deviations", "", _number(section["activation_shift"]))
    return table


def _refinement(section: Section, classes: Sequence[str]) -> Table:
    """Means over seen and unseen classes; also by class if there are at most 20."""
    stages = [stage for stage in ("start", "local", "asked", "refined") if section[stage] is not None]
    title, asked = f"accuracy in %, {_clients(section)}", len(section["refined_clients"])
    names = {"asked": f"local, {asked} asked again", "refined": f"refined, the same {asked}"}
    table = plain_table(title, ["classes", *(names.get(stage, stage) for stage in stages)])

    def row(name: str, values: Sequence[float | None], end: bool = False) -> None:
        table.add_row(name, *("–" if value is None else percent(value) for value in values), end_section=end)

    row("seen by the client", [section[f"{stage}_seen"] for stage in stages])
    row("unseen", [section[f"{stage}_unseen"] for stage in stages], end=True)
    if len(classes) <= 20:
        for label, name in enumerate(classes):
            row(name, [section[stage][label] for stage in stages])
    return table


def _cost(section: Section) -> Table:
    metric = _headline(section)
    unit = " %" if metric.format == "percent" else ""
    named = "" if metric.name == "accuracy" else f" of {metric.title}"
    table = plain_table("cost", ["", "round", "seconds", "MB"])
    total = f"all rounds, for {metric.text(section[f'test_{metric.name}'])}{unit}{named}"
    table.add_row(total, "", f"{section['seconds']:.1f}", f"{section['megabytes']:.2f}")
    ratios = (_number(section[name], "{:.1f}") for name in ("kappa", "rho"))
    if section["kappa"] is not None or section["rho"] is not None:
        table.add_row("accuracy x 10^4 / each (kappa, rho)", "", *ratios, end_section=True)
    for target in section["targets"]:
        spent = [_number(target[name], form) for name, form in (("seconds", "{:.1f}"), ("megabytes", "{:.2f}"))]
        round = "never" if target["round"] is None else str(target["round"])
        table.add_row(f"to reach {metric.text(target['target'])}{unit}", round, *spent)
    return table


def _headline(section: Section) -> Metric:
    name = next(name.removeprefix("test_") for name in section if name.startswith("test_"))
    return find_metric(name)


def _clients(section: Section) -> str:
    count = len(section["clients"])
    return f"{count} clients" if count != 1 else "1 client"
