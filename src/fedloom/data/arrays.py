"""The content of an image set as checked numpy arrays: what every reader hands over and what the cache stores.

Labels are class numbers 0, 1, 2 and so on. Texts become numbers in sorted order (numerals by value) and are the classes'
names; beside `class_names` each must be one of those. Numbers that begin above 0, as 1 to C do, are moved down to 0 to C - 1
and become the names. Numbers that begin at 0 stay as they are, and so do all numbers beside `class_names`: gaps are classes
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
"""Arrays by the key they have in an npz file: train_x, train_y, test_x, test_y, or x and y; the rest is optional."""

HOLD_OUT = 5  # without a test set of its own, every fifth image of a set is test
MOST_CLASSES = 1_000_000  # a larger label is an identifier that was taken for a class


@dataclass(frozen=True, eq=False)
class Arrays:
    """Images as uint8 N,H,W,C, everything else as int64 N; the fields are named as in ImageSet."""

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
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def check(where: str, content: Content, renumber: bool = True) -> Arrays:
    """The arrays of a reader, or one sentence about the first thing that is wrong; takes the content apart.

    `renumber`: numbers that begin above 0 are moved down; not for images whose numbers are somebody else's.
    """
    content = _divide(where, content) if "x" in content and "train_x" not in content else content
    for key in ("train_x", "train_y", "test_x", "test_y"):
        if key not in content:
            found = ", ".join(sorted(content)) or "no key at all"
            raise FedloomError(
                f"{where}: the key {key} is missing; expected are train_x, train_y, test_x and test_y, "
                f"or x, y and optionally is_test; found are {found}"
            )
    for key in ("domain", "writer"):
        if key in content:
            raise FedloomError(f"{where}: the key {key} goes with x and y; beside train_x use train_{key}, test_{key}")
    train_x = _images(where, "train_x", content.pop("train_x"))
    test_x = _images(where, "test_x", content.pop("test_x"))
    if train_x.shape[1:] != test_x.shape[1:]:
        raise FedloomError(
            f"{where}: images of test_x are {_shape(test_x)} and those of train_x {_shape(train_x)}; "
            "both are expected to have one shape"
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
    return Arrays(
        train_x=train_x,
        test_x=test_x,
        class_names=_names(where, "class_names", content, [numbers["train_y"], numbers["test_y"]]),
        domain_names=_names(where, "domain_names", content, domains),
        **numbers,
    )


def statistics(x: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population deviation of x / scale by channel; 1 stands for the deviation of a constant channel.

    Computed from counts of the 256 values in whole numbers, so the only rounding is that of the result.
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


def digest(arrays: Arrays, scale: float) -> str:
    """The identity of what a run sees: all arrays and the scale, not the names or where they came from."""
    hasher = hashlib.blake2b(f"scale {scale:g}".encode(), digest_size=16)
    for name, values in sorted(arrays.present().items()):
        hasher.update(f"{name} {values.dtype.str} {values.shape}".encode())
        hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()


def _number_texts(where: str, content: Content) -> None:
    """Class numbers in place of labels that are texts, in place; their names are kept as class_names."""
    keys = [key for key in ("train_y", "test_y") if content[key].dtype.kind in "US" and content[key].ndim == 1]
    if not keys:
        return
    if len(keys) < 2:
        raise FedloomError(f"{where}: {keys[0]} holds texts; train_y and test_y are expected to be of one kind")
    try:
        labels = {key: content[key].astype(str) for key in keys}
    except UnicodeDecodeError:
        raise FedloomError(f"{where}: labels are bytes that are no ASCII text; store them as str") from None
    found = sorted({str(name) for values in labels.values() for name in np.unique(values)})
    if all(name.isascii() and name.isdecimal() for name in found):
        found.sort(key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))
    names = [str(name) for name in content["class_names"]] if _named(content) else found
    place = {name: number for number, name in enumerate(names)}
    if unknown := [name for name in found if name not in place]:
        raise FedloomError(
            f"{where}: the label {shown(unknown[0])} is none of class_names, which are {brief(', '.join(names))}"
        )
    for key, values in labels.items():
        kinds, inverse = np.unique(values, return_inverse=True)
        content[key] = np.array([place[str(name)] for name in kinds], dtype=np.int64)[inverse]
    content["class_names"] = np.array(names)


def _begin_at_zero(where: str, content: Content, numbers: Content) -> None:
    """Labels such as 1 to C as 0 to C - 1, in place; else class 0 would be a class without any image."""
    keys = ("train_y", "test_y")
    found = np.unique(np.concatenate([np.unique(numbers[key]) for key in keys]))
    if found[0] == 0:
        return
    if not _named(content):
        numbers.update({key: np.searchsorted(found, numbers[key]) for key in keys})
        content["class_names"] = np.array([str(label) for label in found])
    elif found[0] == 1 and found[-1] == len(content["class_names"]):
        raise FedloomError(
            f"{where}: labels go from 1 to {found[-1]}, and class_names has {found[-1]} names, for the classes 0 to "
            f"{found[-1] - 1}; subtract 1 from the labels, or leave class_names out"
        )


def _named(content: Content) -> bool:
    names = content.get("class_names")
    return names is not None and names.ndim == 1 and len(names) > 0


def _divide(where: str, content: Content) -> Content:
    """Keys train_* and test_* out of x, y, domain and writer, by is_test or else by taking every fifth image."""
    x = content.pop("x")
    if x.ndim < 3:
        raise FedloomError(f"{where}: x is {_kind(x)}; images are expected as uint8 of shape N,H,W,C or N,H,W")
    if "is_test" in content:
        flags = content.pop("is_test")
        if flags.shape != x.shape[:1] or flags.dtype.kind not in "biu" or not np.isin(flags, (0, 1)).all():
            raise FedloomError(
                f"{where}: is_test is {_kind(flags)}; expected is a 0 or 1 for each of the {len(x)} images"
            )
        test = flags.astype(bool)
    else:
        test = np.arange(len(x)) % HOLD_OUT == 0
    divided = {"train_x": x[~test], "test_x": x[test]}
    for kind in ("y", "domain", "writer"):
        if kind in content:
            values = content.pop(kind)
            if values.shape != test.shape:
                raise FedloomError(
                    f"{where}: {kind} is {_kind(values)}; expected is one number for each of {len(x)} images"
                )
            divided |= {f"train_{kind}": values[~test], f"test_{kind}": values[test]}
        elif kind == "y":
            raise FedloomError(f"{where}: the key y is missing; expected beside x is y, one class number an image")
    return divided | content


def _images(where: str, key: str, x: Array) -> Array:
    if x.dtype != np.uint8:
        raise FedloomError(f"{where}: {key} is {_kind(x)}; images are expected as uint8 of shape N,H,W,C or N,H,W")
    x = x[..., None] if x.ndim == 3 else x
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise FedloomError(f"{where}: {key} is {_kind(x)}; images are expected as uint8 of shape N,H,W,C or N,H,W")
    if len(x) == 0:
        raise FedloomError(f"{where}: {key} is empty; at least one training and one test image are expected")
    if x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] > 4:
        raise FedloomError(f"{where}: {key} is {_kind(x)}, channels first; expected is N,H,W,C, channels last")
    return x


def _numbers(where: str, key: str, values: Array, count: int) -> Array:
    what = "class" if key.endswith("_y") else key.partition("_")[2]
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise FedloomError(
            f"{where}: {key} is {_kind(values)}; expected is one whole number, the {what}, for each image"
            + (", or one text" if what == "class" else "")
        )
    if len(values) != count:
        images = key.partition("_")[0] + "_x"
        raise FedloomError(
            f"{where}: {key} has {len(values)} entries; expected are {count}, one for each image of {images}"
        )
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= (2**63 if what == "writer" else MOST_CLASSES):
        bad = low if low < 0 else high
        raise FedloomError(f"{where}: {key} holds {bad}; each {what} is expected to be a number 0, 1, 2 and so on")
    return values.astype(np.int64)


def _names(where: str, key: str, content: Content, numbers: list[Array]) -> tuple[str, ...]:
    """Given names first, then the plain number of each class or domain that has none."""
    given = content.get(key, np.empty(0, "U1"))
    if given.ndim != 1 or given.dtype.kind != "U":
        raise FedloomError(f"{where}: {key} is {_kind(given)}; expected is a list of texts, one name each")
    count = max([len(given), *(int(values.max()) + 1 for values in numbers)])
    return tuple(str(name) for name in given) + tuple(str(number) for number in range(len(given), count))


def _kind(values: Array) -> str:
    return f"{values.dtype} of shape {values.shape}"


def _shape(x: Array) -> str:
    return " x ".join(str(size) for size in x.shape[1:])
