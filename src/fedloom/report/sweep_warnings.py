"""What a sweep warns about: a best value at the edge of its range, and settings that diverged."""

from __future__ import annotations

from collections.abc import Mapping

from fedloom.errors import FedloomError
from fedloom.recipe import Recipe, assign, recipe
from fedloom.studies.cells import Point
from fedloom.studies.comparison import Comparison
from fedloom.studies.diverged import divergences


def warnings(comparison: Comparison, chosen: Mapping[str, Point]) -> list[str]:
    """`chosen`: each method's selected setting."""
    texts = [text for row, point in chosen.items() for text in _edges(comparison, row, point)]
    reasons = divergences(comparison.results)
    by_setting: dict[tuple[str, Point], list[str]] = {}
    for place, reason in reasons.items():
        cell = comparison.results[place].cell
        by_setting.setdefault((cell.row, cell.point), []).append(f"seed {cell.seed}: {reason}")
    for (row, point), seeds in by_setting.items():
        where = " ".join(f"{field}={value}" for field, value in point)
        texts.append(
            f"Warning: {comparison.label(row)}{f' at {where}' if where else ''} diverged ({'; '.join(seeds)})."
        )
    return texts


def _edges(comparison: Comparison, row: str, point: Point) -> list[str]:
    texts = []
    for field, text in point:
        values = {
            value: number for other in comparison.points if (number := _number(value := dict(other)[field])) is not None
        }
        if text not in values or len(values) < 2:
            continue
        for edge, word, side in ((min(values.values()), "smallest", -1), (max(values.values()), "largest", 1)):
            if values[text] == edge and _allowed(comparison, row, point, field, edge, side):
                beyond = "smaller" if side < 0 else "larger"
                texts.append(
                    f"Warning: {comparison.label(row)} is best at {field}={text}, the {word} value of the sweep; "
                    f"try {beyond} ones."
                )
    return texts


def _allowed(comparison: Comparison, row: str, point: Point, field: str, edge: float, side: int) -> bool:
    """Whether the recipe allows values beyond the edge: epochs=1 and fraction=1 are edges of their own."""
    base = next(r.cell.recipe for r in comparison.results if (r.cell.row, r.cell.point) == (row, point))
    step = 1.0 if float(edge).is_integer() and _whole(base, field) else max(abs(edge), 1e-6) * 1e-6
    fields = base.model_dump()
    beyond = edge + side * step
    try:
        assign(fields, f"{field}={int(beyond) if step == 1.0 else repr(beyond)}")
        recipe(fields)
    except FedloomError:
        return False
    return True


def _whole(base: Recipe, field: str) -> bool:
    value: object = base
    for name in field.split("."):
        value = getattr(value, name, None)
    return isinstance(value, int)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
