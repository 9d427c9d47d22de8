"""Datasets as tensors mapped from the cache: opening one takes milliseconds and no memory, in any process."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.data import cache
from fedloom.data.arrays import HOLD_OUT, Content, DatasetArrays, check, digest, statistics
from fedloom.data.hub_content import ROLES, hub_content, hub_splits
from fedloom.data.memory import array_content, torch_content
from fedloom.data.schema import read_schema
from fedloom.data.sources import find
from fedloom.data.sources.resize import check_resize, resized
from fedloom.data.sources.source import DataSource
from fedloom.data.spec import InputSpec, Kind, Shape
from fedloom.data.tables.content import Roles, table_content
from fedloom.data.text.tokenize import OPTIONS as TEXT_OPTIONS
from fedloom.data.text.tokenize import TextOptions
from fedloom.data.transforms.choose import pipeline_of
from fedloom.data.transforms.pipeline import Pipeline
from fedloom.errors import FedloomError, shown
from fedloom.io.html import html_table

CLASSES = 20  # in the table of a notebook


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples: inputs, labels, and the groups that they belong to.

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(50, 4)), np.array(["no", "yes"] * 25)
    >>> data = fl.Dataset.from_arrays(x, y, name="mine")
    >>> data
    Dataset(mine: features of shape 4, 2 classes, 40 training and 10 test samples)
    >>> data.class_names
    ('no', 'yes')
    >>> fl.run(data=data, model="linear", split="iid", clients=4, rounds=1).recipe.data.name
    'memory:mine-...'
    """

    name: str
    inputs: InputSpec
    train_x: Tensor  # N and inputs.stored_shape, of type inputs.dtype
    train_y: Tensor  # int64 N, like all tensors below
    test_x: Tensor
    test_y: Tensor
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of train_x / scale, per channel of images, or per entry of the features' first axis
    std: tuple[float, ...]  # population standard deviation; 1 for a constant channel
    digest: str
    domain_names: tuple[str, ...] = ()
    train_domain: Tensor | None = None
    test_domain: Tensor | None = None
    train_client: Tensor | None = None  # natural clients, such as writers or hospitals
    test_client: Tensor | None = None
    client_names: tuple[str, ...] = ()  # given where the data name their clients
    notes: tuple[str, ...] = ()  # what reading the data had to repair, a sentence each
    schema: str = ""  # JSON: how rows of a table or texts become inputs; see schema.py
    source: str = ""  # what `data` in a recipe calls it

    def __repr__(self) -> str:
        count = f"{len(self.train_y)} training and {len(self.test_y)} test samples"
        return f"Dataset({self.name}: {self.inputs}, {self.classes} classes, {count})"

    def _repr_html_(self) -> str:
        labels = [torch.bincount(y, minlength=self.classes) for y in (self.train_y, self.test_y)]
        shown = range(min(self.classes, CLASSES))
        rows = [[self.class_names[k], int(labels[0][k]), int(labels[1][k])] for k in shown]
        rows.append(["all", len(self.train_y), len(self.test_y)])
        hidden = f"{self.classes - CLASSES} more classes" if self.classes > CLASSES else ""
        return html_table(f"{self.name}: {self.inputs}", ("class", "training", "test"), rows, hidden)

    @property
    def shape(self) -> Shape:
        """Shape of one network input."""
        return self.inputs.shape

    @property
    def scale(self) -> float:
        return self.inputs.scale

    @classmethod
    def from_arrays(
        cls,
        train_x: Any,
        train_y: Any,
        test_x: Any = None,
        test_y: Any = None,
        *,
        client: Any = None,
        domain: Any = None,
        test_client: Any = None,
        test_domain: Any = None,
        class_names: Sequence[str] | None = None,
        domain_names: Sequence[str] | None = None,
        client_names: Sequence[str] | None = None,
        kind: Kind | None = None,
        vocabulary: int | None = None,
        padding: int | None = None,
        scale: float = 255.0,
        name: str = "memory",
    ) -> Dataset:
        """From arrays of numpy or torch, as in an npz file; without a test set, every fifth sample is for testing.

        `client`, `domain`: one text or number per training sample (of all samples, if there is no test set). `scale`: the
        largest value of uint8 images.
        """
        if (test_x is None) != (test_y is None):
            raise FedloomError("test_x and test_y go together; give both, or neither to hold out every fifth sample")
        groups = {"client": client, "domain": domain, "test_client": test_client, "test_domain": test_domain}
        names = {"class_names": class_names, "domain_names": domain_names, "client_names": client_names}
        options = {**names, "kind": kind, "vocabulary": vocabulary, "padding": padding}
        test = None if test_x is None else (test_x, test_y)
        return _stored("from_arrays", array_content((train_x, train_y), test, groups, options), name, scale)

    @classmethod
    def from_torch(cls, train: Any, test: Any = None, *, name: str = "memory") -> Dataset:
        """From torch Datasets with items (input, label)."""
        return _stored("from_torch", torch_content(train, test), name)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        target: str | None = None,
        *,
        client: str | None = None,
        test: str | None = None,
        domain: str | None = None,
        text: str | None = None,
        drop: str | Sequence[str] = (),
        keep: str | Sequence[str] = (),
        schema: str | Path | None = None,
        name: str = "memory",
        **tokenizing: Any,
    ) -> Dataset:
        """From a pandas DataFrame: columns by role, as in `table:PATH?target=COLUMN&client=COLUMN`.

        With `text`, also `tokenizer`, `length` and `vocabulary`.
        """
        dropped, kept = ((names,) if isinstance(names, str) else tuple(names) for names in (drop, keep))
        roles = Roles(target, client, test, domain, text, dropped, kept)
        given = None if schema is None else read_schema(Path(schema))
        options = TextOptions.of("from_frame", _texts("from_frame", tokenizing))
        return _stored("from_frame", table_content("from_frame", frame, roles, options, given), name, standardized=True)

    @classmethod
    def from_hf(cls, dataset: Any, *, name: str = "memory", **options: Any) -> Dataset:
        """From a Dataset or DatasetDict of the datasets library.

        Columns that their types do not tell are named: image, text, array, label, client, domain; with texts also `tokenizer`,
        `length` and `vocabulary`.
        """
        given = _texts("from_hf", options, ROLES)
        roles = {option: value for option, value in given.items() if option in ROLES}
        train, test = hub_splits("from_hf", dataset)
        tokenizing = TextOptions.of("from_hf", given)
        return _stored("from_hf", hub_content("from_hf", train, test, roles, tokenizing), name)

    def pipeline(self, normalize: object = "set", augment: str = "none") -> Pipeline:
        return pipeline_of(self.inputs, (self.mean, self.std), self.name, normalize, augment)


def load(source: str, resize: int | None = None, test_every: int = HOLD_OUT) -> Dataset:
    """The dataset that `data` in a recipe names: digits, NAME, PATH.npz, folder:PATH, hf:owner/name and so on.

    `test_every`: where it has no test set, one sample in this many is for testing.
    """
    side = check_resize(resize)
    opened = find(source)
    divided = () if test_every == HOLD_OUT else (f"test every {test_every}",)
    folder = cache.folder_of(opened.name, str(side), *opened.identity, *divided)
    arrays, facts = cache.fetch(folder, lambda: _build(opened, side, test_every))
    return Dataset(
        name=opened.name,
        classes=len(facts["class_names"]),
        class_names=tuple(facts["class_names"]),
        domain_names=tuple(facts["domain_names"]),
        client_names=tuple(facts["client_names"]),
        notes=tuple(facts["notes"]),
        schema=facts.get("schema", ""),
        inputs=InputSpec.from_json(facts["inputs"]),
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        digest=facts["digest"],
        source=source if side is None and not divided else "",
        **{name: torch.from_numpy(values) for name, values in arrays.items()},
    )


def _build(source: DataSource, side: int | None, test_every: int) -> tuple[Content, cache.Facts]:
    content = source.read(side)
    if test_every != HOLD_OUT and "schema" in content and "is_test" not in content:
        raise FedloomError(
            f"data.test_every: {source.name} is prepared by what its training rows hold; leave it out, or mark test rows"
        )
    arrays = check(source.where, content, source.scale, test_every=test_every)
    if side is not None and arrays.inputs.kind != "image":
        raise FedloomError(f"data.resize: {source.name} holds {arrays.inputs.noun}, not images; leave it out")
    arrays = arrays if side is None else resized(arrays, side)
    return arrays.present(), _facts(arrays, source.standardized)


def _facts(arrays: DatasetArrays, standardized: bool) -> cache.Facts:
    mean, std = statistics(arrays, standardized)
    return {
        "class_names": arrays.class_names,
        "domain_names": arrays.domain_names,
        "client_names": arrays.client_names,
        "notes": arrays.notes,
        "schema": arrays.schema,
        "inputs": arrays.inputs.to_json(),
        "mean": mean,
        "std": std,
        "digest": digest(arrays),
    }


def _stored(where: str, content: Content, name: str, scale: float = 255.0, standardized: bool = False) -> Dataset:
    """Store the content of an object in the cache, and load it from there."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name):
        raise FedloomError(f"name is {shown(name)}; allowed are up to 60 letters, digits, dots, - and _")
    arrays = check(where, content, scale)
    facts = _facts(arrays, standardized)
    key = hashlib.blake2b(json.dumps(facts).encode(), digest_size=10).hexdigest()
    source = f"memory:{name}-{key}"
    opened = find(source)
    cache.fetch(cache.folder_of(opened.name, str(None), *opened.identity), lambda: (arrays.present(), facts))
    return load(source)


def _texts(where: str, options: Mapping[str, Any], further: Sequence[str] = ()) -> dict[str, str]:
    """Keyword options as texts, without those that are None."""
    allowed = (*further, *TEXT_OPTIONS)
    if unknown := [option for option in options if option not in allowed]:
        raise FedloomError(f"{where}: the option {unknown[0]} is unknown; allowed are {', '.join(allowed)}")
    return {option: str(value) for option, value in options.items() if value is not None}
