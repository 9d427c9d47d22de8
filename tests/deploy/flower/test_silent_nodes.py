"""Nodes that are listed as online and say nothing: rounds go on beside them at their usual speed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, confirmed, grid, serve
from flwr.app import Context, Message
from loopback import Loopback, Tamper

from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.app_template import write_sites
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.recipe import recipe

pytestmark = pytest.mark.slow  # silence is waited for

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "iid",
    "clients": 3,
    "model": "linear",
    "rounds": 6,
    "fraction": 1.0,
    "lr": 0.05,
    "eval_every": 0,
}
BAD = 1  # the client that makes trouble
LONG = 30.0  # seconds: none of these runs takes as long


def mute(reply: Message, context: Context) -> None:
    return None


def mute_in(rounds: Iterable[int]) -> Tamper:
    """Says nothing from the order of the first of these rounds to that of the last."""
    wanted, latest = set(rounds), [0]

    def tamper(reply: Message, context: Context) -> Message | None:
        latest[0] = max(latest[0], int(reply.metadata.group_id or 0))
        return None if latest[0] in wanted else reply

    return tamper


def patient(seconds: float) -> dict[str, Any]:
    return FIELDS | {"deploy": {"timeout": seconds}}


@pytest.mark.parametrize("number", [99, 103])
def test_a_stranger_that_never_answers_delays_neither_the_start_nor_a_round(number: int, tmp_path: Path) -> None:
    def stranger(nodes: Loopback) -> None:
        nodes.configs = dict(sorted({**nodes.configs, number: dict(nodes.configs[100])}.items()))
        nodes.tamper[number] = mute

    began = time.monotonic()
    run = serve(patient(LONG), tmp_path, stranger)
    assert time.monotonic() - began < LONG / 2
    assert run.summary["lost"] == 0


def test_sites_that_say_what_they_have_do_not_wait_for_one_that_is_silent(tmp_path: Path) -> None:
    package = application(patient(LONG), tmp_path / "app", "sites")
    nodes = grid(package, tmp_path, 3)
    for client, path in enumerate(write_sites(tmp_path / "files", recipe(FIELDS))):
        nodes.configs[100 + client]["data"] = str(path)
    nodes.configs[103] = dict(nodes.configs[100])
    nodes.tamper[103] = mute
    began = time.monotonic()
    settings = Settings(data="sites", out=str(tmp_path / "run"), scale=16.0)
    given = read(package / "server_app.py")
    run = serve_app(given, confirmed(given, settings, nodes), nodes)
    assert time.monotonic() - began < LONG / 2
    assert run.summary["lost"] == 0


def test_a_member_that_falls_silent_costs_two_rounds_their_timeout_and_later_ones_nothing(tmp_path: Path) -> None:
    timeout = 3.0
    silent = mute_in(range(2, 100))
    run = serve(patient(timeout), tmp_path, lambda nodes: nodes.tamper.__setitem__(100 + BAD, silent))
    assert [line["lost"] for line in run.rounds] == [0, 1, 1, 1, 1, 1]
    assert [line["lost_clients"][str(BAD)] for line in run.rounds[1:]] == [
        *("site-1: no answer within 3 s", "site-1: no answer within 3 s"),
        *["its node does not answer any more"] * 3,
    ]
    assert all(line["seconds"] >= timeout for line in run.rounds[1:3])
    assert all(line["seconds"] < timeout / 2 for line in run.rounds[3:])


def test_a_node_that_overslept_one_order_gets_the_next(tmp_path: Path) -> None:
    silent = mute_in([2])
    run = serve(patient(0.5), tmp_path, lambda nodes: nodes.tamper.__setitem__(100 + BAD, silent))
    assert [line["lost"] for line in run.rounds] == [0, 1, 0, 0, 0, 0]


def test_a_node_that_was_left_out_comes_back_when_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.deploy.flower.invitations.FIRST_DELAY", 0.1)

    def change(nodes: Loopback) -> None:
        nodes.tamper[100 + BAD] = mute_in([2])
        until = time.monotonic() + LONG

        def slow(reply: Message, context: Context) -> Message:
            number = int(reply.metadata.group_id or 0)
            if number == 5:
                nodes.tamper.pop(100 + BAD, None)
            if number > 5 and time.monotonic() < until:
                time.sleep(0.3)
            return reply

        nodes.tamper[100] = slow
        nodes.tamper[100 + BAD] = mute_in(range(2, 100))

    run = serve(patient(0.3) | {"rounds": 15}, tmp_path, change)
    lost = [line["lost"] for line in run.rounds]
    assert lost[:5] == [0, 1, 1, 1, 1]
    assert lost[-1] == 0


def test_a_node_in_reserve_takes_the_place_of_one_that_missed_an_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(nodes: Loopback) -> None:
        nodes.configs[103] = dict(nodes.configs[100 + BAD])
        nodes.tamper[100 + BAD] = mute_in(range(2, 100))

    run = serve(patient(0.5), tmp_path, change)
    assert [line["lost"] for line in run.rounds] == [0, 1, 0, 0, 0, 0]
    output = capsys.readouterr().out
    assert "node 103 did not join: client 1 is site-1 already" in output
    assert "client 1 is node 103 now" in output
