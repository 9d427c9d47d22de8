"""Federations for tests: an app around a recipe, nodes for its clients, and a server."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback

from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.app_template import init, write_sites
from fedloom.deploy.flower.client import client_app
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.deploy.keys.certs import make
from fedloom.engine.sites import Where
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe, recipe
from fedloom.runs.run import Run

Change = Callable[[Loopback], None]
FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 3,
    "model": "linear",
    "method": "scaffold",
    "rounds": 2,
    "fraction": 1.0,
    "lr": 0.05,
    "eval_every": 0,
    "deploy": {"timeout": 0.3, "join_timeout": 0.5},
}


def application(fields: Mapping[str, Any], folder: Path, data: Where = "split") -> Path:
    """The app's package."""
    return init(folder, recipe(fields), data)[0] / "loom_app"


@cache
def site_keys(clients: int) -> Path:
    """A folder with a key for each client and their roster."""
    folder = Path(tempfile.mkdtemp(prefix="fedloom-keys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make(folder, [f"site-{k}" for k in range(clients)], ["127.0.0.1"])
    return folder


def credentials(clients: int, client: int) -> dict[str, str]:
    """What a node config says of keys."""
    keys = site_keys(clients)
    return {"roster": str(keys / "roster.json"), "key": str(keys / f"site-{client}.key")}


def grid(package: Path, home: Path, clients: int, **more: Any) -> Loopback:
    """A node for each client; `more` are further settings of all."""
    secure = read(package / "client_app.py").deploy.secure_aggregation is not None
    configs = [
        {"partition-id": k, "name": f"site-{k}", "state": str(home / "sites")}
        | (credentials(clients, k) if secure else {})
        | more
        for k in range(clients)
    ]
    return Loopback(client_app(package / "client_app.py"), configs)


def sites(fields: Mapping[str, Any], folder: Path) -> tuple[Loopback, Recipe, Settings]:
    """Nodes with files of their own, one for each client of the recipe; the app's recipe; the server's settings."""
    package = application(fields, folder / "app", "sites")
    nodes = grid(package, folder, int(fields["clients"]))
    for client, path in enumerate(write_sites(folder / "files", recipe(fields))):
        nodes.configs[100 + client]["data"] = str(path)
    return nodes, read(package / "server_app.py"), Settings(data="sites", out=str(folder / "run"), scale=16.0)


def serve(
    fields: Mapping[str, Any], folder: Path, change: Change | None = None, settings: Mapping[str, Any] | None = None
) -> Run:
    """The recipe on as many nodes as it has clients; `change` is made to the grid before the server starts."""
    package = application(fields, folder / "app")
    nodes = grid(package, folder, int(fields["clients"]))
    if change:
        change(nodes)
    return serve_app(read(package / "server_app.py"), Settings(out=str(folder / "run"), **(settings or {})), nodes)


def confirmed(given: Recipe, settings: Settings, nodes: Loopback) -> Settings:
    """As an operator does it: the first start stops with the sites' claims, whose fingerprint goes into the settings."""
    with pytest.raises(FedloomError, match="claims are not confirmed") as stopped:
        serve_app(given, settings, nodes)
    return replace(settings, confirm=str(stopped.value).split('confirm = "')[1].partition('"')[0])
