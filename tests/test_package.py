"""What is published: every file that the code reads is in the wheel, one version everywhere, and tests that are named exist."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import yaml

import fedloom as fl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_file_beside_the_code_is_package_data() -> None:
    package = ROOT / "src/fedloom"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["fedloom"]
    beside = [path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()]
    missing = [
        name
        for name in beside
        if not name.endswith((".py", ".pyc")) and not any(fnmatch(name, pattern) for pattern in patterns)
    ]
    assert missing == []


def test_the_citation_names_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == fl.__version__


def test_tests_that_workflows_and_targets_name_exist() -> None:
    files = [ROOT / "Makefile", *sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    named = {path for file in files for path in re.findall(r"\btests/[\w./]+", file.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
