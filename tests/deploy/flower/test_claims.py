"""What sites claim is bounded, shown and confirmed before anything is built on it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import confirmed, sites
from flwr.app import Context, Message
from loopback import Loopback

from fedloom.deploy.flower.app import Settings
from fedloom.deploy.flower.server import serve
from fedloom.deploy.messages.wire import pack, unpack
from fedloom.deploy.site.worker import SiteWorker
from fedloom.engine.sites import Counted, sized
from fedloom.errors import FedloomError, TooFew
from fedloom.recipe import Recipe

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 3,
    "model": "linear",
    "method": "fedavg",
    "rounds": 1,
    "fraction": 1.0,
    "lr": 0.05,
    "eval_every": 0,
    "deploy": {"join_timeout": 0.5, "timeout": 5},
}
BAD = 1

PIXELS = {"kind": "image", "shape": [1, 8, 8], "dtype": "uint8", "scale": 16.0, "vocabulary": 0, "padding": 0}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    SiteWorker._latest = None
    yield
    SiteWorker._latest = None


def federation(tmp_path: Path, **fields: Any) -> tuple[Loopback, Recipe, Settings]:
    return sites(FIELDS | fields, tmp_path)


def claiming(**claims: Any) -> Callable[[Message, Context], Message]:
    """A node that says other things about its data than are true."""

    def tamper(reply: Message, context: Context) -> Message:
        content, groups = unpack(reply.content)
        if "class_names" in content.get("report", {}):
            content["report"] |= claims
            reply.content["fedloom"] = pack(content, **groups)["fedloom"]
        return reply

    return tamper


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"train": 10**400}, "its train is 1000"),
        ({"test": 10**400}, "its test is 1000"),
        ({"train": 10**12}, "it claims 1000000000000 train samples, and deploy.max_samples is 10000000"),
        ({"test": 10**9}, "it claims 1000000000 test samples, and deploy.max_samples is 10000000"),
        ({"train": 0}, "it has no train samples"),
        ({"inputs": PIXELS | {"shape": [1, 8, 10**400]}}, "its inputs"),
        ({"inputs": PIXELS | {"shape": [1, 10**5, 10**5]}}, "its inputs"),
        ({"class_names": ["9" * 5000, "1"]}, "its class_names holds '999"),
        ({"class_names": [str(n) for n in range(60_000)]}, "it claims 60000 classes, and deploy.max_classes is 1000"),
        ({"class_names": ["1", "1"]}, "it claims a class twice"),
        ({"name": "\ud800"}, "its name is"),
    ],
)
def test_an_impossible_claim_is_refused_by_name_and_nothing_is_written(
    claim: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    nodes, given, settings = federation(tmp_path)
    nodes.tamper[100 + BAD] = claiming(**claim)
    with pytest.raises(TooFew, match="clients 1 have not connected") as stopped:
        serve(given, settings, nodes)
    assert f"node 101: {reason}" in str(stopped.value)
    assert not (tmp_path / "run").exists()


def test_the_server_shows_every_claim_and_waits_for_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, given, settings = federation(tmp_path)
    settings = confirmed(given, settings, nodes)
    shown = capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    for client in range(3):
        held = np.load(nodes.configs[100 + client]["data"])
        (line,) = [line for line in shown.splitlines() if f" site-{client} " in line]
        words = line.split()
        assert words[1:5] == [str(client), f"site-{client}", str(len(held["train_y"])), str(len(held["test_y"]))]
        assert "1x8x8" in line
        assert "10: 0, 1, 2" in line
    assert "classes" in shown
    assert settings.confirm in shown
    assert serve(given, settings, nodes).summary["lost"] == 0


def test_other_claims_than_those_confirmed_stop_the_server(tmp_path: Path) -> None:
    """A site that claims to be a thousand times as large as when the operator looked."""
    nodes, given, settings = federation(tmp_path)
    settings = confirmed(given, settings, nodes)
    nodes.tamper[100 + BAD] = claiming(train=10**6)
    with pytest.raises(
        FedloomError, match="claims are not those that were confirmed; if the table above is right, set"
    ):
        serve(given, settings, nodes)
    assert not (tmp_path / "run").exists()
    nodes.tamper.clear()
    assert serve(given, settings, nodes).summary["lost"] == 0


@pytest.mark.parametrize(
    "claim", [{"name": "x"}, {"train": 401}, {"test": 7}, {"class_names": [str(n) for n in range(9)]}]
)
def test_every_claim_changes_the_fingerprint(claim: dict[str, Any], tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path)
    honest = confirmed(given, settings, nodes).confirm
    nodes.tamper[100 + BAD] = claiming(**claim)
    assert confirmed(given, settings, nodes).confirm != honest


def test_sites_of_different_shapes_do_not_begin(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path)
    nodes.tamper[100] = claiming(inputs=PIXELS | {"shape": [1, 4096, 4096]})
    with pytest.raises(
        FedloomError, match=r"client 1 \(site-1\) has images of 8x8x1, and client 0 \(site-0\) images of 4096x4096x1"
    ):
        serve(given, settings, nodes)


def test_sites_cannot_name_more_classes_together_than_the_recipe_allows(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path, deploy=FIELDS["deploy"] | {"max_classes": 12})
    nodes.tamper[100 + BAD] = claiming(class_names=["a", "b", "c"])
    with pytest.raises(FedloomError, match=r"the sites together claim 13 classes, and deploy.max_classes is 12"):
        serve(given, settings, nodes)


def test_a_resume_needs_no_second_word(tmp_path: Path) -> None:
    """Every site that joins is compared with the counts that the federation began with."""
    nodes, given, settings = federation(tmp_path, rounds=2, deploy=FIELDS["deploy"] | {"min_cohort": 3, "timeout": 0.3})
    settings = confirmed(given, settings, nodes)
    nodes.tamper[100 + BAD] = lambda reply, _: None if "up" in reply.content else reply
    with pytest.raises(TooFew):
        serve(given, settings, nodes)
    nodes.tamper.clear()
    assert serve(given, replace(settings, resume=True, confirm=""), nodes).summary["lost"] == 0


def test_a_claim_of_a_billion_samples_costs_neither_memory_nor_disk(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = sized([10**9] * 100, [10**9] * 100)
    made.save(tmp_path / "partition.npz")
    assert [len(made.train(client)) for client in range(100)] == [10**9] * 100
    assert len(made.test_index) == 10**11
    again = Counted.load(tmp_path / "partition.npz")
    assert len(again.test(99)) == 10**9
    assert (tmp_path / "partition.npz").stat().st_size < 10_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # kilobytes


def test_a_large_claim_is_carried_by_the_server_if_the_operator_wants_it(tmp_path: Path) -> None:
    """The site's data are what they are; claimed and confirmed are a million times as many."""
    nodes, given, settings = federation(tmp_path, deploy=FIELDS["deploy"] | {"max_samples": 10**9})
    nodes.tamper[100 + BAD] = claiming(train=10**9)
    run = serve(given, confirmed(given, settings, nodes), nodes)
    assert np.diff(np.load(run.path / "partition.npz")["train_offsets"])[BAD] == 10**9
    assert (run.path / "partition.npz").stat().st_size < 10_000
