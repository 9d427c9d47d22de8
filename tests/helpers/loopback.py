"""Flower without its network: a grid whose nodes are ClientApps called in this process, each message written to bytes
and read again as Flower does it between machines."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[Message, Context], Message | None]  # what a node sends in place of its reply; None: nothing


class Loopback(Grid):
    """Nodes 100, 101, … with the node configs given."""

    def __init__(
        self, app: ClientApp, configs: Iterable[dict[str, Any]], run_config: dict[str, Any] | None = None
    ) -> None:
        self.app, self.run_config = app, run_config or {}
        self.configs = {100 + i: dict(config) for i, config in enumerate(configs)}
        self.states: defaultdict[int, RecordDict] = defaultdict(RecordDict)  # what Flower keeps for each node
        self.tamper: dict[int, Tamper] = {}
        self.sent: list[tuple[int, Message]] = []  # replies, by node
        self._numbers = itertools.count()
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower's processes do
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.configs)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            self._waiting[number] = _travelled(message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for number in message_ids:
            message = self._waiting.pop(number, None)
            if message is None:
                continue
            node = message.metadata.dst_node_id
            if node not in self.configs:
                continue
            context = Context(0, node, self.configs[node], self.states[node], self.run_config)
            reply = self.app(message, context)
            if node in self.tamper:
                tampered = self.tamper[node](reply, context)
                if tampered is None:
                    continue
                reply = tampered
            self.sent.append((node, reply))
            replies.append(_travelled(reply))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def _travelled(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))
