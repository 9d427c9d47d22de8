"""A server that was killed finds its nodes where its checkpoint left them, though they went on since."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, grid
from flwr.app import Message

import fedloom as fl
from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.server import serve
from fedloom.errors import FedloomError

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 3,
    "model": "linear",
    "method": "scaffold + fedper",
    "rounds": 5,
    "fraction": 0.7,
    "lr": 0.05,
    "eval_every": 0,
}


class Killed(BaseException):
    """Nothing of the server's is run after this."""


def interrupted(tmp_path: Path, checkpoint_seconds: float, at: str) -> tuple[Any, Any, Path]:
    package = application(FIELDS | {"checkpoint_seconds": checkpoint_seconds}, tmp_path / "app")
    nodes, recipe, out = grid(package, tmp_path, 3), read(package / "server_app.py"), tmp_path / "run"
    pull = nodes.pull_messages

    def dying(numbers: Iterable[str]) -> list[Message]:
        replies = pull(numbers)
        if any(reply.metadata.group_id == at for reply in replies):
            raise Killed
        return replies

    nodes.pull_messages = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        serve(recipe, Settings(out=str(out)), nodes)
    nodes.pull_messages = pull  # type: ignore[method-assign]
    return nodes, recipe, out


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1e6])
def test_the_same_weights_after_a_kill_in_the_middle_of_a_round(tmp_path: Path, checkpoint_seconds: float) -> None:
    nodes, recipe, out = interrupted(tmp_path, checkpoint_seconds, at="4")
    run = serve(recipe, Settings(out=str(out), resume=True), nodes)
    alone = fl.run(FIELDS, out=str(tmp_path / "alone"))
    assert run.summary["digest"] == alone.summary["digest"]
    assert run.summary["personal_accuracy"] == alone.summary["personal_accuracy"]


def test_the_checkpoint_before_the_newest_will_do(tmp_path: Path) -> None:
    nodes, recipe, out = interrupted(tmp_path, 0.0, at="4")
    (out / "checkpoints" / "round-000003.safetensors").write_bytes(b"damaged")
    run = serve(recipe, Settings(out=str(out), resume=True), nodes)
    assert run.summary["digest"] == fl.run(FIELDS, out=str(tmp_path / "alone")).summary["digest"]


def test_a_site_keeps_only_what_can_still_be_asked_for(tmp_path: Path) -> None:
    interrupted(tmp_path, 0.0, at="5")
    for home in (tmp_path / "sites").glob("*/client-*"):
        assert 1 <= len(list(home.glob("memory-round-*"))) <= 4


def test_the_server_holds_nothing_that_clients_remember(tmp_path: Path) -> None:
    _, _, out = interrupted(tmp_path, 0.0, at="5")
    assert list((out / "checkpoints" / "clients").iterdir()) == []


def test_lanes_do_not_carry_on_what_nodes_began(tmp_path: Path) -> None:
    _, _, out = interrupted(tmp_path, 0.0, at="2")
    with pytest.raises(FedloomError, match="runs on nodes; resume it with: flwr run"):
        fl.run(resume=out)


def test_a_resume_with_another_recipe_is_refused(tmp_path: Path) -> None:
    nodes, recipe, out = interrupted(tmp_path, 0.0, at="2")
    with pytest.raises(FedloomError, match="belongs to recipe"):
        serve(recipe.changed(lr=0.1), Settings(out=str(out), resume=True), nodes)


def test_a_finished_or_foreign_folder_is_not_carried_on(tmp_path: Path) -> None:
    package = application(FIELDS | {"rounds": 1}, tmp_path / "app")
    nodes, recipe = grid(package, tmp_path, 3), read(package / "server_app.py")
    run = serve(recipe, Settings(out=str(tmp_path / "run")), nodes)
    with pytest.raises(FedloomError, match="is finished"):
        serve(recipe, Settings(out=str(run.path), resume=True), nodes)
    with pytest.raises(FedloomError, match="holds a run already"):
        serve(recipe, Settings(out=str(run.path)), nodes)
    alone = fl.run(FIELDS | {"rounds": 1}, out=str(tmp_path / "alone"))
    with pytest.raises(FedloomError, match="was not started on nodes"):
        serve(recipe, Settings(out=str(alone.path), resume=True), nodes)
