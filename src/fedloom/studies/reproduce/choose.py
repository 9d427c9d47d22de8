"""Which published cells are meant: `fedbabu`, `fedbabu/table5`, with `--cells "s=10"` and `--methods fedavg,fedbabu`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedloom.errors import FedloomError, shown
from fedloom.methods import method
from fedloom.nearest import nearest
from fedloom.papers import PublishedCell, key_of, paper, table_cells
from fedloom.papers.rows import canonical
from fedloom.studies.sweep import cut


def choose(target: str, cells: str | None = None, methods: str | None = None) -> list[PublishedCell]:
    """The cells in the order of the paper; refused with the nearest names if nothing has such a name."""
    key, tables = _tables(target)
    chosen = [cell for name in tables for cell in table_cells(key, name)]
    if cells:
        chosen = _with_labels(chosen, cells)
    if methods:
        chosen = _with_methods(chosen, cut(methods))
    if not chosen:
        raise FedloomError(f"cells: no cell of {target} has all of these labels; fedloom reproduce list {target}")
    return chosen


def _tables(target: str) -> tuple[str, list[str]]:
    name, slash, table = target.strip().partition("/")
    key, whole = key_of(name), paper(name)
    if not slash:
        return key, list(whole.tables)
    wanted = re.sub(r"[^a-z0-9]", "", table.lower())
    for known in whole.tables:
        if wanted in (known.lower(), known.lower().removeprefix("table")):
            return key, [known]
    raise FedloomError(nearest(f"table of {whole.name}", table, whole.tables))


def _with_labels(cells: Sequence[PublishedCell], text: str) -> list[PublishedCell]:
    """`s=10, tau=1` is both; `s=10; s=50` is either."""
    alternatives = [_pairs(choice, cells) for choice in text.split(";") if choice.strip()]
    if not alternatives:
        raise FedloomError(f"cells: cannot read {shown(text)}; write axis=label, as in s=10")
    return [
        cell
        for cell in cells
        if any(all(_same(cell.labels.get(axis), label) for axis, label in pairs) for pairs in alternatives)
    ]


def _pairs(text: str, cells: Sequence[PublishedCell]) -> list[tuple[str, str]]:
    axes: dict[str, dict[str, None]] = {}
    for cell in cells:
        for axis, label in cell.labels.items():
            axes.setdefault(axis, {})[label] = None
    pairs = []
    for item in re.split(r",\s*(?=[\w ()]+=)", text.strip()):
        axis, equals, label = (piece.strip() for piece in item.partition("="))
        if not equals or not label:
            raise FedloomError(f"cells: cannot read {shown(item)}; write axis=label, as in s=10")
        if axis not in axes:
            raise FedloomError("cells: " + nearest("axis", axis, axes))
        if not any(_same(known, label) for known in axes[axis]):
            raise FedloomError("cells: " + nearest(f"label of {axis}", label, axes[axis]))
        pairs.append((axis, label))
    return pairs


def _same(one: str | None, other: str) -> bool:
    """Labels are compared as texts, or as numbers: f=1 is f=1.0."""
    if one is None:
        return False
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()


def _with_methods(cells: Sequence[PublishedCell], wanted: Sequence[str]) -> list[PublishedCell]:
    """By the method's name in the table or by its sum: FedBABU, babu and fedbabu are the same."""
    kept: set[int] = set()
    for text in wanted:
        same = {id(cell) for cell in cells if _is_method(cell, text)}
        if not same:
            names = dict.fromkeys(name for cell in cells for name in (cell.name, cell.sum) if name)
            raise FedloomError("methods: " + nearest("method", text, names, "methods"))
        kept |= same
    return [cell for cell in cells if id(cell) in kept]


def _is_method(cell: PublishedCell, text: str) -> bool:
    labels = [label for axis, label in cell.labels.items() if axis.startswith("method")]
    if text.lower() in (name.lower() for name in (cell.name, *labels)):
        return True
    try:
        method(text)
    except FedloomError:
        return False
    return cell.sum is not None and canonical(cell.sum) == canonical(text)
