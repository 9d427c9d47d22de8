"""Messages to nodes and their answers, whatever becomes of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.serverapp import Grid

from fedloom.deploy.checked import Tensors
from fedloom.deploy.schema import Reply, parse_reply, plain
from fedloom.deploy.secure import Order
from fedloom.deploy.wire import Arrays, Expected, pack, text_of
from fedloom.errors import FedloomError

# Flower's name for a kind of job; else it is a query
TYPES = {"train": "train", "act": "train", "keys": "train", "client": "evaluate"}
POLL, SLOWEST = 0.1, 1.0  # seconds between looks for answers
GRACE = 30.0  # seconds that Flower keeps a message longer than it is waited for, so that the reason is ours

Answer = tuple[Reply, dict[str, Tensors]]  # what a node said, and tensors of the shapes that were asked for
Answers = dict[int, Answer | str]  # by node; or why there is none


class Silence(str):
    """Why a node itself said nothing: it did not answer in time, or Flower answered in its place."""


class Post:
    """Where messages go out and answers come in."""

    def __init__(self, grid: Grid, digest: str) -> None:
        self.grid, self.digest = grid, digest

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def send(self, node: int, order: Order, timeout: float) -> str | None:
        """Send one order and wait for nothing; the message's number, for `answers`, or None if it could not be sent."""
        packed = pack({**order[0], "digest": self.digest}, **order[1])
        return self._push(node, packed, str(order[0]["kind"]), timeout, 0)

    def answers(self, waiting: Mapping[str, int], kind: str) -> Answers:
        """What has come so far of the answers to these messages of one kind; `waiting`: number of the message -> node."""
        replies = self.grid.pull_messages(list(waiting))
        known = [(waiting.get(reply.metadata.reply_to_message_id), reply) for reply in replies]
        return {node: self._read(reply, kind, {}) for node, reply in known if node is not None}

    def exchange(
        self,
        orders: Mapping[int, Order],
        timeout: float,
        round: int = 0,
        heard: Callable[[int], None] | None = None,
        expected: Expected | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Answers:
        """Send each node its order and wait for all answers, at most this many seconds.

        `heard` is called with every node that answers, `meanwhile` now and then. `expected`: the tensors that an answer
        may bring; none by default.
        """
        packed = {node: pack({**order, "digest": self.digest}, **groups) for node, (order, groups) in orders.items()}
        kinds = {node: str(order["kind"]) for node, (order, _) in orders.items()}
        replies = self._send(packed, kinds, timeout, round, heard, meanwhile)
        return {
            node: reply if isinstance(reply, str) else self._read(reply, kinds[node], expected or {})
            for node, reply in replies.items()
        }

    def exchange_keys(
        self,
        orders: Mapping[int, Order],
        said: Mapping[int, ConfigRecord],
        timeout: float,
        round: int,
        heard: Callable[[int], None] | None = None,
        expected: Expected | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[int, tuple[Reply, ConfigRecord, dict[str, Tensors]] | str]:
        """The same for a stage of secure aggregation: with what Flower's protocol says beside the order, and answers."""
        packed = {
            node: pack({**order, "digest": self.digest}, **groups, **{RECORD_KEY_CONFIGS: said[node]})
            for node, (order, groups) in orders.items()
        }
        kinds = {node: str(order["kind"]) for node, (order, _) in orders.items()}
        found: dict[int, tuple[Reply, ConfigRecord, dict[str, Tensors]] | str] = {}
        for node, reply in self._send(packed, kinds, timeout, round, heard, meanwhile).items():
            answer = (
                reply if isinstance(reply, str) else self._read(reply, kinds[node], expected or {}, RECORD_KEY_CONFIGS)
            )
            if isinstance(reply, str) or isinstance(answer, str):
                found[node] = answer if isinstance(answer, str) else "it sent nothing"
                continue
            record = reply.content.get(RECORD_KEY_CONFIGS)
            found[node] = answer[0], record if isinstance(record, ConfigRecord) else ConfigRecord(), answer[1]
        return found

    def _send(
        self,
        packed: Mapping[int, RecordDict],
        kinds: Mapping[int, str],
        timeout: float,
        round: int,
        heard: Callable[[int], None] | None,
        meanwhile: Callable[[], None] | None,
    ) -> dict[int, Message | str]:
        waiting: dict[str, int] = {}
        found: dict[int, Message | str] = {}
        for node, content in packed.items():
            number = self._push(node, content, kinds[node], timeout, round)
            if number is not None:
                waiting[number] = node
            else:
                found[node] = "the order could not be sent"
        until, pause = time.monotonic() + timeout, POLL
        while waiting and time.monotonic() < until:
            replies = list(self.grid.pull_messages(list(waiting)))
            for reply in replies:
                answered = waiting.pop(reply.metadata.reply_to_message_id, None)
                if answered is not None:
                    found[answered] = reply
                    if heard:
                        heard(answered)
            pause = POLL if replies else min(pause * 1.2, SLOWEST)
            if waiting and meanwhile:
                meanwhile()
            if waiting:
                time.sleep(min(pause, max(until - time.monotonic(), 0)))
        for node in waiting.values():
            found[node] = Silence(f"no answer within {timeout:g} s")
        return found

    def _push(self, node: int, content: RecordDict, kind: str, timeout: float, round: int) -> str | None:
        flowers = TYPES.get(kind, "query")
        message = Message(content, dst_node_id=node, message_type=flowers, ttl=timeout + GRACE, group_id=str(round))
        numbers = list(self.grid.push_messages([message]))
        return numbers[0] if numbers and numbers[0] else None

    def _read(self, reply: Message, kind: str, expected: Expected, beside: str | None = None) -> Answer | str:
        if reply.has_error():
            return Silence(f"Flower says: {plain(reply.error.reason or f'error {reply.error.code}', 120)}")
        try:
            said = parse_reply(text_of(reply.content), kind, masked=beside is not None)
            if said.digest != self.digest:
                return f"it has recipe {said.digest}, the server {self.digest}"
            return said, Arrays(reply.content, beside).read({} if said.refused is not None else expected)
        except FedloomError as error:
            return str(error)
