"""The names that recipes may use, read from the sources without importing them: for completion, and for answers to typos.

Importing the registries needs torch, which takes seconds. A part, a net, a metric or a term of a split registers itself in its
own file; this module reads those files as text, so a new file is known by itself. Names must be literals, as they are in every
file of fedloom (a test compares the two). A user's `--parts` files are read in the same way, and may have names that are
computed: what is not in here is refused only by the registries themselves where a recipe has `parts`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import yaml

from fedloom.paths import data_files

ROOT = Path(__file__).resolve().parents[1]
Names = dict[str, str]  # name -> what it is, in a line; empty where the file does not say


def methods(sources: Iterable[str] = ()) -> Names:
    """Parts and aliases: those of fedloom, and those in a user's modules and .py files."""
    trees = [*_trees("methods"), *_user_trees(sources)]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    names = {_class_name(node): _docstring(node) for node in classes.values() if _is_part(node, classes)}
    names["fedavg"] = "the empty sum: local SGD, then the weighted mean"  # registered by methods/api
    for tree in trees:
        for call in _calls(tree, "alias"):
            name, total, *about = [argument for argument in map(_text, call.args) if argument is not None]
            names[name] = about[0] if about else names.get(total, f"= {total}")
    return dict(sorted(names.items()))


def models() -> Names:
    return _decorated(_trees("nets/models"), "model")


def model_sources() -> Names:
    """Prefixes of nets from elsewhere."""
    return {f"{prefix}:": "" for prefix in _decorated(_trees("nets/sources"), "net_source")}


def splits() -> Names:
    """Terms of a split. Classes that only a sum makes are not registered."""
    names = {}
    for tree in (*_trees("data/partition"), *_trees("data/shifts")):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any(_is_name(mark, "register") for mark in node.decorator_list):
                values = _attributes(node)
                names[values["name"]] = values.get("summary", "")
    return dict(sorted(names.items()))


def metrics(sources: Iterable[str] = ()) -> Names:
    classes = [node for tree in (*_trees("evaluation/metrics"), *_user_trees(sources)) for node in tree.body]
    known = [node for node in classes if isinstance(node, ast.ClassDef) and _attributes(node).get("name")]
    return dict(sorted((_attributes(node)["name"], _docstring(node)) for node in known))


def data() -> Names:
    """Data sets with a plain name, and the files of $FEDLOOM_DATA."""
    trees = list(_trees("data/sources"))
    names = _decorated(trees, "data_name")
    for tree in trees:
        for call in _calls(tree, "_register"):
            if (name := _text(call.args[0])) is not None:
                names[name] = _text(call.args[1]) or ""
        for node in tree.body:  # the table of hub_names.py
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if (name := _text(key)) is not None and isinstance(value, ast.Call) and len(value.args) > 1:
                        names[name] = _text(value.args[1]) or ""
    for name, path in data_files().items():
        names.setdefault(name, str(path))
    return names


def data_forms() -> Names:
    """Forms such as folder:PATH."""
    return _decorated(_trees("data/sources"), "data_format")


def papers() -> Names:
    return {path.stem: path.stem for path in sorted((ROOT / "papers" / "files").glob("*.yaml"))}


def protocols() -> Names:
    return {
        name: str(protocol.get("about", "")) for key in papers() for name, protocol in _paper(key)["protocols"].items()
    }


def tables() -> Names:
    """PAPER/TABLE of `fedloom reproduce`."""
    return {
        f"{key}/{name}": str(table.get("title", ""))
        for key in papers()
        for name, table in _paper(key)["tables"].items()
    }


@cache
def _paper(key: str) -> dict[str, dict[str, dict[str, object]]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: dict[str, dict[str, dict[str, object]]] = yaml.load(
        (ROOT / "papers" / "files" / f"{key}.yaml").read_text(encoding="utf-8"), loader
    )
    return content


@cache
def _trees(folder: str) -> tuple[ast.Module, ...]:
    """The files of a folder; base classes of parts are in `common`."""
    paths = sorted((ROOT / folder).glob("*.py"))
    if folder == "methods":
        paths += sorted((ROOT / folder / "common").glob("*.py"))
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for path in paths)


def _user_trees(sources: Iterable[str]) -> Iterator[ast.Module]:
    """What can be read of a user's files; what cannot is left to the import that follows."""
    for source in sources:
        try:
            path = Path(source) if source.endswith(".py") else Path(getattr(find_spec(source), "origin", None) or "")
            yield ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError, ImportError):
            continue


def _is_part(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether it is a subclass of Part, by the names of its bases, and registered."""
    if any(keyword.arg == "abstract" for keyword in node.keywords):
        return False
    waiting, seen = [node], {node.name}
    while waiting:
        for base in waiting.pop().bases:
            name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            if name == "Part":
                return True
            if name in classes and name not in seen:
                seen.add(name)
                waiting.append(classes[name])
    return False


def _class_name(node: ast.ClassDef) -> str:
    return _attributes(node).get("name") or node.name.lower()


def _attributes(node: ast.ClassDef) -> Names:
    """Texts that the class body assigns: `name = "x"`, `name: ClassVar[str] = "x"`, `name, title = "x", "y"`."""
    values: Names = {}
    for item in node.body:
        target = (
            item.target
            if isinstance(item, ast.AnnAssign)
            else item.targets[0]
            if isinstance(item, ast.Assign)
            else None
        )
        value = item.value if isinstance(item, ast.AnnAssign | ast.Assign) else None
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        targets = target.elts if several else [target]  # type: ignore[union-attr]
        for one, its in zip(targets, value.elts if several else [value], strict=False):  # type: ignore[union-attr]
            if isinstance(one, ast.Name) and (text := _text(its)) is not None:
                values[one.id] = text
    return values


def _decorated(trees: Iterable[ast.Module], decorator: str) -> Names:
    """The first two arguments of a decorator, wherever it is used on a top-level function."""
    names: Names = {}
    for tree in trees:
        for node in tree.body:
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
                if isinstance(mark, ast.Call) and _is_name(mark.func, decorator):
                    texts = [_text(argument) or "" for argument in mark.args]
                    names[texts[0]] = texts[1] if len(texts) > 1 else ""
    return dict(sorted(names.items()))


def _calls(tree: ast.Module, function: str) -> Iterator[ast.Call]:
    """Calls of a function as statements of the module."""
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_name(node.value.func, function):
            yield node.value


def _is_name(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _docstring(node: ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
