"""One published number: what was printed, and the recipe and measure that give the same number here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from fedloom.errors import FedloomError
from fedloom.papers.apply import apply, flat, is_place, nested
from fedloom.papers.load import paper, protocols
from fedloom.papers.schema import Measure, Paper, Protocol
from fedloom.recipe import Recipe, recipe


@dataclass(frozen=True)
class PublishedCell:
    """One number of a table. Values are in percent (seconds, if it measures time); None: the paper says that it failed."""

    paper: str  # its key
    table: str
    labels: Mapping[str, str]  # axis -> label, rows first
    columns: tuple[str, ...]  # the axes that are columns
    block: int
    value: float | None
    deviation: float | None  # over clients, unless it is over seeds
    measure: Measure
    sum: str | None
    protocol: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)  # recipe fields over those of the protocol
    own_settings: tuple[str, ...] = ()  # those that the method brings
    counted_epochs: int | None = None
    start: str | None = None  # the sum of a first run whose weights this one begins with
    rounds_share: float = 1.0
    name: str = ""  # of the method, as printed
    note: str = ""
    not_runnable: str = ""
    compared: bool = False
    protocol_printed: bool = True
    also: tuple[str, ...] = ()
    split_also: str | None = None
    variant: Mapping[str, Any] = field(default_factory=dict)  # what the released code ran
    seed_deviation: float | None = None  # the printed deviation, where it is over seeds

    @property
    def id(self) -> str:
        return ", ".join(f"{axis}={label}" for axis, label in self.labels.items())

    @property
    def key(self) -> tuple[str, str]:
        """Unique among all cells."""
        return f"{self.place}#{self.block}", self.id

    @property
    def place(self) -> str:
        return f"{self.paper}/{self.table}"

    def as_published(self) -> PublishedCell:
        """The variant that the released code ran, if that is another one."""
        if not self.variant:
            return self
        measure = self.variant.get("measure")
        return replace(
            self,
            sum=self.variant.get("sum", self.sum),
            measure=measure_of(paper(self.paper), measure) if measure else self.measure,
            settings={**self.settings, **self.variant.get("set", {})},
            variant={},
            note="as the released code does it; " + self.note,
        )

    def fields(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Flat recipe fields; `given` overrides. Refused if no recipe gives this number.

        A `data.name` that is a place is the paper's data set from there, so size and normalization of the images stay.
        """
        if self.not_runnable or self.sum is None or self.protocol is None:
            raise FedloomError(f"{self.place}, {self.id}: cannot be run: {self.not_runnable or 'no recipe is known'}")
        changed = flat(given or {})
        protocol = protocols()[self.protocol]
        prepared = {name: value for name, value in protocol.recipe.items() if name.startswith("data.")}
        kept = prepared if is_place(str(changed.get("data.name", ""))) else {}
        fields = apply(protocol, self.sum, {**kept, **self.settings, **changed}, self.counted_epochs)
        if self.rounds_share != 1 and "rounds" not in changed:
            fields["rounds"] = max(1, round(self.rounds_share * int(fields["rounds"])))
        return {**fields, **changed}

    def first(self) -> PublishedCell | None:
        """The run whose weights this one begins with, as a cell of its own."""
        if self.start is None:
            return None
        kept = {name: value for name, value in self.settings.items() if name not in self.own_settings}
        return replace(
            self, sum=self.start, start=None, rounds_share=1.0, settings=kept, measure=Measure(kind="global")
        )

    def recipe(self, given: Mapping[str, Any] | None = None) -> Recipe:
        try:
            return recipe(nested(self.fields(given)))
        except FedloomError as error:
            raise FedloomError(f"{self.place}, {self.id}: {error}") from None


def measure_of(whole: Paper, given: str | Mapping[str, Any]) -> Measure:
    if isinstance(given, str):
        return whole.measures.get(given) or Measure.model_validate({"kind": given})
    try:
        return Measure.model_validate(dict(given))
    except ValidationError as error:
        raise FedloomError(
            f"{whole.name}: the measure {dict(given)} is not understood: {error.errors()[0]['msg']}"
        ) from None


def protocol_of(cell: PublishedCell) -> Protocol:
    assert cell.protocol is not None
    return protocols()[cell.protocol]
