"""The schema of all text that travels: what a node may say to the server, and the server to a node.

A message is parsed here once, on arrival, into frozen typed values; no other code reads its text. Types are strict, numbers
have a range, strings a length and no control characters, and unknown fields are refused. A message that does not fit raises a
FedloomError with a short sentence, never another exception.

Orders and reports of tasks are not listed here: they are derived from the fields and `reported` of the task classes.
The ranges are what the code can handle. How large a site's claims may be is decided by the recipe; see `claims.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    create_model,
    model_validator,
)

from fedloom.data import InputSpec, Kind
from fedloom.data.inputs import MOST_TOKENS
from fedloom.engine.sites import Sites
from fedloom.engine.tasks import Task
from fedloom.engine.tasks.task import Number
from fedloom.errors import CONTROL, FedloomError, cleaned, shown
from fedloom.evaluation.tasks import TASKS
from fedloom.recipe import Recipe

MAX_CHARACTERS = 4 << 20  # of a message's text
MAX_DEPTH = 8  # of nested brackets; the join order needs three
MAX_VALUES = 250_000  # in a text
MAX_FIELDS = 32  # of one object
MAX_CLASSES = 100_000  # class names in one message
MAX_COHORT = 10_000  # clients of a round with secure aggregation
REFUSAL_LENGTH = 500  # characters
NAME_LENGTH = 80  # characters of a site's name
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{])|([\]}])|,', re.DOTALL)  # a string is one token


# types of fields


def _printable(text: str) -> str:
    if CONTROL.search(text):
        raise ValueError(f"is {shown(text)}")
    return text


def _safe(value: Any) -> Any:
    return cleaned(value, REFUSAL_LENGTH) if isinstance(value, str) else value


def _at_most(count: int) -> BeforeValidator:
    """Check the length before the items: each of them could be an error of its own."""

    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) > count:
            raise ValueError(f"is {shown(value)}")
        return tuple(value)

    return BeforeValidator(check)


def _class_names(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_CLASSES:
        raise ValueError(f"is {shown(value)}")
    for name in value:
        if not isinstance(name, str) or not 1 <= len(name) <= 200 or CONTROL.search(name):
            raise ValueError(f"holds {shown(name)}")
    return tuple(value)


def _bounded(shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape or math.prod(shape) > 1 << 24:
        raise ValueError(f"is {shown(shape)}")
    return shape


Text = Annotated[str, AfterValidator(_printable)]
Name = Annotated[Text, Field(max_length=NAME_LENGTH)]
ClassNames = Annotated[tuple[str, ...], PlainValidator(_class_names)]
SafeText = Annotated[str, BeforeValidator(_safe)]  # a sentence for a person: cleaned rather than refused
Federation = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # sites use it as the name of a folder
Client = Annotated[int, Field(ge=0, le=10**9)]
Count = Annotated[int, Field(ge=0, le=2**40)]
Round = Annotated[int, Field(ge=0, le=10**9)]
Side = Annotated[int, Field(ge=1, le=1 << 24)]
Shape = Annotated[tuple[Side, ...], _at_most(6), AfterValidator(_bounded)]
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Loss = Annotated[float, Field(ge=-1e39, le=1e39, allow_inf_nan=False)] | None  # None: not a finite number
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Rounds = Annotated[tuple[Round, ...], _at_most(64)]
Samples = Annotated[int, Field(ge=0, le=2**60)]  # of several clients
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(max_length=256, pattern=r"^([0-9a-f]{2})+$")]  # P-384 signatures have at most 208
PublicKey = Annotated[str, Field(max_length=400, pattern=r"^ecdsa-sha2-nistp384 [A-Za-z0-9+/]+={0,2}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
NodeId = Annotated[int, Field(ge=0, lt=2**64)]  # Flower's
CohortEntry = Annotated[tuple[Client, NodeId], _at_most(2)]
ClientSignature = Annotated[tuple[Client, Signature], _at_most(2)]


class StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Inputs(StrictModel):
    """The inputs of a net; see `InputSpec`."""

    kind: Kind
    shape: Shape
    dtype: Literal["uint8", "float32", "int32"]
    scale: Scale
    vocabulary: Tokens
    padding: Tokens

    @model_validator(mode="after")
    def _consistent(self) -> Inputs:
        types = {"image": ("uint8", "float32"), "features": ("float32",), "tokens": ("int32",)}
        axes = {"image": 3, "features": len(self.shape), "tokens": 1}
        if self.dtype not in types[self.kind] or len(self.shape) != axes[self.kind]:
            raise ValueError(f"shape is {shown(self.shape)} of {self.dtype} for {self.kind}")
        if (self.kind == "tokens") != (self.vocabulary > 0) or self.padding > max(self.vocabulary - 1, 0):
            raise ValueError(f"vocabulary is {self.vocabulary} for {self.kind}, padded with {self.padding}")
        return self

    def value(self) -> InputSpec:
        return InputSpec(**dict(self))


# from a node to the server


class EmptyReport(StrictModel):
    """A report without numbers."""


class Proof(StrictModel):
    """A proof that a node holds the key of the site it claims to be; see `identity.py`."""

    key: PublicKey
    signature: Signature


class SiteFacts(Proof):
    """All that a site reports about itself and its data."""

    name: Name
    train: Count
    test: Count
    inputs: Inputs
    schema_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")]  # of tables and texts: how rows become inputs
    class_names: ClassNames
    version: Name


NUMBERS: Mapping[Number, Any] = {"count": Count, "seconds": Seconds, "loss": Loss, "metric": Loss}


def report_model(task: type[Task], recipe: Recipe) -> type[StrictModel]:
    """The schema of a task's report under a recipe, derived from `Task.reported`."""
    return _report_model(task, tuple(task.reported(recipe).items()))


@cache
def _report_model(task: type[Task], declared: tuple[tuple[str, Number], ...]) -> type[StrictModel]:
    numbers: dict[str, Any] = {name: (NUMBERS[number], ...) for name, number in declared}
    return create_model(f"{task.__name__}Report", __base__=StrictModel, **numbers)


class _Envelope(StrictModel):
    client: Client | None
    digest: SafeText
    report: dict[str, Any] | None = None
    refused: Annotated[SafeText, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _either(self) -> _Envelope:
        if (self.report is None) == (self.refused is None):
            raise ValueError("it must either report or refuse")
        return self


@dataclass(frozen=True)
class Reply:
    """A node's answer: the report that was asked for, or why the node refused."""

    client: int | None
    digest: str
    report: StrictModel
    refused: str | None = None


def parse_reply(text: str, expected: type[StrictModel]) -> Reply:
    """A node's answer to an order that asks for this report."""
    envelope = _validate(_Envelope, read_json(text))
    report: StrictModel = EmptyReport()
    if envelope.refused is None:
        report = _validate(expected, envelope.report)
    return Reply(envelope.client, envelope.digest, report, envelope.refused)


def json_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report as it is sent: a number that is not finite is null."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in report.items()}


# from the server to a node


@dataclass(frozen=True)
class FederationInfo:
    """What the server tells every site about the federation, beside the recipe."""

    sites: Sites
    samples: int  # of all clients
    public: int
    labeled: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> FederationInfo:
        return _validate(_FederationInfo, content).value()


class _Sites(StrictModel):
    federation: Federation
    data: Literal["split", "sites"]
    inputs: Inputs
    class_names: ClassNames
    test: Annotated[Text, Field(max_length=4096)] | None = None


class _FederationInfo(StrictModel):
    sites: _Sites
    samples: Samples
    public: Count
    labeled: bool

    def value(self) -> FederationInfo:
        sites = Sites(**{**dict(self.sites), "inputs": self.sites.inputs.value()})
        return FederationInfo(sites, self.samples, self.public, self.labeled)


@dataclass(frozen=True)
class RoundTerms:
    """What the server tells every node about a round with secure aggregation; nodes sign it."""

    federation: str
    round: int
    cohort: Mapping[int, int]  # client -> node
    samples: int  # of these clients together: what a client's share is a share of
    model: str  # digest of what is broadcast

    def to_json(self) -> dict[str, Any]:
        pairs = [[client, node] for client, node in sorted(self.cohort.items())]
        return {**vars(self), "cohort": pairs}

    @classmethod
    def from_json(cls, content: Any) -> RoundTerms:
        return _validate(_RoundTerms, content).value()


class _RoundTerms(StrictModel):
    federation: Federation
    round: Round
    cohort: Annotated[tuple[CohortEntry, ...], _at_most(MAX_COHORT)]
    samples: Samples
    model: Digest

    @model_validator(mode="after")
    def _each_once(self) -> _RoundTerms:
        for numbers in zip(*self.cohort, strict=True):
            if len(set(numbers)) < len(numbers):
                raise ValueError("name a client or node twice")
        return self

    def value(self) -> RoundTerms:
        return RoundTerms(self.federation, self.round, dict(self.cohort), self.samples, self.model)


class Order(StrictModel):
    """What a node is asked to do."""

    kind: str
    digest: SafeText


class Challenge(Order):
    """An order that asks who the node is: the node signs its answer together with a nonce of the server."""

    federation: Federation
    nonce: Nonce


class HelloOrder(Challenge):
    kind: Literal["hello"]


class JoinOrder(Challenge):
    kind: Literal["join"]
    info: _FederationInfo
    base: Digest | None = None  # of a frozen base, which is not sent: the site builds it by itself

    @model_validator(mode="after")
    def _one_federation(self) -> JoinOrder:
        if self.federation != self.info.sites.federation:
            raise ValueError("its federation is not that of its info")
        return self


class SecAggOrder(Order):
    """A stage of secure aggregation in which nothing is trained."""

    kind: Literal["keys"]
    terms: _RoundTerms | None = None  # in the setup stage
    signed: Annotated[tuple[ClientSignature, ...], _at_most(MAX_COHORT)] = ()  # confirmations of the sum, for unmasking

    @model_validator(mode="after")
    def _each_once(self) -> SecAggOrder:
        if len(dict(self.signed)) < len(self.signed):
            raise ValueError("its signed names a client twice")
        return self


class TaskOrder(Order):
    """A task on the site's data. The node itself decides which client it is and which row of its buffers it uses.

    Each remote task has its own subclass, which `order_model` derives from the fields of the task.
    """

    kind: Literal["task"]
    federation: Federation
    task: Name
    arguments: StrictModel
    base: Round | None = None  # version of the client's state to start from
    at: Round = 0  # round that the weights come from
    into: Round | None = None  # version under which the new state is stored
    keep: Rounds | None = None  # versions that may still be needed
    before: Round | None = None  # version of the client's state that the round's training started from

    @model_validator(mode="after")
    def _versions(self) -> TaskOrder:
        task, given = self.task_for(0), self.model_fields_set
        for name in ("into", "keep"):
            if "state" in task.outputs and getattr(self, name) is None:
                raise ValueError(f"its {name} is {'None' if name in given else 'missing'}")
            if "state" not in task.outputs and name in given:
                raise ValueError(f"{name} was not asked for")
        if "before" in given and not {"state", "upload"}.issubset(task.inputs):
            raise ValueError("before was not asked for")
        return self

    def task_for(self, client: int) -> Task:
        task = TASKS[self.task]
        own = {name: value for name, value in (("client", client), ("row", 0)) if name in _own_fields(task)}
        return task(**dict(self.arguments), **own)


class KeepOrder(Order):
    """The run is over: the site stores the served model."""

    kind: Literal["keep"]
    federation: Federation
    base: Round | None = None
    at: Round = 0


ORDERS: Mapping[str, type[Order]] = {
    "hello": HelloOrder,
    "keys": SecAggOrder,
    "join": JoinOrder,
    "task": TaskOrder,
    "keep": KeepOrder,
}
ARGUMENTS: Mapping[str, Any] = {"int": Round, "str": Name, "bool": bool}  # by the annotation of a task's field


def _own_fields(task: type[Task]) -> set[str]:
    """Fields of a task that a node fills in itself."""
    return {field.name for field in fields(task)} & {"client", "row"}


@cache
def order_model(task: type[Task]) -> type[TaskOrder]:
    """The schema of the order for a task; its arguments are the fields of the task."""
    own = _own_fields(task)
    kinds = {f.name: getattr(f.type, "__name__", str(f.type)) for f in fields(task) if f.name not in own}
    if unknown := [f"{name}: {kind}" for name, kind in kinds.items() if kind not in ARGUMENTS]:
        raise FedloomError(
            f"task {task.kind}: {unknown[0]} cannot be sent to a node; allowed are {', '.join(ARGUMENTS)}"
        )
    given: dict[str, Any] = {name: (ARGUMENTS[kind], ...) for name, kind in kinds.items()}
    arguments = create_model(f"{task.__name__}Arguments", __base__=StrictModel, **given)
    return create_model(f"{task.__name__}Order", __base__=TaskOrder, arguments=(arguments, ...))


def order_for(task: Task) -> dict[str, Any]:
    """The part of an order that says which task to perform."""
    own = _own_fields(type(task))
    arguments = {name: value for name, value in task.to_json()["arguments"].items() if name not in own}
    return {"kind": "task", "task": task.kind, "arguments": arguments}


def parse_order(text: str) -> Order:
    content = read_json(text)
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in ORDERS:
        raise FedloomError(f"its kind is {shown(kind)}; allowed are {', '.join(ORDERS)}")
    model = ORDERS[kind]
    if model is TaskOrder:
        name = content.get("task")
        task = TASKS.get(name) if isinstance(name, str) else None
        if task is None or not task.remote:
            raise FedloomError(f"its task is {shown(name)}, which nodes do not perform")
        model = order_model(task)
    return _validate(model, content)


# JSON


def read_json(text: str) -> dict[str, Any]:
    """A JSON object, bounded in length and depth before it is parsed. NaN, infinity and repeated keys are refused."""
    if len(text) > MAX_CHARACTERS:
        raise FedloomError(f"the message's text has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    _check_size(text)
    try:
        content = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except FedloomError:
        raise
    except (ValueError, RecursionError):  # ValueError also for a number with too many digits
        raise FedloomError("the message's text is not JSON") from None
    if not isinstance(content, dict):
        raise FedloomError("the message's text is not an object")
    return content


def _check_size(text: str) -> None:
    depth = 0
    for count, token in enumerate(_TOKENS.finditer(text)):
        depth += (token[1] is not None) - (token[2] is not None)
        if depth > MAX_DEPTH:
            raise FedloomError(f"the message's text is nested more than {MAX_DEPTH} deep")
        if count > MAX_VALUES:
            raise FedloomError(f"the message's text has more than {MAX_VALUES} values")


def _no_constant(name: str) -> None:
    raise FedloomError(f"the message's text has {name}, which is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise FedloomError("the message's text has a field twice")
    if len(content) > MAX_FIELDS:
        raise FedloomError(f"the message's text has an object of {len(content)} fields; {MAX_FIELDS} are allowed")
    if unprintable := [name for name in content if len(name) > NAME_LENGTH or CONTROL.search(name)]:
        raise FedloomError(f"{shown(unprintable[0])} was not asked for")
    return content


# errors as sentences

M = TypeVar("M", bound=StrictModel)


def _validate(model: type[M], content: Any) -> M:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise FedloomError(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = cleaned(".".join(map(str, first["loc"])), 80)
    if first["type"] == "missing":
        return f"its {place} is missing"
    if first["type"] == "extra_forbidden":
        return f"{place} was not asked for"
    if first["type"] == "value_error":
        reason = str(first["msg"]).removeprefix("Value error, ")
        return f"its {place} {reason}" if place else reason
    return f"its {place} is {shown(first['input'])}"
