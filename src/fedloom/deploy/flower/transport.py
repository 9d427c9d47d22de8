"""Sends orders to nodes over Flower and collects their answers; a node without a valid answer has a reason instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.serverapp import Grid

from fedloom.deploy.messages.checked import Tensors
from fedloom.deploy.messages.schema import EmptyReport, Reply, StrictModel, parse_reply
from fedloom.deploy.messages.wire import ArrivedTensors, Expected, OutgoingOrder, pack, text_of
from fedloom.errors import FedloomError, cleaned

POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 1.0  # between two requests for answers
EXTRA_SECONDS = 30.0  # that Flower keeps a message after our time-out, so that the reported reason is ours

Answer = tuple[Reply, dict[str, Tensors]]  # a parsed reply, and tensors of the shapes that were asked for
Answers = dict[int, Answer | str]  # by node; a string is the reason why there is no answer


class NoAnswer(str):
    """The reason when the node itself sent nothing: it did not answer in time, or Flower reported an error."""


class FlowerTransport:
    def __init__(self, grid: Grid, digest: str) -> None:
        self.grid, self.digest = grid, digest

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def send(self, node: int, order: OutgoingOrder, timeout: float) -> str | None:
        """Send one order without waiting; returns the id of the message for `answers`, or None if it could not be sent."""
        return self._push(node, self._packed(order), timeout, 0, "query")

    def answers(self, waiting: Mapping[str, int], report: type[StrictModel]) -> Answers:
        """The answers to these messages that have arrived so far; `waiting` maps the ids of messages to nodes."""
        replies = self.grid.pull_messages(list(waiting))
        by_node = [(waiting.get(reply.metadata.reply_to_message_id), reply) for reply in replies]
        return {node: self._read(reply, report, {}) for node, reply in by_node if node is not None}

    def exchange(
        self,
        orders: Mapping[int, OutgoingOrder],
        timeout: float,
        round: int = 0,
        on_answer: Callable[[int], None] | None = None,
        expected: Expected | None = None,
        while_waiting: Callable[[], None] | None = None,
        report: type[StrictModel] = EmptyReport,
        message_type: str = "query",
    ) -> Answers:
        """Send each node its order and wait for all answers, at most `timeout` seconds.

        `on_answer` is called with each node that answers, `while_waiting` between polls. `expected` and `report` are the
        tensors and the numbers that an answer may contain; none by default. `message_type`: Flower's train, evaluate or query.
        """
        packed = {node: self._packed(order) for node, order in orders.items()}
        replies = self._send_all(packed, timeout, round, on_answer, while_waiting, message_type)
        return {
            node: reply if isinstance(reply, str) else self._read(reply, report, expected or {})
            for node, reply in replies.items()
        }

    def exchange_keys(
        self,
        orders: Mapping[int, OutgoingOrder],
        records: Mapping[int, ConfigRecord],
        timeout: float,
        round: int,
        on_answer: Callable[[int], None] | None = None,
        expected: Expected | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> dict[int, tuple[Reply, ConfigRecord, dict[str, Tensors]] | str]:
        """The same for a stage of secure aggregation, whose messages also carry a record of Flower's protocol."""
        packed = {node: self._packed(order, **{RECORD_KEY_CONFIGS: records[node]}) for node, order in orders.items()}
        answers: dict[int, tuple[Reply, ConfigRecord, dict[str, Tensors]] | str] = {}
        for node, reply in self._send_all(packed, timeout, round, on_answer, while_waiting, "train").items():
            if isinstance(reply, str):
                answers[node] = reply
                continue
            answer = self._read(reply, EmptyReport, expected or {}, RECORD_KEY_CONFIGS)
            if isinstance(answer, str):
                answers[node] = answer
                continue
            record = reply.content.get(RECORD_KEY_CONFIGS)
            answers[node] = answer[0], record if isinstance(record, ConfigRecord) else ConfigRecord(), answer[1]
        return answers

    def _packed(self, order: OutgoingOrder, **records: ConfigRecord) -> RecordDict:
        text, groups = order
        return pack({**text, "digest": self.digest}, **groups, **records)

    def _send_all(
        self,
        packed: Mapping[int, RecordDict],
        timeout: float,
        round: int,
        on_answer: Callable[[int], None] | None,
        while_waiting: Callable[[], None] | None,
        message_type: str,
    ) -> dict[int, Message | str]:
        waiting: dict[str, int] = {}
        results: dict[int, Message | str] = {}
        for node, content in packed.items():
            message_id = self._push(node, content, timeout, round, message_type)
            if message_id is not None:
                waiting[message_id] = node
            else:
                results[node] = "the order could not be sent"
        until, pause = time.monotonic() + timeout, POLL_SECONDS
        while waiting and time.monotonic() < until:
            replies = list(self.grid.pull_messages(list(waiting)))
            for reply in replies:
                answered = waiting.pop(reply.metadata.reply_to_message_id, None)
                if answered is not None:
                    results[answered] = reply
                    if on_answer:
                        on_answer(answered)
            pause = POLL_SECONDS if replies else min(pause * 1.2, MAX_POLL_SECONDS)
            if waiting and while_waiting:
                while_waiting()
            if waiting:
                time.sleep(min(pause, max(until - time.monotonic(), 0)))
        for node in waiting.values():
            results[node] = NoAnswer(f"no answer within {timeout:g} s")
        return results

    def _push(self, node: int, content: RecordDict, timeout: float, round: int, message_type: str) -> str | None:
        ttl = timeout + EXTRA_SECONDS
        message = Message(content, dst_node_id=node, message_type=message_type, ttl=ttl, group_id=str(round))
        ids = list(self.grid.push_messages([message]))
        return ids[0] if ids and ids[0] else None

    def _read(
        self, message: Message, report: type[StrictModel], expected: Expected, extra: str | None = None
    ) -> Answer | str:
        if message.has_error():
            return NoAnswer(f"Flower says: {cleaned(message.error.reason or f'error {message.error.code}', 120)}")
        try:
            reply = parse_reply(text_of(message.content), report)
            if reply.digest != self.digest:
                return f"it has recipe {reply.digest}, the server {self.digest}"
            return reply, ArrivedTensors(message.content, extra).read({} if reply.refused is not None else expected)
        except FedloomError as error:
            return str(error)
