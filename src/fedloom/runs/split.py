"""A split on its own: made, stored, read again, measured and shown, without any training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fedloom.data import ClientViews, Dataset, Partition, hold_out, load, stages
from fedloom.data.partition.partition import notes
from fedloom.data.split.client_names import client_names
from fedloom.data.split.strength import Strength, class_counts, strength
from fedloom.engine.about import about
from fedloom.engine.federated_data import hold_back, tested_samples
from fedloom.engine.given import given_recipe
from fedloom.errors import FedloomError
from fedloom.io.html import Shade, html_table
from fedloom.io.user_code import import_parts
from fedloom.recipe import Recipe, recipe
from fedloom.runs.folder import RunFolder

ROWS, COLUMNS = 20, 20  # clients and classes of the table in a notebook


@dataclass(frozen=True, repr=False)
class Split:
    """Who holds and sees which samples of a data set: one stage, or several if it changes on the way.

    >>> split = fl.split(split="dirichlet:0.5", clients=5)
    >>> split
    Split(digits, dirichlet:0.5: 5 clients with ... to ... training samples)
    >>> inputs, labels = split.samples(0)
    >>> split.strength().classes_a_client <= 10
    True
    """

    dataset: Dataset
    data: str
    spec: str
    seed: int
    stages: tuple[ClientViews, ...]

    def __repr__(self) -> str:
        sizes = np.diff(self.partition.train_offsets)
        held = f"{self.clients} clients with {sizes.min()} to {sizes.max()} training samples"
        return f"Split({self.data}, {self.spec}: {held})"

    def _repr_html_(self) -> str:
        """Clients by classes: the number of training samples, darker where there are more."""
        counts = class_counts(self.stages[0]).astype(int)
        names = self.dataset.class_names[:COLUMNS]
        tests, called = np.diff(self.partition.test_offsets), client_names(self.stages[0])
        rows = [
            [
                called[client] if called else client,
                int(row.sum()),
                int(tests[client]),
                *(Shade(str(value), 0.8 * value / max(row.max(), 1)) for value in row[:COLUMNS]),
            ]
            for client, row in enumerate(counts[:ROWS])
        ]
        hidden = [f"{self.clients - ROWS} more clients"] if self.clients > ROWS else []
        hidden += [f"{self.dataset.classes - COLUMNS} more classes"] if self.dataset.classes > COLUMNS else []
        return html_table(repr(self)[6:-1], ("client", "training", "test", *names), rows, ", ".join(hidden))

    @property
    def clients(self) -> int:
        return self.partition.clients

    @property
    def partition(self) -> Partition:
        """Of the first stage."""
        return self.stages[0].partition

    def strength(self, stage: int = 0) -> Strength:
        """How strongly clients disagree, in numbers."""
        return strength(self.stages[stage])

    def samples(self, client: int, part: Literal["train", "test"] = "train", stage: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs and labels as this client sees them; images are N,H,W,C with values 0 to the data set's scale."""
        view = self.stages[stage].train(client) if part == "train" else self.stages[stage].test(client)
        return view.x[view.rows], view.y

    def save(self, path: str | Path) -> list[Path]:
        """One npz file a stage: path, then path-30 for a stage that begins in round 30."""
        path = Path(path)
        if path.suffix != ".npz":
            raise FedloomError(f"output: {path} must end in .npz")
        metadata = {"data": self.data, "data_digest": self.dataset.digest, "split": self.spec, "seed": str(self.seed)}
        written = []
        for stage in self.stages:
            place = path if stage.begin == 1 else path.with_stem(f"{path.stem}-{stage.begin}")
            changes = "+".join(str(shift) for shift in stage.shifts)
            try:
                stage.partition.save(place, **metadata, changes=changes)
            except OSError as error:
                raise FedloomError(f"output: {place} cannot be written ({error.strerror})") from None
            written.append(place)
        return written


def make_split(fields: Mapping[str, Any]) -> Split:
    """The split that a run with these fields of a recipe has."""
    given = given_recipe(fields)
    import_parts(given.parts)
    with about("data"):
        dataset = load(given.data.name, given.data.resize, given.data.test_every)
    return _split(given, dataset)


def read_split(source: str | Path, fields: Mapping[str, Any]) -> Split:
    """A split from a run folder, or from a stored file; the file knows its data, changes and seed unless the fields say
    otherwise."""
    path = Path(source)
    if path.is_dir():
        if fields:
            raise FedloomError(f"from: {path} is a run with a recipe of its own; leave out {next(iter(fields))}")
        folder = RunFolder(path)
        given = folder.recipe()
        import_parts(given.parts)
        with about("data"):
            dataset = load(given.data.name, given.data.resize, given.data.test_every)
        return _split(given, dataset, folder.partitions(dataset))
    if extra := sorted({"split", "clients"} & fields.keys()):
        raise FedloomError(f"from: {path} says who holds what; leave out {extra[0]}")
    stored = notes(path)
    partition = Partition.load(path)
    stored_fields: dict[str, Any] = {name: stored[name] for name in ("data", "seed") if name in stored}
    spec = f"file:{path}" + (f"+{stored['changes']}" if stored.get("changes") else "")
    given = recipe({**stored_fields, **fields, "split": spec, "clients": partition.clients})
    import_parts(given.parts)
    with about("data"):
        dataset = load(given.data.name, given.data.resize, given.data.test_every)
    return _split(given, dataset)


def _split(given: Recipe, dataset: Dataset, partitions: list[Partition] | None = None) -> Split:
    pool, _, public = hold_back(dataset, given)
    further = public if given.data.public_to_clients else None
    with about("split"):
        client_views = stages(
            given.split,
            dataset,
            given.clients,
            given.seed,
            pool,
            partitions or (),
            further,
            tested_samples(dataset, given),
        )
        if given.data.validation and given.data.validation_from == "clients" and not partitions:
            client_views, _ = hold_out(client_views, given.data.validation, public)
    return Split(dataset, given.data.name, given.split, given.seed, client_views)
