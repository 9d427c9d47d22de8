"""Asks nodes a question without waiting for the answer. Answers are collected as they arrive; a node that refuses or does not
answer is asked again, each time after twice the delay. So a silent node costs an occasional message and no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedloom.deploy.flower.transport import Answers, FlowerTransport, NoAnswer
from fedloom.deploy.messages.schema import SiteFacts
from fedloom.deploy.messages.wire import OutgoingOrder

FIRST_DELAY, MAX_DELAY = 60.0, 960.0  # seconds until a node is asked again; doubled each time


@dataclass
class Invitation:
    """What is known of a node that was asked."""

    message_id: str = ""  # of the question that has no answer yet
    sent_at: float = 0.0
    times: int = 0
    due: float = 0.0  # when it may be asked again


class Invitations:
    """`question` makes the order, anew for every node and attempt."""

    def __init__(self, transport: FlowerTransport, question: Callable[[int], OutgoingOrder], timeout: float) -> None:
        self.transport, self.question, self.timeout = transport, question, timeout
        self._invitations: dict[int, Invitation] = {}

    def ask(self, nodes: Collection[int]) -> None:
        """Ask those of these nodes that are due."""
        now = time.monotonic()
        for node in nodes:
            invitation = self._invitations.setdefault(node, Invitation())
            if invitation.message_id or now < invitation.due:
                continue
            message_id = self.transport.send(node, self.question(node), self.timeout)
            invitation.message_id, invitation.sent_at = message_id or "", now
            invitation.times += 1
            if message_id is None:
                self._postpone(invitation)

    def ask_soon(self, node: int) -> None:
        """Ask this node at the next opportunity, whatever its delay was."""
        invitation = self._invitations.setdefault(node, Invitation())
        invitation.times, invitation.due = 0, 0.0

    def pause(self, node: int, seconds: float) -> None:
        """Do not ask this node for this long."""
        self._invitations.setdefault(node, Invitation()).due = time.monotonic() + seconds

    def collect(self) -> Answers:
        """The answers since the last call in order of arrival, then the nodes whose time is up."""
        waiting = {one.message_id: node for node, one in self._invitations.items() if one.message_id}
        answers = self.transport.answers(waiting, SiteFacts) if waiting else {}
        latest = time.monotonic() - self.timeout
        for node in waiting.values():
            if node not in answers and self._invitations[node].sent_at < latest:
                answers[node] = NoAnswer(f"no answer within {self.timeout:g} s")
        for node in answers:
            self._invitations[node].message_id = ""
            self._postpone(self._invitations[node])
        return answers

    def keep(self, online: Collection[int]) -> None:
        """Forget the nodes that are not online any more."""
        self._invitations = {node: one for node, one in self._invitations.items() if node in online}

    def _postpone(self, invitation: Invitation) -> None:
        invitation.due = time.monotonic() + min(FIRST_DELAY * 2.0 ** (invitation.times - 1), MAX_DELAY)
