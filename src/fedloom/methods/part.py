"""A part: one idea of one paper, as hooks into the one local loop and the one round loop.

A part is a frozen value. Its fields are its hyper-parameters, with the paper's defaults, checked when it is made. Every
hook does nothing by default; the engine calls only those that a part overrides. Vectors that hooks see (`w`, `start`,
`gradient`, uploads) are the *exchanged* stretch of the flat vector: what is trained and shared.

    class Centre(Part):
        "Pulls the mean feature to zero."
        strength: float = 0.1

        def penalty(self, batch):
            return self.strength * batch.features.mean(0).square().sum()
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from torch import Tensor

from fedloom.errors import FedloomError, shown
from fedloom.methods.seen import Batch, Client, Data, Memory, Phase, Plan, Server, Slots, Task
from fedloom.nets import Net
from fedloom.weights import Regions

if TYPE_CHECKING:
    from fedloom.methods.method import Method


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")  # noqa: TRY004 - pydantic wants a ValueError
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_number)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_number)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_number)]

EXCLUSIVE = {
    "phases": "how the local epochs are arranged",
    "objective": "what the local loss is",
    "gradient": "how the gradient is found",
    "combine": "how updates are combined",
    "served": "which weights are handed out",
    "own_logits": "how a client reads its own logits",
}
DOES = {  # how a refusal names what a part does
    "server_memory": "keeps something at the server between rounds",
    "client_memory": "lets clients remember more than their personal regions",
    "uploads": "lets clients send more than weights",
    "broadcast": "sends clients more than weights",
    "messages": "asks clients a second time",
    "act": "asks clients a second time",
    "after_uploads": "works on the uploads of single clients",
    "after_combine": "goes on at the server after combining",
    "refine": "trains on at the server",
    "combine": "combines updates in its own way",
    "correct": "corrects clients' gradients",
    "gradient": "finds clients' gradients in its own way",
    "served": "hands out other weights than the training state",
}
# hooks that can do nothing where nothing is exchanged
ON_EXCHANGED = ("gradient", "correct", "combine", "served", "refine")


class Part(BaseModel):
    """One idea of one paper. Override hooks; leave the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(staticmethod,))

    name: ClassVar[str] = ""  # how recipes call it; the class name in lower case if not given
    paper: ClassVar[str] = ""
    replaces: ClassVar[frozenset[str]] = frozenset()  # pieces of the net that `build` swaps: only one part may
    exchanges: ClassVar[bool] = True  # False: its `regions` leave nothing that is exchanged
    pooled: ClassVar[bool] = False  # True: all training images lie in one place, and one worker trains on them
    gathers: ClassVar[bool] = False  # True: the server trains on clients' own images
    always: ClassVar[bool] = False  # True: its `combine` is called even when no upload of the round was accepted
    # True: its `combine` bounds what any one upload can do, and none may be dropped because of what others sent
    bounds: ClassVar[bool] = False
    # what its server hooks make of uploads, if nothing but a sum: weighted by `server.shares`, or all alike; None: more
    sums: ClassVar[Literal["shares", "equal"] | None] = None
    beside: ClassVar[frozenset[str] | None] = None  # hooks that other parts of the sum may use; None: all of them
    # hyper-parameters that make it another method rather than tune it: published numbers are found by their values
    variants: ClassVar[frozenset[str]] = frozenset()
    because: ClassVar[str] = ""  # why not the others: the end of a sentence that begins with what the other part does

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

    @classmethod
    def __pydantic_init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        """Every subclass becomes known by its name, except one that says `abstract=True`: a base for others."""
        super().__pydantic_init_subclass__(**kwargs)
        from fedloom.methods.method import register

        if abstract:
            return
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        register(cls)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FedloomError(f"method: {self.name}{_sentence(error, type(self).model_fields)}") from None

    # structure, once
    def build(self, net: Net, task: Task) -> Net:
        return net

    def regions(self, regions: Regions) -> Regions:
        return regions

    def check(self, plan: Plan) -> None:
        """Refuse a run that cannot be, by a FedloomError, before anything is written."""

    def at_round(self, net: Net, round: int, task: Task) -> None:
        """Tell the net which round it is: called whenever it takes weights, for training (the round that begins) as for
        tests and fine-tuning (the last round that these weights were trained in; 0 before any)."""

    # memory: named tensors that the engine stores, checkpoints and ships; the values given here are the first ones
    def server_memory(self, w: Tensor, task: Task) -> Memory:
        return {}

    def client_memory(self, w: Tensor, task: Task) -> Memory:
        return {}

    def uploads(self, w: Tensor, task: Task) -> Memory:
        return {}

    def messages(self, w: Tensor, task: Task) -> Memory:
        return {}

    def findings(self, net: Net, task: Task) -> Memory:
        return {}

    def fixes(self) -> tuple[str, ...]:
        """Names of tensors that nobody trains and that `conclude` will replace."""
        return ()

    def broadcast(self, memory: Mapping[str, Tensor]) -> Memory:
        return {}

    # on a client
    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(epochs)]

    def objective(self, batch: Batch) -> Tensor:
        return torch.nn.functional.cross_entropy(batch.logits, batch.y)

    def penalty(self, batch: Batch) -> Tensor:
        """Added to the loss. If the part has a property `mix` that is a share b, not None, the loss becomes
        b * (all so far) + (1 - b) * penalty."""
        return batch.logits.new_zeros(())

    def gradient(self, client: Client, batch: Batch) -> Tensor:
        return client.gradient_of(batch=batch)

    def correct(self, gradient: Tensor, client: Client) -> None:
        """Change the gradient of what is exchanged, in place."""

    def finish(self, client: Client) -> None:
        """Extra local work; fill `client.upload` and `client.memory`. After a second act of another part it is called
        again, with this part's memory as it was before the round: what counts is what the client uploads in the end."""

    def act(self, client: Client, message: Mapping[str, Tensor]) -> None:
        """The client's side of a second act: it begins with the weights that the client just uploaded."""

    def further(self, hook: Literal["finish", "act"]) -> Sequence[tuple[int, Data]] | None:
        """The training that this part's `finish` or `act` asks for: epochs, and over which data. The server compares a
        client's number of steps with it. None: not said, and what the client reports is believed within wide bounds."""
        return None

    def tell(self, client: Client, findings: Slots) -> None:
        """The client's side of a survey: fill the findings; they are summed over all clients."""

    def personalise(self, client: Client) -> None:
        """What makes the client's own model out of the weights it holds, before its personal test and any fine-tuning."""

    def own_logits(self, logits: Tensor, counts: Tensor) -> Tensor:
        """How a client with these class counts reads the logits of its own model, where that is not as they are."""
        return logits

    # on the server
    def after_uploads(self, server: Server) -> None:
        """Before combining: look at the uploads, perhaps `server.ask` some clients again."""

    def combine(self, server: Server) -> Tensor:
        return server.mean(server.uploads)

    def after_combine(self, server: Server) -> None:
        """After combining: move the server's memory."""

    def refine(self, client: Client) -> None:
        """After that: train the new weights on the server, by the same loop; `client.memory` is the server's here."""

    def conclude(self, server: Server) -> None:
        """After the last round."""

    def served(self, weights: Tensor, memory: Mapping[str, Tensor]) -> Tensor:
        """What is evaluated and handed out, where it is not the training state."""
        return weights

    def summary(self, plan: Plan) -> dict[str, Any]:
        """What a finished run has to tell beside its accuracies: goes into summary.json."""
        return {}

    def log(self, server: Server) -> Mapping[str, Any]:
        """What to add to the round's line of rounds.jsonl, as plain numbers, texts, lists and dicts; after combining."""
        return {}

    # sums
    def hooks(self, name: str) -> bool:
        """Whether this part overrides a hook."""
        return getattr(type(self), name) is not getattr(Part, name)

    def __add__(self, other: Part | Method) -> Method:
        from fedloom.methods.method import Method

        return Method((self, *(other.parts if isinstance(other, Method) else (other,))))

    def __str__(self) -> str:
        values = self.model_dump(mode="json")
        given = [
            f"{k}={_spell(values[k])}" for k, f in type(self).model_fields.items() if getattr(self, k) != f.default
        ]
        return f"{self.name}({', '.join(given)})" if given else self.name

    __repr__ = __str__

    def spelled(self) -> str:
        """With every hyper-parameter written out; reading this text gives an equal part."""
        values = ", ".join(f"{k}={_spell(value)}" for k, value in self.model_dump(mode="json").items())
        return f"{self.name}({values})" if values else self.name


def _spell(value: Any) -> str:
    """A value as recipes write it: a plain word as it is, unless YAML takes it for something else; all others as JSON."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w-]*", value) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value)


def _sentence(error: ValidationError, known: Mapping[str, Any]) -> str:
    """What is wrong with the first bad hyper-parameter, to be read after the part's name."""
    first = error.errors()[0]
    key = ".".join(str(item) for item in first["loc"])
    if first["type"] == "extra_forbidden":
        return f" has no {shown(key)}; its hyper-parameters are: {', '.join(known) or 'none'}"
    if first["type"] == "missing":
        return f" needs a value for {key!r}"
    said = str(first["msg"]).removeprefix("Value error, ")
    return f"({key}={shown(first['input'])}): {said[0].lower()}{said[1:]}"
