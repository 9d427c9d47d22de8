"""`fedloom flower init`: write a Flower app for a recipe. `fedloom flower sites`: write data files for a trial."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedloom.data import Dataset, InputSpec, Kind
from fedloom.data.inputs import MOST_TOKENS
from fedloom.data.spec import KINDS, Shape
from fedloom.deploy.flower.app import RECIPE, canonical, check_federated, check_sites, listed, sizes
from fedloom.deploy.flower.plan import blank_experiment
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.kernels import choose_kernels
from fedloom.engine.sites import Where
from fedloom.errors import FedloomError, shown
from fedloom.extras import requirement
from fedloom.io.files import write
from fedloom.recipe import Recipe

PACKAGE = "loom_app"

PYPROJECT = """\
# Written by `fedloom flower init`. The recipe is {package}/recipe.yaml; the settings below say where things run.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{method} with fedloom, on Flower"
license = "Apache-2.0"
# The fedloom that wrote this file. A SuperLink installs it at the start of a run, unless it is started with
# --disable-runtime-dependency-installation: then every machine uses the fedloom that it has, as SuperNodes do by default.
dependencies = ["{fedloom}"]

[tool.hatch.metadata]
allow-direct-references = true

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# `flwr run . NAME --run-config 'resume=true'` overrides any of these for one run.
[tool.flwr.app.config]
out = "{out}" # the server's run folder
resume = false # continue the run in it
data = "{data}" # split: every node uses its share of the recipe's data | sites: every node has its own data="…"
test = "{test}" # sites only: an npz with test samples for the server; empty: the sites evaluate
scale = {scale} # sites only: inputs of uint8 images are x / scale, then normalized as in the recipe
kind = "{kind}" # sites only: image, features or tokens; empty: as the sites report
shape = "{shape}" # sites only: of an image 3x32x32, of features 30 or 6x128, of tokens 64; empty: as the sites report
vocabulary = {vocabulary} # sites only: number of tokens; 0: as the sites report
classes = "{classes}" # sites only: names separated by commas; empty: as the sites report
roster = "{roster}" # a file with the public keys of the sites that may join; empty: any site may join
confirm = "" # sites only: fingerprint of the sites' claims; without it the server prints the claims and stops
"""

MODULE = '''\
"""{what}."""

from fedloom.deploy.flower.{kind} import {kind}_app

app = {kind}_app(__file__)
'''

README = """\
# {name}

A Flower app written by `fedloom flower init`. It runs `{method}` ({rounds} rounds, {clients} clients); the recipe is
`{package}/recipe.yaml`, its digest `{digest}`. `fedloom flower plan {package}/recipe.yaml` lists what leaves a site.

    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 8101 --node-config 'partition-id=0{example}'
    flwr run . NAME --stream        # NAME: a connection in $FLWR_HOME/config.toml

Settings of a node (`--node-config`): `partition-id` (which client it is), `name` (used in logs), `data` (PATH.npz, a
folder of images, or table:PATH.csv?target=COLUMN&schema=PATH.json; only with data = "sites"), `state` (folder for its
state; default $FEDLOOM_SITES or ~/.fedloom/sites),
`recipe` (digest of the only recipe that it takes part in), `device`, `key` (a file with the site's private key), `roster`
(a file with all sites' public keys, for secure aggregation).

With data = "sites" the server prints what the sites claim to have and stops, until `confirm` in pyproject.toml (or
`--run-config 'confirm="…"'`) is the fingerprint that it printed.
"""


@dataclass(frozen=True)
class SiteInputs:
    """The inputs of the net, for a recipe that names no data set."""

    spec: InputSpec
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        shape: str | None,
        classes: str | None,
        scale: float | None = None,
        kind: str | None = None,
        vocabulary: int | None = None,
    ) -> SiteInputs | None:
        """From the command line: all that the kind needs, or none."""
        if all(option is None for option in (shape, classes, scale, kind, vocabulary)):
            return None
        chosen = _kind(kind)
        needed = {"image": ("--scale", scale), "tokens": ("--vocabulary", vocabulary)}.get(chosen)
        if shape is None or classes is None or (needed is not None and needed[1] is None):
            flags = ["--shape", "--classes", *([needed[0]] if needed else [])]
            raise FedloomError(
                f"{', '.join(flags[:-1])} and {flags[-1]} go together: give {'all three' if needed else 'both'}, or name a "
                "data set in the recipe"
            )
        for flag, value, owner in (("--scale", scale, "image"), ("--vocabulary", vocabulary, "tokens")):
            if value is not None and chosen != owner:
                raise FedloomError(f"{flag}: it is for --kind {owner}, and the kind is {chosen}; leave it out")
        names = tuple(map(str, range(int(classes)))) if classes.isdecimal() and len(classes) < 6 else listed(classes)
        if len(names) < 2:
            raise FedloomError(
                f"--classes: {classes!r}; write the number of classes, or their names separated by commas"
            )
        return cls(_spec(chosen, sizes(shape, "--shape", chosen), scale, vocabulary), names)


def _kind(given: str | None) -> Kind:
    for kind in KINDS:
        if kind == (given or "image"):
            return kind
    raise FedloomError(f"--kind: {shown(given)}; allowed are {', '.join(KINDS)}")


def _spec(kind: Kind, shape: Shape, scale: float | None, vocabulary: int | None) -> InputSpec:
    if kind == "image":
        if scale is None or not 0 < scale < float("inf"):
            raise FedloomError(f"--scale: {scale:g}; inputs are x / scale, so it must be above 0, for example 255")
        return InputSpec.image(shape, scale)
    if kind == "tokens":
        if vocabulary is None or not 2 <= vocabulary <= MOST_TOKENS:
            raise FedloomError(f"--vocabulary: {vocabulary}; it is the number of tokens, from 2 to {MOST_TOKENS}")
        return InputSpec("tokens", shape, "int32", vocabulary=vocabulary)
    return InputSpec("features", shape)


def init(
    folder: Path,
    given: Recipe,
    data: Where = "split",
    test: str | None = None,
    roster: str | None = None,
    inputs: SiteInputs | None = None,
) -> tuple[Path, Recipe]:
    """Write the app; returns its folder and the recipe in it."""
    folder = folder.resolve()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", folder.name):
        raise FedloomError(f"DIR: {folder.name!r} cannot name a Flower app; use letters, digits, - and _")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedloomError(f"DIR: {folder} exists already and is not empty; choose another name")
    part_files, modules = _own_parts(given)
    recipe = canonical(given)
    if data == "sites":
        check_sites(recipe.changed(data={**recipe.data.model_dump(), "normalize": "none"}))
    _check_inputs(given, data, inputs)
    experiment = prepare(recipe) if inputs is None else blank_experiment(recipe, inputs.spec, len(inputs.classes))
    check_federated(experiment)
    recipe = experiment.program.stored_recipe().changed(data=recipe.data.model_dump(), parts=modules)
    if recipe.kernels == "auto":  # decided here for all nodes; one that has no compiler computes portably
        recipe = recipe.changed(kernels=choose_kernels(recipe, experiment.program.net)[0])
    if data == "sites":
        recipe = recipe if inputs else _normalized(recipe, experiment)
        recipe = recipe.changed(split="iid")  # the sites decide who has what
        check_sites(recipe)
    if inputs:
        recipe = recipe.changed(data={**recipe.data.model_dump(), "name": "sites"})
    values = {
        "name": folder.name,
        "fedloom": requirement("flower"),
        "package": PACKAGE,
        "method": recipe.method,
        "out": folder / "run",
        "data": data,
        "test": Path(test).expanduser().resolve() if test else "",
        "roster": Path(roster).expanduser().resolve() if roster else "",
        "scale": inputs.spec.scale if inputs else experiment.data.dataset.scale,
        "kind": inputs.spec.kind if inputs else "",
        "shape": "x".join(map(str, inputs.spec.shape)) if inputs else "",
        "vocabulary": inputs.spec.vocabulary if inputs else 0,
        "classes": ",".join(inputs.classes) if inputs else "",
        "rounds": recipe.rounds,
        "clients": recipe.clients,
        "digest": recipe.digest(),
        "example": ' data="/path/site.npz"' if data == "sites" else "",
    }
    package = folder / PACKAGE
    write(folder / "pyproject.toml", PYPROJECT.format(**values))
    write(folder / "README.md", README.format(**values))
    write(folder / ".gitignore", "run/\n")
    write(package / "__init__.py", "")
    write(package / "server_app.py", MODULE.format(what="The server", kind="server"))
    write(package / "client_app.py", MODULE.format(what="A node", kind="client"))
    for source in part_files:
        shutil.copyfile(source, package / source.name)
    write(package / RECIPE, recipe.to_yaml())
    return folder, recipe


def _check_inputs(given: Recipe, data: Where, inputs: SiteInputs | None) -> None:
    """The shape and scale of the default data set must not become those of the sites by accident."""
    named = "data" in given.model_fields_set and "name" in given.data.model_fields_set
    if data == "sites" and not named and inputs is None:
        raise FedloomError(
            "--sites: the sites' inputs are unknown; give --shape 3x32x32 --classes 10 (or their names) --scale 255, "
            "or --kind features --shape 30 --classes 2, "
            "or --kind tokens --shape 64 --vocabulary 5000 --classes 2, "
            "or name in the recipe the data that it was tried on, such as data: cifar10"
        )
    if inputs is not None and (data != "sites" or named):
        why = f"the recipe names its data, {given.data.name}" if named else "they are for --sites"
        raise FedloomError(f"--shape, --classes, --scale, --kind, --vocabulary: {why}; leave them out")


def _own_parts(given: Recipe) -> tuple[list[Path], list[str]]:
    """Files with the user's own parts are copied into the app and become modules of it."""
    files = [Path(source) for source in given.parts if source.endswith(".py")]
    return files, [f"{PACKAGE}.{Path(s).stem}" if s.endswith(".py") else s for s in given.parts]


def _normalized(recipe: Recipe, experiment: Experiment) -> Recipe:
    """`normalize: set` as numbers: those of the data that the recipe was tried on."""
    if recipe.data.normalize != "set":
        return recipe
    dataset = experiment.data.dataset
    tokens = dataset.inputs.kind == "tokens"
    numbers = "none" if tokens else [list(dataset.mean), list(dataset.std)]
    return recipe.changed(data={**recipe.data.model_dump(), "normalize": numbers})


def write_sites(folder: Path, given: Recipe) -> list[Path]:
    """Write the data of each client of a recipe to a file of its own."""
    experiment = prepare(canonical(given))
    dataset, partition = experiment.data.dataset, experiment.data.partition
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for client in range(partition.clients):
        train, test = partition.train(client), partition.test(client)
        if not len(test):
            raise FedloomError(f"split: client {client} has no test samples; every site needs some")
        path = folder / f"site-{client}.npz"
        with path.open("wb") as file:
            np.savez(file, **_content(dataset, train, test))  # type: ignore[arg-type]
        paths.append(path)
    return paths


def _content(dataset: Dataset, train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    inputs = dataset.inputs
    numbers = {"vocabulary": np.array(inputs.vocabulary), "padding": np.array(inputs.padding)}
    return {
        "kind": np.array(inputs.kind),
        **(numbers if inputs.kind == "tokens" else {}),
        "train_x": dataset.train_x[train].numpy(),
        "train_y": dataset.train_y[train].numpy(),
        "test_x": dataset.test_x[test].numpy(),
        "test_y": dataset.test_y[test].numpy(),
        "class_names": np.array(dataset.class_names),
    }
