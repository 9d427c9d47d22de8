"""Real processes on loopback: a SuperLink, SuperNodes, `flwr run`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import credentials, serve
from flwr.app import Context, Error, Message
from flwr.common.secure_aggregation.secaggplus_constants import Stage
from machines import Machines, until
from secret import silent

import fedloom as fl
from fedloom.deploy.flower.app_template import init
from fedloom.deploy.keys.certs import make
from fedloom.io.files import read_lines
from fedloom.recipe import recipe
from fedloom.runs.run import Run

pytestmark = pytest.mark.flower

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 4,
    "model": "mlp",
    "rounds": 2,
    "fraction": 1.0,
    "lr": 0.05,
    "eval_every": 0,
    "checkpoint_seconds": 0,
    "deploy": {"timeout": 240, "join_timeout": 240},
}
METHODS = ["scaffold + fn", "fedrep", "feddrplus", "fnr"]


def application(folder: Path, **fields: Any) -> Path:
    return init(folder, recipe(FIELDS | fields))[0]


def rounds(app: Path) -> list[dict[str, Any]]:
    return read_lines(app / "run" / "rounds.jsonl")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Machines(tmp_path_factory.mktemp("four"), 4, preload=True) as machines:
        for client in range(4):
            machines.start_node(client, keyed(client))
        yield machines


def keyed(client: int) -> str:
    """A node config with roster and key."""
    return " ".join(f'{name}="{path}"' for name, path in credentials(4, client).items())


FAULTY = """
import time
from flwr.app import Message
from flwr.clientapp import ClientApp
from fedloom.deploy.flower.client import client_app
from fedloom.deploy.messages.wire import pack, unpack

honest = client_app(__file__)


def answer(message, context):
    reply = honest(message, context)
    client, round = context.node_config["partition-id"], message.metadata.group_id
    if message.metadata.message_type != "train" or round != "2":
        return reply
    if client in (2, 3):
        time.sleep({sleep})
    if client == 1:
        content, groups = unpack(reply.content)
        groups["up"]["w"][0] = float("nan")
        return Message(pack(content, **groups), reply_to=message)
    return reply


app = ClientApp()
for kind in (app.train, app.evaluate, app.query):
    kind()(answer)
"""


def test_nodes_that_lie_hang_or_are_killed_are_lost_by_name_and_come_back(four: Machines, tmp_path: Path) -> None:
    """In round 2 client 1 sends NaN, client 2 is killed while it works and started again, client 3 sleeps too long."""
    fields = {"method": "scaffold", "rounds": 3, "deploy": {"timeout": 60, "join_timeout": 240, "min_cohort": 1}}
    app = application(four.folder / "faulty", **fields)
    (app / "loom_app" / "client_app.py").write_text(FAULTY.replace("{sleep}", "65"))
    seen = len(four.nodes[2].output)
    process = four.run(app)
    until(lambda: "ROUND 2" in four.nodes[2].output[seen:], 240, "round 2")
    four.nodes[2].kill()
    four.start_node(2, keyed(2))
    assert process.wait(400) == 0
    first, second, third = rounds(app)
    assert first["lost"] == third["lost"] == 0
    assert second["lost_clients"]["1"] == "site-1: w is not finite"
    assert second["lost_clients"]["2"].startswith("site-2: ")
    assert second["lost_clients"]["3"] == "site-3: no answer within 60 s"
    assert "lost client 3: site-3: no answer within 60 s" in process.output

    def absent(reply: Message, context: Context) -> Message:
        if reply.metadata.group_id != "2":
            return reply
        asked = Message(reply.content, dst_node_id=context.node_id, message_type="train", group_id="2")
        asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
        return Message(Error(code=0, reason="absent"), reply_to=asked)

    expected = serve(
        FIELDS | fields, tmp_path, lambda nodes: nodes.tamper.update({101: absent, 102: absent, 103: absent})
    )
    assert Run(app / "run").summary["digest"] == expected.summary["digest"]


@pytest.mark.parametrize("method", METHODS)
def test_four_supernodes_end_with_the_weights_of_a_run(four: Machines, method: str, tmp_path: Path) -> None:
    name = "".join(filter(str.isalpha, method))
    app = application(four.folder / name, method=method)
    process = four.run(app)
    alone = fl.run(FIELDS, method=method, out=str(tmp_path / "alone"))
    assert process.wait(400) == 0
    assert (app / "run" / "summary.json").exists(), process.output
    together = Run(app / "run")
    assert together.summary["lost"] == 0
    assert together.summary["digest"] == alone.summary["digest"]


def test_a_server_that_was_killed_is_resumed_to_the_same_weights(four: Machines, tmp_path: Path) -> None:
    app = application(four.folder / "resumed", method="scaffold", rounds=3)
    process = four.run(app)
    until(lambda: len(rounds(app)) >= 1, 240, "round 1")
    (server,) = four.children("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    process.kill()
    assert len(rounds(app)) < 3
    again = four.run(app, "resume=true")
    alone = fl.run(FIELDS, method="scaffold", rounds=3, out=str(tmp_path / "alone"))
    assert again.wait(400) == 0
    assert (app / "run" / "summary.json").exists(), again.output
    assert "continuing after round" in again.output
    assert Run(app / "run").summary["digest"] == alone.summary["digest"]


LEAVING = """
from flwr.clientapp import ClientApp
from fedloom.deploy.flower.client import client_app

honest = client_app(__file__)
app = ClientApp()


def answer(message, context):
    reply = honest(message, context)
    if context.node_config["partition-id"] == 3 and "masked" in reply.content:
        raise RuntimeError("gone")
    return reply


for kind in (app.train, app.evaluate, app.query):
    kind()(answer)
"""


def test_masked_uploads_of_supernodes_add_up_and_one_may_leave(four: Machines, tmp_path: Path) -> None:
    """Client 3 has shared its keys, and its upload does not arrive."""
    fields = {"method": "scaffold + fn", "rounds": 1, "deploy": FIELDS["deploy"] | {"secure_aggregation": True}}
    app = application(four.folder / "masked", **fields)
    (app / "loom_app" / "client_app.py").write_text(LEAVING)
    process = four.run(app)
    impatient = FIELDS | fields | {"deploy": {"timeout": 1, "secure_aggregation": True}}
    expected = serve(impatient, tmp_path / "loopback", silent(Stage.COLLECT_MASKED_VECTORS, round="1", nodes=(103,)))
    assert process.wait(400) == 0
    assert list(rounds(app)[0]["lost_clients"]) == ["3"]
    assert Run(app / "run").summary["digest"] == expected.summary["digest"]  # masks are new in every run, sums are not


def test_wrong_keys_and_authorities_are_refused_and_right_ones_end_with_the_weights_of_a_run(tmp_path: Path) -> None:
    names = ["site-0", "site-1"]
    make(tmp_path / "keys", names, ["127.0.0.1"])
    make(tmp_path / "others", names, ["127.0.0.1"])
    app = application(tmp_path / "secure", clients=2)
    with Machines(tmp_path / "machines", 4, tmp_path / "keys") as machines:
        for client in (0, 1):
            machines.flwr("supernode", "register", str(tmp_path / "keys" / f"site-{client}.pub"), "loopback")
        stranger = machines.start_node(1, key=tmp_path / "others" / "site-1.key")
        fooled = machines.start_node(2, key=tmp_path / "keys" / "site-1.key", root=tmp_path / "others" / "ca.crt")
        until(lambda: "Failed to activate SuperNode" in stranger.output, 120, "refusal of an unknown key")
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in fooled.output, 120, "refusal of an unknown authority")
        assert "SuperNode ID" not in stranger.output
        assert "SuperNode ID" not in fooled.output
        stranger.kill()
        fooled.kill()
        for client in (0, 1):
            machines.start_node(client)
        process = machines.run(app)
        alone = fl.run(FIELDS, clients=2, out=str(tmp_path / "alone"))
        assert process.wait(400) == 0
        assert Run(app / "run").summary["lost"] == 0
        assert Run(app / "run").summary["digest"] == alone.summary["digest"]
