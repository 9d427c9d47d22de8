"""The five papers as data: protocols, tables of published numbers, claims. One YAML file a paper, in files/."""

from fedloom.papers.apply import apply, as_typed, flat, is_place, nested
from fedloom.papers.cell import PublishedCell, protocol_of
from fedloom.papers.cells import all_cells, table_cells
from fedloom.papers.load import PAPERS, key_of, paper, papers, protocol, protocols
from fedloom.papers.schema import Measure, Paper, Protocol

__all__ = [
    "PAPERS",
    "Measure",
    "Paper",
    "Protocol",
    "PublishedCell",
    "all_cells",
    "apply",
    "as_typed",
    "flat",
    "is_place",
    "key_of",
    "nested",
    "paper",
    "papers",
    "protocol",
    "protocol_of",
    "protocols",
    "table_cells",
]
