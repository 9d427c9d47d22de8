"""Tables of README.md and docs/ are those that the code's registries give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow  # every call is a process of its own
SCRIPT = ROOT / "scripts" / "docs_tables.py"


def tables(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("Before.\n\n<!-- table: shifts -->\n<!-- end -->\n\nAfter.\n")
    (tmp_path / "docs" / "plain.md").write_text("No table here.\n")
    return tmp_path


def test_a_table_is_written_between_its_markers_and_nowhere_else(pages: Path) -> None:
    assert tables("--root", str(pages)).returncode == 0
    text = (pages / "README.md").read_text()
    assert text.startswith("Before.\n\n<!-- table: shifts -->\n") and text.endswith("<!-- end -->\n\nAfter.\n")
    assert "| `noise:" in text and "| `rotate" in text
    assert (pages / "docs" / "plain.md").read_text() == "No table here.\n"
    assert tables("--root", str(pages)).returncode == 0
    assert (pages / "README.md").read_text() == text


def test_check_names_the_stale_files_and_writes_nothing(pages: Path) -> None:
    before = (pages / "README.md").read_text()
    checked = tables("--check", "--root", str(pages))
    assert checked.returncode == 1 and "stale: README.md" in checked.stderr and "plain" not in checked.stderr
    assert (pages / "README.md").read_text() == before


def test_an_unknown_table_is_refused_by_name(pages: Path) -> None:
    (pages / "README.md").write_text("<!-- table: recipes -->\n<!-- end -->\n")
    refused = tables("--root", str(pages))
    assert refused.returncode == 1 and "there is no table 'recipes'; known are methods-by-family" in refused.stderr
