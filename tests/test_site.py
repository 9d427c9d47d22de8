"""The documentation site: it is built without warnings, needs no network, and its search index has what people ask for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
QUESTIONS = {  # words of a question, and a page that must have all of them in one section
    "resume kill": "determinism",
    "learning rate tune validation": "tune",
    "csv target client": "own_data",
    "secure aggregation": "deploy",
    "personal accuracy own model": "accuracies",
    "dirichlet": "heterogeneity",
    "geometric median": "reference/parts",
    "onnx": "personal",
    "spawn": "workers",
    "epsilon": "privacy",
}
TITLES = {  # words that a new user would type, and the page with a heading that has them: headings come first in a search
    "own csv": "own_data",
    "own pytorch model": "own_data",
    "add method": "write_a_method",
    "worst client": "accuracies",
    "more rounds": "determinism",
    "resume": "determinism",
    "docker": "quickstart",
    "gpu": "workers",
    "export model": "personal",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)  # dead links and anchors are errors
    assert done.returncode == 0, done.stderr
    return out


def test_pages_fetch_nothing(site: Path) -> None:
    fetched = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:)?//[^"]*"')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if fetched.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("words", "page"), QUESTIONS.items())
def test_the_search_index_answers(site: Path, words: str, page: str) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    sections = [entry for entry in index["docs"] if entry["location"].startswith(f"{page}.html")]
    assert sections
    texts = [f"{entry['title']} {entry['text']}".lower() for entry in sections]
    assert any(all(word in text for word in words.split()) for text in texts)


@pytest.mark.parametrize(("words", "page"), TITLES.items())
def test_a_heading_answers_what_a_new_user_types(site: Path, words: str, page: str) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    titles = [entry["title"].lower() for entry in index["docs"] if entry["location"].startswith(f"{page}.html")]
    assert any(all(word in title for word in words.split()) for title in titles), titles
