"""What to do: one validated, frozen description of an experiment. Everything else reads it, nobody changes it."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedloom.errors import LINE, FedloomError, brief, shown
from fedloom.paths import obstacle
from fedloom.values import TEXT, Unreadable, parse

_FROZEN = ConfigDict(frozen=True, extra="forbid")
MOST = 10**9  # of anything that is counted
LONGEST = 4096  # characters of a text, as of a path
Normalize = Literal["set", "none"] | tuple[list[float], list[float]]


class Data(BaseModel):
    """Which images, and how they are prepared."""

    model_config = _FROZEN
    name: str = "digits"  # digits | NAME in $FEDLOOM_DATA | PATH.npz | hf:owner/name | folder:PATH
    normalize: Normalize = "set"  # after x / 255: by the training images' mean and deviation | not at all | two lists
    resize: Annotated[int, Field(ge=1, le=4096)] | None = None  # side length in pixels
    images: Annotated[int, Field(ge=1, le=MOST)] | None = (
        None  # so many of the training images are dealt out; None: all
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the training images held back from all clients
    public: Annotated[float, Field(ge=0, lt=1)] = (
        0.0  # a further share that belongs to no client and may be used by parts
    )
    public_from: str | None = None  # take the public images, without labels, from this other set instead
    public_to_clients: bool = False  # every client trains on the public images beside its own


class SecAgg(BaseModel):
    """Secure aggregation by Flower's SecAgg+: uploads carry masks that cancel in their sum."""

    model_config = _FROZEN
    # a node shares its keys with so many of a round's nodes, itself included; None: with all
    num_shares: Annotated[int, Field(ge=3, le=MOST)] | None = None
    # of the shares, to unmask a sum: above a half, else a server could get at one node by telling two stories of it
    reconstruction_threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.67
    # numbers of an update beyond this are clipped; 2^31 steps from end to end
    clipping_range: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    # the smallest number of sites that a node masks among and helps to unmask a sum of; None: the threshold of a full cohort
    min_clients: Annotated[int, Field(ge=2, le=MOST)] | None = None
    # nodes believe a public key only if a site of their roster signed it; false: they believe the server
    authenticated: bool = True

    @field_validator("num_shares")
    @classmethod
    def _odd(cls, value: int | None) -> int | None:
        if value is not None and value % 2 == 0:
            raise ValueError("must be odd: the node itself and as many neighbours on either side")
        return value

    def pinned(self) -> dict[str, Any]:
        """What enters a recipe's digest. Both defaults that are left out follow from other fields of the digest."""
        usual = {name for name in ("min_clients", "authenticated") if getattr(self, name) == getattr(SecAgg(), name)}
        return self.model_dump(mode="json", exclude=usual)


class Deploy(BaseModel):
    """How a federation of real machines is waited for, and how much of it is believed.

    Only `secure_aggregation`, `max_distance` and `max_share` decide anything about the bits of a round that nobody missed.
    """

    model_config = _FROZEN
    # a round with fewer accepted uploads is not combined and the run stops; 0: one without any is passed over
    min_cohort: Annotated[int, Field(ge=0, le=MOST)] = 1
    # an upload that lies so many times farther from the broadcast than the median one is lost; null: any is used
    max_distance: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = 1000.0
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0  # seconds for one answer of a node
    join_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0  # seconds to wait for nodes to connect
    secure_aggregation: SecAgg | None = None  # false | true | its fields: the server learns sums of uploads alone
    max_samples: Annotated[int, Field(ge=1, le=2**40)] = 10_000_000  # that a site may claim for training, and for tests
    max_classes: Annotated[int, Field(ge=1, le=100_000)] = 1000  # that all sites together may name
    # largest share of a client in an average of uploads; 1: no bound. Below 1 it changes the weighting, and the digest
    max_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_message_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2048.0  # tensors of one message to a node

    @field_validator("max_share")
    @classmethod
    def _open(cls, value: float, info: ValidationInfo) -> float:
        if value < 1 and info.data.get("secure_aggregation") is not None:
            raise ValueError(
                "must be 1 under secure aggregation, where nodes weigh their uploads before they mask them"
            )
        return value

    @field_validator("secure_aggregation", mode="before")
    @classmethod
    def _secure(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {} if value else None
        if value is not None and not isinstance(value, Mapping | SecAgg):
            raise ValueError(f"must be true, false, or fields of it: {', '.join(SecAgg.model_fields)}")
        return value


class Recipe(BaseModel):
    """An experiment. The fields of the first block are also flags of the command line."""

    model_config = _FROZEN
    data: Data = Data()
    split: str = "shards:2"
    clients: Annotated[int, Field(ge=1, le=MOST)] = 20
    model: str = "mlp"
    method: str = "fedavg"
    rounds: Annotated[int, Field(ge=1, le=MOST)] = 50
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    epochs: Annotated[int, Field(ge=1, le=MOST)] = 1
    batch: Annotated[int, Field(ge=1, le=MOST)] | Literal["full"] = 32
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    schedule: str = "constant"  # constant | step | exp:0.998 | cosine
    weighting: Literal["samples", "uniform"] = "samples"
    augment: Literal["none", "flip", "crop+flip"] = "none"
    precision: Literal["fp32", "bf16", "auto"] = "fp32"  # auto: a rule decides when the run begins
    kernels: Literal["auto", "torch"] = "auto"  # auto: convolutions choose theirs by shape; torch: all are torch's own
    # ray: on a cluster, one for each of its cores
    lanes: Annotated[int, Field(ge=1, le=MOST)] | Literal["auto", "ray"] = "auto"
    # clients that train in one computation
    stack: Annotated[int, Field(ge=2, le=MOST)] | Literal["auto", "off"] = "off"
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    # rounds between tests of the global model; 0: only the last round
    eval_every: Annotated[int, Field(ge=0, le=MOST)] = 1
    init: str | None = None  # PATH.safetensors | hf:owner/name[/file]: first weights; tensors of same name and shape
    name: str | None = None
    out: str | None = None

    init_digest: str | None = None  # of the content of `init`; written by a run, checked where it is given
    head_init: Literal["default", "orthogonal", "etf"] = "default"  # the angles between the drawn head's rows
    clip: Annotated[float, Field(gt=0)] | None = None  # largest norm of a step's gradient
    bn: Literal["running", "batch", "local"] = "running"  # the statistics that batch normalisation is tested with
    device: str = "cpu"
    eval_batch: Annotated[int, Field(ge=1, le=MOST)] = (
        100  # images a test batch; matters for results only with `bn: batch`
    )
    eval_clients: Annotated[int, Field(ge=0, le=MOST)] = (
        0  # rounds between tests on every client's own data; 0: only the last round
    )
    analyze_every: Annotated[int, Field(ge=0, le=MOST)] = (
        0  # rounds between analyses of factors, norms, alignment, drift; 0: never
    )
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 15.0  # at most this much work is done again after a kill
    memory_mb: Annotated[float, Field(gt=0)] = 2048.0  # clients' memory kept in RAM; the rest lies on disk
    track: str | None = None  # tensorboard | mlflow | wandb, or several with commas between: who is told of every round
    deploy: Deploy = Deploy()
    parts: tuple[str, ...] = ()  # modules or .py files to import first: they bring parts of your own

    @model_validator(mode="after")
    def _plain_texts(self) -> Recipe:
        """No text may hold what no path, terminal or file of ours can: it is refused before anything is named by it."""
        for name, text in _texts(self):
            if len(text) > LONGEST:
                raise ValueError(f"{name}: at most {LONGEST} characters are allowed (got {len(text)})")
            if not text.replace("\n", "").replace("\t", "").isprintable():
                raise ValueError(f"{name}: {shown(text)} holds characters that cannot be printed; leave them out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and isinstance(given.get("data"), str):
            given = {**given, "data": {"name": given["data"]}}
        if isinstance(given, Mapping) and isinstance(given.get("parts"), str):
            given = {**given, "parts": [given["parts"]]}
        return given

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, value: str) -> str:
        if value in ("constant", "step", "cosine"):
            return value
        kind, _, number = value.partition(":")
        if kind == "exp" and re.fullmatch(r"\d*\.?\d+(e-?\d+)?", number) and 0 < float(number) <= 1:
            return value
        raise ValueError("allowed are constant, step, cosine and exp:FACTOR with a factor in (0, 1]")

    @field_validator("stack", mode="before")
    @classmethod
    def _stack(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare `off` as false

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and (not value.strip() or "/" in value or value.startswith(".")):
            raise ValueError("a plain name is expected, without slashes")
        return value

    def rate(self, round: int) -> float:
        """The learning rate of a round (the first is 1)."""
        done = round - 1
        if self.schedule == "step":
            return self.lr * 0.1 ** ((2 * done >= self.rounds) + (4 * done >= 3 * self.rounds))
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * done / self.rounds))
        if self.schedule.startswith("exp:"):
            return float(self.lr * float(self.schedule[4:]) ** done)
        return self.lr

    @property
    def cohort_size(self) -> int:
        return max(int(self.fraction * self.clients + 1e-9), 1)

    def changed(self, **fields: Any) -> Recipe:
        return recipe({**self.model_dump(), **fields})

    def digest(self) -> str:
        """Identity of all that decides the bits of the result: not where it runs, nor what is measured on the way."""
        aside = {"lanes", "name", "out", "device", "checkpoint_seconds", "memory_mb"}
        aside |= {"eval_every", "eval_clients", "analyze_every", "track", "deploy"}
        aside |= {"stack"} if self.stack == "off" else set()
        aside |= {"kernels"} if self.kernels == "auto" else set()
        content = self.model_dump(mode="json", exclude=aside)
        if self.deploy.secure_aggregation is not None:  # it decides bits, and a site that pins a digest insists on it
            content["secure_aggregation"] = self.deploy.secure_aggregation.pinned()
        if self.deploy.max_distance != Deploy().max_distance:
            content["max_distance"] = self.deploy.max_distance
        if self.deploy.max_share < 1:
            content["max_share"] = self.deploy.max_share
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def _texts(model: BaseModel, inside: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a recipe with the name of its field."""
    for field in type(model).model_fields:
        value = getattr(model, field)
        if isinstance(value, BaseModel):
            yield from _texts(value, f"{inside}{field}.")
        elif isinstance(value, str | tuple):
            yield from (
                (inside + field, text)
                for text in ([value] if isinstance(value, str) else value)
                if isinstance(text, str)
            )


_GROUPS: dict[str, type[BaseModel]] = {"data": Data, "deploy": Deploy}
_SECURE = ["deploy", "secure_aggregation"]


def recipe(given: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values; the first thing that is wrong with them becomes one sentence."""
    try:
        return Recipe.model_validate(dict(given))
    except ValidationError as error:
        raise FedloomError(_sentence(error)) from None


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The fields of a YAML file, not yet checked."""
    piped = str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    if not piped and (reason := obstacle(path)):
        raise FedloomError(f"recipe: cannot read {brief(path)}: {reason}")
    try:
        with Path(path).open("rb") as file:
            text = file.read(4 * TEXT + 1).decode("utf-8")
        found = parse(text)
    except OSError as error:
        raise FedloomError(f"recipe: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FedloomError(f"recipe: cannot read {path}: not a text file") from None
    except Unreadable as error:
        raise FedloomError(f"recipe: {path} {error}") from None
    if not isinstance(found, dict):
        raise FedloomError(f"recipe: {path} must hold fields such as `method: fedavg`, one a line")
    return found


def assign(fields: dict[str, Any], setting: str) -> None:
    """Apply `a.b=c` to nested fields in place."""
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise FedloomError(f"--set: cannot read {shown(setting)}; write field=value or group.field=value")
    names = [item.strip().replace("-", "_") for item in key.split(".", 4)]
    if names[0] == "data" and isinstance(fields.get("data"), str):
        fields["data"] = {"name": fields["data"]}
    place = fields
    for item in names[:-1]:
        inner = place.setdefault(item, {})
        if not isinstance(inner, dict):
            raise FedloomError(f"--set: {shown(key)} goes into {shown(item)}, which is a single value")
        place = inner
    try:
        place[names[-1]] = parse(value)
    except Unreadable as error:
        raise FedloomError(f"--set: cannot read the value of {shown(setting)}, which {error}") from None


def _sentence(error: ValidationError) -> str:
    problems = error.errors()
    first = min(problems, key=lambda item: item["type"] != "extra_forbidden")
    loc = [str(item) for item in first["loc"]]
    if not loc:  # of the recipe as a whole
        return _plain(str(first["msg"]))
    place = ".".join(
        item for item in loc if re.fullmatch(r"[a-z_]+|\d+", item) and item not in ("int", "float", "none")
    )
    if first["type"] == "extra_forbidden":
        model = _GROUPS.get(loc[0], Recipe) if len(loc) > 1 else Recipe
        model = SecAgg if loc[:2] == _SECURE and len(loc) > 2 else model
        near = difflib.get_close_matches(loc[-1][:LINE], model.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(model.model_fields)}"
        return f"{brief(place or loc[-1])}: unknown field; {hint}"
    same = [item for item in problems if item["loc"][:1] == first["loc"][:1] and item["input"] is first["input"]]
    said = " or ".join(dict.fromkeys(_plain(str(item["msg"])) for item in same)).replace(" or must be ", " or ")
    name = loc[0] if loc[0] not in _GROUPS or len(loc) == 1 else ".".join(loc[: 3 if loc[:2] == _SECURE else 2])
    if name == "data.normalize":
        said = "must be set, none, or two lists of one number a channel: means, then deviations"
    return f"{brief(name)}: {said} (got {brief(first['input'])})"


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return message.replace("a valid integer, unable to parse string as an integer", "a whole number").replace(
        "a valid number, unable to parse string as a number", "a number"
    )
