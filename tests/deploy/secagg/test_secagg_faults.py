"""Secure aggregation: nodes may leave on the way, fail or lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, grid, serve
from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from loopback import Loopback
from secret import BAD, CLOSE, FIELDS, absent, apart, plain, secure, silent

from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.deploy.messages.wire import unpack
from fedloom.deploy.site.worker import SiteWorker
from fedloom.engine.tasks.train import Train
from fedloom.errors import TooFew


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SiteWorker._latest = None


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS])
def test_a_node_that_leaves_is_lost_by_name_and_the_sum_is_that_of_the_others(stage: str, tmp_path: Path) -> None:
    run = serve(FIELDS, tmp_path / "masked", silent(stage))
    assert run.rounds[1]["lost_clients"] == {str(BAD): f"site-{BAD}: no answer within 0.3 s"}
    assert apart(run, serve(plain(), tmp_path / "plain", absent)) < CLOSE


def test_a_node_that_leaves_before_the_sum_is_unmasked_is_in_it(tmp_path: Path) -> None:
    run = serve(FIELDS, tmp_path / "one", silent(Stage.UNMASK))
    assert run.summary["lost"] == 0
    assert run.summary["digest"] == serve(FIELDS, tmp_path / "all").summary["digest"]


def test_two_of_six_may_leave_where_neighbors_are_few(tmp_path: Path) -> None:
    fields = {"clients": 6, "method": "fedavg"}
    made = secure(fields, num_shares=5, reconstruction_threshold=0.6, authenticated=False)
    gone = silent(Stage.COLLECT_MASKED_VECTORS, nodes=(100 + BAD, 105))

    def tamper(nodes: Loopback) -> None:
        absent(nodes)
        nodes.tamper[105] = nodes.tamper[100 + BAD]

    run = serve(made, tmp_path / "masked", gone)
    assert run.rounds[1]["lost"] == 2
    assert apart(run, serve(plain(**fields), tmp_path / "plain", tamper)) < CLOSE


def test_a_round_without_enough_nodes_has_no_sum_and_the_next_one_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = silent(Stage.COLLECT_MASKED_VECTORS, round="1", nodes=(101, 102))
    with pytest.raises(TooFew, match="round 1: all 4 uploads are lost"):
        serve(FIELDS, tmp_path / "stops", gone)
    run = serve(patient(), tmp_path, gone)
    first, second = run.rounds
    why = "2 of 4 nodes sent their vectors, and 3 are needed"
    assert first["lost"] == 4
    assert first["train_loss"] is None
    assert first["lost_clients"]["0"] == f"secure aggregation: {why}"
    assert first["lost_clients"]["1"] == "site-1: no answer within 0.3 s"
    assert f"round 1 has no sum: {why}" in capsys.readouterr().out
    assert second["lost"] == 0


def patient() -> dict[str, Any]:
    """Rounds without a sum are passed over."""
    fields = secure()
    fields["deploy"]["min_cohort"] = 0
    return fields


def test_too_few_stop_the_run_and_a_resume_ends_with_the_same_weights(tmp_path: Path) -> None:
    fields = secure()
    fields["deploy"]["min_cohort"] = 3
    package = application(fields, tmp_path / "app")
    nodes = grid(package, tmp_path, 4)
    silent(Stage.COLLECT_MASKED_VECTORS, nodes=(101, 102))(nodes)
    given = read(package / "server_app.py")
    with pytest.raises(TooFew, match=r"round 2: 0 of 4 uploads arrived, deploy.min_cohort is 3 \(client 0: secure agg"):
        serve_app(given, Settings(out=str(tmp_path / "run")), nodes)
    nodes.tamper.clear()
    resumed = serve_app(given, Settings(out=str(tmp_path / "run"), resume=True), nodes)
    assert resumed.summary["digest"] == serve(fields, tmp_path / "straight").summary["digest"]


def test_an_upload_that_is_not_finite_is_refused_by_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = Train.perform

    def spoilt(task: Train, replica: Any, buffers: Any, worker: int) -> Any:
        report = perform(task, replica, buffers, worker)
        if task.client == BAD:
            buffers.up(0)["w"][3] = float("nan")
        return report

    monkeypatch.setattr(Train, "perform", spoilt)
    run = serve(FIELDS | {"rounds": 1}, tmp_path)
    assert run.rounds[0]["lost_clients"] == {str(BAD): f"site-{BAD}: it has an upload whose w is not finite"}
    assert run.rounds[0]["train_loss"] is not None


def test_a_node_that_lies_about_a_secret_spoils_the_round_and_not_the_weights(tmp_path: Path) -> None:
    def tamper(reply: Message, context: Context) -> Message:
        record = reply.content.get(RECORD_KEY_CONFIGS)
        if isinstance(record, ConfigRecord) and Key.SHARE_LIST in record and reply.metadata.group_id == "2":
            shares: Any = record[Key.SHARE_LIST]
            record[Key.SHARE_LIST] = [share[:4] + bytes(len(share) - 4) for share in shares]
        return reply

    run = serve(patient(), tmp_path / "lied", lambda nodes: nodes.tamper.__setitem__(100 + BAD, tamper))
    assert run.rounds[1]["lost"] == 4
    assert "is wrong" in run.rounds[1]["lost_clients"]["0"]
    one = serve(FIELDS | {"rounds": 1}, tmp_path / "one")
    assert apart(run, one) == 0


@pytest.mark.parametrize("text", ["short", "long", "open"])
def test_an_upload_that_is_no_masked_vector_is_lost_by_name(text: str, tmp_path: Path) -> None:
    from fedloom.deploy.messages.wire import pack

    def tamper(reply: Message, context: Context) -> Message:
        if "masked" in reply.content and reply.metadata.group_id == "2":
            content, groups = unpack(reply.content, RECORD_KEY_CONFIGS)
            vector = groups["masked"]["sum"]
            made = {"short": vector[:-1].clone(), "long": torch.cat([vector, vector]), "open": vector.float()}[text]
            reply.content["masked"] = pack(content, masked={"sum": made})["masked"]
        return reply

    run = serve(FIELDS, tmp_path / "masked", lambda nodes: nodes.tamper.__setitem__(100 + BAD, tamper))
    assert "masked vector" in run.rounds[1]["lost_clients"][str(BAD)]
    assert apart(run, serve(plain(), tmp_path / "plain", absent)) < CLOSE


def test_numbers_beyond_the_range_are_clipped_and_told_in_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(secure({"rounds": 1, "method": "fedavg"}, clipping_range=0.001), tmp_path)
    assert "numbers were clipped at deploy.secure_aggregation.clipping_range, 0.001" in capsys.readouterr().out
