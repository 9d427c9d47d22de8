"""`fedloom flower plan`: exactly what a recipe lets out of a site, before anyone connects.

It is computed from the same layouts that messages are checked against, so a tensor that is not listed is not accepted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from fedloom.data import InputSpec
from fedloom.data.spec import Shape
from fedloom.deploy.secagg.encoding import HEADER
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.federated_data import Public
from fedloom.engine.sites import Sites, sized
from fedloom.engine.tasks import Task
from fedloom.engine.tensor_layout import Item, TensorLayout
from fedloom.evaluation.metrics import find_metric
from fedloom.evaluation.tasks import TASKS
from fedloom.evaluation.tasks.evaluate import PREFIX
from fedloom.methods.api.context import Query
from fedloom.recipe import Recipe

BYTES = 8  # of a number in a report, approximately: they are sent as text


@dataclass(frozen=True)
class PlanRow:
    name: str
    kind: str  # dtype and shape
    nbytes: int
    what: str


@dataclass(frozen=True)
class DisclosurePlan:
    recipe: Recipe
    sections: dict[str, list[PlanRow]]  # by occasion
    stays: list[PlanRow]
    down: list[PlanRow]

    @property
    def up_bytes(self) -> int:
        """Tensors that a client sends in a round, without answers to queries; as `bytes_up` counts them."""
        return sum(row.nbytes for row in self.sections[ROUND] if row.kind != "number")


JOIN = "once, on joining"
ROUND = "in every round that it takes part in"
REFINE = "when a query makes it train again in a round"
QUERY = "when it answers a query"
TEST = "whenever the sites evaluate"
REFUSED = "when it refuses an order"
NUMBERS = {
    "loss": "mean training loss",
    "steps": "number of local steps",
    "seconds": "training time",
    "correct": "correct predictions on its own test samples, with the global or its own model",
    "total": "number of its test samples",
}


def blank_experiment(recipe: Recipe, inputs: InputSpec | Shape, classes: int) -> Experiment:
    """The experiment of a recipe without its data. A shape of three numbers alone means images."""
    sites = Sites("", "sites", InputSpec.of(inputs), tuple(map(str, range(classes))))
    one = [1] * recipe.clients
    data = {
        **recipe.data.model_dump(),
        "public_from": None,
        "validation": 0.0,
        "images": None,
        "public": 0.0,
        "test_images": None,
    }
    if recipe.data.normalize == "set":
        data["normalize"] = "none"
    dataset = sites.dataset()
    experiment_recipe = recipe.changed(data=data)
    count = 1 if recipe.data.public or recipe.data.public_from else 0
    public = Public(dataset.train_x, torch.zeros(count, dtype=torch.int64), dataset.pipeline("none"))
    return prepare(experiment_recipe, sized(one, one), dataset=dataset, public=public)


def plan(experiment: Experiment, recipe: Recipe | None = None) -> DisclosurePlan:
    messages, layout = experiment.program.messages, experiment.program.layout
    about = {
        part.name: f"of {part.name}: {type(part).__doc__ or ''}".split("\n")[0]
        for part in experiment.program.method.parts
    }
    shared = [name for name, status in layout.regions.status.items() if status == "shared"]
    personal = [name for name, status in layout.regions.status.items() if status == "personal"]

    def rows(group: TensorLayout) -> list[PlanRow]:
        return [_row(item, about, shared, layout.shared) for item in group.items if item.nbytes]

    sent: dict[str, list[PlanRow]] = {
        JOIN: [
            PlanRow("partition-id, name", "text", 0, "from the node config"),
            PlanRow("train, test", "number", 2 * BYTES, "number of training and test samples"),
            PlanRow("inputs, class_names", "text", 0, "kind, shape and type of an input; names of the classes"),
            PlanRow(
                "schema_digest", "text", 0, "of the file by which a site prepares the rows of its table, if it has one"
            ),
            PlanRow("version, digest", "text", 0, "of fedloom and of the recipe"),
            PlanRow("key, signature", "text", 0, "the site's public key, and proof that it holds the private one"),
        ],
        REFUSED: [PlanRow("refused", "text", 0, "why: settings and digests; of an unexpected error only its type")],
    }
    tensors = {ROUND: messages.up, REFINE: messages.up, QUERY: messages.reply}
    for occasion, task in _occasions(messages.queries.values()):
        sent[occasion] = [
            *(rows(tensors[occasion]) if occasion in tensors else []),
            *(PlanRow(name, "number", BYTES, _number(name)) for name in task.reported(recipe or experiment.recipe)),
        ]
    if experiment.recipe.deploy.secure_aggregation is not None:
        sent[ROUND] = _masked([row.name for row in rows(messages.up)], experiment)
    sections = {
        occasion: sent[occasion] for occasion in (JOIN, ROUND, REFINE, QUERY, TEST, REFUSED) if occasion in sent
    }
    stays = [PlanRow("inputs, labels", "", 0, "the data, their path, the log of the node")]
    for item in messages.state.items:
        what = about.get(_part(item), "its own running statistics")
        if item.name.startswith("optimizer_"):
            what = "of its local optimizer (optimizer.keep)"
        elif item.name == "personal":
            what = "its own weights: " + ", ".join(personal)
        stays.append(PlanRow(item.name, _kind(item), item.nbytes, what))
    down = [row for row in rows(messages.down) if not row.name.startswith("fixed.")]
    down += [
        PlanRow(row.name, row.kind, row.nbytes, row.what + " (message of a query)") for row in rows(messages.message)
    ]
    return DisclosurePlan(recipe or experiment.recipe, sections, stays, down)


def _number(name: str) -> str:
    if name.startswith(PREFIX):
        return (
            f"{find_metric(name.removeprefix(PREFIX)).title} on its own test samples, with the global or its own model"
        )
    return NUMBERS.get(name, "")


def _occasions(queries: Collection[Query]) -> Iterator[tuple[str, Task]]:
    """When a recipe with these queries makes nodes perform each of the remote tasks."""
    blanks: Mapping[Any, Any] = {"int": 0, "str": "", "bool": False}  # by the annotation of a field
    for kind in TASKS.values():
        if not kind.remote:
            continue
        task = kind(**{field.name: blanks[field.type] for field in fields(kind)})
        if task.starts_round:
            yield ROUND, task
        elif "upload" in task.outputs:
            if any(query.trains for query in queries):
                yield REFINE, task
        elif "reply" in task.outputs:
            if any(not query.trains and not query.delivers for query in queries):
                yield QUERY, task
        elif "state" in task.outputs:
            continue  # it changes what the site keeps, and nothing leaves
        else:
            yield TEST, task


def _masked(names: list[str], experiment: Experiment) -> list[PlanRow]:
    """What leaves a site in a round with secure aggregation; see `secagg/client.py`."""
    length = HEADER + sum(math.prod(item.shape) for item in experiment.program.messages.up.items)
    settings = experiment.recipe.deploy.secure_aggregation
    what = "by the site's key: on its public keys, what it was told about the round, and which sites are in the sum"
    signed = [PlanRow("signature", "signature", 0, what)] if settings is not None and settings.authenticated else []
    inside = ", ".join([*names, "samples", "clipped", "loss"])
    return [
        PlanRow(
            "masked",
            f"int32 {length}",
            4 * length,
            f"{inside}: weighted and masked; the server learns only their sum over the sites of the round",
        ),
        PlanRow("pk1, pk2", "key", 0, "two public keys, new in every round"),
        *signed,
        PlanRow("ctxts", "secret", 0, "shares of its secrets, encrypted for other sites; the server forwards them"),
        PlanRow("shares", "secret", 0, "of other sites' secrets: enough to unmask the sum, never a single upload"),
    ]


def _part(item: Item) -> str:
    return item.name.partition(".")[0]


def _kind(item: Item) -> str:
    return f"{str(item.dtype).removeprefix('torch.')} {'x'.join(map(str, item.shape)) or '1'}"


def _row(item: Item, about: dict[str, str], shared: list[str], length: int) -> PlanRow:
    if item.name == "w":
        what = "weights: " + ", ".join(shared)
    elif item.name == "statistics":
        what = "running means and variances of normalizers"
    else:
        what = about[_part(item)]
        if item.shape != (length,):
            what = "a statistic " + what
    return PlanRow(item.name, _kind(item), item.nbytes, what)
