"""The registry of nets: each file of `models` registers its own; a user's function is named by module or file.

A net is a function (shape, classes) -> (body, head), with the shape of one input: (channels, height, width) of an image. It may
also return one nn.Module, which is cut at its last linear layer, or at the one that `head=NAME` names (split.py). A function
with a parameter `inputs` also receives the whole specification: kind, vocabulary, padding. Its further parameters are
those of the net (parameters.py). A new net is one new file in `models` with `@model(name, line)` on such a function, and
nothing else. Nets from elsewhere (`timm:NAME`, `hf:NAME`, `module:NAME`) are found by the files of `sources`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedloom.data.spec import KINDS, InputSpec, Kind
from fedloom.errors import FedloomError, shown
from fedloom.io.user_code import import_source
from fedloom.nearest import unknown_model
from fedloom.nets.parameters import Parameter, parameters_of, read_values, spell_model, split_text

BodyHead = tuple[nn.Module, nn.Module]
Make = Callable[..., BodyHead | nn.Module]


@dataclass(frozen=True)
class Model:
    name: str
    line: str  # summary in one line
    origin: str  # the paper or code that it comes from
    smallest: int  # smallest height and width of images
    function: Make
    kinds: tuple[Kind, ...] = ("image",)  # of inputs that it takes
    values: Mapping[str, Any] = field(default_factory=dict)  # of its parameters, where they are given
    head: str | None = None  # the submodule that is the head, where the function returns one module
    foreign: bool = False  # not one of fedloom's own

    @property
    def parameters(self) -> dict[str, Parameter]:
        return parameters_of(self.function)[0]

    @property
    def spelled(self) -> str:
        """How a stored recipe names it."""
        head = {} if self.head is None else {"head": self.head}
        return spell_model(self.name, self.parameters, {**self.values, **head})

    def given(self, texts: Mapping[str, str]) -> Model:
        """The net with these parameters. `head` is every foreign net's, unless its function has one of that name."""
        known, anything = parameters_of(self.function)
        own = {key: text for key, text in texts.items() if not self.foreign or key != "head" or key in known}
        head = texts["head"] if len(own) < len(texts) else None
        return replace(self, values=read_values(self.name, known, own, anything), head=head)

    def make(self, inputs: InputSpec, classes: int) -> BodyHead | nn.Module:
        asks = "inputs" in inspect.signature(self.function).parameters
        return self.function(inputs.shape, classes, **({"inputs": inputs} if asks else {}), **self.values)


Open = Callable[[str], Model]

_models: dict[str, Model] = {}
_sources: dict[str, Open] = {}


def model(
    name: str,
    line: str,
    *,
    origin: str = "fedloom",
    smallest: int = 1,
    kinds: tuple[Kind, ...] = ("image",),
) -> Callable[[Make], Make]:
    """Register the decorated function as the net called `name`."""

    def register(make: Make) -> Make:
        known = _models.get(name)
        if known is not None and known.function.__module__ != make.__module__:
            raise FedloomError(
                f"two nets are called {name}: one in {known.function.__module__}, one in {make.__module__}"
            )
        _models[name] = Model(name, line, origin, smallest, make, kinds)
        return make

    return register


def all_models() -> dict[str, Model]:
    """Every net of this package, by name, after importing the files that hold them."""
    _import_all("fedloom.nets.models")
    return dict(sorted(_models.items()))


def net_source(prefix: str) -> Callable[[Open], Open]:
    """Register the decorated function: it makes the model of `PREFIX:REST` from REST."""

    def register(function: Open) -> Open:
        _sources[prefix] = function
        return function

    return register


def all_sources() -> dict[str, Open]:
    """Every place that nets come from beside functions, by its prefix."""
    _import_all("fedloom.nets.sources")
    return dict(sorted(_sources.items()))


def _import_all(package: str) -> None:
    """Import every file of a package: each registers what it defines."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)


def find_model(text: str) -> Model:
    """The net that a recipe names: one of ours, PREFIX:NAME, package.module:function, or path/to/file.py:function; with its
    parameters."""
    name, texts = split_text(text)
    if ":" in name:
        prefix, _, rest = name.partition(":")
        source = all_sources().get(prefix)
        if source is not None:
            if not rest:
                raise FedloomError(f"{shown(name)} names no net; write {prefix}:NAME")
            return source(rest).given(texts)
        return Model(name, "a user's net", name, 1, _user_function(name), KINDS, foreign=True).given(texts)
    models = all_models()
    if name in models:
        return models[name].given(texts)
    raise FedloomError(unknown_model(name, models, all_sources()))


def _user_function(name: str) -> Make:
    where, _, attribute = name.rpartition(":")  # the last colon, since a Windows path has one of its own
    if not where or not attribute:
        raise FedloomError(f"model {shown(name)} must read package.module:function or path/to/file.py:function")
    if where.endswith(".py") and not Path(where).is_file():
        raise FedloomError(f"model {name}: there is no file {where}")
    try:
        module = import_source(where)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise FedloomError(f"model {name}: importing {where} failed ({reason(error)})") from error
    function = getattr(module, attribute, None)
    if function is None:
        raise FedloomError(f"model {name}: {where} has no {shown(attribute)}")
    if not callable(function):
        raise FedloomError(f"model {name}: {attribute} must be a function (shape, classes) -> (body, head)")
    make: Make = function
    return make


def reason(error: Exception) -> str:
    """The first line of an error, for a sentence."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
