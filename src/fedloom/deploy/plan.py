"""`fedloom flower plan`: exactly what a recipe lets out of a site, before anyone connects.

It is read off the same packings that the wire is checked against, so a tensor that is not listed is not accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedloom.data import Pipeline
from fedloom.engine.arena import Item, Packing
from fedloom.engine.setup import Experiment, Public, prepare
from fedloom.engine.sites import Sites, sized
from fedloom.recipe import Recipe

HEAD = 3  # numbers before the tensors in a masked vector: samples, clipped, loss
BYTES = 8  # of a number in a report, roughly: they travel as text


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # dtype and shape
    nbytes: int
    what: str


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    sections: dict[str, list[Row]]  # by when it is sent
    stays: list[Row]
    down: list[Row]

    @property
    def up_bytes(self) -> int:
        """Tensors that a client sends in a round, second acts and surveys aside; `bytes_up` counts these."""
        return sum(row.nbytes for row in self.sections[ROUND] if row.kind != "number")


JOIN = "once, on joining"
ROUND = "in every round that it takes part in"
ACT = "in a second act, when it is asked again"
SURVEY = "once, after the last round"
TEST = "whenever the sites test"
NEVER = "when it does not do what is asked"


def blank(recipe: Recipe, shape: tuple[int, int, int], classes: int) -> Experiment:
    """The experiment of a recipe whose images are not at hand."""
    sites = Sites("", "sites", shape, tuple(map(str, range(classes))), 255.0)
    one = [1] * recipe.clients
    data = {**recipe.data.model_dump(), "public_from": None, "validation": 0.0, "images": None, "public": 0.0}
    if recipe.data.normalize == "set":
        data["normalize"] = "none"
    images = sites.images()
    experiment_recipe = recipe.changed(data=data)
    count = 1 if recipe.data.public or recipe.data.public_from else 0
    public = Public(images.train_x, torch.zeros(count, dtype=torch.int64), Pipeline.of(images, "none"))
    return prepare(experiment_recipe, sized(one, one), images=images, public=public)


def plan(experiment: Experiment, recipe: Recipe | None = None) -> Plan:
    messages, layout = experiment.messages, experiment.layout
    about = {
        part.name: f"of {part.name}: {type(part).__doc__ or ''}".split("\n")[0] for part in experiment.method.parts
    }
    exchanged = [name for name, status in layout.regions.status.items() if status == "exchanged"]
    personal = [name for name, status in layout.regions.status.items() if status == "personal"]

    def rows(packing: Packing) -> list[Row]:
        return [_row(item, about, exchanged, layout.exchanged) for item in packing.items if item.nbytes]

    sections = {
        JOIN: [
            Row("partition-id, name", "text", 0, "as the node's operator wrote them"),
            Row("train, test", "number", 2 * BYTES, "how many training and test images it has"),
            Row("shape, class_names", "text", 0, "of its images: channels, height, width, and its classes' names"),
            Row("version, digest", "text", 0, "of fedloom and of the recipe"),
            Row("key, signature", "text", 0, "the site's public key, and a proof that it holds the private one"),
        ],
        ROUND: [
            *rows(messages.up),
            Row("loss", "number", BYTES, "mean training loss"),
            Row("steps", "number", BYTES, "local steps"),
            Row("seconds", "number", BYTES, "time taken"),
        ],
    }
    if experiment.recipe.deploy.secure_aggregation is not None:
        sections[ROUND] = _masked([row.name for row in rows(messages.up)], experiment)
    if messages.message.items:
        sections[ACT] = [*rows(messages.up), Row("loss, steps", "number", 2 * BYTES, "as above")]
    if messages.findings.items:
        sections[SURVEY] = rows(messages.findings)
    sections[TEST] = [
        Row("correct, total", "number", 2 * BYTES, "hits among its own test images, under the global or its own model")
    ]
    sections[NEVER] = [Row("refused", "text", 0, "why: settings and digests; of an unexpected error its kind alone")]
    stays = [Row("images, labels", "", 0, "the data themselves; where they lie; the log")]
    for item in messages.memory.items:
        what = about.get(_part(item), "its own running statistics")
        if item.name == "personal":
            what = "its own weights: " + ", ".join(personal)
        stays.append(Row(item.name, _kind(item), item.nbytes, what))
    down = [row for row in rows(messages.down) if not row.name.startswith("fixed.")]
    down += [Row(row.name, row.kind, row.nbytes, row.what + " (second act)") for row in rows(messages.message)]
    return Plan(recipe or experiment.recipe, sections, stays, down)


def _masked(names: list[str], experiment: Experiment) -> list[Row]:
    """What leaves in a round under secure aggregation; see `masking.py`."""
    length = HEAD + sum(math.prod(item.shape) for item in experiment.messages.up.items)
    settings = experiment.recipe.deploy.secure_aggregation
    what = "by the site's key: that the public keys are its own, what it was told of the round, whose sum it is"
    signed = [Row("signature", "signature", 0, what)] if settings is not None and settings.authenticated else []
    inside = ", ".join([*names, "samples", "clipped", "loss"])
    return [
        Row(
            "masked",
            f"int32 {length}",
            4 * length,
            f"{inside}: weighted and under masks, of which the server learns the sum over the round's sites",
        ),
        Row("pk1, pk2", "key", 0, "two public keys, new in every round"),
        *signed,
        Row("ctxts", "secret", 0, "shares of its secrets, encrypted for other sites; the server passes them on"),
        Row("shares", "secret", 0, "of others' secrets: what unmasks the sum, never what unmasks one site"),
    ]


def _part(item: Item) -> str:
    return item.name.partition(".")[0]


def _kind(item: Item) -> str:
    return f"{str(item.dtype).removeprefix('torch.')} {'x'.join(map(str, item.shape)) or '1'}"


def _row(item: Item, about: dict[str, str], exchanged: list[str], length: int) -> Row:
    if item.name == "w":
        what = "weights: " + ", ".join(exchanged)
    elif item.name == "statistics":
        what = "running means and variances of normalisers"
    else:
        what = about[_part(item)]
        if item.shape != (length,):
            what = "a statistic " + what
    return Row(item.name, _kind(item), item.nbytes, what)
