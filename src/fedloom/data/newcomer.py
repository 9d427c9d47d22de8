"""The samples of a client that was not in the federation, with the inputs and class numbers of a finished run.

Its labels are the run's class numbers; or texts, or numbers with `class_names`, which are then matched with the run's class
names. Rows of a table and texts are prepared by the run's schema. Without a test set, every fifth sample is held out for
testing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedloom.data.arrays import DatasetArrays, check
from fedloom.data.inputs import OPTIONS
from fedloom.data.sources import find
from fedloom.data.sources.resize import resized
from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError
from fedloom.io.archives import Array


def read_newcomer(
    source: str,
    inputs: InputSpec,
    class_names: Sequence[str],
    resize: int | None = None,
    hold_out: bool = True,
    schema: str = "",
) -> tuple[DatasetArrays, bool]:
    """Training and test samples as the run's inputs and class numbers, and whether the test samples were held out here.

    `hold_out=False`: all samples are for training, and there are no test samples. `schema`: the run's, if it has one.
    """
    opened = find(source)
    if schema and opened.prepared is not None:
        opened = opened.prepared(schema)
    content = dict(opened.read(resize))
    named = "class_names" in content
    if "train_x" in content and "test_x" not in content:
        untested = {key: content.pop(f"train_{key}") for key in ("x", "y") if f"train_{key}" in content}
        content = {k: v for k, v in content.items() if not k.startswith(("train_", "test_"))} | untested
    divided = hold_out and "x" in content and "is_test" not in content
    if not hold_out:
        content = _all_for_training(content)
    if "x" in content and len(content["x"]) < 2:
        raise FedloomError(f"{opened.where}: one sample is not enough for both training and testing")
    named = named or any(content[key].dtype.kind in "US" for key in ("y", "train_y") if key in content)
    arrays = check(opened.where, content, opened.scale, renumber=False)
    if not hold_out:
        arrays = replace(arrays, test_x=arrays.test_x[:0], test_y=arrays.test_y[:0])
    if resize is not None:
        arrays = resized(arrays, resize)
    if schema and arrays.schema not in ("", schema):
        raise FedloomError(
            f"{opened.where}: its rows were prepared by another schema than the run's; use schema.json of its folder"
        )
    _check_inputs(opened.where, arrays, inputs)
    names = arrays.class_names if named else None
    train_y = _run_labels(opened.where, arrays.train_y, names, class_names)
    test_y = _run_labels(opened.where, arrays.test_y, names, class_names)
    return replace(arrays, train_y=train_y, test_y=test_y), divided


def _all_for_training(content: dict[str, Array]) -> dict[str, Array]:
    """Make all samples training samples; the first is also the test sample, since `check` requires one."""
    if "x" in content:
        content["train_x"], content["train_y"] = content.pop("x"), content.pop("y", np.empty(0, np.int64))
    elif {"train_x", "train_y", "test_x", "test_y"} <= content.keys():
        for key in ("x", "y"):
            content[f"train_{key}"] = np.concatenate([content[f"train_{key}"], content[f"test_{key}"]])
    kept = {
        key: values
        for key, values in content.items()
        if key in {"train_x", "train_y", "class_names", "notes", *OPTIONS}
    }
    return kept | {f"test_{key}": kept[f"train_{key}"][:1] for key in ("x", "y") if f"train_{key}" in kept}


def _check_inputs(where: str, arrays: DatasetArrays, run: InputSpec) -> None:
    own = arrays.inputs
    if (own.kind, own.dtype) != (run.kind, run.dtype):
        raise FedloomError(f"{where}: it holds {own} ({own.dtype}); the run was trained on {run} ({run.dtype})")
    if own.shape != run.shape and run.kind == "image":
        sides = [f"{height} x {width} x {channels}" for channels, height, width in (own.shape, run.shape)]
        raise FedloomError(
            f"{where}: its images are {sides[0]}; the run was trained on {sides[1]} (height, width, channels)"
        )
    if own.shape != run.shape:
        raise FedloomError(f"{where}: it holds {own}; the run was trained on {run}")
    values = [x for x in (arrays.train_x, arrays.test_x) if len(x)]
    if run.dtype == "uint8" and (largest := max(int(x.max()) for x in values)) > run.scale:
        raise FedloomError(
            f"{where}: a pixel has the value {largest}; the run was trained on pixels from 0 to {run.scale:g}"
        )
    if run.kind == "tokens" and (largest := max(int(x.max()) for x in values)) >= run.vocabulary:
        raise FedloomError(
            f"{where}: a token is {largest}; the run was trained on the tokens 0 to {run.vocabulary - 1}"
        )


def _run_labels(where: str, y: Array, names: Sequence[str] | None, known: Sequence[str]) -> Array:
    """Labels as class numbers of the run."""
    if names is None:
        labels = np.unique(y)
        if all(str(label) in known for label in labels):  # classes are named by the labels they had, such as 1 to C
            numbers = np.array([known.index(str(label)) for label in labels], dtype=np.int64)
            return numbers[np.searchsorted(labels, y)]
        if len(y) and int(y.max()) >= len(known):
            raise FedloomError(
                f"{where}: class {int(y.max())} is unknown to the run, whose classes are 0 to {len(known) - 1}"
            )
        return y
    number_of = {name: number for number, name in enumerate(known)}
    for label in np.unique(y):
        if names[label] not in number_of:
            raise FedloomError(
                f"{where}: class {names[label]!r} is unknown to the run, whose classes are {', '.join(known)}"
            )
    numbers = np.array([number_of.get(name, -1) for name in names], dtype=np.int64)
    return np.asarray(numbers[y], dtype=np.int64)
