"""What to do: one validated, frozen description of an experiment. Everything else reads it, nothing changes it.

A field's description is its help on the command line and its line in the docs. `FLAG` makes it a flag of its own;
`NO_EFFECT` marks what changes no bit of the result: such a field is not in the digest and cannot be swept. `LATER` marks a
field that older recipes lack: it enters the digest only where it differs from its default, so that their digests stay.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedloom.errors import FedloomError, shown
from fedloom.recipe.sentence import sentence
from fedloom.recipe.work import MOST, Range, span

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# validators take a while to build, and `--help` needs none: they are built at first use
_FROZEN = ConfigDict(frozen=True, extra="forbid", defer_build=True)
T = TypeVar("T", bound=BaseModel)
LONGEST = 4096  # characters of a text, as of a path
FLAG = "flag"
NO_EFFECT = "no effect on the result"
LATER = "in the digest where it differs from its default"

Normalize = Literal["set", "none"] | tuple[list[float], list[float]]
Count = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Work = Positive | Range
NAMED_GROUPS = ("data", "optimizer")  # groups of fields of which a plain text gives the name


def about(text: str) -> Any:
    return Field(description=text)


class Fields(BaseModel):
    """Fields whose repr shows what differs from the defaults: it makes the same value again."""

    model_config = _FROZEN

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        for name, field in type(self).model_fields.items():
            if (value := getattr(self, name)) != field.default:
                yield name, value


class Data(Fields):
    """The data set, and how its samples are prepared."""

    name: Annotated[
        str,
        about(
            "digits | NAME (fedloom list data) | PATH.npz | table:PATH.csv?target=COLUMN | hf:owner/name | folder:PATH"
        ),
    ] = "digits"
    normalize: Annotated[
        Normalize, about("after x / 255: set (mean and deviation of the training samples) | none | [means, deviations]")
    ] = "set"
    resize: Annotated[Annotated[int, Field(ge=1, le=4096)] | None, about("side length in pixels; null: unchanged")] = (
        None
    )
    test_every: Annotated[
        Annotated[int, Field(ge=2, le=MOST)],
        about("one sample in this many is for testing, where the data have no test set; 10: every tenth"),
        LATER,
    ] = 5
    images: Annotated[Positive | None, about("number of training samples that are used; null: all")] = None
    test_images: Annotated[
        Positive | None,
        about("number of test samples that are used, drawn by class in proportion; null: all"),
        LATER,
    ] = None
    validation: Annotated[Share, about("share of the training samples held out for validation")] = 0.0
    validation_from: Annotated[
        Literal["pool", "clients"],
        about(
            "validation samples are drawn from: pool (all training samples, before the split) | clients (each its own)"
        ),
        LATER,
    ] = "pool"
    public: Annotated[Share, about("a further share held out as public samples, for parts that need them")] = 0.0
    public_from: Annotated[str | None, about("take the public samples, without labels, from this data set")] = None
    public_to_clients: Annotated[bool, about("every client also trains on the public samples")] = False


class LocalOptimizer(Fields):
    """The optimizer of local training, as torch defines it; `lr`, `momentum` and `weight_decay` are the recipe's."""

    name: Annotated[Literal["sgd", "adam", "adamw"], about("optimizer of local training: sgd | adam | adamw")] = "sgd"
    keep: Annotated[bool, about("every client keeps its momentum or moments between its rounds; false: reset")] = False
    beta1: Annotated[Share, about("adam, adamw: decay of the mean of gradients")] = 0.9
    beta2: Annotated[Share, about("adam, adamw: decay of the mean of squared gradients")] = 0.999
    eps: Annotated[AboveZero, about("adam, adamw: added to the root of the mean square")] = 1e-8

    @model_validator(mode="after")
    def _used(self) -> LocalOptimizer:
        """A setting that would have no effect is refused."""
        for name in ("beta1", "beta2", "eps"):
            if self.name == "sgd" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"sgd has no {name}; it belongs to adam and adamw")
        return self


class SecAgg(Fields):
    """Secure aggregation by Flower's SecAgg+: uploads carry masks that cancel in their sum."""

    num_shares: Annotated[
        Annotated[int, Field(ge=3, le=MOST)] | None,
        about("number of nodes, itself included, that a node shares its keys with; odd; null: all of the round"),
    ] = None
    # above a half: otherwise a server could unmask one node by telling two groups of nodes different stories
    reconstruction_threshold: Annotated[
        Annotated[float, Field(gt=0.5, le=1)], about("fraction of the shares needed to unmask a sum")
    ] = 0.67
    clipping_range: Annotated[AboveZero, about("updates are clipped to this magnitude before they are quantized")] = (
        16.0
    )
    min_clients: Annotated[
        Annotated[int, Field(ge=2, le=MOST)] | None,
        about("smallest number of sites in a sum; null: the threshold of a full cohort"),
    ] = None
    authenticated: Annotated[
        bool, about("nodes accept only public keys signed by a site of their roster; false: they trust the server")
    ] = True

    @field_validator("num_shares")
    @classmethod
    def _odd(cls, value: int | None) -> int | None:
        if value is not None and value % 2 == 0:
            raise ValueError("must be odd: the node itself and as many neighbors on either side")
        return value

    def pinned(self) -> dict[str, Any]:
        """What enters a recipe's digest. Both defaults that are left out follow from other fields of the digest."""
        usual = {name for name in ("min_clients", "authenticated") if getattr(self, name) == getattr(SecAgg(), name)}
        return self.model_dump(mode="json", exclude=usual)


class Deploy(Fields):
    """Limits and time-outs of a federation on real machines.

    Only `secure_aggregation`, `max_distance` and `max_share` can change the bits of a round in which no upload is lost.
    """

    min_cohort: Annotated[
        Count, about("the run stops at a round with fewer accepted uploads; 0: a round without any is skipped")
    ] = 1
    max_distance: Annotated[
        Annotated[float, Field(ge=1, allow_inf_nan=False)] | None,
        about("uploads this many times farther from the broadcast than the median one are dropped; null: none"),
    ] = 1000.0
    timeout: Annotated[AboveZero, about("seconds to wait for one reply of a node")] = 600.0
    join_timeout: Annotated[AboveZero, about("seconds to wait for nodes to connect")] = 300.0
    secure_aggregation: Annotated[
        SecAgg | None, about("true | false | its fields: the server learns only sums of uploads")
    ] = None
    max_samples: Annotated[
        Annotated[int, Field(ge=1, le=2**40)], about("training samples, and test samples, that a site may claim")
    ] = 10_000_000
    max_classes: Annotated[
        Annotated[int, Field(ge=1, le=100_000)], about("classes that all sites together may name")
    ] = 1000
    max_share: Annotated[
        Annotated[float, Field(gt=0, le=1)], about("largest weight of one client in the average; 1: no limit")
    ] = 1.0
    max_message_mb: Annotated[AboveZero, about("largest size of the tensors in one message")] = 2048.0

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


class InSentences(ModelMetaclass):
    """Models whose call refuses wrong fields as `recipe` does: in one sentence."""

    def __call__(cls: type[T], *args: Any, **fields: Any) -> T:  # type: ignore[misc]  # noqa: N805
        try:
            return cast("T", super().__call__(*args, **fields))  # type: ignore[misc]
        except ValidationError as error:
            raise FedloomError(sentence(error, cls)) from None


class Recipe(Fields, metaclass=InSentences):
    """An experiment as one frozen value. Everything else reads it, nothing changes it.

    >>> recipe = fl.Recipe(method="scaffold + fn", rounds=20)
    >>> recipe
    Recipe(method='scaffold + fn', rounds=20)
    >>> recipe.lr
    0.1
    >>> recipe.changed(lr=0.3).lr
    0.3
    >>> print(recipe.to_yaml()[:12])
    data:
      name
    """

    data: Annotated[Data, about("the data set"), FLAG] = Data.model_construct()
    split: Annotated[
        str, about('which client holds and sees what, such as "dirichlet:0.5+noise:0.1" (fedloom list splits)'), FLAG
    ] = "shards:2"
    clients: Annotated[Positive, about("number of clients"), FLAG] = 20
    model: Annotated[
        str,
        about(
            "a net's name, with its parameters (fedloom list models) | file.py:function | package.module:function | "
            "hf:NAME | timm:NAME"
        ),
        FLAG,
    ] = "mlp"
    method: Annotated[str, about('a sum of parts, such as "scaffold + fn" (fedloom list methods)'), FLAG] = "fedavg"
    rounds: Annotated[Positive, about("number of rounds"), FLAG] = 50
    fraction: Annotated[
        Annotated[float, Field(gt=0, le=1)], about("fraction of the clients that train in a round"), FLAG
    ] = 0.5
    participation: Annotated[
        Literal["fixed", "bernoulli"],
        about("fixed (cohorts of equal size) | bernoulli (each client takes part with probability `fraction`)"),
        FLAG,
        LATER,
    ] = "fixed"
    epochs: Annotated[
        Work, about("local epochs per round | a range such as 1..5, drawn per client and round"), FLAG
    ] = 1
    steps: Annotated[
        Work | None,
        about("local steps per round in place of epochs | a range such as 10..50; null: epochs"),
        FLAG,
        LATER,
    ] = None
    batch: Annotated[Positive | Literal["full"], about("local batch size | full"), FLAG] = 32
    lr: Annotated[AboveZero, about("local learning rate"), FLAG] = 0.1
    momentum: Annotated[Share, about("momentum of local SGD"), FLAG] = 0.9
    weight_decay: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)], about("weight decay of local training"), FLAG
    ] = 0.0
    optimizer: Annotated[LocalOptimizer, about("the optimizer of local training"), FLAG, LATER] = (
        LocalOptimizer.model_construct()
    )
    schedule: Annotated[str, about("learning rate over the rounds: constant | step | exp:FACTOR | cosine"), FLAG] = (
        "constant"
    )
    weighting: Annotated[
        Literal["samples", "uniform"], about("weights of clients in the average: samples | uniform"), FLAG
    ] = "samples"
    augment: Annotated[
        str,
        about(
            "changes of training images: none | a sum of flip, crop:4, crop:4:reflect, resizedcrop:0.08, "
            "affine:10:0.1:0.1, cutout:8"
        ),
        FLAG,
    ] = "none"
    precision: Annotated[Literal["fp32", "bf16", "auto"], about("fp32 | bf16 | auto (by net and processor)"), FLAG] = (
        "fp32"
    )
    kernels: Annotated[
        Literal["auto", "torch", "portable", "native"],
        about(
            "convolutions and batch normalization: torch (PyTorch's own) | portable (algorithms chosen by shape) | native "
            "(compiled, by the system's C++ compiler) | auto (native where it can be built and serves the net)"
        ),
        FLAG,
        LATER,
    ] = "auto"
    workers: Annotated[
        Positive | Literal["auto", "ray"],
        about("number of worker processes | auto (one per core) | ray (one per core of a Ray cluster)"),
        FLAG,
        NO_EFFECT,
    ] = "auto"
    vmap: Annotated[
        Annotated[int, Field(ge=2, le=MOST)] | Literal["auto", "off"],
        about("number of clients of a tiny net trained in one computation | auto | off"),
        FLAG,
    ] = "off"
    seed: Annotated[Annotated[int, Field(ge=0, lt=2**64)], about("random seed"), FLAG] = 0
    eval_every: Annotated[
        Count, about("rounds between tests of the global model; 0: after the last round only"), FLAG, NO_EFFECT
    ] = 1
    metrics: Annotated[
        tuple[str, ...],
        about("metrics of every evaluation, the headline first: a,b (fedloom list metrics)"),
        FLAG,
        NO_EFFECT,
    ] = ("accuracy",)
    init: Annotated[
        str | None,
        about("initial weights: PATH.safetensors | hf:owner/name[/file]; tensors of the same name and shape are used"),
        FLAG,
    ] = None
    name: Annotated[str | None, about("write the run to runs/NAME"), FLAG, NO_EFFECT] = None
    out: Annotated[str | None, about("write the run to this folder"), FLAG, NO_EFFECT] = None

    init_digest: Annotated[str | None, about("checksum of `init`; written by a run, verified where it is given")] = None
    head_init: Annotated[
        Literal["default", "orthogonal", "etf"], about("initial head: default | orthogonal | etf (a simplex)")
    ] = "default"
    clip: Annotated[Annotated[float, Field(gt=0)] | None, about("largest norm of a gradient; null: no clipping")] = None
    bn: Annotated[
        Literal["running", "batch", "local"],
        about("statistics of batch normalization in tests: running | batch | local"),
    ] = "running"
    device: Annotated[str, about("cpu | cuda (all visible devices) | cuda:N"), FLAG, NO_EFFECT] = "cpu"
    eval_batch: Annotated[Positive, about("test batch size; changes results only with `bn: batch`")] = 100
    eval_test: Annotated[
        bool, about("evaluate on test samples; false: on validation samples only, as `fedloom tune` does"), NO_EFFECT
    ] = True
    eval_clients: Annotated[
        Count, about("rounds between tests on every client's own data; 0: after the last round only"), NO_EFFECT
    ] = 0
    analyze_every: Annotated[
        Count, about("rounds between analyses of factors, norms, alignment and drift; 0: never"), FLAG, NO_EFFECT
    ] = 0
    checkpoint_seconds: Annotated[
        Annotated[float, Field(ge=0)], about("seconds between checkpoints: the most work a crash can cost"), NO_EFFECT
    ] = 15.0
    memory_mb: Annotated[
        Annotated[float, Field(gt=0)], about("client state kept in memory; the rest is stored on disk"), NO_EFFECT
    ] = 2048.0
    track: Annotated[
        str | None, about("log every round to tensorboard | mlflow | wandb, or several of them: a,b"), FLAG, NO_EFFECT
    ] = None
    deploy: Annotated[Deploy, about("limits and time-outs of a federation on real machines")] = Deploy.model_construct()
    parts: Annotated[
        tuple[str, ...],
        about("modules or .py files to import first: parts, partitioners, shifts, metrics ... of your own"),
    ] = ()

    @model_validator(mode="after")
    def _plain_texts(self) -> Recipe:
        """Characters that no path, terminal or file can hold are refused before anything is named by them."""
        for name, text in _texts(self):
            if len(text) > LONGEST:
                raise ValueError(f"{name}: at most {LONGEST} characters are allowed (got {len(text)})")
            if not text.replace("\n", "").replace("\t", "").isprintable():
                raise ValueError(f"{name}: {shown(text)} holds characters that cannot be printed; leave them out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        for group in NAMED_GROUPS:
            if isinstance(given, Mapping) and isinstance(given.get(group), str):
                given = {**given, group: {"name": given[group]}}
        if isinstance(given, Mapping) and isinstance(given.get("parts"), str):
            given = {**given, "parts": [given["parts"]]}
        if isinstance(given, Mapping) and isinstance(given.get("metrics"), str):
            given = {**given, "metrics": [name.strip() for name in given["metrics"].split(",") if name.strip()]}
        return given

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> Recipe:
        if self.steps is not None and self.epochs != 1:
            raise ValueError(
                f"steps: local work is counted in epochs or in steps; leave out epochs (got {self.epochs})"
            )
        return self

    @field_validator("optimizer", mode="before")
    @classmethod
    def _optimizer(cls, value: Any) -> Any:
        if not isinstance(value, Mapping | LocalOptimizer):
            names = ", ".join(LocalOptimizer.model_fields)
            raise ValueError(f"must be sgd, adam, adamw, or fields of it: {names}")  # noqa: TRY004 - pydantic's own
        return value

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, value: str) -> str:
        if value in ("constant", "step", "cosine"):
            return value
        kind, _, number = value.partition(":")
        if kind == "exp" and re.fullmatch(r"\d*\.?\d+(e-?\d+)?", number) and 0 < float(number) <= 1:
            return value
        raise ValueError("allowed are constant, step, cosine and exp:FACTOR with a factor in (0, 1]")

    @field_validator("metrics")
    @classmethod
    def _metrics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Whether a name is known is decided after `parts` are imported: a metric may be the user's own."""
        if not value:
            raise ValueError("at least one is needed, as in accuracy,macro_f1")
        if twice := [name for name in value if value.count(name) > 1]:
            raise ValueError(f"{shown(twice[0])} is given twice")
        return value

    @field_validator("vmap", mode="before")
    @classmethod
    def _vmap(cls, value: Any) -> Any:
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
    def work(self) -> int | str:
        """A client's local work in a round: a number or a range, of steps where the recipe has `steps`, else of epochs."""
        return self.epochs if self.steps is None else self.steps

    @property
    def varied_work(self) -> bool:
        """Whether clients draw their local work from a range."""
        return isinstance(self.work, str)

    @property
    def mean_work(self) -> float:
        return sum(span(self.work)) / 2

    @property
    def cohort_size(self) -> int:
        """Clients in a round; with `participation: bernoulli`, their expected number."""
        return max(int(self.fraction * self.clients + 1e-9), 1)

    @property
    def headline(self) -> str:
        """The metric that selects, that curves show first and that progress is reported in."""
        return self.metrics[0]

    @property
    def needs_scores(self) -> bool:
        """Whether evaluation computes more than accuracy, which is a matter of counts."""
        return self.metrics != ("accuracy",)

    def changed(self, **fields: Any) -> Recipe:
        return recipe({**self.model_dump(), **fields})

    def digest(self) -> str:
        """Identity of all that decides the bits of the result."""
        content = self.model_dump(mode="json", exclude={*NO_EFFECT_FIELDS, "deploy", "vmap"} | _later(self))
        content["data"] = self.data.model_dump(mode="json", exclude=_later(self.data))
        if self.vmap != "off":  # another order of sums; `stack` is the key of digests on record
            content["stack"] = self.vmap
        if self.deploy.secure_aggregation is not None:  # a site that pins a digest insists on it
            content["secure_aggregation"] = self.deploy.secure_aggregation.pinned()
        if self.deploy.max_distance != Deploy().max_distance:
            content["max_distance"] = self.deploy.max_distance
        if self.deploy.max_share < 1:
            content["max_share"] = self.deploy.max_share
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_yaml(self, exclude: Set[str] = frozenset()) -> str:
        values = self.model_dump(mode="json", exclude={*exclude})
        return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def _later(model: BaseModel) -> set[str]:
    """Its fields of marker `LATER` that have their default."""
    fields = type(model).model_fields.items()
    usual = {name for name, field in fields if LATER in field.metadata and getattr(model, name) == field.default}
    # until it is resolved, and in recipes from before there was a choice, `auto` is portable
    return usual | {"kernels"} if getattr(model, "kernels", None) == "portable" else usual


def _marked(marker: str) -> tuple[str, ...]:
    return tuple(name for name, field in Recipe.model_fields.items() if marker in field.metadata)


FLAGS = _marked(FLAG)
NO_EFFECT_FIELDS = _marked(NO_EFFECT)


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


def recipe(given: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values; the first thing that is wrong with them becomes one sentence."""
    try:
        return Recipe.model_validate(dict(given))
    except ValidationError as error:
        raise FedloomError(sentence(error, Recipe)) from None
