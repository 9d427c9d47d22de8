"""Federations under secure aggregation for tests, and nodes that leave them on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key
from loopback import Loopback

from fedloom.deploy.messages.wire import unpack
from fedloom.runs.run import Run

BAD = 2  # the client that makes trouble
FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 4,
    "model": "linear",
    "method": "scaffold",
    "rounds": 2,
    "fraction": 1.0,
    "lr": 0.05,
    "eval_every": 0,
    "deploy": {"timeout": 0.3, "join_timeout": 0.5, "secure_aggregation": True},
}
CLOSE = 1e-5  # after a few rounds; one round is held to its bound below


def plain(**fields: Any) -> dict[str, Any]:
    return FIELDS | {"deploy": {"timeout": 0.3, "join_timeout": 0.5}} | fields


def secure(fields: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    given = settings or True
    return FIELDS | (fields or {}) | {"deploy": {"timeout": 0.3, "join_timeout": 0.5, "secure_aggregation": given}}


def apart(one: Run, other: Run) -> float:
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


def stage_of(context: Context) -> str:
    return str(context.state.config_records[RECORD_KEY_STATE]["current_stage"])


def silent(*stages: str, round: str = "2", nodes: tuple[int, ...] = (100 + BAD,)) -> Callable[[Loopback], None]:
    """Nodes that do not answer in some stages of a round."""

    def tamper(reply: Message, context: Context) -> Message | None:
        in_stage_of_round = RECORD_KEY_CONFIGS in reply.content and reply.metadata.group_id == round
        return None if in_stage_of_round and stage_of(context) in stages else reply

    return lambda loopback: loopback.tamper.update(dict.fromkeys(nodes, tamper))


def absent(loopback: Loopback) -> None:
    """Without masks: a client that does not answer in round 2."""

    def tamper(reply: Message, context: Context) -> Message | None:
        return None if reply.metadata.group_id == "2" and "up" in reply.content else reply

    loopback.tamper[100 + BAD] = tamper


def vectors(nodes: Loopback, round: str) -> dict[int, np.ndarray]:
    """What the nodes sent in a round, as unsigned numbers."""
    by_node = {}
    for node, reply in nodes.sent:
        if "masked" in reply.content and reply.metadata.group_id == round:
            by_node[node] = unpack(reply.content, RECORD_KEY_CONFIGS)[1]["masked"]["sum"].numpy().view(np.uint32)
    return by_node


def record_in(message: Message, stage: str) -> Any:
    record = message.content.get(RECORD_KEY_CONFIGS)
    return record if isinstance(record, ConfigRecord) and record.get(Key.STAGE) == stage else {}
