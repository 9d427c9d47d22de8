"""Tables that `fedloom reproduce` wrote, for the page. A file that is damaged or of another form is passed over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.report.page.gather import read_json

PATTERN = "*.reproduction.json"


def reproduced(paths: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Title, blocks (columns, rows) and notes of every table in these folders or below them, each once."""
    files = dict.fromkeys(file.resolve() for path in paths if Path(path).is_dir() for file in _files(Path(path)))
    tables = [_table(read_json(file)) for file in files]
    return [table for table in tables if table is not None]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob(PATTERN))


def _table(stored: dict[str, Any]) -> dict[str, Any] | None:
    title, blocks, notes = stored.get("title"), stored.get("blocks"), stored.get("notes")
    if not isinstance(title, str) or not isinstance(blocks, list) or not isinstance(notes, list):
        return None
    kept = [
        {"columns": _texts(block.get("columns")), "rows": [_texts(row) for row in block["rows"]]}
        for block in blocks
        if isinstance(block, dict) and isinstance(block.get("rows"), list)
    ]
    return {"title": title, "blocks": kept, "notes": _texts(notes)} if kept else None


def _texts(values: Any) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []
