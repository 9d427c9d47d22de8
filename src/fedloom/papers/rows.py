"""Published numbers as rows that a run's recipe is matched with: data set, net, split and sum as texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from fedloom.data.split import check_spec
from fedloom.papers.apply import apply, settings_of, sum_of, variant, with_hyperparameters
from fedloom.papers.cell import PublishedCell, protocol_of
from fedloom.papers.cells import all_cells
from fedloom.papers.load import paper, papers
from fedloom.papers.schema import Protocol

ALTERNATIVE = " | "  # separates splits or sums that a number may be compared with; the first is the published one
COMPARED = ("global", "clean", "client", "own", "tuned")  # kinds of measures that a run has
IDENTITY = ("data.name", "split", "method")  # fields that have columns of their own
UNSTATED = ("eval_every", "data.resize", "data.test_every", "data.validation", "data.public_from")  # how, not what

Row = dict[str, Any]


@cache
def rows() -> list[Row]:
    """Every number that some recipe gives, or would give if the paper printed all of it."""
    return [row for cell in all_cells() if _comparable(cell) for row in _rows(cell)]


def notes(names: Iterable[str]) -> dict[str, str]:
    """How each of these papers trained and evaluated."""
    about = {item.name: item.about for item in papers().values()}
    return {name: about[name] for name in dict.fromkeys(names)}


def canonical(text: str) -> str:
    """A sum as its parts by name, with only the hyper-parameters that make another method."""
    return " + ".join(sorted(variant(part) for part in sum_of(text).parts)) or "fedavg"


def _comparable(cell: PublishedCell) -> bool:
    known = cell.value is not None and cell.sum is not None and cell.protocol is not None
    return known and cell.measure.kind in COMPARED and (cell.compared or not cell.not_runnable)


def _rows(cell: PublishedCell) -> Iterable[Row]:
    assert cell.sum is not None
    protocol, whole = protocol_of(cell), paper(cell.paper)
    fields = apply(protocol, cell.sum, cell.settings, cell.counted_epochs)
    model = str(fields["model"])
    base = {
        "paper": whole.name,
        "table": whole.tables[cell.table].label,
        "model": model.partition("(")[0],
        "sums": ALTERNATIVE.join(_sums(cell, protocol)),
        "measure": _measure(cell, float(fields["lr"])),
        "value": cell.value,
        "deviation": cell.deviation,
        "setting": "; ".join(f"{axis}={label}" for axis, label in cell.labels.items() if not axis.startswith("method")),
        "method": cell.name,
        "flag": cell.note or None,
        "protocol": _stated(protocol, fields, cell) if cell.protocol_printed else {},
    }
    splits = [_split(str(fields["split"])), *([cell.split_also] if cell.split_also else [])]
    yield {**base, "data": fields["data.name"], "split": ALTERNATIVE.join(splits)}
    if protocol.stand_in is not None:
        other = {**fields, **protocol.stand_in.set}
        flag = "; ".join(text for text in (protocol.stand_in.note, cell.note) if text)
        yield {**base, "data": other["data.name"], "split": _split(str(other["split"])), "flag": flag}


@cache
def _split(text: str) -> str:
    """A pattern, such as iid+noise:*, or a split in its usual spelling."""
    return text if "*" in text else check_spec(text)


def _sums(cell: PublishedCell, protocol: Protocol) -> list[str]:
    sums = [str(cell.sum), *cell.also]
    for implied in protocol.implied:
        sums += [
            " + ".join(str(part) for part in sum_of(text).parts if str(part) != str(sum_of(implied))) or "fedavg"
            for text in list(sums)
        ]
    return list(dict.fromkeys(" + ".join(variant(p) for p in sum_of(text).parts) or "fedavg" for text in sums))


def _measure(cell: PublishedCell, rate: float) -> dict[str, Any]:
    if cell.measure.kind != "tuned":
        return {"kind": cell.measure.kind}
    measure = cell.measure.model_dump(exclude={"lr_share"})
    if cell.measure.lr_share is not None:
        measure["lr"] = round(cell.measure.lr_share * rate, 10)
    return measure


def _stated(protocol: Protocol, fields: Mapping[str, Any], cell: PublishedCell) -> dict[str, Any]:
    """What the page holds against a run: settings that the paper or its code states."""
    passed = {*IDENTITY, *UNSTATED, *protocol.not_printed}
    stated = {name: value for name, value in fields.items() if name not in passed}
    if "(" not in str(stated.get("model", "")):
        stated.pop("model", None)
    hyper: dict[str, Any] = {}
    written = sum_of(str(cell.sum))
    for part, whole in zip(written.parts, with_hyperparameters(protocol, written).parts, strict=True):
        spelled = {
            known.alias or name for name, known in type(part).model_fields.items() if name in part.model_fields_set
        }
        spelled |= set(settings_of(protocol, part).hyper)
        for name, value in whole.values().items():
            if name not in part.variants and value is not None and name in spelled:
                hyper[f"{part.name}.{name}"] = value
    return {**stated, **hyper}
