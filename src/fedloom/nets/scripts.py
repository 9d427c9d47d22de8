"""The classes and functions of a script, without running the script.

A script may start a run, read its arguments, load data. To find its classes in another process, only its definitions are
executed: imports, functions, classes and assignments, one statement at a time. Bare calls and loops are left out. An
assignment that fails, or comes to where a run starts, is left out too.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path
from types import ModuleType

from fedloom.errors import FedloomError, brief
from fedloom.io.user_code import PREFIX

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_reading: list[str] = []


class StartsRun(FedloomError):
    """A script that is read for its definitions came to where it starts a run."""


def refuse_while_reading() -> None:
    """Called where runs start: a script that is read for its definitions starts none."""
    if _reading:
        raise StartsRun(f"{_reading[-1]} is read for its definitions, and starts no run")


def definitions(file: str) -> tuple[ModuleType, str]:
    """A module with what a script defines, and the first failure on the way, for a sentence about what is missing."""
    text = Path(file).read_bytes()
    digest = hashlib.blake2b(file.encode() + b"\0" + text, digest_size=8).hexdigest()
    name = f"{PREFIX}{Path(file).stem}_script_{digest}"
    if name in sys.modules:
        return sys.modules[name], ""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = file
    failure = ""
    sys.path.append(folder := str(Path(file).parent))  # as for a script that is run
    _reading.append(file)
    try:
        for statement in ast.parse(text, file).body:
            if _defines(statement):
                try:
                    exec(compile(ast.Module([statement], []), file, "exec"), vars(module))
                except (Exception, SystemExit) as error:  # a user's statement may raise anything
                    failure = failure or f"line {statement.lineno} raises {type(error).__name__}: {brief(str(error))}"
    except SyntaxError as error:
        failure = f"it is not valid Python ({error.msg})"
    finally:
        _reading.pop()
        sys.path.remove(folder)
    return module, failure


def _defines(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If | ast.Try):
        inner = [*statement.body, *statement.orelse]
        if isinstance(statement, ast.Try):
            inner += [item for handler in statement.handlers for item in handler.body] + statement.finalbody
        return all(_defines(item) or isinstance(item, ast.Pass) for item in inner)
    if isinstance(statement, ast.Expr):
        return ast.unparse(statement).startswith("sys.path.")
    return isinstance(statement, (*_DEFINITIONS, *_ASSIGNMENTS))
