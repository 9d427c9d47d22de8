"""The one schema of all that travels as text: what a node may say to the server, and the server to a node.

A message is parsed here once, on arrival, into frozen typed values, and nothing else reads its text. Types are strict,
numbers have a range, texts a length and no control characters; unknown fields are refused. Whatever does not fit is a
FedloomError with a short sentence, never another exception. A new field of a message is declared here first.

Ranges here are what the code can bear. How much of a claim is believed is decided by the recipe; see `claims.py`.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from fedloom.engine.sites import Sites
from fedloom.errors import FedloomError

LONGEST = 4 << 20  # characters of a message's text
DEEPEST = 8  # brackets within brackets; a card takes three
MOST = 250_000  # values in a text
FIELDS = 32  # fields of one object
CLASSES = 100_000  # class names in one message
COHORT = 10_000  # clients of a masked round
SAID = 500  # characters of a refusal
NAME = 80  # characters of a site's name
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")  # and half characters
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{])|([\]}])|,', re.DOTALL)  # a string is one
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlist = _SHORT.maxdict = 3
_SHORT.maxlevel = 2


# what is echoed of a peer's words


def shown(value: object) -> str:
    """A value in a sentence: short, on one line, without control characters."""
    return plain(_SHORT.repr(value), 120)


def plain(text: str, most: int) -> str:
    """A peer's text without control characters and no longer than this."""
    text = CONTROL.sub("\N{REPLACEMENT CHARACTER}", text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


# the types of fields


def _printable(text: str) -> str:
    if CONTROL.search(text):
        raise ValueError(f"is {shown(text)}")
    return text


def _said(value: Any) -> Any:
    return plain(value, SAID) if isinstance(value, str) else value


def _at_most(count: int) -> BeforeValidator:
    """Ahead of looking at a list's items, each of which could be an error of its own."""

    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) > count:
            raise ValueError(f"is {shown(value)}")
        return tuple(value)

    return BeforeValidator(check)


def _class_names(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= CLASSES:
        raise ValueError(f"is {shown(value)}")
    for name in value:
        if not isinstance(name, str) or not 1 <= len(name) <= 200 or CONTROL.search(name):
            raise ValueError(f"holds {shown(name)}")
    return tuple(value)


def _pixels(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    if math.prod(shape) > 1 << 24:
        raise ValueError(f"is {shown(shape)}")
    return shape


Text = Annotated[str, AfterValidator(_printable)]
Name = Annotated[Text, Field(max_length=NAME)]
ClassNames = Annotated[tuple[str, ...], PlainValidator(_class_names)]
Said = Annotated[str, BeforeValidator(_said)]  # words for a person, made harmless rather than refused
Federation = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # it names a folder at sites
Client = Annotated[int, Field(ge=0, le=10**9)]
Count = Annotated[int, Field(ge=0, le=2**40)]
Round = Annotated[int, Field(ge=0, le=10**9)]
Side = Annotated[int, Field(ge=1, le=4096)]
Shape = Annotated[tuple[Side, Side, Side], _at_most(3), AfterValidator(_pixels)]
Loss = Annotated[float, Field(ge=-1e39, le=1e39, allow_inf_nan=False)] | None  # None: not a finite number
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Rounds = Annotated[tuple[Round, ...], _at_most(64)]
Samples = Annotated[int, Field(ge=0, le=2**60)]  # of several clients
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(max_length=256, pattern=r"^([0-9a-f]{2})+$")]  # of P-384 it has 208 at most
PublicKey = Annotated[str, Field(max_length=400, pattern=r"^ecdsa-sha2-nistp384 [A-Za-z0-9+/]+={0,2}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
NodeNumber = Annotated[int, Field(ge=0, lt=2**64)]  # Flower's
Placed = Annotated[tuple[Client, NodeNumber], _at_most(2)]
Signed = Annotated[tuple[Client, Signature], _at_most(2)]


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# what a node says


class Nothing(Message):
    """An answer without numbers."""


class Proof(Message):
    """That a node holds the key of the site it says to be; see `identity.py`."""

    key: PublicKey
    signature: Signature


class Facts(Proof):
    """All that a site tells about itself and its data."""

    name: Name
    train: Count
    test: Count
    shape: Shape
    class_names: ClassNames
    version: Name


class Acted(Message):
    loss: Loss
    steps: Count


class Trained(Acted):
    seconds: Seconds


class Tested(Message):
    correct: Count
    total: Count

    @model_validator(mode="after")
    def _possible(self) -> Tested:
        if self.correct > self.total:
            raise ValueError(f"it has {self.correct} of {self.total} right")
        return self


REPORTS: Mapping[str, type[Message]] = {
    "hello": Facts,
    "join": Facts,
    "train": Trained,
    "act": Acted,
    "tell": Nothing,
    "client": Tested,
    "keep": Nothing,
    "keys": Nothing,
}


class _Envelope(Message):
    client: Client | None
    digest: Said
    report: dict[str, Any] | None = None
    refused: Annotated[Said, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _either(self) -> _Envelope:
        if (self.report is None) == (self.refused is None):
            raise ValueError("it must either report or refuse")
        return self


@dataclass(frozen=True)
class Reply:
    """An answer of a node: a report of the kind that was asked for, or why it refused."""

    client: int | None
    digest: str
    report: Message
    refused: str | None = None


def parse_reply(text: str, kind: str, masked: bool = False) -> Reply:
    """What a node answered to an order of this kind; under masks the numbers are in the masked vector."""
    envelope = _parsed(_Envelope, read_json(text))
    report: Message = Nothing()
    if envelope.refused is None:
        report = _parsed(Nothing if masked else REPORTS[kind], envelope.report)
    return Reply(envelope.client, envelope.digest, report, envelope.refused)


def outgoing(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report as it is sent: a number that is not finite is null."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in report.items()}


# what the server says


@dataclass(frozen=True)
class Card:
    """What the server tells every site about the federation, beside the recipe."""

    sites: Sites
    samples: int  # of all clients
    public: int
    labelled: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, given: Any) -> Card:
        return _parsed(_Card, given).card()


class _Sites(Message):
    federation: Federation
    data: Literal["split", "sites"]
    shape: Shape
    class_names: ClassNames
    scale: Scale
    test: Annotated[Text, Field(max_length=4096)] | None = None


class _Card(Message):
    sites: _Sites
    samples: Samples
    public: Count
    labelled: bool

    def card(self) -> Card:
        return Card(Sites(**dict(self.sites)), self.samples, self.public, self.labelled)


@dataclass(frozen=True)
class Terms:
    """A masked round, as the server tells it to every node."""

    federation: str
    round: int
    cohort: Mapping[int, int]  # client -> node
    samples: int  # of these clients together: what a client's share is a share of
    model: str  # digest of what is broadcast

    def to_json(self) -> dict[str, Any]:
        pairs = [[client, node] for client, node in sorted(self.cohort.items())]
        return {**vars(self), "cohort": pairs}

    @classmethod
    def of(cls, given: Any) -> Terms:
        return _parsed(_Terms, given).terms()


class _Terms(Message):
    federation: Federation
    round: Round
    cohort: Annotated[tuple[Placed, ...], _at_most(COHORT)]
    samples: Samples
    model: Digest

    @model_validator(mode="after")
    def _each_once(self) -> _Terms:
        for numbers in zip(*self.cohort, strict=True):
            if len(set(numbers)) < len(numbers):
                raise ValueError("name a client or node twice")
        return self

    def terms(self) -> Terms:
        return Terms(self.federation, self.round, dict(self.cohort), self.samples, self.model)


class Order(Message):
    """What a node is asked to do."""

    kind: str
    digest: Said


class Question(Order):
    """Who a node is: it signs the answer together with what the server has just drawn."""

    federation: Federation
    nonce: Nonce


class Hello(Question):
    kind: Literal["hello"]


class Keys(Order):
    """A stage of secure aggregation without training."""

    kind: Literal["keys"]
    terms: _Terms | None = None  # of the setup
    signed: Annotated[tuple[Signed, ...], _at_most(COHORT)] = ()  # by clients that confirm the sum, of the unmasking

    @model_validator(mode="after")
    def _each_once(self) -> Keys:
        if len(dict(self.signed)) < len(self.signed):
            raise ValueError("its signed names a client twice")
        return self


class Join(Question):
    kind: Literal["join"]
    card: _Card

    @model_validator(mode="after")
    def _one_federation(self) -> Join:
        if self.federation != self.card.sites.federation:
            raise ValueError("its federation is not that of its card")
        return self


class OfRound(Message):
    round: Round


class OfPart(OfRound):
    part: Name


class OfTest(OfRound):
    personal: bool


class Work(Order):
    """A job on the site's data."""

    federation: Federation
    arguments: Message
    base: Round | None = None  # the version of the client's memory to begin from
    at: Round = 0  # the round that the weights come from


class Train(Work):
    kind: Literal["train"]
    arguments: OfRound
    into: Round  # the version that the memory becomes
    keep: Rounds  # versions that may still be asked for


class Act(Work):
    kind: Literal["act"]
    arguments: OfPart
    into: Round
    keep: Rounds
    before: Round | None = None  # the version of the client's memory that the round's training began from


class Tell(Work):
    kind: Literal["tell"]
    arguments: OfPart


class Evaluate(Work):
    kind: Literal["client"]
    arguments: OfTest


class Keep(Work):
    kind: Literal["keep"]
    arguments: Nothing


ORDERS: Mapping[str, type[Order]] = {
    "hello": Hello,
    "keys": Keys,
    "join": Join,
    "train": Train,
    "act": Act,
    "tell": Tell,
    "client": Evaluate,
    "keep": Keep,
}


def parse_order(text: str) -> Order:
    found = read_json(text)
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in ORDERS:
        raise FedloomError(f"its kind is {shown(kind)}; known are {', '.join(ORDERS)}")
    return _parsed(ORDERS[kind], found)


# JSON


def read_json(text: str) -> dict[str, Any]:
    """A JSON object, bounded in length and depth before it is read; NaN, infinity and a key twice are no JSON here."""
    if len(text) > LONGEST:
        raise FedloomError(f"the message's text has {len(text)} characters; {LONGEST} are allowed")
    _measure(text)
    try:
        found = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except FedloomError:
        raise
    except (ValueError, RecursionError):  # also of a number with too many digits
        raise FedloomError("the message's text is not JSON") from None
    if not isinstance(found, dict):
        raise FedloomError("the message's text is not an object")
    return found


def _measure(text: str) -> None:
    depth = 0
    for count, found in enumerate(_TOKENS.finditer(text)):
        depth += (found[1] is not None) - (found[2] is not None)
        if depth > DEEPEST:
            raise FedloomError(f"the message's text is nested more than {DEEPEST} deep")
        if count > MOST:
            raise FedloomError(f"the message's text has more than {MOST} values")


def _no_constant(name: str) -> None:
    raise FedloomError(f"the message's text has {name}, which is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise FedloomError("the message's text has a field twice")
    if len(found) > FIELDS:
        raise FedloomError(f"the message's text has an object of {len(found)} fields; {FIELDS} are allowed")
    if strange := [name for name in found if len(name) > NAME or CONTROL.search(name)]:
        raise FedloomError(f"{shown(strange[0])} was not asked for")
    return found


# sentences

M = TypeVar("M", bound=Message)


def _parsed(model: type[M], given: Any) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise FedloomError(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = plain(".".join(map(str, first["loc"])), 80)
    if first["type"] == "missing":
        return f"its {place} is missing"
    if first["type"] == "extra_forbidden":
        return f"{place} was not asked for"
    if first["type"] == "value_error":
        said = str(first["msg"]).removeprefix("Value error, ")
        return f"its {place} {said}" if place else said
    return f"its {place} is {shown(first['input'])}"
