"""A module as plain data and tensors, and back: classes and functions by import path, no pickle.

Described: nn.Modules (their state as in a copy: parameters, buffers, submodules, attributes), tensors, numbers, texts, lists,
tuples, sets, dicts, dtypes, devices, sizes, enum members, functions and classes by import path, functools.partial of them,
methods of the module's own parts, and objects of importable classes that are no more than their attributes, such as
configurations. Refused: lambdas, functions and classes made inside functions, open files, generators, locks and all else.

A module that occurs twice is described once, and so is a tensor: shared weights stay shared. Nothing is constructed while
reading but empty objects of classes that are imported; an nn.Module gets its state back as from a copy.
"""

from __future__ import annotations

import enum
import functools
import importlib
import math
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.io.user_code import PREFIX, import_source
from fedloom.nets.scripts import definitions

KIND = "$"
_CONTAINERS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type, type(torch.relu), type(torch.Tensor.relu))
Content = dict[str, Any]
MAIN, SCRIPT, FILE = "__main__", "script ", "file "  # the latter are followed by the name of a .py file


class Unstorable(FedloomError):
    """Why something cannot be described or rebuilt; it follows the module's name and a colon."""


def describe(module: nn.Module) -> tuple[Content, dict[str, str], dict[str, Tensor]]:
    """The tree, the files of the user's classes by the modules that they are in, and the tensors by their keys."""
    writer = _Writer()
    root = writer.value(module, type(module).__name__)
    return {"root": root, "nodes": writer.nodes, "tensors": writer.facts}, writer.files, writer.tensors


def rebuild(content: Content, files: Mapping[str, str], tensors: Mapping[str, Tensor]) -> nn.Module:
    module = _Reader(content, files, tensors).value(content["root"])
    if not isinstance(module, nn.Module):
        raise Unstorable("its description is not that of a module")
    return module


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[Content] = []  # modules and other objects, each once
        self.tensors: dict[str, Tensor] = {}
        self.facts: dict[str, list[bool]] = {}  # tensor -> whether it is a parameter, and requires a gradient
        self.files: dict[str, str] = {}
        self._numbers: dict[int, int] = {}
        self._keys: dict[int, str] = {}
        self._kept: list[Any] = []  # identities are of living objects only

    def value(self, given: Any, where: str) -> Any:
        """`where`: the attribute's path, for the sentence of a refusal."""
        if given is None or isinstance(given, bool | str):
            if isinstance(given, str) and isinstance(given, enum.Enum):
                return {KIND: "enum", "class": self.name(type(given), where), "name": given.name}
            return given
        if isinstance(given, enum.Enum):
            return {KIND: "enum", "class": self.name(type(given), where), "name": given.name}
        if isinstance(given, int):
            return int(given)
        if isinstance(given, float):
            return float(given) if math.isfinite(given) else {KIND: "float", "text": str(float(given))}
        if isinstance(given, complex):
            return {KIND: "complex", "real": given.real, "imag": given.imag}
        if isinstance(given, Tensor):
            return {KIND: "tensor", "key": self.tensor(given, where)}
        if isinstance(given, nn.Module):
            return {KIND: "object", "number": self.module(given, where)}
        if isinstance(given, torch.dtype | torch.device):
            return {KIND: type(given).__name__, "text": str(given).removeprefix("torch.")}
        if isinstance(given, Mapping):
            return self.mapping(given, where)
        if type(given) is list:
            return [self.value(item, f"{where}[{i}]") for i, item in enumerate(given)]
        for kind, container in _CONTAINERS.items():
            if type(given) is container:
                items = sorted(given, key=repr) if kind in ("set", "frozenset") else given
                return {KIND: kind, "items": [self.value(item, where) for item in items]}
        return self.callable_or_object(given, where)

    def mapping(self, given: Mapping[Any, Any], where: str) -> Content:
        kinds: dict[Any, str] = {dict: "dict", OrderedDict: "ordered", defaultdict: "default"}
        kind = kinds.get(type(given))
        if kind is None:
            raise Unstorable(f"{where} is a {type(given).__name__}")
        items = [[self.value(k, where), self.value(v, f"{where}.{k}")] for k, v in given.items()]
        described: Content = {KIND: kind, "items": items}
        if isinstance(given, defaultdict):
            described["factory"] = self.value(given.default_factory, where)
        return described

    def callable_or_object(self, given: Any, where: str) -> Content:
        if isinstance(given, functools.partial):
            parts = {"function": given.func, "arguments": list(given.args), "keywords": dict(given.keywords)}
            return {KIND: "partial", **{key: self.value(part, where) for key, part in parts.items()}}
        if isinstance(given, types.MethodType) and isinstance(given.__self__, nn.Module | type):
            return {KIND: "method", "of": self.value(given.__self__, where), "name": given.__name__}
        if isinstance(given, _FUNCTIONS):
            return {KIND: "name", "path": self.name(given, where)}
        kind = type(given)
        own = {name for base in kind.__mro__[:-1] for name in ("__reduce__", "__reduce_ex__") if name in vars(base)}
        if own or not hasattr(given, "__dict__") or any(vars(base).get("__slots__") for base in kind.__mro__):
            raise Unstorable(f"{where} is a {kind.__name__}")
        if id(given) not in self._numbers:
            self._enter(given, {"class": self.name(kind, where)})
            state = self.value(dict(vars(given)), where)
            self.nodes[self._numbers[id(given)]]["state"] = state
        return {KIND: "object", "number": self._numbers[id(given)]}

    def module(self, module: nn.Module, where: str) -> int:
        if id(module) not in self._numbers:
            self._enter(module, {"class": self.name(type(module), where), "module": True})
            state: Any = module.__getstate__()  # type: ignore[no-untyped-call]
            if not isinstance(state, dict):
                raise Unstorable(f"{where} has a state of its own kind (__getstate__)")
            plain = {key: value for key, value in state.items() if not (key.endswith("_hooks") and value is None)}
            self.nodes[self._numbers[id(module)]]["state"] = self.value(plain, where)
        return self._numbers[id(module)]

    def tensor(self, tensor: Tensor, where: str) -> str:
        if id(tensor) not in self._keys:
            if tensor.grad_fn is not None or tensor.is_sparse or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
                raise Unstorable(f"{where} is a tensor that is computed from others, or of a kind of its own")
            key = f"{len(self._keys):05d}"
            self._keys[id(tensor)] = key
            self._kept.append(tensor)
            self.tensors[key] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            self.facts[key] = [isinstance(tensor, nn.Parameter), tensor.requires_grad]
        return self._keys[id(tensor)]

    def name(self, given: Any, where: str) -> str:
        """module:qualified.name of a class or function that another process can import."""
        home, inner = getattr(given, "__module__", None), getattr(given, "__qualname__", getattr(given, "__name__", ""))
        home = home or _home(given)
        if home is None or "<" in inner:
            raise Unstorable(f"{where} is {inner or type(given).__name__}, which has no name that can be imported")
        file = getattr(sys.modules.get(home), "__file__", None)
        if home == MAIN and (file is None or not str(file).endswith(".py")):
            raise Unstorable(f"{where} is {inner}, which this notebook or session defines and no file does")
        if home == MAIN or home.startswith(PREFIX):
            path = str(Path(str(file)).resolve())
            home = f"{SCRIPT if home == MAIN or '_script_' in home else FILE}{Path(path).stem}"
            self.files[home] = path
        elif file is not None and str(file).endswith(".py"):
            self.files[home] = str(Path(file).resolve())
        if _find(home, inner, self.files) is not given:
            raise Unstorable(f"{where} is {inner}, which {home} does not hold under that name")
        return f"{home}:{inner}"

    def _enter(self, given: Any, node: Content) -> None:
        self._numbers[id(given)] = len(self.nodes)
        self._kept.append(given)
        self.nodes.append(node)


class _Reader:
    def __init__(self, content: Content, files: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
        self.content, self.files = content, files
        self._tensors: dict[str, Tensor] = {}
        for key, (is_parameter, trained) in content["tensors"].items():
            tensor = tensors[key]
            self._tensors[key] = nn.Parameter(tensor, trained) if is_parameter else tensor.requires_grad_(trained)
        self._objects: dict[int, Any] = {}

    def value(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self.value(item) for item in given]
        if not isinstance(given, dict):
            return given
        kind = given[KIND]
        if kind == "object":
            return self.object(given["number"])
        if kind == "tensor":
            return self._tensors[given["key"]]
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self.value(given["items"]))
        if kind in ("dict", "ordered", "default"):
            pairs = [(self.value(key), self.value(value)) for key, value in given["items"]]
            if kind == "default":
                return defaultdict(self.value(given["factory"]), pairs)
            return OrderedDict(pairs) if kind == "ordered" else dict(pairs)
        if kind == "name":
            return self.named(given["path"])
        if kind == "enum":
            return self.named(given["class"])[given["name"]]
        if kind == "partial":
            function, arguments = self.value(given["function"]), self.value(given["arguments"])
            return functools.partial(function, *arguments, **self.value(given["keywords"]))
        if kind == "method":
            return getattr(self.value(given["of"]), given["name"])
        if kind == "dtype":
            return getattr(torch, given["text"])
        if kind == "device":
            return torch.device(given["text"])
        return float(given["text"]) if kind == "float" else complex(given["real"], given["imag"])

    def object(self, number: int) -> Any:
        """An empty object of an imported class, then its state: a tree may hold its own root."""
        if number not in self._objects:
            node = self.content["nodes"][number]
            kind = self.named(node["class"])
            if node.get("module") and not (isinstance(kind, type) and issubclass(kind, nn.Module)):
                raise Unstorable(f"{node['class']} is no nn.Module")
            made = self._objects[number] = kind.__new__(kind)
            state = self.value(node["state"])
            if node.get("module"):
                made.__setstate__(state)
            else:
                made.__dict__.update(state)
        return self._objects[number]

    def named(self, path: str) -> Any:
        home, _, inner = path.partition(":")
        return _find(home, inner, self.files)


def _find(home: str, inner: str, files: Mapping[str, str]) -> Any:
    """The class or function of this name: of the running script, of an imported module, of a script or of a file."""
    failures = []
    for look in _homes(home, files):
        try:
            value, failure = look()
            failures.append(failure)
            for part in inner.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError, OSError, FedloomError) as error:
            failures.append(f"{type(error).__name__}: {error}")
            continue
        return value
    failure = next(filter(None, failures), "")
    raise Unstorable(f"{inner} of {files.get(home, home)} cannot be imported ({failure})")


def _homes(home: str, files: Mapping[str, str]) -> Iterator[Callable[[], tuple[Any, str]]]:
    """Where to look, first things first: functions that return a module, and what went wrong in it."""
    file, main = files.get(home), sys.modules.get(MAIN)
    running = getattr(main, "__file__", None)
    if file and running and str(Path(running).resolve()) == file:
        yield lambda: (main, "")
    if not home.startswith((SCRIPT, FILE)):
        yield lambda: (importlib.import_module(home), "")
    if file and home.startswith(SCRIPT):
        yield lambda: definitions(file)
    elif file:
        yield lambda: (import_source(file), "")


def _home(given: Any) -> str | None:
    """The module of a function in C, which may not know its own."""
    for home in (torch, torch.nn.functional, torch._C._nn, math):
        if getattr(home, getattr(given, "__name__", ""), None) is given:
            return home.__name__
    return None
