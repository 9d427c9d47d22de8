"""Checked inputs: from the arrays that a source has read to samples of one kind, with their specification.

The kind follows from type and shape, unless the source names it (`kind`):
- uint8 of shape N,H,W,C or N,H,W, and floats of shape N,H,W,C, are images.
- Other floats, booleans, and uint8 of shape N,D are features of any shape.
- Other integers of shape N,T are tokens. `padding` (default 0) fills sequences up; `vocabulary` is the number of tokens, by
  default the largest one plus 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedloom.data.spec import KINDS, InputSpec, Kind
from fedloom.errors import FedloomError, shown
from fedloom.io.archives import Array

MOST_TOKENS = 10_000_000  # larger numbers are identifiers, not tokens
FORMATS = (
    "expected images (uint8 or float N,H,W,C, or uint8 N,H,W), features (float N,D or N,...) or tokens (integers N,T)"
)
OPTIONS = ("kind", "vocabulary", "padding")


def checked_inputs(where: str, content: dict[str, Any], scale: float) -> tuple[Array, Array, InputSpec]:
    """Training and test inputs in their stored type. Removes them from `content`, so that large arrays exist once."""
    given = {key: content.pop(key) for key in ("train_x", "test_x")}
    options = {key: content.pop(key) for key in OPTIONS if key in content}
    kind = _kind(where, given["train_x"], options.get("kind"))
    train_x, test_x = (_stored(where, key, given.pop(key), kind) for key in ("train_x", "test_x"))
    if train_x.shape[1:] != test_x.shape[1:]:
        raise FedloomError(
            f"{where}: a sample of test_x is {_shape(test_x)} and one of train_x {_shape(train_x)}; "
            "both must have the same shape"
        )
    if train_x.dtype != test_x.dtype:
        raise FedloomError(f"{where}: train_x is {train_x.dtype} and test_x {test_x.dtype}; both must be of one type")
    if kind == "image":
        height, width, channels = train_x.shape[1:]
        stored = str(train_x.dtype)
        return train_x, test_x, InputSpec("image", (channels, height, width), stored, scale if stored == "uint8" else 1)
    if kind == "tokens":
        return train_x, test_x, _tokens(where, train_x, test_x, options)
    return train_x, test_x, InputSpec("features", train_x.shape[1:])


def describe(values: Array) -> str:
    return f"{values.dtype} of shape {values.shape}"


def _kind(where: str, x: Array, declared: Array | None) -> Kind:
    if declared is not None:
        name = str(declared)
        for kind in KINDS:
            if name == kind:
                return kind
        raise FedloomError(f"{where}: kind is {shown(name)}; allowed are {', '.join(KINDS)}")
    letter = x.dtype.kind
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return "image"
    if letter == "f" and x.ndim == 4:
        return "image"
    if (letter in "fb" or x.dtype == np.uint8) and x.ndim >= 2:
        return "features"
    if letter in "iu" and x.ndim == 2:
        return "tokens"
    raise FedloomError(f"{where}: train_x is {describe(x)}; {FORMATS}")


def _stored(where: str, key: str, x: Array, kind: Kind) -> Array:
    """The inputs in the type that is stored; raises an error if they are not of this kind."""
    wrong = FedloomError(f"{where}: {key} is {describe(x)}; {FORMATS}")
    if x.ndim < 2 or x.dtype.kind not in "fbiu" or 0 in x.shape[1:]:
        raise wrong
    if len(x) == 0:
        raise FedloomError(f"{where}: {key} is empty; at least one training and one test sample are needed")
    if kind == "tokens":
        if x.ndim != 2 or x.dtype.kind not in "iu":
            raise wrong
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= MOST_TOKENS:
            raise FedloomError(
                f"{where}: {key} holds the token {low if low < 0 else high}; tokens are 0 to {MOST_TOKENS - 1}"
            )
        return x.astype(np.int32)
    if kind == "image":
        x = x[..., None] if x.ndim == 3 else x
        if x.ndim != 4 or (x.dtype != np.uint8 and x.dtype.kind != "f"):
            raise wrong
        if x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] > 4:
            raise FedloomError(f"{where}: {key} is {describe(x)}, channels first; expected N,H,W,C, channels last")
    if kind == "image" and x.dtype == np.uint8:
        return x
    values = np.asarray(x, dtype=np.float32)
    if not np.isfinite(values).all():
        # not by number: where test samples were held out, it is not the number that the user knows
        bad = int((~np.isfinite(values.reshape(len(values), -1)).all(1)).sum())
        raise FedloomError(
            f"{where}: {bad} of {len(values)} samples of {key} hold a value that is not finite (NaN, infinity, or beyond "
            "float32); fill or remove it"
        )
    return values


def _tokens(where: str, train_x: Array, test_x: Array, options: dict[str, Any]) -> InputSpec:
    largest = max(int(train_x.max()), int(test_x.max()))
    numbers = {"padding": 0, "vocabulary": largest + 1}
    for key in numbers:
        if key in options:
            value = np.asarray(options[key])
            if value.dtype.kind not in "iu" or value.size != 1 or not 0 <= int(value.item()) <= MOST_TOKENS:
                raise FedloomError(f"{where}: {key} is {describe(value)}; expected one number of 0 or more")
            numbers[key] = int(value.item())
    if numbers["vocabulary"] <= largest:
        raise FedloomError(
            f"{where}: a token is {largest}, but the vocabulary has {numbers['vocabulary']} tokens, from 0"
        )
    vocabulary = max(numbers["vocabulary"], numbers["padding"] + 1)
    return InputSpec("tokens", train_x.shape[1:], "int32", vocabulary=vocabulary, padding=numbers["padding"])


def _shape(x: Array) -> str:
    return " x ".join(str(size) for size in x.shape[1:])
