"""Nodes that fail, lie or vanish: the round goes on, the loss is counted and told by name, the rest is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import FIELDS, application, grid, serve
from flwr.app import Array, ArrayRecord, Context, Error, Message
from loopback import Loopback
from mutations import mutated

from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.deploy.messages.schema import json_report
from fedloom.deploy.messages.wire import pack, unpack
from fedloom.engine.tasks.train import Train
from fedloom.errors import TooFew

BAD = 1  # the client that makes trouble


def changed(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Loopback], None]:
    """A node that changes text or tensors of what it uploads in its second round."""

    def tamper(reply: Message, context: Context) -> Message | None:
        content, groups = unpack(reply.content)
        if "up" not in groups or reply.metadata.group_id != "2":
            return reply
        if change(content, groups) is None:
            return None
        return Message(pack(content, **groups), reply_to=_asked(reply))

    return lambda nodes: nodes.tamper.__setitem__(100 + BAD, tamper)


def _asked(reply: Message) -> Message:
    """A message like the one that was replied to."""
    message = Message(reply.content, dst_node_id=100 + BAD, message_type="train", group_id="2")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return message


def nan(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    groups["up"]["w"][3] = float("nan")
    return True


def short(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    groups["up"]["scaffold.control"] = groups["up"]["scaffold.control"][:-1].clone()
    return True


def double(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    groups["up"]["w"] = groups["up"]["w"].double()
    return True


def extra(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    groups["up"]["images"] = torch.zeros(4)
    return True


def missing(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    del groups["up"]["w"]
    return True


def digest(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["digest"] = "0123456789abcdef"
    return True


def steps(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["report"]["steps"] = -1
    return True


def many(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["report"]["steps"] = 2**40
    return True


def huge(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    groups["up"]["w"][3] = 3e38
    return True


def far(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    groups["up"]["w"] += 1e6
    return True


def control(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    groups["up"]["scaffold.control"] += 1e20
    return True


def huge_steps(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["report"]["steps"] = 10**400
    return True


def huge_loss(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["report"]["loss"] = 10**400
    return True


def more(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["report"]["patients"] = 3
    return True


def half_digest(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["digest"] = "\ud800"
    return True


def half_refusal(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    del content["report"]
    content["refused"] = "cannot \x1b[2J\ud800" + "x" * 100_000
    groups.clear()
    return True


def somebody(content: dict[str, Any], groups: dict[str, Any]) -> bool:
    content["client"] = 0
    return True


def silent(content: dict[str, Any], groups: dict[str, Any]) -> None:
    return None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (nan, "w is not finite"),
        (short, "scaffold.control has shape"),
        (double, "w is torch.float64, not torch.float32"),
        (extra, "images was not asked for"),
        (missing, "w is missing"),
        (digest, "it has recipe 0123456789abcdef"),
        (steps, "its steps is -1"),
        (huge_steps, "its steps is 1000"),
        (huge_loss, "its loss is 1000"),
        (more, "patients was not asked for"),
        (half_digest, "it has recipe \ufffd"),
        (half_refusal, "it cannot \ufffd[2J\ufffdxxx"),
        (somebody, "it answers for client 0"),
        (silent, "no answer within 0.3 s"),
    ],
)
def test_a_bad_upload_is_lost_by_name_and_the_round_goes_on(
    change: Callable[..., Any], reason: str, tmp_path: Path
) -> None:
    run = serve(FIELDS, tmp_path, changed(change))
    first, second = run.rounds
    assert first["lost"] == 0
    assert second["lost"] == 1
    assert second["lost_clients"][str(BAD)].startswith(f"site-{BAD}: {reason}")
    assert run.summary["lost"] == 1
    assert run.summary["digest"] == without(tmp_path / "other", FIELDS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (many, "it reports 1099511627776 steps, and its samples, batches and epochs make"),
        (huge, "w is too large to compute with"),
        (far, "away from what was broadcast, and deploy.max_distance allows"),
        (control, "scaffold.control is too large to compute with"),
    ],
)
@pytest.mark.parametrize("method", ["scaffold", "scaffold + nova"])
def test_an_upload_that_is_finite_and_absurd_is_lost_and_the_round_goes_on(
    method: str, change: Callable[..., Any], reason: str, tmp_path: Path
) -> None:
    fields = FIELDS | {"method": method, "rounds": 3}
    run = serve(fields, tmp_path, changed(change))
    assert [line["lost"] for line in run.rounds] == [0, 1, 0]
    assert reason in run.rounds[1]["lost_clients"][str(BAD)]
    assert run.summary["digest"] == without(tmp_path / "other", fields)


def without(folder: Path, fields: dict[str, Any]) -> str:
    """The weights if the client does not answer in round 2 for the plainest reason."""

    def tamper(reply: Message, context: Context) -> Message | None:
        if reply.metadata.group_id != "2":
            return reply
        return Message(Error(code=0, reason="gone"), reply_to=_asked(reply))

    weights_digest = serve(fields, folder, lambda nodes: nodes.tamper.__setitem__(100 + BAD, tamper)).summary["digest"]
    assert isinstance(weights_digest, str)
    return weights_digest


def test_a_pickle_in_place_of_an_array_is_never_read(tmp_path: Path) -> None:
    def tamper(reply: Message, context: Context) -> Message:
        if "up" in reply.content:
            evil = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=b"cos\nsystem\n(S'touch hit'\ntR.")
            reply.content["up"] = ArrayRecord({"w": evil})
        return reply

    run = serve(FIELDS, tmp_path, lambda nodes: nodes.tamper.__setitem__(100 + BAD, tamper))
    assert "w is object as numpy.ndarray, which is not accepted" in run.rounds[0]["lost_clients"][str(BAD)]
    assert not Path("hit").exists()


def test_a_node_that_is_pinned_to_another_recipe_refuses_to_join(tmp_path: Path) -> None:
    run = serve(FIELDS, tmp_path, lambda nodes: nodes.configs[100 + BAD].__setitem__("recipe", "feedfeedfeedfeed"))
    for line in run.rounds:
        assert "takes part in recipe feedfeedfeedfeed only" in line["lost_clients"][str(BAD)]


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"dta": "x"}, "node config: dta is unknown"), ({"data": "/x.npz"}, "node config: data is given")],
)
def test_a_node_with_wrong_settings_is_told_by_name(config: dict[str, str], reason: str, tmp_path: Path) -> None:
    run = serve(FIELDS, tmp_path, lambda nodes: nodes.configs[100 + BAD].update(config))
    assert reason in run.rounds[0]["lost_clients"][str(BAD)]


def test_two_nodes_cannot_be_one_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def double_client(nodes: Loopback) -> None:
        nodes.configs[103] = dict(nodes.configs[100])

    run = serve(FIELDS, tmp_path, double_client)
    assert run.summary["lost"] == 0
    assert "client 0 is site-0 already" in capsys.readouterr().out


def test_too_few_uploads_stop_the_run_and_a_resume_ends_with_the_same_weights(tmp_path: Path) -> None:
    fields = FIELDS | {"rounds": 3, "deploy": {"timeout": 0.3, "join_timeout": 0.5, "min_cohort": 3}}
    package = application(fields, tmp_path / "app")
    nodes = grid(package, tmp_path, 3)
    changed(silent)(nodes)
    recipe = read(package / "server_app.py")
    with pytest.raises(
        TooFew, match=r"round 2: 2 of 3 uploads arrived, deploy.min_cohort is 3 \(client 1: site-1: no an"
    ):
        serve_app(recipe, Settings(out=str(tmp_path / "run")), nodes)
    nodes.tamper.clear()
    resumed = serve_app(recipe, Settings(out=str(tmp_path / "run"), resume=True), nodes)
    assert resumed.summary["digest"] == serve(fields, tmp_path / "straight").summary["digest"]
    assert [line["round"] for line in resumed.rounds] == [1, 2, 3]


def test_a_node_that_lost_its_memory_is_lost_by_name_and_not_begun_anew(tmp_path: Path) -> None:
    def forgetful(nodes: Loopback) -> None:
        def tamper(reply: Message, context: Context) -> Message:
            for path in (tmp_path / "sites").glob(f"*/client-00000{BAD}/memory-*"):
                path.unlink()
            return reply

        nodes.tamper[100 + BAD] = tamper

    run = serve(FIELDS, tmp_path, forgetful)
    assert run.rounds[1]["lost_clients"][str(BAD)] == f"site-{BAD}: it no longer has its state of round 1"


def test_an_unexpected_error_at_a_site_tells_its_kind_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("patient 4711 has no label")

    monkeypatch.setattr(Train, "perform", fail)
    package = application(FIELDS, tmp_path / "app")
    nodes = grid(package, tmp_path, 3)
    with pytest.raises(TooFew) as stopped:
        serve_app(read(package / "server_app.py"), Settings(out=str(tmp_path / "run")), nodes)
    assert "round 1: all 3 uploads are lost" in str(stopped.value)
    assert "failed (RuntimeError); the node's own log says why" in str(stopped.value)
    assert str(stopped.value).endswith("the run can be resumed")
    assert "4711" not in "".join(str(unpack(reply.content)) for _, reply in nodes.sent)
    assert "4711" not in str(stopped.value)


def test_a_loss_that_is_no_number_travels_as_none_and_the_upload_counts(tmp_path: Path) -> None:
    def unknown(content: dict[str, Any], groups: dict[str, Any]) -> bool:
        content["report"] = json_report(content["report"] | {"loss": math.nan})
        return True

    run = serve(FIELDS, tmp_path / "unknown", changed(unknown))
    assert run.rounds[0]["train_loss"] is not None
    assert run.rounds[1]["train_loss"] is None
    assert run.summary["digest"] == serve(FIELDS, tmp_path / "known").summary["digest"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_node_says_on_joining_the_others_go_on(seed: int, tmp_path: Path) -> None:
    random = Random(seed)

    def tamper(reply: Message, context: Context) -> Message:
        if reply.metadata.message_type == "query":
            content, groups = unpack(reply.content)
            odd = {"client": BAD, "digest": content["digest"], "refused": ""} if seed == 0 else mutated(content, random)
            reply.content["fedloom"] = pack(odd, **groups)["fedloom"]
        return reply

    fields = FIELDS | {"rounds": 1, "deploy": {"timeout": 0.3, "join_timeout": 0.05}}
    run = serve(fields, tmp_path, lambda nodes: nodes.tamper.__setitem__(100 + BAD, tamper))
    assert set(run.rounds[0].get("lost_clients", {})) <= {str(BAD)}


def test_a_message_changes_nothing_but_what_it_is_about(tmp_path: Path) -> None:
    """Random changes of every text that one node sends: the run ends, and the others' uploads count."""
    random = Random(5)

    def tamper(reply: Message, context: Context) -> Message:
        if reply.metadata.message_type != "train":
            return reply
        content, groups = unpack(reply.content)
        text = pack(mutated(content, random), **groups)["fedloom"]
        reply.content["fedloom"] = text
        return reply

    run = serve(FIELDS | {"rounds": 40}, tmp_path, lambda nodes: nodes.tamper.__setitem__(100 + BAD, tamper))
    assert [line["round"] for line in run.rounds] == list(range(1, 41))
    assert all(set(line.get("lost_clients", {})) <= {str(BAD)} for line in run.rounds)
    assert run.summary["lost"] >= 20
