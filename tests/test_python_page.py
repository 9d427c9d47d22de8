"""Every block of docs/python.md runs, in order, in one folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 5
    known: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), known)
    said = capsys.readouterr().out
    assert "holds a run of another recipe (method was 'scaffold + fn', and now is 'fedavg')" in said
    assert "Run('runs/first': scaffold + fn on digits, 20 clients, 10 rounds, accuracy" in said
    assert known["data"].class_names == ("1", "2", "4")
