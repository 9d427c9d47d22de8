"""A node's state folder: nothing is written outside of it, and nobody else reads it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, grid, serve
from loopback import Loopback

from fedloom.deploy.flower.app import read
from fedloom.deploy.flower.transport import FlowerTransport
from fedloom.deploy.messages.schema import EmptyReport, FederationInfo, SiteFacts, report_model
from fedloom.deploy.site.personalize import personalize
from fedloom.deploy.site.worker import SiteWorker
from fedloom.engine.experiment import prepare
from fedloom.engine.sites import Sites
from fedloom.engine.tasks.train import Train
from fedloom.recipe import Recipe

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 2,
    "model": "linear",
    "method": "scaffold",
    "rounds": 2,
    "fraction": 1.0,
    "eval_every": 0,
    "deploy": {"timeout": 5},
}
GOOD = "0123456789abcdef"
NAMES = [
    *("../../outside", "../outside", "{here}/outside", "..", ".", "", "a/b", "0123456789abcdef/../../outside"),
    *("0123456789ABCDEF", "0123456789abcdef\n", "0123456789abcde", "0123456789abcdef0", "~", "0123456789abcde\0"),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    SiteWorker._latest = None
    yield
    SiteWorker._latest = None


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def site(tmp_path: Path) -> tuple[Loopback, Recipe]:
    package = application(FIELDS, tmp_path / "app")
    return grid(package, tmp_path / "state", 1), read(package / "server_app.py")


def ask(site: tuple[Loopback, Recipe], federation: Any, kind: str) -> Any:
    nodes, recipe = site
    experiment = prepare(recipe)
    images, task = experiment.data.dataset, experiment.program.task
    initial = experiment.program.layout.tensors(experiment.program.initial)
    if kind == "join":
        sites = Sites(federation, "split", images.inputs, images.class_names)
        info = FederationInfo(sites, task.samples, task.public, task.labeled).to_json()
        order: dict[str, Any] = {"nonce": "0" * 32, "info": info}
        groups: dict[str, Any] = {"initial": initial}
    else:
        training = {"kind": "task", "task": "train", "arguments": {"round": 1}, "into": 1, "keep": []}
        order, groups = {"at": 0, **(training if kind == "train" else {})}, {"down": {}}
    order = {"kind": kind, "federation": federation, **order}
    report = {"join": SiteFacts, "train": report_model(Train, Recipe())}.get(kind, EmptyReport)
    answers = FlowerTransport(nodes, recipe.digest()).exchange({100: (order, groups)}, 5, report=report)
    return answers[100]


def everything(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "app" not in path.relative_to(folder).parts}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["join", "train", "keep"])
def test_a_federation_whose_name_is_no_plain_name_is_refused_and_writes_nothing(
    name: str, kind: str, site: tuple[Loopback, Recipe], tmp_path: Path
) -> None:
    before = everything(tmp_path)
    answer = ask(site, name.replace("{here}", str(tmp_path)), kind)
    assert isinstance(answer, str) or "refused" in str(answer[0])
    assert everything(tmp_path) == before
    assert not (tmp_path.parent / "outside").exists()


def test_state_folders_and_files_are_closed_to_others_whatever_the_umask(tmp_path: Path, open_umask: None) -> None:
    serve(FIELDS, tmp_path)
    root = tmp_path / "sites"
    personalize(next(root.glob("*/client-000001")), "full", 1, 0.01)
    paths = list(root.rglob("*"))
    assert any(path.name.startswith("memory-round-") for path in paths)
    assert any(path.name.startswith("personal-full") for path in paths)
    for path in [root, *paths]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_of_an_older_run_is_closed_when_its_site_joins_again(
    site: tuple[Loopback, Recipe], tmp_path: Path
) -> None:
    home = tmp_path / "state" / "sites" / GOOD / "client-000000"
    home.mkdir(parents=True)
    os.chmod(home, 0o755)
    assert not isinstance(ask(site, GOOD, "join"), str)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize("place", [GOOD, f"{GOOD}/client-000000"])
def test_a_symbolic_link_in_place_of_a_folder_is_not_followed(
    place: str, site: tuple[Loopback, Recipe], tmp_path: Path
) -> None:
    outside, link = tmp_path / "outside", tmp_path / "state" / "sites" / place
    outside.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    answer = ask(site, GOOD, "join")
    assert "symbolic link" in str(answer[0])
    assert list(outside.iterdir()) == []


def test_a_symbolic_link_in_place_of_memory_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def link(nodes: Loopback) -> None:
        def tamper(reply: Any, context: Any) -> Any:
            for path in (tmp_path / "sites").glob("*/client-000001/memory-round-000001*"):
                if not path.is_symlink():
                    path.rename(outside / path.name)
                    path.symlink_to(outside / path.name)
            return reply

        nodes.tamper[101] = tamper

    run = serve(FIELDS, tmp_path, link)
    assert "symbolic link" in run.rounds[1]["lost_clients"]["1"]


MASKED = FIELDS | {"clients": 3, "rounds": 1, "deploy": {"timeout": 5, "secure_aggregation": True, "min_cohort": 0}}


def test_the_record_of_sums_is_closed_to_others_whatever_the_umask(tmp_path: Path, open_umask: None) -> None:
    assert serve(MASKED, tmp_path).summary["lost"] == 0
    paths = list((tmp_path / "sites" / "sums").rglob("*"))
    assert len([path for path in paths if path.is_file()]) == 3
    for path in [tmp_path / "sites" / "sums", *paths]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_symbolic_link_in_place_of_the_record_of_sums_is_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def link(nodes: Loopback) -> None:
        (tmp_path / "sites").mkdir()
        (tmp_path / "sites" / "sums").symlink_to(outside)

    assert serve(MASKED, tmp_path, link).summary["lost"] == 3
    assert "round 1 has no sum: 0 of 3 nodes confirmed the sum" in capsys.readouterr().out
    assert list(outside.iterdir()) == []
