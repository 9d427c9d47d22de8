"""Which node is which client: nodes that have joined, nodes in reserve, clients without a node. Nothing here blocks.

A node that Flower lists as online is asked to join, and becomes a member when its answer arrives. It stays one until it goes
offline or misses two orders in a row. Then it must answer a question to come back, and costs rounds no time until it does.
A second node of the same site waits in reserve. It takes over when the first goes offline or misses an order, because
Flower lists a killed node as online for another minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedloom.deploy.flower.invitations import Invitations
from fedloom.deploy.flower.transport import MAX_POLL_SECONDS, FlowerTransport, NoAnswer
from fedloom.deploy.keys.identity import KeyBindings
from fedloom.deploy.messages.schema import FederationInfo, Reply, SiteFacts
from fedloom.deploy.messages.wire import OutgoingOrder
from fedloom.engine.experiment import Experiment
from fedloom.io.digest import digest

MAX_MISSED = 2  # orders in a row without an answer, after which a node is no member any more
MAX_DOUBLINGS = 6  # of the pause before such a node is asked again


@dataclass(frozen=True)
class Member:
    node: int
    name: str

    def __str__(self) -> str:
        return self.name or f"node {self.node}"


class Members:
    """The nodes of a federation, by client."""

    def __init__(
        self,
        transport: FlowerTransport,
        experiment: Experiment,
        info: FederationInfo,
        bindings: KeyBindings,
        note: Callable[[str], None],
    ) -> None:
        self.transport, self.experiment, self.info = transport, experiment, info
        self.bindings, self.note = bindings, note
        self.timeout = experiment.recipe.deploy.timeout
        self._members: dict[int, Member] = {}  # by client
        self._reserve: dict[int, Member] = {}  # by client
        self._reasons: dict[int, str] = {}  # by client: why it has no node
        self._missed: dict[int, int] = {}  # by node: orders in a row without an answer
        self._doubted: set[int] = set()  # members that are asked to join again
        self._invitations = Invitations(transport, self._invitation, self.timeout)
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
        """Drop the nodes that are offline, ask new ones to join, admit those that have answered."""
        online, self._refreshed = self.transport.nodes(), time.monotonic()
        self._drop(online)
        known = {member.node for group in (self._members, self._reserve) for member in group.values()}
        self._invitations.ask(online - known | self._doubted)
        for node, answer in self._invitations.collect().items():
            if isinstance(answer, str):
                self._not_answered(node, answer)
            else:
                self._admit(node, answer[0])
        self.bindings.save()
        self._replace()

    def refresh_while_waiting(self) -> None:
        """A refresh, at most once a second."""
        if time.monotonic() - self._refreshed >= MAX_POLL_SECONDS:
            self.refresh()

    def succeeded(self, member: Member) -> None:
        """A node carried out an order."""
        self._missed.pop(member.node, None)

    def failed(self, client: int, member: Member, reason: str) -> None:
        """A node did not carry out an order. If it says so itself, it is asked to join again: its files may be gone."""
        if isinstance(reason, NoAnswer):
            self._miss(client, member)
        else:
            self._doubted.add(member.node)
            self._invitations.ask_soon(member.node)

    # joining

    def _invitation(self, node: int) -> OutgoingOrder:
        layout = self.experiment.program.layout
        initial = layout.tensors(self.experiment.program.initial)
        base = {name: initial.pop(name) for name in layout.regions.base}
        order = {"kind": "join", "info": self.info.to_json(), **self.bindings.challenge(node)}
        return order | ({"base": digest(base)} if base else {}), {"initial": initial}

    def _admit(self, node: int, reply: Reply) -> None:
        """Take in a node that answered the invitation, or note why not."""
        self._doubted.discard(node)
        client, facts = reply.client, reply.report
        if client is None or client >= self.experiment.recipe.clients:
            self.note(f"node {node} did not join: it claims to be client {client}")
            return
        if isinstance(facts, SiteFacts) and (flaw := self.bindings.flaw(client, node, facts)):
            self.note(f"node {node} did not join: {flaw}")
            self._exclude(client, node, "no node that holds its key is connected")
            return
        if not isinstance(facts, SiteFacts):
            reason: str | None = reply.refused or "does not say what it has"
        else:
            reason = self._mismatch(client, facts)
        if not isinstance(facts, SiteFacts) or reason is not None:
            self.note(f"client {client} (node {node}) did not join: it {reason}")
            self._exclude(client, node, str(reason))
            return
        self.bindings.bind(client, facts)
        member, other = Member(node, facts.name), self._members.get(client)
        if other is None or other.node == node:
            self._members[client] = member
            self._reasons.pop(client, None)
        elif client not in self._reserve:
            self.note(f"node {node} did not join: client {client} is {other} already")
            self._reserve[client] = member

    def _exclude(self, client: int, node: int, reason: str) -> None:
        """This node is not the client's, for this reason; another node that is stays."""
        other = self._members.get(client)
        if other is None or other.node == node:
            self._reasons[client] = reason
            self._members.pop(client, None)

    def _not_answered(self, node: int, reason: str) -> None:
        self._doubted.discard(node)
        for client, member in self.items():
            if member.node == node:
                self._miss(client, member)
                return
        self.note(f"node {node} did not join: {reason}")

    def _mismatch(self, client: int, facts: SiteFacts) -> str | None:
        """Why a site is not the one that the federation began with."""
        partition = self.experiment.data.partition
        held = ("train", facts.train, partition.train(client)), ("test", facts.test, partition.test(client))
        for field, reported, samples in held:
            if reported != len(samples):
                return f"has {reported} {field} samples, and {len(samples)} belong to client {client}"
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
        """After two missed orders a node is left out until it answers a question. If it fails again, the pause before the
        next question doubles, since each attempt may cost a time-out."""
        missed = self._missed[member.node] = self._missed.get(member.node, 0) + 1
        if missed < MAX_MISSED or self._members.get(client) != member:
            return
        self._invitations.ask_soon(member.node)
        if missed > MAX_MISSED:
            self._invitations.pause(member.node, self.timeout * 2.0 ** min(missed - MAX_MISSED - 1, MAX_DOUBLINGS))
        self._doubted.discard(member.node)
        del self._members[client]
        self._reasons[client] = "its node does not answer any more"
        self.note(f"client {client} ({member}) does not answer any more")

    def _replace(self) -> None:
        """A node in reserve takes the place of one that is offline or missed an order."""
        for client, spare in list(self._reserve.items()):
            member = self._members.get(client)
            if member is None or self._missed.get(member.node):
                self._members[client] = self._reserve.pop(client)
                self._reasons.pop(client, None)
                self.note(f"client {client} is node {spare.node} now")
