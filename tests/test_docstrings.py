"""Every public name has a docstring with an example, and the examples run."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from fedloom.evaluation.metrics import METRICS
from fedloom.methods.api.registry import PARTS

NAMES = [name for name in fl.__all__ if name != "__version__"]
pytestmark = pytest.mark.slow
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run and the comparison that examples begin with."""
    root = tmp_path_factory.mktemp("examples")
    fields: dict[str, Any] = {"model": "mlp(hidden=8)", "clients": 5, "rounds": 2, "workers": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        fl.run(fields, name="first")
        fl.compare("fedavg; fn", given=fields, name="both")
    return root


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example_that_holds(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for registry in (PARTS, METRICS):
        for known in registry:
            monkeypatch.setitem(registry, known, registry[known])
    before = set(PARTS), set(METRICS)
    known = {"fl": fl, "run": fl.load("runs/first"), "comparison": fl.load("runs/both"), "__name__": "examples"}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(getattr(fl, name)) or "", known, name, None, 0)
    assert example.examples, f"fl.{name} has no example"
    said: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    for registry, names in zip((PARTS, METRICS), before, strict=True):
        for added in set(registry) - names:
            del registry[added]  # type: ignore[attr-defined]
    assert not said, "".join(said)
