"""A dataset as checked numpy arrays: what every source returns and what the cache stores.

Labels become class numbers 0, 1, 2 and so on:
- Text labels are numbered in sorted order (numerals by value) and become the class names. If `class_names` is given,
  each label must be one of them.
- Integer labels that start above 0, such as 1 to C, are renumbered from 0; the original numbers become the class names.
- Integer labels that start at 0, and all integer labels given together with `class_names`, are kept. A gap is a class
  without images.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.errors import FedloomError, brief, shown

Array = npt.NDArray[Any]
Content = dict[str, Array]
"""Unchecked arrays by their key in an npz file: train_x, train_y, test_x, test_y, or x and y; the rest is optional."""

HOLD_OUT = 5  # a dataset without a test set holds out every fifth image
MOST_CLASSES = 1_000_000  # larger labels are identifiers, not classes
IMAGE_FORMAT = "images must be uint8 of shape N,H,W,C or N,H,W"


@dataclass(frozen=True, eq=False)
class DatasetArrays:
    """Images as uint8 N,H,W,C, everything else as int64 N; the fields are named as in Dataset."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...] = ()
    train_domain: Array | None = None
    test_domain: Array | None = None
    train_writer: Array | None = None
    test_writer: Array | None = None

    def present(self) -> Content:
        """The arrays by name, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def check(where: str, content: Content, renumber: bool = True) -> DatasetArrays:
    """Check what a source has read; raises an error about the first problem. Consumes `content`.

    `where`: the source, as error messages name it. `renumber=False` keeps integer labels that start above 0.
    """
    content = _divide(where, content) if "x" in content and "train_x" not in content else content
    for key in ("train_x", "train_y", "test_x", "test_y"):
        if key not in content:
            keys = ", ".join(sorted(content)) or "no keys"
            raise FedloomError(
                f"{where}: the key {key} is missing; expected train_x, train_y, test_x and test_y, "
                f"or x, y and optionally is_test; found {keys}"
            )
    for key in ("domain", "writer"):
        if key in content:
            raise FedloomError(
                f"{where}: the key {key} goes with x and y; with train_x, use train_{key} and test_{key}"
            )
    train_x = _images(where, "train_x", content.pop("train_x"))
    test_x = _images(where, "test_x", content.pop("test_x"))
    if train_x.shape[1:] != test_x.shape[1:]:
        raise FedloomError(
            f"{where}: images of test_x are {_shape(test_x)} and those of train_x {_shape(train_x)}; "
            "both must have the same shape"
        )
    _number_texts(where, content)
    numbers = {}
    for part, x in (("train", train_x), ("test", test_x)):
        for kind in ("y", "domain", "writer"):
            if f"{part}_{kind}" in content:
                numbers[f"{part}_{kind}"] = _numbers(where, f"{part}_{kind}", content[f"{part}_{kind}"], len(x))
    if renumber:
        _begin_at_zero(where, content, numbers)
    domains = [numbers[key] for key in ("train_domain", "test_domain") if key in numbers]
    return DatasetArrays(
        train_x=train_x,
        test_x=test_x,
        class_names=_names(where, "class_names", content, [numbers["train_y"], numbers["test_y"]]),
        domain_names=_names(where, "domain_names", content, domains),
        **numbers,
    )


def statistics(x: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation of x / scale per channel; the deviation of a constant channel is 1.

    Computed from counts of the 256 values in integers, so only the result is rounded.
    """
    means, deviations = [], []
    for channel in range(x.shape[3]):
        counts = [0] * 256
        for start in range(0, len(x), 4096):
            block = np.bincount(x[start : start + 4096, :, :, channel].ravel(), minlength=256)
            counts = [a + int(b) for a, b in zip(counts, block, strict=True)]
        total = sum(counts)
        first = sum(value * count for value, count in enumerate(counts))
        second = sum(value * value * count for value, count in enumerate(counts))
        spread = total * second - first * first
        means.append(first / total / scale)
        deviations.append((spread / (total * total)) ** 0.5 / scale if spread else 1.0)
    return tuple(means), tuple(deviations)


def digest(arrays: DatasetArrays, scale: float) -> str:
    """Identifies the data that a run uses: all arrays and the scale, but not names or the source."""
    hasher = hashlib.blake2b(f"scale {scale:g}".encode(), digest_size=16)
    for name, values in sorted(arrays.present().items()):
        hasher.update(f"{name} {values.dtype.str} {values.shape}".encode())
        hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()


def _number_texts(where: str, content: Content) -> None:
    """Replace text labels by class numbers, in place; the texts become class_names."""
    keys = [key for key in ("train_y", "test_y") if content[key].dtype.kind in "US" and content[key].ndim == 1]
    if not keys:
        return
    if len(keys) < 2:
        raise FedloomError(f"{where}: {keys[0]} holds texts; train_y and test_y must be of the same kind")
    try:
        labels = {key: content[key].astype(str) for key in keys}
    except UnicodeDecodeError:
        raise FedloomError(f"{where}: labels are bytes that are not ASCII; store them as str") from None
    distinct = sorted({str(name) for values in labels.values() for name in np.unique(values)})
    if all(name.isascii() and name.isdecimal() for name in distinct):
        distinct.sort(key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))
    names = [str(name) for name in content["class_names"]] if _named(content) else distinct
    number_of = {name: number for number, name in enumerate(names)}
    if unknown := [name for name in distinct if name not in number_of]:
        raise FedloomError(
            f"{where}: the label {shown(unknown[0])} is not in class_names, which are {brief(', '.join(names))}"
        )
    for key, values in labels.items():
        kinds, inverse = np.unique(values, return_inverse=True)
        content[key] = np.array([number_of[str(name)] for name in kinds], dtype=np.int64)[inverse]
    content["class_names"] = np.array(names)


def _begin_at_zero(where: str, content: Content, numbers: Content) -> None:
    """Renumber labels such as 1 to C from 0, in place; otherwise class 0 would have no images."""
    keys = ("train_y", "test_y")
    labels = np.unique(np.concatenate([np.unique(numbers[key]) for key in keys]))
    if labels[0] == 0:
        return
    if not _named(content):
        numbers.update({key: np.searchsorted(labels, numbers[key]) for key in keys})
        content["class_names"] = np.array([str(label) for label in labels])
    elif labels[0] == 1 and labels[-1] == len(content["class_names"]):
        raise FedloomError(
            f"{where}: labels go from 1 to {labels[-1]}, but class_names has {labels[-1]} names, for the classes 0 to "
            f"{labels[-1] - 1}; subtract 1 from the labels, or leave class_names out"
        )


def _named(content: Content) -> bool:
    names = content.get("class_names")
    return names is not None and names.ndim == 1 and len(names) > 0


def _divide(where: str, content: Content) -> Content:
    """Split x, y, domain and writer into train_* and test_*: by is_test, or by holding out every fifth image."""
    x = content.pop("x")
    if x.ndim < 3:
        raise FedloomError(f"{where}: x is {_kind(x)}; {IMAGE_FORMAT}")
    if "is_test" in content:
        flags = content.pop("is_test")
        if flags.shape != x.shape[:1] or flags.dtype.kind not in "biu" or not np.isin(flags, (0, 1)).all():
            raise FedloomError(f"{where}: is_test is {_kind(flags)}; expected a 0 or 1 for each of the {len(x)} images")
        test = flags.astype(bool)
    else:
        test = np.arange(len(x)) % HOLD_OUT == 0
    divided = {"train_x": x[~test], "test_x": x[test]}
    for kind in ("y", "domain", "writer"):
        if kind in content:
            values = content.pop(kind)
            if values.shape != test.shape:
                raise FedloomError(
                    f"{where}: {kind} is {_kind(values)}; expected one number for each of the {len(x)} images"
                )
            divided |= {f"train_{kind}": values[~test], f"test_{kind}": values[test]}
        elif kind == "y":
            raise FedloomError(f"{where}: the key y is missing; x needs y, one class number per image")
    return divided | content


def _images(where: str, key: str, x: Array) -> Array:
    if x.dtype != np.uint8:
        raise FedloomError(f"{where}: {key} is {_kind(x)}; {IMAGE_FORMAT}")
    x = x[..., None] if x.ndim == 3 else x
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise FedloomError(f"{where}: {key} is {_kind(x)}; {IMAGE_FORMAT}")
    if len(x) == 0:
        raise FedloomError(f"{where}: {key} is empty; at least one training and one test image are needed")
    if x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] > 4:
        raise FedloomError(f"{where}: {key} is {_kind(x)}, channels first; expected N,H,W,C, channels last")
    return x


def _numbers(where: str, key: str, values: Array, count: int) -> Array:
    what = "class" if key.endswith("_y") else key.partition("_")[2]
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise FedloomError(
            f"{where}: {key} is {_kind(values)}; expected one integer per image, the {what}"
            + (", or one text" if what == "class" else "")
        )
    if len(values) != count:
        images = key.partition("_")[0] + "_x"
        raise FedloomError(f"{where}: {key} has {len(values)} entries; expected {count}, one per image of {images}")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= (2**63 if what == "writer" else MOST_CLASSES):
        bad = low if low < 0 else high
        raise FedloomError(f"{where}: {key} holds {bad}; each {what} must be a number 0, 1, 2 and so on")
    return values.astype(np.int64)


def _names(where: str, key: str, content: Content, numbers: list[Array]) -> tuple[str, ...]:
    """The given names; a class or domain without one is named by its number."""
    given = content.get(key, np.empty(0, "U1"))
    if given.ndim != 1 or given.dtype.kind != "U":
        raise FedloomError(f"{where}: {key} is {_kind(given)}; expected a list of texts, one name each")
    count = max([len(given), *(int(values.max()) + 1 for values in numbers)])
    return tuple(str(name) for name in given) + tuple(str(number) for number in range(len(given), count))


def _kind(values: Array) -> str:
    return f"{values.dtype} of shape {values.shape}"


def _shape(x: Array) -> str:
    return " x ".join(str(size) for size in x.shape[1:])
