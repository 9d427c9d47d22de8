"""Which node is which client: who joins, who waits in reserve, who is gone. Nothing here waits for a node's answer.

A node that is listed as online is asked to join, and joins when its answer comes. A member stays one until it is gone
or has missed the answers of two orders in a row; then it has to answer a question to come back, and costs rounds no
time until it does. A second node of the same site waits in reserve: it takes the place when the first is gone or has
missed an order, since one that was killed is listed for a minute more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedloom.deploy.identity import Bindings
from fedloom.deploy.invitations import Invitations
from fedloom.deploy.post import SLOWEST, Post, Silence
from fedloom.deploy.schema import Card, Facts, Reply
from fedloom.deploy.secure import Order
from fedloom.engine.setup import Experiment

MISSED = 2  # orders in a row without an answer, after which a node is no member any more
RARER = 6  # doublings of the time that such a node is left in peace


@dataclass(frozen=True)
class Member:
    node: int
    name: str

    def __str__(self) -> str:
        return self.name or f"node {self.node}"


class Members:
    """The nodes of a federation, by client."""

    def __init__(
        self, post: Post, experiment: Experiment, card: Card, bindings: Bindings, note: Callable[[str], None]
    ) -> None:
        self.post, self.experiment, self.card, self.bindings, self.note = post, experiment, card, bindings, note
        self.timeout = experiment.recipe.deploy.timeout
        self._members: dict[int, Member] = {}  # by client
        self._reserve: dict[int, Member] = {}  # by client
        self._reasons: dict[int, str] = {}  # by client: why it has no node
        self._missed: dict[int, int] = {}  # by node: orders in a row without an answer
        self._doubted: set[int] = set()  # members that are asked to join again
        self._invitations = Invitations(post, "join", self._invitation, self.timeout)
        self._refreshed = 0.0

    def __contains__(self, client: object) -> bool:
        return client in self._members

    def get(self, client: int) -> Member | None:
        return self._members.get(client)

    def items(self) -> list[tuple[int, Member]]:
        return list(self._members.items())

    def absence(self, client: int) -> str:
        """Why a client has no node."""
        return self._reasons.get(client, "no node is connected for it")

    def refresh(self) -> None:
        """Drop the nodes that are gone, ask new ones to join, admit those that have answered."""
        online, self._refreshed = self.post.nodes(), time.monotonic()
        self._drop(online)
        known = {member.node for group in (self._members, self._reserve) for member in group.values()}
        self._invitations.ask(online - known | self._doubted)
        for node, answer in self._invitations.collect().items():
            if isinstance(answer, str):
                self._unheard(node, answer)
            else:
                self._heard(node, answer[0])
        self.bindings.save()
        self._relieve()

    def meanwhile(self) -> None:
        """A refresh, at most one a second: for those who wait for other answers."""
        if time.monotonic() - self._refreshed >= SLOWEST:
            self.refresh()

    def answered(self, member: Member) -> None:
        """An order was carried out."""
        self._missed.pop(member.node, None)

    def failed(self, client: int, member: Member, reason: str) -> None:
        """An order was not carried out. Who said so is asked to join again, beside its next order: its files may be gone."""
        if isinstance(reason, Silence):
            self._miss(client, member)
        else:
            self._doubted.add(member.node)
            self._invitations.again(member.node)

    # joining

    def _invitation(self, node: int) -> Order:
        initial = {"initial": self.experiment.layout.tensors(self.experiment.initial)}
        return {"kind": "join", "card": self.card.to_json(), **self.bindings.question(node)}, initial

    def _heard(self, node: int, told: Reply) -> None:
        """What a node says to the question whether it joins."""
        self._doubted.discard(node)
        client, facts = told.client, told.report
        if client is None or client >= self.experiment.recipe.clients:
            self.note(f"node {node} did not join: it says to be client {client}")
            return
        other = self._members.get(client)
        if isinstance(facts, Facts) and (flaw := self.bindings.flaw(client, node, facts)):
            self.note(f"node {node} did not join: {flaw}")
            if other is None or other.node == node:
                self._reasons[client] = "no node that holds its key is connected"
                self._members.pop(client, None)
            return
        reason = self._unfit(client, facts) if isinstance(facts, Facts) else told.refused or "does not say what it has"
        if not isinstance(facts, Facts) or reason is not None:
            self.note(f"client {client} (node {node}) did not join: it {reason}")
            if other is None or other.node == node:
                self._reasons[client] = str(reason)
                self._members.pop(client, None)
            return
        self.bindings.bind(client, facts)
        member = Member(node, facts.name)
        if other is None or other.node == node:
            self._members[client] = member
            self._reasons.pop(client, None)
        elif client not in self._reserve:
            self.note(f"node {node} did not join: client {client} is {other} already")
            self._reserve[client] = member

    def _unheard(self, node: int, reason: str) -> None:
        """A node did not say whether it joins."""
        self._doubted.discard(node)
        for client, member in self.items():
            if member.node == node:
                self._miss(client, member)
                return
        self.note(f"node {node} did not join: {reason}")

    def _unfit(self, client: int, facts: Facts) -> str | None:
        """Whether a site is the one the federation began with."""
        partition = self.experiment.partition
        held = ("train", facts.train, partition.train(client)), ("test", facts.test, partition.test(client))
        for field, found, samples in held:
            if found != len(samples):
                return f"has {found} {field} images, and {len(samples)} belong to client {client}"
        return None

    # leaving

    def _drop(self, online: set[int]) -> None:
        for client, member in self.items():
            if member.node not in online:
                self.note(f"client {client} ({member}) is gone")
                del self._members[client]
        self._reserve = {client: member for client, member in self._reserve.items() if member.node in online}
        self._missed = {node: count for node, count in self._missed.items() if node in online}
        self._doubted &= online
        self._invitations.keep(online)

    def _miss(self, client: int, member: Member) -> None:
        """A node that answers no orders is left out until it answers a question, and if it fails again is asked ever more
        rarely: each trial may cost a time-out."""
        missed = self._missed[member.node] = self._missed.get(member.node, 0) + 1
        if missed < MISSED or self._members.get(client) != member:
            return
        self._invitations.again(member.node)
        if missed > MISSED:
            self._invitations.rest(member.node, self.timeout * 2.0 ** min(missed - MISSED - 1, RARER))
        self._doubted.discard(member.node)
        del self._members[client]
        self._reasons[client] = "its node does not answer any more"
        self.note(f"client {client} ({member}) does not answer any more")

    def _relieve(self) -> None:
        """A node in reserve takes the place of one that is gone or missed an order."""
        for client, spare in list(self._reserve.items()):
            member = self._members.get(client)
            if member is None or self._missed.get(member.node):
                self._members[client] = self._reserve.pop(client)
                self._reasons.pop(client, None)
                self.note(f"client {client} is node {spare.node} now")
