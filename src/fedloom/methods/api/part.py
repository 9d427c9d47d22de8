"""A part: one idea of one paper, as hooks into the local training loop and the server's round.

A part is a frozen value. Its fields are its hyper-parameters, with the paper's defaults, validated when it is created. Every
hook does nothing by default; the engine calls only the hooks that a part overrides. The vectors that hooks receive (`weights`,
`global_weights`, `gradient`, uploads) cover the *shared* weights: those that are trained and sent.

    class Center(Part):
        "Pulls the mean feature to zero."
        strength: float = 0.1

        def regularizer(self, batch, client):
            return self.strength * batch.features.mean(0).square().sum()

Everything that a part can say about itself is in this file: class attributes first, then hooks. How the hooks of several parts
combine is in `hooks.py`. docs/extending.md is the tutorial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.io.html import html_table
from fedloom.methods.api.alternation import Alternation
from fedloom.methods.api.context import (
    Batch,
    ClientContext,
    Data,
    Phase,
    Query,
    RunPlan,
    ServerContext,
    TaskInfo,
    Tensors,
)
from fedloom.methods.api.hooks import HOOKS, does
from fedloom.methods.api.hyperparameters import explain, spell
from fedloom.methods.api.registry import register
from fedloom.methods.api.search import Range, RateScale
from fedloom.nets import Net
from fedloom.weights import Regions


@dataclass(frozen=True)
class Allows:
    """The hooks that the other parts of a sum may use. `otherwise` ends the refusal: "PART does X, {otherwise}; keep one"."""

    hooks: frozenset[str]
    otherwise: str


class Part(BaseModel):
    """One idea of one paper. Override hooks; leave the rest. A subclass registers itself under its name.

    >>> class Centered(fl.Part):
    ...     "Pulls the mean feature to zero."
    ...     strength: float = 0.1
    ...
    ...     def regularizer(self, batch, client):
    ...         return self.strength * batch.features.mean(0).square().sum()
    >>> fl.run(method="scaffold + centered(strength=0.2)", clients=5, rounds=1, model="mlp(hidden=8)").summary["method"]
    'scaffold + centered(strength=0.2)'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(staticmethod,))

    # Name in recipes; default: the class name in lower case.
    name: ClassVar[str] = ""
    # Authors, year, and the paper's name for the method.
    paper: ClassVar[str] = ""
    # Pieces of the net that `build` replaces ("head", "norm"); only one part of a sum may replace a piece.
    replaces: ClassVar[frozenset[str]] = frozenset()
    # True: the part reads `batch.stages`, which are otherwise not kept.
    uses_stages: ClassVar[bool] = False
    # True: `build` is called after that of all other parts, wherever this part stands in the sum.
    builds_last: ClassVar[bool] = False
    # Hyper-parameters that select another published method rather than tune this one.
    variants: ClassVar[frozenset[str]] = frozenset()
    # False: `regions` leaves nothing that clients share.
    shares: ClassVar[bool] = True
    # Which of the clients' training samples the server holds; "all": one worker trains on the union of them.
    central_data: ClassVar[Literal["none", "some", "all"]] = "none"
    # Hooks that other parts of the sum may use; None: all of them.
    allows: ClassVar[Allows | None] = None
    # For secure aggregation: the server hooks need nothing but a sum over clients, weighted by `server.shares` or with equal
    # weights. None: they need more.
    sums: ClassVar[Literal["shares", "equal"] | None] = None
    # What the part infers from plain SGD, whose buffers start at zero in every round: a verb phrase that continues its name
    # in the refusal of other optimizers. Empty: it works with any optimizer.
    plain_sgd: ClassVar[str] = ""
    # True: `before_training` moves shared weights, so that a client's movement in a round is more than its steps.
    moves_start: ClassVar[bool] = False
    # True: `aggregate` counts all uploads alike, whatever their weights.
    unweighted: ClassVar[bool] = False
    # True: `aggregate` limits the effect of any one upload, so outliers are not dropped before it.
    bounds: ClassVar[bool] = False
    # Where `fedloom tune` searches hyper-parameters unless it is given ranges: by name, each with its source.
    search_ranges: ClassVar[Mapping[str, Range]] = {}
    # How many times the rate of plain cross-entropy suits this part under SGD, with the source. None: the same rate.
    rate_scale: ClassVar[RateScale | None] = None
    # What a client, or the server, computes beside FedAvg's steps, for a reader who compares costs. Empty: nothing to speak of.
    work: ClassVar[str] = ""
    # True: `aggregate` is called even if no upload of the round was accepted.
    always: ClassVar[bool] = False
    # Names of client state that `before_training` writes. A query of another part that trains leaves it as it is, where other
    # state goes back to what it was before the round.
    settled: ClassVar[frozenset[str]] = frozenset()
    # What `personalize --part alternate` trains in turns; None: head and body. At most one part of a sum declares it, the one
    # that replaces the head.
    alternation: ClassVar[Alternation | None] = None

    # structure, once
    def build(self, net: Net, task: TaskInfo) -> Net:
        """Once, when the net is built: change the net or return another one."""
        return net

    def regions(self, regions: Regions) -> Regions:
        """Once, after `build`: decide which tensors are shared, personal (`keep`) or frozen (`freeze`)."""
        return regions

    def check(self, plan: RunPlan) -> None:
        """Once, before anything is written: raise a FedloomError to refuse a run that cannot work."""

    def at_round(self, net: Net, round: int, task: TaskInfo) -> None:
        """Whenever the net receives weights: adjust it to the round. In training this is the current round; in evaluation and
        fine-tuning, the last round in which the weights were trained (0 before any).
        """

    # state that the engine stores, checkpoints and sends; the values given here are the initial ones
    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        """Once: tensors that the server keeps between rounds, as `server.state`; part of every checkpoint."""
        return {}

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        """Once: tensors that each client keeps between its rounds, as `client.state`; part of every checkpoint."""
        return {}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        """Once: tensors that clients upload beside the weights; filled in `after_training` through `client.upload`."""
        return {}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Every round: what clients receive beside the weights, from this part's server state; read as `client.broadcast`."""
        return {}

    def queries(self, weights: Tensor, task: TaskInfo) -> Mapping[str, Query]:
        """Once: the questions that the server may ask clients beside training, by name."""
        return {}

    def final_tensors(self) -> tuple[str, ...]:
        """Once: names of frozen tensors that the server replaces, in `finalize` or in every round."""
        return ()

    def extra_training(self, hook: Literal["after_training", "answer"]) -> Sequence[tuple[int, Data]] | None:
        """Once: epochs and data of the training that `after_training` or `answer` asks for, so that the server can check the
        number of steps that a client reports. (): no step on shared weights. None: unknown; the report is checked loosely.
        """
        return None

    # on a client, inside the local loop
    def before_training(self, client: ClientContext) -> None:
        """Before the first local step: adapt the received model; change `client.weights` or `client.storage` in place. Of the
        state, write only what `settled` names here.
        """

    def phases(self, epochs: int) -> list[Phase]:
        """At the start of local training: how the local epochs are arranged, and which regions each phase trains."""
        return [Phase(epochs)]

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        """Every step: the local loss; default: cross-entropy."""
        return torch.nn.functional.cross_entropy(batch.logits, batch.y)

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        """Every step: a term that is added to the loss, or mixed with it if `mix_share` says so."""
        return batch.logits.new_zeros(())

    def mix_share(self) -> float | None:
        """Every step: None adds the regularizer. A share b makes the loss b * (all terms so far) + (1 - b) * regularizer."""
        return None

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        """Every step: the gradient of the shared weights; default: by back-propagation at the current weights."""
        return client.gradient_of(batch=batch)

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        """Every step, before clipping, weight decay and the optimizer: change the gradient of the shared weights in place."""

    def after_step(self, batch: Batch, client: ClientContext) -> None:
        """After every step of local training on shared weights, with the batch of the step: train beside it something that is
        kept in `client.state`. Not called in extra training with a loss or weights of its own.
        """

    def after_training(self, client: ClientContext) -> None:
        """After the last local step: more local work; fill `client.upload` and `client.state`. It is called again after a query
        of another part that trains, with this part's state as it was before the round, so that it describes the final upload.
        """

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        """When one of this part's queries arrives: fill `client.reply`. If the query trains, continue from the uploaded weights
        and fill `client.upload` and `client.state`; if it delivers, change `client.state` or personal regions in
        `client.storage`.
        """

    # on the server
    def initialize(self, server: ServerContext) -> None:
        """Before the first round: send queries that train nothing, and fill the server state from their replies."""

    def after_uploads(self, server: ServerContext) -> None:
        """Before aggregation: look at the uploads; `server.ask` sends queries to clients."""

    def weigh_uploads(self, shares: Sequence[float], server: ServerContext) -> Sequence[float]:
        """Whenever uploads are averaged: how much each counts, as numbers that are not negative; they are then normalized and
        become `server.shares`. `shares`: the recipe's, which are used where all numbers are zero.
        """
        return shares

    def aggregate(self, server: ServerContext) -> Tensor:
        """Aggregation: one vector from the uploads; default: their mean, weighted by `server.shares`."""
        return server.mean(server.uploads)

    def server_step(self, aggregate: Tensor, server: ServerContext) -> Tensor:
        """After aggregation: the new weights, from the aggregate and `server.weights`, which are still the old ones."""
        return aggregate

    def after_aggregation(self, server: ServerContext) -> None:
        """When `server.weights` are the new weights: update the server state."""

    def server_training(self, client: ClientContext) -> None:
        """After that: train the new weights on the server with the local loop; `client.state` is this part's server state."""

    def finalize(self, server: ServerContext) -> None:
        """After the last round: send queries, replace the tensors of `final_tensors` with `server.set_frozen`, or shared
        parameters with `server.set_shared`.
        """

    def served_weights(self, weights: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """When weights are evaluated or exported: the weights to serve, if they are not those of the training state."""
        return weights

    # what is reported
    def log(self, server: ServerContext) -> Mapping[str, Any]:
        """After every round: entries for its line of rounds.jsonl: plain numbers, strings, lists and dicts."""
        return {}

    def summary(self, plan: RunPlan) -> dict[str, Any]:
        """At the end of the run: entries for summary.json."""
        return {}

    # a client's personal model
    def personalize(self, client: ClientContext) -> None:
        """Before a client's personal evaluation and fine-tuning: make its own model from the weights it holds."""

    def own_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        """In personal evaluation: the logits of a client's own model, given its class counts."""
        return logits

    # what every part has
    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

    @classmethod
    def __pydantic_init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        """Register the subclass by its name, unless it says `abstract=True` (a base class of other parts)."""
        super().__pydantic_init_subclass__(**kwargs)
        if abstract:
            return
        if taken := sorted(name for name in cls.model_fields if hasattr(Part, name)):
            raise FedloomError(
                f"the hyper-parameter {taken[0]!r} of {cls.__name__} has the name of a hook; call the field something else "
                f"and let recipes write it so by Field(alias={taken[0]!r})"
            )
        if unknown := [name for name in cls.search_ranges if name not in cls.hyperparameters()]:
            raise FedloomError(f"search_ranges of {cls.__name__}: it has no hyper-parameter {unknown[0]!r}")
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        register(cls)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FedloomError(f"method: {self.name}{explain(error, self.hyperparameters())}") from None

    @classmethod
    def hyperparameters(cls) -> dict[str, FieldInfo]:
        """Fields by the names that recipes use: a field whose name would be that of a hook has an alias."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    def values(self, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        return self.model_dump(mode=mode, by_alias=True)

    def defines(self, hook: str) -> bool:
        """Whether this part overrides a hook."""
        return getattr(type(self), hook) is not getattr(Part, hook)

    def __add__(self, other: Part | Method) -> Method:
        return Method((self, *(other.parts if isinstance(other, Method) else (other,))))

    def __str__(self) -> str:
        values = self.values("json")
        defaults = {name: field.default for name, field in self.hyperparameters().items()}
        own = self.values("python")
        given = [f"{name}={spell(values[name])}" for name, default in defaults.items() if own[name] != default]
        return f"{self.name}({', '.join(given)})" if given else self.name

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _described([self])

    def spelled(self) -> str:
        """With every hyper-parameter written out; parsing this text gives an equal part."""
        values = ", ".join(f"{name}={spell(value)}" for name, value in self.values("json").items())
        return f"{self.name}({values})" if values else self.name


@dataclass(frozen=True)
class Method:
    """A sum of parts. Creating it checks that the parts fit together.

    >>> total = fl.method("scaffold") + fl.method("fn")
    >>> [part.name for part in total.parts]
    ['scaffold', 'fn']
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise FedloomError(f"method: {name} stands twice in the sum; keep one")
        for name, hook in HOOKS.items():
            claims = [part.name for part in self.hooked(name)]
            if hook.rule == "exclusive" and len(claims) > 1:
                raise FedloomError(f"method: {claims[0]} and {claims[1]} both decide {hook.decides}; keep one")
        for piece in ("head", "norm"):
            claims = [part.name for part in self.parts if piece in part.replaces]
            if len(claims) > 1:
                raise FedloomError(f"method: {claims[0]} and {claims[1]} both replace the {piece}; keep one")
        alone = [part.name for part in self.parts if not part.shares]
        needing = [name for name, hook in HOOKS.items() if hook.needs_shared]
        idle = [part.name for part in self.parts if any(part.defines(name) for name in needing)]
        if alone and idle:
            raise FedloomError(
                f"method: {idle[0]} acts on what clients share, and with {alone[0]} they share nothing; keep one"
            )
        self._check_movements()
        for strict in self.parts:
            for part in self.parts:
                if part is not strict and strict.allows and (hooked := _forbidden(strict.allows, part)):
                    raise FedloomError(f"method: {part.name} {does(hooked)}, {strict.allows.otherwise}; keep one")

    def _check_movements(self) -> None:
        """Refuse parts that read more from a client's movement, or from its weight, than another part leaves in it."""
        reading = [part for part in self.parts if part.plain_sgd]
        moving = [part for part in self.parts if part.moves_start]
        if reading and moving:
            raise FedloomError(
                f"method: {reading[0].name} {reading[0].plain_sgd}, and {moving[0].name} moves the weights before the first "
                f"step; keep one"
            )
        weighing, alike = self.hooked("weigh_uploads"), [part for part in self.parts if part.unweighted]
        if weighing and alike:
            raise FedloomError(
                f"method: {weighing[0].name} decides how much each upload counts, and {alike[0].name} counts all alike; "
                f"keep one"
            )

    def hooked(self, name: str) -> list[Part]:
        """The parts that override a hook, in the order of the sum."""
        return [part for part in self.parts if part.defines(name)]

    def the(self, name: str) -> Part | None:
        """The one part that overrides an exclusive hook, if any."""
        return next(iter(self.hooked(name)), None)

    def named(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def __add__(self, other: Part | Method) -> Method:
        return Method((*self.parts, *(other.parts if isinstance(other, Method) else (other,))))

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts) or "fedavg"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _described(self.parts)

    def spelled(self) -> str:
        return " + ".join(part.spelled() for part in self.parts) or "fedavg"


def _described(parts: Sequence[Part]) -> str:
    """Parts with what they do and their hyper-parameters, for a notebook."""
    rows = [
        [
            part.name,
            (type(part).__doc__ or "").strip().partition("\n")[0],
            ", ".join(f"{name}={spell(value)}" for name, value in part.values("json").items()),
            part.paper,
        ]
        for part in parts
    ]
    title = " + ".join(map(str, parts)) or "fedavg"
    return html_table(title, ("part", "idea", "hyper-parameters", "paper") if rows else (), rows)


def _forbidden(allowed: Allows, part: Part) -> str | None:
    """The first hook of a part that is not allowed beside another part; hooks added later are not allowed by default."""
    return next((name for name in HOOKS if part.defines(name) and name not in allowed.hooks), None)
