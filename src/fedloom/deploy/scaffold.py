"""`fedloom flower init`: a small Flower app around a recipe, and the files that sites of a trial would have."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np

from fedloom.data import ImageSet
from fedloom.deploy.app import RECIPE, canonical, check_federated, check_sites
from fedloom.engine.files import write
from fedloom.engine.setup import Experiment, prepare
from fedloom.engine.sites import Where
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe

PACKAGE = "loom_app"

PYPROJECT = """\
# Written by `fedloom flower init`. The recipe is {package}/recipe.yaml; the settings below are about where things run.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{method} with fedloom, on Flower"
license = "Apache-2.0"
dependencies = ["fedloom[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# `flwr run . NAME --run-config 'resume=true'` changes any of these for one run.
[tool.flwr.app.config]
out = "{out}" # the server's run folder
resume = false # carry on what is in it
data = "{data}" # split: every node takes its share of the recipe's data | sites: every node gives data="…"
test = "{test}" # sites only: an npz with test images for the server; empty: the sites test
scale = {scale} # sites only: inputs are x / scale, then normalised as the recipe says
roster = "{roster}" # a file with the sites' public keys: only they join; empty: the first to join as a client keeps its place
"""

MODULE = '''\
"""{what}; all of it is fedloom's."""

from fedloom.deploy.{kind} import {kind}_app

app = {kind}_app(__file__)
'''

README = """\
# {name}

A Flower app written by `fedloom flower init`. It runs `{method}` ({rounds} rounds, {clients} clients), as
`{package}/recipe.yaml` says. Recipe digest: `{digest}`. What leaves a site: `fedloom flower plan {package}/recipe.yaml`.

    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 8101 --node-config 'partition-id=0{example}'
    flwr run . NAME --stream        # NAME: a connection in $FLWR_HOME/config.toml

A node's settings (`--node-config`): `partition-id` (which client it is), `name` (how losses are reported), `data`
(PATH.npz or a folder of pictures; only with data = "sites"), `state` (where it keeps its memory; else $FEDLOOM_SITES
or ~/.fedloom/sites), `recipe` (the only digest it takes part in), `key` (the site's private key), `device`.
"""


def init(
    folder: Path, given: Recipe, data: Where = "split", test: str | None = None, roster: str | None = None
) -> tuple[Path, Recipe]:
    """Write the app; returns its folder and the recipe as it stands there."""
    folder = folder.resolve()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", folder.name):
        raise FedloomError(f"DIR: {folder.name!r} cannot name a Flower app; use letters, digits, - and _")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedloomError(f"DIR: {folder} exists already and is not empty; choose another name")
    carried, modules = _own_parts(given)
    recipe = canonical(given)
    experiment = prepare(recipe)
    check_federated(experiment)
    recipe = experiment.told().changed(parts=modules)
    if data == "sites":
        recipe = _normalized(recipe, experiment).changed(split="iid")  # who holds what is decided by the sites
        check_sites(recipe)
    words = {
        "name": folder.name,
        "package": PACKAGE,
        "method": recipe.method,
        "out": folder / "run",
        "data": data,
        "test": Path(test).expanduser().resolve() if test else "",
        "roster": Path(roster).expanduser().resolve() if roster else "",
        "scale": experiment.images.scale,
        "rounds": recipe.rounds,
        "clients": recipe.clients,
        "digest": recipe.digest(),
        "example": ' data="/path/site.npz"' if data == "sites" else "",
    }
    package = folder / PACKAGE
    write(folder / "pyproject.toml", PYPROJECT.format(**words))
    write(folder / "README.md", README.format(**words))
    write(folder / ".gitignore", "run/\n")
    write(package / "__init__.py", "")
    write(package / "server_app.py", MODULE.format(what="The server's side", kind="server"))
    write(package / "client_app.py", MODULE.format(what="A node's side", kind="client"))
    for source in carried:
        shutil.copyfile(source, package / source.name)
    write(package / RECIPE, recipe.to_yaml())
    return folder, recipe


def _own_parts(given: Recipe) -> tuple[list[Path], list[str]]:
    """Files with parts of the user's own travel in the app and become modules of it."""
    files = [Path(source) for source in given.parts if source.endswith(".py")]
    return files, [f"{PACKAGE}.{Path(s).stem}" if s.endswith(".py") else s for s in given.parts]


def _normalized(recipe: Recipe, experiment: Experiment) -> Recipe:
    """`normalize: set` in numbers: those of the data that the recipe was tried on."""
    if recipe.data.normalize != "set":
        return recipe
    images = experiment.images
    return recipe.changed(data={**recipe.data.model_dump(), "normalize": [list(images.mean), list(images.std)]})


def write_sites(folder: Path, given: Recipe) -> list[Path]:
    """What each client of a recipe holds, as the file that a site would have."""
    experiment = prepare(canonical(given))
    images, partition = experiment.images, experiment.partition
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for client in range(partition.clients):
        train, test = partition.train(client), partition.test(client)
        if not len(test):
            raise FedloomError(f"split: client {client} has no test images; a site needs some")
        path = folder / f"site-{client}.npz"
        with path.open("wb") as file:
            np.savez(file, **_content(images, train, test))  # type: ignore[arg-type]
        paths.append(path)
    return paths


def _content(images: ImageSet, train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "train_x": images.train_x[train].numpy(),
        "train_y": images.train_y[train].numpy(),
        "test_x": images.test_x[test].numpy(),
        "test_y": images.test_y[test].numpy(),
        "class_names": np.array(images.class_names),
    }
