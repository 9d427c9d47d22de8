"""Tensors of a message are compared with what was asked for before a byte of them is copied."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import FIELDS, application, grid, serve
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.deploy.messages.wire import RAW, ArrivedTensors, pack
from fedloom.engine.tensor_layout import TensorLayout
from fedloom.errors import FedloomError, TooFew

ASKED = {"up": TensorLayout({"w": torch.zeros(4, 3), "steps": torch.zeros((), dtype=torch.int64)}).by_name}
LARGE = 64 << 20


def test_what_was_asked_for_is_read() -> None:
    sent = {"w": torch.arange(12.0).reshape(4, 3), "steps": torch.tensor(7)}
    tensors = ArrivedTensors(pack({}, up=sent)).read(ASKED)["up"]
    assert all(tensors[name].equal(tensor) for name, tensor in sent.items())


def raw(shape: tuple[int, ...], data: bytes, dtype: str = "float32", stype: str = RAW) -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


@pytest.mark.parametrize(
    ("group", "name", "array", "reason"),
    [
        ("up", "w", raw((LARGE // 4,), bytes(LARGE)), r"w has shape \(16777216,\), not \(4, 3\)"),
        ("up", "w", raw((4, 3), bytes(LARGE)), "w has 67108864 bytes, which do not make float32"),
        ("up", "w", raw((4, 3), bytes(LARGE), "float64"), "w is torch.float64, not torch.float32"),
        ("up", "images", raw((LARGE,), bytes(LARGE), "uint8"), "images was not asked for"),
        ("more", "w", raw((4, 3), bytes(LARGE)), "more was not asked for"),
        ("up", "w", raw((4, 3), bytes(LARGE), "object", "numpy.ndarray"), "w is object as numpy.ndarray, which is not"),
        ("up", "w", raw((-4, -3), bytes(48)), r"w has shape \(-4, -3\), not"),
        ("up", "w", raw((2**62, 2**62), bytes(48)), "w has shape"),
        ("up", "w", raw((1,) * 100_000, bytes(4)), "w has shape"),
        ("u" * 10_000, "w", raw((4, 3), bytes(48)), "uuu.*was not asked for"),
        ("up", "\x1b[2J" * 999, raw((4, 3), bytes(48)), "was not asked for"),
    ],
)
def test_another_tensor_is_refused_before_it_is_copied(group: str, name: str, array: Array, reason: str) -> None:
    content = pack({})
    content[group] = ArrayRecord({name: array})
    tracemalloc.start()
    try:
        with pytest.raises(FedloomError, match=reason) as refused:
            ArrivedTensors(content).read(ASKED)
        assert tracemalloc.get_traced_memory()[1] < LARGE // 8
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 400
    assert "\x1b" not in str(refused.value)


def test_a_message_of_unknown_shapes_is_bounded_as_a_whole() -> None:
    content = pack({}, initial={"a": torch.zeros(LARGE // 8), "b": torch.zeros(LARGE // 8)})
    assert len(ArrivedTensors(content, max_bytes=LARGE).read(None)["initial"]) == 2
    tracemalloc.start()
    try:
        with pytest.raises(
            FedloomError, match=f"its tensors take {LARGE} bytes, and deploy.max_message_mb allows {LARGE - 1}"
        ):
            ArrivedTensors(content, max_bytes=LARGE - 1).read(None)
        assert tracemalloc.get_traced_memory()[1] < LARGE // 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(1,) * 100_000, (-1,), (2**62, 2**62)])
def test_a_shape_that_cannot_be_is_refused_where_any_is_allowed(shape: tuple[int, ...]) -> None:
    content = pack({})
    content["initial"] = ArrayRecord({"a": raw(shape, bytes(4))})
    with pytest.raises(FedloomError, match="a has"):
        ArrivedTensors(content).read(None)


def test_keys_beside_are_bounded() -> None:
    content = pack({}, **{RECORD_KEY_CONFIGS: ConfigRecord({"ctxts": [bytes(1 << 20)] * 17})})
    with pytest.raises(FedloomError, match=r"its keys take 178\d{5} bytes; 16777216 are allowed"):
        ArrivedTensors(content, RECORD_KEY_CONFIGS).read({})


def test_a_tensor_beside_a_test_or_a_refusal_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tamper(reply: Message, context: Context) -> Message:
        if "up" not in reply.content:
            reply.content["images"] = pack({}, images={"x": torch.zeros(3)})["images"]
        return reply

    run = serve(FIELDS, tmp_path, lambda nodes: nodes.tamper.__setitem__(101, tamper))
    assert "node 101 did not join: images was not asked for" in capsys.readouterr().out
    assert run.summary["lost"] == 2


def test_a_node_refuses_orders_with_more_than_it_was_promised(tmp_path: Path) -> None:
    package = application(FIELDS, tmp_path / "app")
    nodes = grid(package, tmp_path, 3)
    push = nodes.push_messages

    def more(messages: list[Message]) -> list[str]:
        for message in messages:
            if message.metadata.dst_node_id == 101 and "down" in message.content:
                record = message.content["down"]
                assert isinstance(record, ArrayRecord)
                record["backdoor"] = raw((3,), bytes(12))
        return push(messages)

    nodes.push_messages = more  # type: ignore[method-assign, assignment]
    run = serve_app(read(package / "server_app.py"), Settings(out=str(tmp_path / "run")), nodes)
    reason = run.rounds[0]["lost_clients"]["1"]
    assert reason == "site-1: it got a message whose tensors do not fit: backdoor was not asked for"


def test_a_node_bounds_the_first_weights(tmp_path: Path) -> None:
    fields = FIELDS | {"deploy": FIELDS["deploy"] | {"max_message_mb": 0.001}}
    with pytest.raises(
        TooFew, match=r"client 1: got .* its tensors take 2600 bytes, and deploy.max_message_mb allows 1048"
    ):
        serve(fields, tmp_path)
