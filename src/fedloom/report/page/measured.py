"""The tables that `fedloom analyze` stored in a run folder, as lists for the page. A missing file is a missing section."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.errors import FedloomError, brief, one_line
from fedloom.io.archives import read_arrays
from fedloom.io.files import read_lines
from fedloom.paths import obstacle
from fedloom.report.page.gather import RunFiles, read_json

POINTS = 3000  # at most, of an embedding
FACTORS = ("weight_similarity", "inter_class", "intra_class", "prototype_weight")
ROUNDS = ("factors", "norms", "alignment", "drift")


def analysis_sections(run: RunFiles, problems: list[str] | None = None) -> dict[str, Any]:
    """All sections that can be read. Reasons why others cannot are added to `problems`."""
    folder, sections = run.path / "analysis", {}
    for name, (file, read) in SECTIONS.items():
        try:
            sections[name] = read(folder / file)
        except FedloomError as error:
            _add(problems, str(error))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            _add(problems, f"{folder / file} is damaged ({type(error).__name__}: {brief(str(error))})")
    return {name: value for name, value in sections.items() if value}


def _add(problems: list[str] | None, text: str) -> None:
    if problems is not None:
        problems.append(one_line(text))


def number(value: Any, digits: int = 6) -> float | None:
    """A float rounded to significant digits; None if the value is not a finite number."""
    try:
        exact = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return float(f"{exact:.{digits}g}") if math.isfinite(exact) else None


def _rounds(path: Path) -> dict[str, Any]:
    """Columns: round, then group.name."""
    lines = read_lines(path)
    if not lines:
        return {}
    names = dict.fromkeys(f"{g}.{n}" for line in lines for g in ROUNDS for n in line.get(g) or {})
    columns = {
        name: [number((line.get(name.split(".")[0]) or {}).get(name.split(".")[1])) for line in lines] for name in names
    }
    return {"round": [line["round"] for line in lines], **columns}


def _factors(path: Path) -> dict[str, list[list[int | None]]]:
    """Matrices of cosines in hundredths: precise enough for a heat map, and small for many classes."""
    arrays = read_arrays(path, FACTORS) if path.exists() else {}
    return {
        name: [[round(100 * v) if math.isfinite(v) else None for v in row] for row in array.astype(float).tolist()]
        for name, array in arrays.items()
    }


def _spectrum(path: Path) -> dict[str, list[float | None]]:
    """Singular values of the global model, and the mean of the local ones."""
    stages: dict[str, dict[int, list[float]]] = {"global": {}, "local": {}}
    for row in _csv(path):
        value = number(row.get("singular_value"))
        if value is not None and row.get("stage") in stages:
            stages[row["stage"]].setdefault(int(row["index"]), []).append(value)
    return {stage: [number(np.mean(values[i])) for i in sorted(values)] for stage, values in stages.items() if values}


def _layers(path: Path) -> dict[str, list[Any]]:
    rows = _csv(path)
    if not rows:
        return {}
    names = ("weight_clients", "weight_global", "activation_clients", "activation_global")
    return {"layer": [row["layer"] for row in rows], **{n: [number(row.get(n)) for row in rows] for n in names}}


def _embedding(path: Path) -> dict[str, list[Any]]:
    rows = _csv(path)
    points = [row for row in rows if row.get("x") and row.get("y")]
    step = max(1, math.ceil(len(points) / POINTS))
    points = points[::step]
    if not points:
        return {}
    return {
        "kind": [points[0].get("kind", "")],
        "stage": [row["stage"] for row in points],
        "client": [_whole(row.get("client")) for row in points],
        "class": [_whole(row.get("class")) for row in points],
        "holder": [_whole(row.get("holder")) for row in points],
        "x": [number(row["x"], 4) for row in points],
        "y": [number(row["y"], 4) for row in points],
    }


def _clients(path: Path) -> dict[str, list[Any]]:
    rows = _csv(path)
    if not rows:
        return {}
    names = ("client", "train_images", "accuracy_start", "accuracy_local", "accuracy_refined", "update_norm")
    more = ("update_cosine_to_mean", "effective_rank")
    return {name: [number(row.get(name)) for row in rows] for name in (*names, *more)}


def _csv(path: Path) -> Sequence[dict[str, str]]:
    if not path.exists():
        return []
    if reason := obstacle(path):
        raise FedloomError(f"{path} cannot be read: {reason}")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FedloomError(f"{path} is damaged ({brief(str(error))})") from None


def _whole(text: str | None) -> int | None:
    return int(float(text)) if text else None


SECTIONS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "rounds": ("rounds.jsonl", _rounds),
    "summary": ("summary.json", read_json),
    "factors": ("factors.npz", _factors),
    "spectrum": ("spectrum.csv", _spectrum),
    "layers": ("layers.csv", _layers),
    "embedding": ("embedding.csv", _embedding),
    "clients": ("clients.csv", _clients),
}
