"""A dataset as checked numpy arrays: what every source returns and what the cache stores.

Labels become class numbers 0, 1, 2 and so on:
- Text labels are numbered in sorted order (numerals by value) and become the class names. If `class_names` is given,
  each label must be one of them.
- Integer labels that start above 0, such as 1 to C, are renumbered from 0; the original numbers become the class names.
  Whole numbers stored as floats are integers; booleans are the texts False and True.
- Integer labels that start at 0, and all integer labels given together with `class_names`, are kept. A gap is a class
  without samples.

Domains and natural clients are numbers too, or texts that are numbered in sorted order. `client` names the clients of a
federation; `writer` is the same without names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from fedloom.data.inputs import FORMATS, checked_inputs, describe
from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError, brief, shown
from fedloom.io.archives import Array

Content = dict[str, Array]
"""Unchecked arrays by their key in an npz file: train_x, train_y, test_x, test_y, or x and y; the rest is optional."""

HOLD_OUT = 5  # a dataset without a test set holds out every fifth sample
MOST_CLASSES = 1_000_000  # larger labels are identifiers, not classes
GROUPS = ("y", "domain", "client", "writer")
NAMES = {"y": "class_names", "domain": "domain_names", "client": "client_names"}


@dataclass(frozen=True, eq=False)
class DatasetArrays:
    """Inputs in their stored type, everything else as int64 N; the fields are named as in Dataset."""

    inputs: InputSpec
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...] = ()
    train_domain: Array | None = None
    test_domain: Array | None = None
    train_client: Array | None = None
    test_client: Array | None = None
    client_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = ""

    def present(self) -> Content:
        """The arrays by name, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def check(
    where: str, content: Content, scale: float = 255.0, renumber: bool = True, test_every: int = HOLD_OUT
) -> DatasetArrays:
    """Check what a source has read; raises an error about the first problem. Consumes `content`.

    `where`: the source, as error messages name it. `scale`: the largest pixel value of uint8 images. `renumber=False` keeps
    integer labels that start above 0. `test_every`: without a test set, one sample in this many is for testing.
    """
    content.update({key: _plain_labels(content[key]) for key in ("y", "train_y", "test_y") if key in content})
    content = _divide(where, content, test_every) if "x" in content and "train_x" not in content else content
    for key in ("train_x", "train_y", "test_x", "test_y"):
        if key not in content:
            keys = ", ".join(sorted(content)) or "no keys"
            raise FedloomError(
                f"{where}: the key {key} is missing; expected train_x, train_y, test_x and test_y, "
                f"or x, y and optionally is_test; found {keys}"
            )
    for key in GROUPS[1:]:
        if key in content:
            raise FedloomError(
                f"{where}: the key {key} goes with x and y; with train_x, use train_{key} and test_{key}"
            )
    train_x, test_x, inputs = checked_inputs(where, content, scale)
    for kind, names in NAMES.items():
        _number_texts(where, content, kind, names)
    numbers = {}
    for part, x in (("train", train_x), ("test", test_x)):
        for kind in GROUPS:
            if f"{part}_{kind}" in content:
                numbers[f"{part}_{kind}"] = _numbers(where, f"{part}_{kind}", content[f"{part}_{kind}"], len(x))
    if renumber:
        _begin_at_zero(where, content, numbers)
    clients = [numbers[key] for key in ("train_client", "test_client") if key in numbers]
    for part in ("train", "test"):
        if f"{part}_writer" in numbers:
            numbers[f"{part}_client"] = numbers.pop(f"{part}_writer")
    domains = [numbers[key] for key in ("train_domain", "test_domain") if key in numbers]
    return DatasetArrays(
        inputs=inputs,
        train_x=train_x,
        test_x=test_x,
        class_names=_names(where, "class_names", content, [numbers["train_y"], numbers["test_y"]]),
        domain_names=_names(where, "domain_names", content, domains),
        client_names=_names(where, "client_names", content, clients) if clients else (),
        notes=tuple(str(note) for note in content.get("notes", ())),
        schema=str(content.get("schema", "")),
        **numbers,
    )


def statistics(arrays: DatasetArrays, standardized: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation of the training inputs; the deviation of a constant channel is 1.

    Of images per channel of x / scale; of features per entry of their first axis. Tokens, and features that their source
    has standardized, have none: 0 and 1.
    """
    inputs, x = arrays.inputs, arrays.train_x
    if inputs.kind == "tokens":
        return (0.0,), (1.0,)
    if standardized:
        return (0.0,) * inputs.shape[0], (1.0,) * inputs.shape[0]
    if x.dtype == np.uint8:
        return _pixel_statistics(x, inputs.scale)
    channels = np.moveaxis(x, -1, 1) if inputs.kind == "image" else x
    columns = [channels[:, number].astype(np.float64) for number in range(channels.shape[1])]
    deviations = [float(column.std()) for column in columns]
    return tuple(float(column.mean()) for column in columns), tuple(deviation or 1.0 for deviation in deviations)


def _pixel_statistics(x: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Computed from counts of the 256 values in integers, so only the result is rounded."""
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


def digest(arrays: DatasetArrays) -> str:
    """Identifies the data that a run uses: all arrays and what they mean, but not names or the source."""
    inputs = arrays.inputs
    meaning = f"scale {inputs.scale:g}"  # alone for images of uint8, so that digests on record stay
    if inputs.dtype != "uint8":
        meaning = f"{inputs.kind} {meaning} vocabulary {inputs.vocabulary} padding {inputs.padding}"
    hasher = hashlib.blake2b(meaning.encode(), digest_size=16)
    recorded = {name.replace("_client", "_writer"): values for name, values in arrays.present().items()}
    for name, values in sorted(recorded.items()):
        hasher.update(f"{name} {values.dtype.str} {values.shape}".encode())
        hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()


def _number_texts(where: str, content: Content, kind: str, names_key: str) -> None:
    """Replace the texts of train_KIND and test_KIND by numbers, in place; the texts become their names."""
    given = [key for key in (f"train_{kind}", f"test_{kind}") if key in content]
    for key in given:
        if kind == "client" and content[key].dtype.kind in "iu" and not _named(content, names_key):
            content[key] = content[key].astype(str)  # identifiers of any size; only those that occur are clients
    keys = [key for key in given if content[key].dtype.kind in "US" and content[key].ndim == 1]
    if not keys:
        return
    if len(keys) < len(given):
        raise FedloomError(f"{where}: {keys[0]} holds texts; {' and '.join(given)} must be of the same kind")
    try:
        labels = {key: content[key].astype(str) for key in keys}
    except UnicodeDecodeError:
        raise FedloomError(f"{where}: labels are bytes that are not ASCII; store them as str") from None
    distinct = ordered({str(name) for values in labels.values() for name in np.unique(values)})
    names = [str(name) for name in content[names_key]] if _named(content, names_key) else distinct
    number_of = {name: number for number, name in enumerate(names)}
    if unknown := [name for name in distinct if name not in number_of]:
        label = "label" if kind == "y" else kind
        raise FedloomError(
            f"{where}: the {label} {shown(unknown[0])} is not in {names_key}, which are {brief(', '.join(names))}"
        )
    for key, values in labels.items():
        kinds, inverse = np.unique(values, return_inverse=True)
        content[key] = np.array([number_of[str(name)] for name in kinds], dtype=np.int64)[inverse]
    content[names_key] = np.array(names)


def ordered(names: Iterable[str]) -> list[str]:
    """Texts in the order in which they are numbered: sorted, numerals by value."""
    distinct = sorted(set(names))
    if all(name.isascii() and name.isdecimal() for name in distinct):
        distinct.sort(key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))
    return distinct


def _plain_labels(values: Array) -> Array:
    """Labels as integers or texts where they are stored as another type, and as one row where they are a column."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind == "b":
        return values.astype(str)
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.floor(values)).all():
        return values.astype(np.int64)
    return values


def _begin_at_zero(where: str, content: Content, numbers: Content) -> None:
    """Renumber labels such as 1 to C from 0, in place; otherwise class 0 would have no samples."""
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


def _named(content: Content, key: str = "class_names") -> bool:
    names = content.get(key)
    return names is not None and names.ndim == 1 and len(names) > 0


def _divide(where: str, content: Content, test_every: int) -> Content:
    """Split x, y and groups into train_* and test_*: by is_test, or by holding out every so-manieth sample."""
    x = content.pop("x")
    if x.ndim < 2:
        raise FedloomError(f"{where}: x is {describe(x)}; {FORMATS}")
    if "is_test" in content:
        flags = content.pop("is_test")
        if flags.shape != x.shape[:1] or flags.dtype.kind not in "biu" or not np.isin(flags, (0, 1)).all():
            raise FedloomError(f"{where}: is_test is {describe(flags)}; expected a 0 or 1 for each of {len(x)} samples")
        test = flags.astype(bool)
    else:
        test = np.arange(len(x)) % test_every == 0
    divided = {"train_x": x[~test], "test_x": x[test]}
    for kind in GROUPS:
        if kind in content:
            values = content.pop(kind)
            if values.shape != test.shape:
                raise FedloomError(
                    f"{where}: {kind} is {describe(values)}; expected one number for each of the {len(x)} samples"
                )
            divided |= {f"train_{kind}": values[~test], f"test_{kind}": values[test]}
        elif kind == "y":
            raise FedloomError(f"{where}: the key y is missing; x needs y, one class number per sample")
    return divided | content


def _numbers(where: str, key: str, values: Array, count: int) -> Array:
    what = "class" if key.endswith("_y") else key.partition("_")[2]
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise FedloomError(
            f"{where}: {key} is {describe(values)}; expected one integer per sample, the {what}"
            + (", or one text" if what != "writer" else "")
        )
    if len(values) != count:
        inputs = key.partition("_")[0] + "_x"
        raise FedloomError(f"{where}: {key} has {len(values)} entries; expected {count}, one per sample of {inputs}")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= (2**63 if what == "writer" else MOST_CLASSES):
        bad = low if low < 0 else high
        raise FedloomError(f"{where}: {key} holds {bad}; each {what} must be a number 0, 1, 2 and so on")
    return values.astype(np.int64)


def _names(where: str, key: str, content: Content, numbers: list[Array]) -> tuple[str, ...]:
    """The given names; a class or domain without one is named by its number."""
    given = content.get(key, np.empty(0, "U1"))
    if given.ndim != 1 or given.dtype.kind != "U":
        raise FedloomError(f"{where}: {key} is {describe(given)}; expected a list of texts, one name each")
    count = max([len(given), *(int(values.max()) + 1 for values in numbers)])
    return tuple(str(name) for name in given) + tuple(str(number) for number in range(len(given), count))
