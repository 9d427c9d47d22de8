"""Importing a user's modules and .py files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedloom.errors import FedloomError
from fedloom.io.user_code import import_parts, import_source, same_origin
from fedloom.methods import method

PART = """
import fedloom as fl

class UserCodeTest(fl.Part):
    \"\"\"Does nothing.\"\"\"
    name = "user_code_test"
    strength: float = {value}
"""


def strength() -> object:
    return method("user_code_test").parts[0].values()["strength"]


def test_an_unchanged_file_is_imported_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("values = []")
    module = import_source(str(path))
    module.values.append(1)
    assert import_source(str(path)).values == [1]


def test_an_edited_file_is_imported_again_and_so_is_a_reverted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as most users have it
    path = tmp_path / "mine.py"
    for value in (1.0, 2.0, 1.0):
        path.write_text(PART.format(value=value))
        import_parts((str(path),))
        assert strength() == value


def test_two_files_of_the_same_name_are_different_modules(tmp_path: Path) -> None:
    modules = []
    for folder in ("a", "b"):
        path = tmp_path / folder / "mine.py"
        path.parent.mkdir()
        path.write_text("def f(): ...")
        modules.append(import_source(str(path)))
    assert modules[0] is not modules[1]
    assert not same_origin(modules[0].f, modules[1].f)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "parts: there is no file .*mine.py"),
        ("1 / 0", "parts: cannot import .*mine.py: ZeroDivisionError: division by zero"),
        ("raise SystemError('broken')", "parts: cannot import .*mine.py: SystemError: broken"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path, code: str | None, message: str) -> None:
    path = tmp_path / "mine.py"
    if code is not None:
        path.write_text(code)
    for _ in range(2):  # a failed import is tried again
        with pytest.raises(FedloomError, match=message):
            import_parts((str(path),))
