"""`import fedloom as fl`: names that are imported when they are used."""

from __future__ import annotations

import importlib

import pytest

import fedloom as fl
from fedloom import public


def test_public_names_are_there_and_others_are_not() -> None:
    assert all(getattr(fl, name) is getattr(public, name) for name in public.__all__)
    assert set(dir(fl)) >= {*public.__all__, "__version__"}
    assert "__version__" in fl.__all__
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        fl.rnu  # noqa: B018


def test_report_is_the_function_also_after_the_room_is_imported() -> None:
    importlib.import_module("fedloom.report.table")
    assert fl.report is public.report


def test_a_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from fedloom import *", names)
    assert names.keys() >= {*public.__all__, "__version__"}
