"""Sites with features, tokens and tables of their own: the bits of a simulation, and sites that do not fit."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federations import FIELDS, confirmed, grid
from loopback import Loopback

import fedloom as fl
from fedloom.data import load
from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.app_template import SiteInputs, init, write_sites
from fedloom.deploy.flower.plan import blank_experiment, plan
from fedloom.deploy.flower.server import serve
from fedloom.engine.sites import Sites
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe, recipe

NAMES = ("east", "north", "south")


def npz(kind: str, folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    y = np.arange(150) % 3
    client = np.array(NAMES)[draw.integers(3, size=150)]
    x = (
        draw.normal(size=(150, 2, 6)) + y[:, None, None]
        if kind == "signals"
        else draw.integers(1, 30, (150, 8)) + y[:, None]
    )
    np.savez(folder / f"{kind}.npz", x=x, y=y, client=client)
    model = {"signals": "linear", "tokens": "lstm(hidden=8)"}[kind]
    return {**FIELDS, "data": str(folder / f"{kind}.npz"), "split": "natural", "model": model, "method": "scaffold"}


def settings_of(app: Path) -> Settings:
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return Settings.of(config)


def started(fields: dict[str, Any], folder: Path) -> tuple[Loopback, Recipe, Settings]:
    package = init(folder / "app", recipe(fields), "sites")[0] / "loom_app"
    return grid(package, folder, 3), read(package / "server_app.py"), settings_of(folder / "app")


@pytest.mark.parametrize("kind", ["signals", "tokens"])
def test_sites_with_files_of_their_own_end_with_the_bits_of_a_simulation(kind: str, tmp_path: Path) -> None:
    fields = npz(kind, tmp_path)
    nodes, given, settings = started(fields, tmp_path)
    for client, path in enumerate(write_sites(tmp_path / "files", recipe(fields))):
        nodes.configs[100 + client]["data"] = str(path)
    run = serve(given, confirmed(given, settings, nodes), nodes)
    dataset = load(fields["data"])
    stored = Sites.read(tmp_path / "app" / "run" / "sites.json")
    assert stored is not None and stored.inputs == dataset.inputs
    alone = fl.run(fields, out=str(tmp_path / "alone"))
    assert run.summary["digest"] == alone.summary["digest"]


def table(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": draw.normal(60, 10, 150),
            "ward": draw.choice(["a", "b", "c"], 150),
            "site": np.array(NAMES)[draw.integers(3, size=150)],
            "test": np.arange(150) % 5 == 0,
        }
    )
    frame["sick"] = np.where(frame["age"] > 60, "yes", "no")
    frame.to_csv(folder / "all.csv", index=False)
    data = f"table:{folder}/all.csv?target=sick&client=site&test=test"
    return frame, {**FIELDS, "data": data, "split": "natural", "method": "fedavg"}


def test_sites_with_tables_and_one_schema_end_with_the_bits_of_a_simulation(tmp_path: Path) -> None:
    frame, fields = table(tmp_path)
    schema = tmp_path / "schema.json"
    schema.write_text(load(fields["data"]).schema)
    nodes, given, settings = started(fields, tmp_path)
    for client, name in enumerate(NAMES):
        path = tmp_path / f"{name}.csv"
        frame[frame["site"] == name].drop(columns="site").to_csv(path, index=False)
        nodes.configs[100 + client]["data"] = f"table:{path}?target=sick&test=test&schema={schema}"
    run = serve(given, confirmed(given, settings, nodes), nodes)
    alone = fl.run(fields, out=str(tmp_path / "alone"))
    assert run.summary["digest"] == alone.summary["digest"]
    stored = json.loads(next((tmp_path / "sites").rglob("site.json")).read_text())
    assert stored["data"].startswith(f"table:{tmp_path}/")


def test_sites_that_prepare_their_tables_each_in_its_own_way_do_not_begin(tmp_path: Path) -> None:
    frame, fields = table(tmp_path)
    nodes, given, settings = started(fields, tmp_path)
    for client, name in enumerate(NAMES):
        path = tmp_path / f"{name}.csv"
        frame[frame["site"] == name].drop(columns="site").to_csv(path, index=False)
        nodes.configs[100 + client]["data"] = f"table:{path}?target=sick&test=test"
    with pytest.raises(
        FedloomError, match=r"prepare their rows by different schemas; give all sites one file with schema="
    ):
        serve(given, settings, nodes)
    nodes.configs[101]["data"] = npz("tokens", tmp_path)["data"]
    with pytest.raises(
        FedloomError, match=r"client 1 \(site-1\) has sequences of 8 tokens, and client 0 .* features of"
    ):
        serve(given, settings, nodes)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("30", "2", None, "features", None), None),
        (("64", "2", None, "tokens", 5000), None),
        (("3x32x32", "2", 255.0, None, None), None),
        (("64", "2", None, "tokens", None), "--shape, --classes and --vocabulary go together: give all three"),
        (("30", None, None, "features", None), "--shape and --classes go together: give both"),
        (("30", "2", 255.0, "features", None), "--scale: it is for --kind image, and the kind is features"),
        (("3x32", "2", 255.0, "image", None), "--shape: '3x32'; write channels x height x width"),
        (("3x32", "2", None, "tokens", 9), "--shape: '3x32'; write the length of a sequence"),
        (("30", "2", None, "sound", None), "--kind: 'sound'; allowed are image, features, tokens"),
        (("64", "2", None, "tokens", 1), "--vocabulary: 1; it is the number of tokens, from 2"),
    ],
)
def test_inputs_of_sites_are_declared_by_kind(given: tuple[Any, ...], sentence: str | None, tmp_path: Path) -> None:
    if sentence is not None:
        with pytest.raises(FedloomError, match=sentence):
            SiteInputs.of(*given)
        return
    inputs = SiteInputs.of(*given)
    assert inputs is not None
    model = "lstm(hidden=8)" if inputs.spec.kind == "tokens" else "linear"
    fields = {**FIELDS, "model": model, "data": {"normalize": "none"}}
    del fields["split"]
    made = init(tmp_path / "app", recipe(fields), "sites", inputs=inputs)[1]
    settings = settings_of(tmp_path / "app")
    assert (settings.kind, settings.vocabulary) == (inputs.spec.kind, inputs.spec.vocabulary)
    assert plan(blank_experiment(made, inputs.spec, 2)).up_bytes > 0
