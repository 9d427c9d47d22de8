"""Tutorials: the commands and programs of a page run as printed, one after the other, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)
PAGES = ("quickstart", "own_data", "write_a_method", "reproduce_a_table")
pytestmark = pytest.mark.slow  # every command is a process of its own


def blocks(page: str) -> Iterator[tuple[str, str | None, str]]:
    for match in BLOCK.finditer((DOCS / f"{page}.md").read_text(encoding="utf-8")):
        yield match["language"], match["file"], match["text"]


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_works_as_printed(page: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    programs = {"sh": ["bash", "-e"], "python": [sys.executable]}
    ran = 0
    for language, file, text in blocks(page):
        if file is not None:
            (tmp_path / file).write_text(text, encoding="utf-8")
        elif language in programs:
            done = subprocess.run(
                [*programs[language], "-"] if language == "python" else programs[language],
                input=text,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 3
