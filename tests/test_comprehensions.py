"""Python 3.12.0 and 3.12.1 lose a global name in a function one of whose comprehensions has a variable of that name."""

from __future__ import annotations

import ast
from pathlib import Path

import fedloom


def module_names(module: ast.Module) -> set[str]:
    """Functions, classes and imports."""
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = (node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom))
    return defined | {alias.asname or alias.name for node in imports for alias in node.names}


def names(tree: ast.AST, context: type[ast.expr_context]) -> list[ast.Name]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)]


def lost_names(text: str) -> list[str]:
    """`function: name` for every global name that is used in a function, and bound by a comprehension in it."""
    module, lost = ast.parse(text), []
    known = module_names(module)
    for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
        inside = [(node, {bound.id for bound in names(node, ast.Store)}) for node in ast.walk(function) if is_one(node)]
        for name in known & {name for _, bound in inside for name in bound}:
            own = {used for node, bound in inside if name in bound for used in names(node, ast.Load)}
            if any(used.id == name and used not in own for used in names(function, ast.Load)):
                lost.append(f"{function.name}: {name}")
    return lost


def is_one(node: ast.AST) -> bool:
    return isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp)


def test_the_check_finds_such_a_name() -> None:
    text = "def number(x):\n    return x\n\n\ndef f(xs):\n    a = [str(number) for number in xs]\n"
    assert lost_names(f"{text}    return [number(x) for x in a]\n") == ["f: number"]
    assert lost_names(f"{text}    return [str(number) for number in a]\n") == []


def test_no_function_loses_a_name() -> None:
    files = sorted(Path(fedloom.__file__).parent.rglob("*.py"))
    assert {str(file): lost for file in files if (lost := lost_names(file.read_text(encoding="utf-8")))} == {}
