"""Tables of results as pandas data frames. pandas is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedloom.errors import FedloomError
from fedloom.extras import install

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """A row for each mapping; refused in a sentence where pandas is missing."""
    try:
        import pandas
    except ImportError:
        raise FedloomError(f"frame: needs pandas; install it with: {install('tables')}") from None
    return pandas.DataFrame(list(rows))


def plain_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of rounds.jsonl as a row: seconds of every phase have a column each, other mappings are left out."""
    row = {name: value for name, value in line.items() if not isinstance(value, Mapping)}
    return row | {f"seconds_{phase}": value for phase, value in line.get("phase_seconds", {}).items()}


def client_rows(lines: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Lines of clients.jsonl, which have a list for each quantity, as a row per round and client."""
    rows = []
    for line in lines:
        columns = {name: values for name, values in line.items() if isinstance(values, list)}
        for client, values in enumerate(zip(*columns.values(), strict=True)):
            named = {"name": names[client]} if names else {}
            rows.append({"round": line["round"], "client": client, **named, **dict(zip(columns, values, strict=True))})
    return rows
