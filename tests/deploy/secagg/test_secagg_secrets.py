"""Secure aggregation: the server gets sums and nothing else, whatever it asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, grid
from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from loopback import Loopback
from secret import BAD, FIELDS, record_in, vectors

from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.deploy.messages.wire import unpack
from fedloom.deploy.site.worker import SiteWorker
from fedloom.runs.run import Run


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SiteWorker._latest = None


def test_what_leaves_a_site_looks_like_noise_and_is_all_that_leaves(tmp_path: Path) -> None:
    fields = FIELDS | {"model": "mlp", "rounds": 1}
    package = application(fields, tmp_path / "app")
    nodes = grid(package, tmp_path, 4)
    run = serve_app(read(package / "server_app.py"), Settings(out=str(tmp_path / "run")), nodes)
    for _, reply in nodes.sent:
        content, groups = unpack(reply.content, RECORD_KEY_CONFIGS)
        assert "up" not in groups
        if reply.metadata.message_type == "train":
            assert content["report"] == {}
            record = reply.content.get(RECORD_KEY_CONFIGS)
            assert isinstance(record, ConfigRecord)
            assert set(record) <= {Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2, Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST} | {
                *(Key.NODE_ID_LIST, Key.SHARE_LIST, "signature")
            }
    sent = vectors(nodes, "1")
    assert len(sent) == 4
    whole = np.stack(list(sent.values())).sum(0, dtype=np.uint32)
    assert whole[0] != 1437  # even the sum is masked until nodes give up their seeds
    moved = float(torch.cat([(run.weights[k] - initial(run)[k]).flatten() for k in run.weights]).abs().max())
    for vector in sent.values():
        units = vector[3:].view(np.int32) / 2**30 * 16.0  # what it would say without masks
        assert np.abs(units).mean() > 10 * moved
        spread = np.histogram(vector, 16, (0, 2**32))[0] / len(vector)
        assert np.abs(spread - 1 / 16).max() < 0.01
        for other in sent.values():
            if other is not vector:
                assert abs(np.corrcoef(vector.astype(float), other.astype(float))[0, 1]) < 0.05


def initial(run: Run) -> dict[str, torch.Tensor]:
    from fedloom.io.files import read_tensors

    return read_tensors(run.path / "initial.safetensors")[0]


def asking(change: Callable[[Message], None]) -> Callable[[Path], Run]:
    """A server that changes what it says to one node before it is sent."""

    class Curious(Loopback):
        def push_messages(self, messages: Any) -> list[str]:
            held = list(messages)
            for message in held:
                if message.metadata.dst_node_id == 100 + BAD and message.metadata.group_id == "2":
                    change(message)
            return super().push_messages(held)

    def run(folder: Path) -> Run:
        package = application(FIELDS, folder / "app")
        nodes = grid(package, folder, 4)
        nodes.__class__ = Curious
        return serve_app(read(package / "server_app.py"), Settings(out=str(folder / "run")), nodes)

    return run


def open_order(message: Message) -> None:
    if record_in(message, Stage.COLLECT_MASKED_VECTORS):
        del message.content[RECORD_KEY_CONFIGS]


def say(message: Message, stage: str, /, **changes: Any) -> None:
    if record := record_in(message, stage):
        message.content[RECORD_KEY_CONFIGS] = ConfigRecord({**record, **changes})


def low_threshold(message: Message) -> None:
    say(message, Stage.SETUP, **{Key.THRESHOLD: 2})


def few(message: Message) -> None:
    say(message, Stage.SETUP, **{Key.SAMPLE_NUMBER: 1})


def early(message: Message) -> None:
    lists = {Key.ACTIVE_NODE_ID_LIST: [102], Key.DEAD_NODE_ID_LIST: [101]}
    say(message, Stage.SHARE_KEYS, **{Key.STAGE: Stage.UNMASK}, **lists)


def another_kind(message: Message) -> None:
    if record_in(message, Stage.COLLECT_MASKED_VECTORS):
        text = message.content["fedloom"]
        assert isinstance(text, ConfigRecord)
        order = json.loads(str(text["json"]))
        kept = {name: order[name] for name in ("digest", "federation", "base", "at")}
        test = {"task": "test client", "arguments": {"round": 2, "personal": False}}
        text["json"] = json.dumps({**kept, "kind": "task", **test})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (open_order, "it was asked to train without masks, and its recipe has secure aggregation"),
        (low_threshold, "it was asked to mask with threshold 2, and the recipe says 3"),
        (few, "it was asked to mask with sample_num 1, and the recipe says 4"),
        (early, "it was asked for a secret of node 101, which it does not have"),
        (another_kind, "it was asked to mask the answer to 'test client'"),
    ],
)
def test_a_node_refuses_a_server_that_asks_for_more(
    change: Callable[[Message], None], reason: str, tmp_path: Path
) -> None:
    run = asking(change)(tmp_path)
    assert run.rounds[1]["lost_clients"] == {str(BAD): f"site-{BAD}: {reason}"}


def test_a_node_gives_up_one_secret_of_a_node_and_only_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def both(message: Message) -> None:
        say(message, Stage.UNMASK, **{Key.DEAD_NODE_ID_LIST: [101]})

    run = asking(both)(tmp_path)
    assert run.summary["lost"] == 0  # its vector is in the sum, which three others unmask
    assert "site-2): it was asked for both secrets of a node" in capsys.readouterr().out


def test_masks_are_used_once(tmp_path: Path) -> None:
    """Two uploads under the same masks would show their difference."""
    package = application(FIELDS | {"rounds": 1}, tmp_path / "app")
    nodes = grid(package, tmp_path, 4)
    asked: list[Message] = []

    def remember(reply: Message, context: Context) -> Message:
        if "masked" in reply.content:
            again = nodes.app(asked[-1], context)
            assert "failed (ValueError)" in unpack(again.content, RECORD_KEY_CONFIGS)[0]["refused"]
            asked.append(again)
        return reply

    class Repeating(Loopback):
        def push_messages(self, messages: Any) -> list[str]:
            held = list(messages)
            asked.extend(
                m for m in held if m.metadata.dst_node_id == 100 and record_in(m, Stage.COLLECT_MASKED_VECTORS)
            )
            return super().push_messages(held)

    nodes.__class__ = Repeating
    nodes.tamper[100] = remember
    run = serve_app(read(package / "server_app.py"), Settings(out=str(tmp_path / "run")), nodes)
    assert run.summary["lost"] == 0
    assert len(asked) == 2
