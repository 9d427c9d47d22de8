"""The form of a paper's file: protocols, tables of published numbers, claims. Checked when a file is loaded.

A table is one or more blocks of numbers. A block has named axes for its rows and columns (`s: [100, 50, 10]`), and a line of
numbers for each row. What a label of an axis means is an `Entry`: recipe fields, a sum, a measure. In the texts of an entry
`{}` is its own label and `{tau}` the label of another axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

_STRICT = ConfigDict(frozen=True, extra="forbid")

Label = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value)]
Where = dict[str, Label | list[Label]]


def agree(labels: Mapping[str, str], where: Where) -> bool:
    """Whether every axis of `where` has the label, or one of the labels, that it asks for."""
    return all(labels.get(axis) in ([wanted] if isinstance(wanted, str) else wanted) for axis, wanted in where.items())


KINDS = {
    "global": "global model, pooled test set",
    "clean": "global model, test samples without noise",
    "client": "global model, mean over clients before fine-tuning",
    "own": "clients' own models, mean over clients",
    "seconds": "seconds of a round",
    "setting": "a chosen setting",
}


class Measure(BaseModel):
    """What a number is.

    global   the global model on the pooled test set
    clean    the same on test samples without the split's shifts
    client   the global model on each client's own test samples, mean over clients, before any fine-tuning
    own      each client's own model on its own test samples, mean over clients
    tuned    the same after some epochs of fine-tuning a part of the net, at rate `lr` or `lr_share` times the method's own
    seconds  of a round, on the paper's machine
    setting  a chosen hyper-parameter, not a result
    """

    model_config = _STRICT
    kind: Literal["global", "clean", "client", "own", "tuned", "seconds", "setting"]
    part: Literal["full", "head", "body", "alternate"] = "full"  # alternate: pieces of the net in turns
    epochs: int | None = None
    lr: float | None = None
    lr_share: float | None = None
    loss: str = "method"  # | objective | ce | the sum whose loss it is

    @property
    def text(self) -> str:
        """In words."""
        if self.kind != "tuned":
            return KINDS[self.kind]
        rate = f"rate {self.lr:g}" if self.lr else f"{self.lr_share:g} x rate" if self.lr_share else "rate not printed"
        epochs = "epochs not printed" if not self.epochs else "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        loss = "" if self.loss == "method" else f", loss {self.loss}"
        return f"fine-tuned ({self.part}, {epochs}, {rate}{loss}), mean over clients"


class Entry(BaseModel):
    """What a table, a block or a label of an axis contributes to a cell; later ones override earlier ones.

    Notes do not override: those of table, block, labels, the sum's parts and remarks add up.
    """

    model_config = _STRICT
    protocol: str | None = None
    set: dict[str, Any] = {}  # recipe fields, data.name and so on
    sum: str | None = None
    also: list[str] = []  # other sums that the page compares with the number
    split_also: str | None = None  # another pattern of splits that the page compares with the number
    measure: Label | dict[str, Any] | None = None  # its name in `measures`, or the fields of a Measure
    start: str | None = (
        None  # a sum that is trained first, under the protocol alone; the cell's run begins with its weights
    )
    rounds_share: float | None = None  # of the protocol's rounds
    counted_epochs: Label | None = None  # the epochs that rounds_times_epochs counts, where they are not the recipe's
    beta: float | str | None = (
        None  # of the sum's regularizer: a number, or the table whose cell of the same labels has it
    )
    name: str | None = None  # of the method, where the label is not enough
    note: str | None = None  # what is known to be wrong or not comparable
    not_runnable: str | None = None  # why no recipe gives this number
    compared: bool = False  # the page compares a number with runs although no recipe gives it exactly
    protocol_printed: bool = True
    as_published: dict[str, Any] = {}  # sum, measure and set of the variant that the released code runs


class Axis(BaseModel):
    model_config = _STRICT
    title: str | None = None
    each: Entry | None = None  # of every label that is not listed
    labels: dict[Label, Entry] = {}

    def entry(self, label: str) -> Entry | None:
        return self.labels.get(label, self.each)


class Remark(BaseModel):
    """Something about the cells whose labels agree with `where`."""

    model_config = _STRICT
    where: Where = {}
    note: str | None = None
    not_runnable: str | None = None
    measure: dict[str, Any] | None = None
    as_published: dict[str, Any] = {}

    def concerns(self, labels: Mapping[str, str]) -> bool:
        return agree(labels, self.where)


class Block(Entry):
    """One grid of numbers: one line `labels: numbers` a row; `.` is not printed, `failed` printed as such."""

    rows: dict[str, list[Label]]
    columns: dict[str, list[Label]]
    values: str


class Table(Entry):
    label: str
    title: str
    unit: Literal["percent", "fraction", "seconds", "none"] = "percent"
    orders: str | None = "method"  # the axis along which the paper ranks
    deviations: Literal["clients", "seeds"] = "clients"  # what printed deviations are over
    axes: dict[str, Axis] = {}  # of this table alone
    remarks: list[Remark] = []
    blocks: list[Block]


class PartSettings(BaseModel):
    """What a sum with this part changes in a protocol."""

    model_config = _STRICT
    set: dict[str, Any] = {}
    hyper: dict[str, Any] = {}  # hyper-parameters of the part that a sum does not spell out
    released: dict[str, Any] = {}  # hyper-parameters with which the part is what the released code runs
    note: str | None = None  # at every cell whose sum has the part


class StandIn(BaseModel):
    """Another data set that the page compares with this protocol's numbers."""

    model_config = _STRICT
    set: dict[str, Any]
    note: str


class Sizes(BaseModel):
    """Of the data set, for estimates where it is not at hand."""

    model_config = _STRICT
    train: int
    test: int
    shape: tuple[int, int, int]  # channels, height, width
    classes: int


class Protocol(BaseModel):
    """Every setting of an experiment but the method: `fedloom run --protocol NAME --method SUM`."""

    model_config = _STRICT
    about: str
    extends: str | None = None
    recipe: dict[str, Any] = {}
    rounds_times_epochs: int | None = None
    parts: dict[str, PartSettings] = {}
    measured: dict[str, str] = {}  # what is tested -> how, a name in the paper's `measures`
    implied: list[str] = []  # parts that the net has already, so that a sum without them is the same
    sizes: Sizes | None = None
    where_to_get: str = ""
    stand_in: StandIn | None = None
    not_printed: list[str] = []  # fields that the page does not hold against a run, since the paper does not say them
    notes: list[str] = []


class Check(BaseModel):
    """Cells of `better` are above those of `than` that share all other labels; a list of labels means each of them.

    `where` may name the protocol, too.
    """

    model_config = _STRICT
    table: str
    where: Where = {}
    better: Where
    than: Where


class Claim(BaseModel):
    model_config = _STRICT
    text: str
    checks: list[Check] = []
    note: str = ""


class Paper(BaseModel):
    model_config = _STRICT
    name: str
    title: str
    cite: str
    about: str  # how it trained and evaluated
    notes: list[str] = []
    missing: list[str] = []  # tables whose numbers are not at hand
    measures: dict[str, Measure] = {}
    protocols: dict[str, Protocol]
    axes: dict[str, Axis] = {}
    tables: dict[str, Table]
    claims: list[Claim] = []

    @model_validator(mode="after")
    def _consistent(self) -> Paper:
        for name, protocol in self.protocols.items():
            if protocol.extends is not None and protocol.extends not in self.protocols:
                raise ValueError(f"protocols.{name}: extends {protocol.extends}, which is not in this file")
            if unknown := [how for how in protocol.measured.values() if how not in self.measures]:
                raise ValueError(f"protocols.{name}: there is no measure {unknown[0]}")
        for name, table in self.tables.items():
            for block in table.blocks:
                for axis, labels in {**block.rows, **block.columns}.items():
                    known = table.axes.get(axis) or self.axes.get(axis)
                    if known is None:
                        raise ValueError(f"tables.{name}: the axis {axis} is not described under axes")
                    for label in labels:
                        if known.entry(label) is None:
                            raise ValueError(f"tables.{name}: the axis {axis} has no label {label}")
        for claim in self.claims:
            for check in claim.checks:
                if check.table not in self.tables:
                    raise ValueError(f"claims: there is no table {check.table}")
                self._labels(f"claims: {check.table}", check.table, check.where, check.better, check.than)
        for name, table in self.tables.items():
            self._labels(f"tables.{name}.remarks", name, *(remark.where for remark in table.remarks))
        return self

    def _labels(self, place: str, table: str, *wheres: Where) -> None:
        """Refuse labels that no block of a table has."""
        known: dict[str, set[str]] = {"protocol": set(self.protocols)}
        for block in self.tables[table].blocks:
            for axis, labels in {**block.rows, **block.columns}.items():
                known.setdefault(axis, set()).update(labels)
        for where in wheres:
            for axis, wanted in where.items():
                for label in [wanted] if isinstance(wanted, str) else wanted:
                    if label not in known.get(axis, ()):
                        raise ValueError(f"{place}: no block has {axis}={label}")
