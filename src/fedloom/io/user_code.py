"""Importing the user's own code: modules and .py files with nets, parts, partitioners, shifts or data sources.

The module of a .py file is named by its path and content: an unchanged file is imported once, an edited one again.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from fedloom.errors import FedloomError

PREFIX = "fedloom_user_"


class _Loader(SourceFileLoader):
    """Runs the text that was read. Python's cache in __pycache__ would miss an edit in the same second, of the same length."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._text, self.path)


def import_source(source: str) -> ModuleType:
    """Import a module by name, or a .py file by path. This runs the user's code, which may raise anything."""
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source)
    if not path.is_file():
        raise FedloomError(f"there is no file {path}")
    text = path.read_bytes()
    name = f"{PREFIX}{path.stem}_{_hash(str(path.resolve()).encode())}_{_hash(text)}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path), text))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        for other in [other for other in sys.modules if other != name and _origin(other) == _origin(name)]:
            del sys.modules[other]  # an earlier version: if the edit is reverted, it is imported again
    return sys.modules[name]


def import_parts(sources: tuple[str, ...]) -> None:
    """Import the modules and .py files of the recipe field `parts`; what they define registers itself."""
    for source in sources:
        try:
            import_source(source)
        except FedloomError as error:
            raise FedloomError(
                str(error) if str(error).startswith(("parts:", "method:")) else f"parts: {error}"
            ) from None
        except Exception as error:
            raise FedloomError(f"parts: cannot import {source}: {type(error).__name__}: {error}") from error


def same_origin(one: Any, other: Any) -> bool:
    """Whether two classes or functions come from the same module, or from versions of the same .py file."""
    return _origin(one.__module__) == _origin(other.__module__)


def _origin(module: str) -> str:
    return module.rpartition("_")[0] if module.startswith(PREFIX) else module


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
