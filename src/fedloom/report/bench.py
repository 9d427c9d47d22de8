"""The tables of `fedloom bench`: nets against the matrix-product limit, and every figure beside the stored one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from fedloom.bench import Figure, speed_up
from fedloom.report.table import plain_table


def bench_tables(figures: Sequence[Figure], stored: Mapping[str, float], precision: str) -> Iterator[Table]:
    trained = [figure for figure in figures if "limit" in figure.columns]
    if trained:
        headings = ["workload", *(heading.replace(" ", "\n") for heading in trained[0].columns)]
        table = plain_table(f"{precision}, one process per core", headings)
        for figure in trained:
            table.add_row(figure.name, *figure.columns.values())
        yield table
    headings = ["figure", "what", "value", "unit", *(["stored", "times\nas fast"] if stored else [])]
    table = plain_table("", headings, 2)
    for figure in figures:
        ratio = speed_up(figure, stored)
        beside = [f"{stored[figure.name]:.4g}", f"{ratio:.2f}"] if ratio is not None else ["–", "–"]
        table.add_row(figure.name, figure.title, str(figure), figure.unit, *(beside if stored else []))
    yield table
