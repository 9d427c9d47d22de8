"""What stands above the page: a title that says what was compared, the date, and where the runs were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fedloom.report.page.series import Series, differences

NAMED = 4  # methods in a title, at most


def title(series: Sequence[Series], tunings: Sequence[Mapping[str, Any]]) -> str:
    """`fedavg, scaffold, fn on digits (shards:2, cnn)`; what differs between series is left out."""
    if not series:
        methods = list(dict.fromkeys(item["method"] for tuning in tunings for item in tuning["methods"]))
        return f"Tuning of {_listed(methods)}" if methods else "fedloom"
    fields = series[0].runs[0].fields
    apart = {*differences([item.runs for item in series]), *(name for name in fields if fields[name] is None)}
    shared = {
        name: str(fields[name]) for name in ("data.name", "split", "model") if name in fields and name not in apart
    }
    data = Path(shared.pop("data.name", "")).name
    setting = f" ({', '.join(shared.values())})" if shared else ""
    names = list(dict.fromkeys(run.name for item in series for run in item.runs))
    labels = [item.label for item in series]
    return f"{_listed(labels if len(names) == len(labels) else names)}{f' on {data}' if data else ''}{setting}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} methods"


def date() -> str:
    """Now, with the offset from UTC, as a reader in another place needs it."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def origins(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Machines and versions of finished runs, each once, with the labels of its series."""
    found: dict[str, dict[str, Any]] = {}
    for item in series:
        for run in item.runs:
            machine, versions = run.summary.get("machine"), run.summary.get("versions")
            if not isinstance(machine, Mapping) or not isinstance(versions, Mapping):
                continue  # unfinished, or edited
            words = [str(machine[name]) for name in ("processor", "system") if machine.get(name)]
            if machine.get("cores"):
                words.insert(1, f"{machine['cores']} cores")
            if machine.get("device") not in (None, "cpu"):
                words.append(str(machine["device"]))
            where = {"machine": ", ".join(words), "versions": ", ".join(f"{k} {v}" for k, v in versions.items())}
            entry = found.setdefault(str(where), {**where, "series": []})
            if item.label not in entry["series"]:
                entry["series"].append(item.label)
    return list(found.values())
