"""The cells of published tables, read from the blocks of a paper's file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fedloom.errors import FedloomError
from fedloom.papers.apply import notes_of, released, sum_of
from fedloom.papers.cell import PublishedCell, measure_of
from fedloom.papers.load import PAPERS, paper, protocols
from fedloom.papers.schema import Axis, Block, Entry, Paper, Remark, Table
from fedloom.values import parse

FAILED = "failed"  # printed in place of a number
NOTHING = "."
PERCENT = {"percent": 1.0, "fraction": 100.0, "seconds": 1.0, "none": 1.0}


@cache
def all_cells() -> tuple[PublishedCell, ...]:
    return tuple(cell for key in PAPERS for name in paper(key).tables for cell in table_cells(key, name))


@cache
def table_cells(key: str, name: str) -> tuple[PublishedCell, ...]:
    """The cells of a table in the order in which it prints them."""
    whole, table = paper(key), paper(key).tables[name]
    return tuple(
        cell
        for number, block in enumerate(table.blocks)
        for cell in _block_cells(key, whole, name, table, number, block)
    )


def _block_cells(key: str, whole: Paper, name: str, table: Table, number: int, block: Block) -> Iterator[PublishedCell]:
    where = f"{key}.yaml: tables.{name}"
    columns = list(itertools.product(*block.columns.values()))
    lines = _lines(block, where, len(columns))
    for labels in itertools.product(*block.rows.values()):
        for column, text in zip(columns, lines.get(labels, ()), strict=labels in lines):
            if text == NOTHING:
                continue
            named = dict(zip([*block.rows, *block.columns], [*labels, *column], strict=True))
            yield _cell(key, whole, name, table, number, block, named, text)


def _lines(block: Block, where: str, width: int) -> dict[tuple[str, ...], list[str]]:
    """Numbers by row labels. A line whose labels or length do not fit the axes is refused."""
    known = set(itertools.product(*block.rows.values()))
    lines: dict[tuple[str, ...], list[str]] = {}
    for line in block.values.splitlines():
        before, colon, after = line.rpartition(" :")
        labels = tuple(label.strip() for label in before.split(" | "))
        if not colon or labels not in known or labels in lines:
            raise FedloomError(f"{where}: the line {line.strip()[:60]!r} does not begin with labels of the axes")
        numbers = after.split()
        if len(numbers) != width:
            raise FedloomError(f"{where}: {' | '.join(labels)} has {len(numbers)} numbers for {width} columns")
        lines[labels] = numbers
    return lines


def _cell(
    key: str, whole: Paper, name: str, table: Table, number: int, block: Block, labels: dict[str, str], text: str
) -> PublishedCell:
    entries: list[tuple[str, Entry]] = [("", table), ("", block)]
    for axis, label in sorted(
        labels.items(), key=lambda item: item[0].startswith("method")
    ):  # a method has the last word
        described: Axis = table.axes.get(axis) or whole.axes[axis]
        entries.append((label, described.entry(label) or Entry()))
    made: dict[str, Any] = {"settings": {}, "notes": [], "not_runnable": "", "as_published": {}}
    for label, entry in entries:
        _add(made, entry, label, labels)
    beta = made.get("beta")
    if isinstance(beta, str):
        beta = next((c.value for c in table_cells(key, beta) if dict(c.labels) == labels), None)
    made["sum"] = _with_beta(made.get("sum"), beta)
    _add_parts(made)
    for remark in table.remarks:
        if remark.concerns({**labels, "protocol": made.get("protocol", "")}):
            _add_remark(made, remark)
    value, deviation = _printed(text, PERCENT[table.unit])
    return PublishedCell(
        paper=key,
        table=name,
        labels=labels,
        columns=tuple(block.columns),
        block=number,
        value=value,
        deviation=deviation,
        measure=measure_of(whole, made.get("measure") or "global"),
        sum=made["sum"],
        protocol=made.get("protocol"),
        settings=made["settings"],
        own_settings=tuple(made.get("own_settings", ())),
        counted_epochs=int(made["counted_epochs"]) if "counted_epochs" in made else None,
        start=made.get("start"),
        rounds_share=made.get("rounds_share", 1.0),
        name=made.get("name") or next((label for axis, label in labels.items() if axis.startswith("method")), ""),
        note="; ".join(dict.fromkeys(note for note in made["notes"] if note)),
        not_runnable=made["not_runnable"],
        compared=made.get("compared", False),
        protocol_printed=made.get("protocol_printed", True),
        also=tuple(made.get("also", ())),
        split_also=made.get("split_also"),
        variant=made["as_published"],
        seed_deviation=deviation if table.deviations == "seeds" else None,
    )


def _add_parts(made: dict[str, Any]) -> None:
    """What the protocol knows of the sum's parts: notes, and the hyper-parameters of the released code."""
    if made["sum"] is None or "protocol" not in made:
        return
    notes, other = _known_of(made["protocol"], made["sum"])
    made["notes"] = [*made["notes"], *notes]
    if other is not None:
        made["as_published"] = {"sum": other, **made["as_published"]}


@cache
def _known_of(protocol: str, text: str) -> tuple[list[str], str | None]:
    known = protocols()[protocol]
    return notes_of(known, text), released(known, text)


def _add_remark(made: dict[str, Any], remark: Remark) -> None:
    made["notes"] = [*made["notes"], remark.note or ""]
    made["not_runnable"] = remark.not_runnable or made["not_runnable"]
    made["measure"] = remark.measure or made.get("measure")
    made["as_published"] = {**made["as_published"], **remark.as_published}


def _add(made: dict[str, Any], entry: Entry, label: str, labels: Mapping[str, str]) -> None:
    """Merge an entry over what earlier ones said, with labels in place of braces."""
    for name in (
        "protocol",
        "sum",
        "measure",
        "beta",
        "name",
        "counted_epochs",
        "also",
        "split_also",
        "start",
        "rounds_share",
    ):
        value = getattr(entry, name)
        if value:
            made[name] = _filled(value, label, labels)
    made["as_published"] = {**made["as_published"], **_filled(entry.as_published, label, labels)}
    made["compared"] = made.get("compared", False) or entry.compared
    made["settings"] = {**made["settings"], **_filled(entry.set, label, labels)}
    if entry.sum:
        made["own_settings"] = tuple(entry.set)
    made["notes"] = [*made["notes"], entry.note or ""]
    made["not_runnable"] = entry.not_runnable or made["not_runnable"]
    made["protocol_printed"] = made.get("protocol_printed", True) and entry.protocol_printed


def _filled(value: Any, label: str, labels: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _filled(item, label, labels) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, label, labels) for item in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    text = re.sub(r"\{(\w*)\}", lambda braces: labels[braces.group(1)] if braces.group(1) else label, value)
    return _value(text) if re.fullmatch(r"\{\w*\}", value) else text


_value = cache(parse)


def _with_beta(text: str | None, beta: float | None) -> str | None:
    """The sum with this share for the regularizer that takes one."""
    if text is None or beta is None:
        return text
    parts = sum_of(text).parts
    return (
        " + ".join(
            f"{part.name}(beta={beta:g})"
            if "beta" in part.hyperparameters() and part.defines("regularizer")
            else str(part)
            for part in parts
        )
        or "fedavg"
    )


def _printed(text: str, scale: float) -> tuple[float | None, float | None]:
    if text == FAILED:
        return None, None
    value, _, deviation = text.partition("±")
    return round(scale * float(value), 10), round(scale * float(deviation), 10) if deviation else None
