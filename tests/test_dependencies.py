"""What pyproject.toml says about other packages is what can be tried."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def lowest(requirement: str) -> tuple[str, tuple[int, ...]]:
    """numpy>=1.26,<3 -> numpy, (1, 26)"""
    match = re.match(r"([\w-]+)(?:>=|==)([\d.]+)", requirement)
    assert match, requirement
    numbers = [int(number) for number in match[2].split(".")]
    while numbers[-1] == 0:
        numbers.pop()
    return match[1].lower(), tuple(numbers)


def test_the_lowest_versions_that_are_tried_are_those_that_are_declared() -> None:
    extras = project()["optional-dependencies"]
    declared = dict(map(lowest, [*project()["dependencies"], *extras["tune"]]))
    lines = (ROOT / "requirements" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    assert dict(lowest(line) for line in lines if line and not line.startswith("#")) == declared


def test_packages_whose_internals_are_imported_have_an_upper_bound_everywhere() -> None:
    extras = project()["optional-dependencies"]
    found = {item for items in extras.values() for item in items if item.startswith("flwr")}
    assert len(found) == 1
    assert all(",<" in item for item in [*found, next(d for d in project()["dependencies"] if d.startswith("torch"))])
