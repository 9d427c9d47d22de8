"""The registry of nets: each file of `models` registers its own; a user's function is named by module or file.

A net is a function (shape, classes) -> (body, head), with the shape of one input: (channels, height, width) of an image. A
function with a parameter `inputs` also receives the whole specification: kind, vocabulary, padding. Its further parameters are
those of the net (parameters.py). A new net is one new file in `models` with `@model(name, line)` on such a function, and
nothing else.
"""

from __future__ import annotations

import difflib
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
from fedloom.nets.parameters import Parameter, parameters_of, read_values, spell_model, split_text

BodyHead = tuple[nn.Module, nn.Module]
Make = Callable[..., BodyHead]


@dataclass(frozen=True)
class Model:
    name: str
    line: str  # summary in one line
    origin: str  # the paper or code that it comes from
    smallest: int  # smallest height and width of images
    function: Make
    kinds: tuple[Kind, ...] = ("image",)  # of inputs that it takes
    values: Mapping[str, Any] = field(default_factory=dict)  # of its parameters, where they are given

    @property
    def parameters(self) -> dict[str, Parameter]:
        return parameters_of(self.function)[0]

    @property
    def spelled(self) -> str:
        """How a stored recipe names it."""
        return spell_model(self.name, self.parameters, self.values)

    def given(self, texts: Mapping[str, str]) -> Model:
        """The net with these parameters."""
        known, anything = parameters_of(self.function)
        return replace(self, values=read_values(self.name, known, texts, anything))

    def make(self, inputs: InputSpec, classes: int) -> BodyHead:
        asks = "inputs" in inspect.signature(self.function).parameters
        return self.function(inputs.shape, classes, **({"inputs": inputs} if asks else {}), **self.values)


_models: dict[str, Model] = {}


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
    package = importlib.import_module("fedloom.nets.models")
    for module in pkgutil.iter_modules(package.__path__, "fedloom.nets.models."):
        importlib.import_module(module.name)
    return dict(sorted(_models.items()))


def find_model(text: str) -> Model:
    """The net that a recipe names: one of ours, package.module:function, or path/to/file.py:function; with its parameters."""
    name, texts = split_text(text)
    if ":" in name:
        return Model(name, "a user's net", name, 1, _user_function(name), KINDS).given(texts)
    models = all_models()
    if name in models:
        return models[name].given(texts)
    near = difflib.get_close_matches(name.lower(), models, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise FedloomError(f"there is no model {shown(name)}: {hint}choose {', '.join(models)}, or package.module:function")


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
