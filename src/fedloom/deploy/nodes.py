"""The nodes of a federation in place of lanes: jobs go out as messages, what comes back is checked and put on the board.

What the server computes itself (tests on its own images, its own training) goes to lanes of its own machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord
from torch import Tensor

from fedloom.deploy.checked import Tensors, fit
from fedloom.deploy.masking import MASKED
from fedloom.deploy.post import SLOWEST, Post
from fedloom.deploy.quorum import floor
from fedloom.deploy.schema import Acted, Card, Facts, Message, Reply, Terms, Tested
from fedloom.deploy.secure import Heard, Order, SecureRound, in_rows
from fedloom.deploy.summand import Summand
from fedloom.deploy.wire import Expected
from fedloom.engine.arena import Item, prefixed, scoped
from fedloom.engine.board import Board
from fedloom.engine.lanes import Job, Lanes, Report
from fedloom.engine.ledger import Ledger
from fedloom.engine.setup import Experiment
from fedloom.engine.worker import Worker
from fedloom.errors import TooFew
from fedloom.weights import digest

REMOTE = ("train", "act", "tell", "client")
ASK_AGAIN = 60.0  # seconds until a node that refused is asked again

Note = Callable[[str], None]


@dataclass(frozen=True)
class Member:
    node: int
    name: str

    def __str__(self) -> str:
        return self.name or f"node {self.node}"


class Nodes:
    """Runs clients' jobs on nodes; stands where lanes stand."""

    def __init__(
        self, post: Post, experiment: Experiment, board: Board, ledger: Ledger, local: Lanes, card: Card, note: Note
    ) -> None:
        self.post, self.experiment, self.board, self.ledger = post, experiment, board, ledger
        self.local, self.card, self.note = local, card, note
        self.deploy = experiment.recipe.deploy
        self.members: dict[int, Member] = {}  # by client
        self.refused: dict[int, str] = {}  # by client
        self._asked: dict[int, float] = {}  # node -> when it was asked to join

    @property
    def count(self) -> int:
        return self.local.count

    @property
    def deaths(self) -> int:
        return self.local.deaths

    @property
    def worker(self) -> Worker:
        return self.local.worker

    # who is there

    def assemble(self, wanted: Sequence[int], least: int) -> None:
        """Wait until these clients' nodes have joined; after deploy.join_timeout, go on with `least` of them or stop."""
        until = time.monotonic() + self.deploy.join_timeout
        while True:
            self._refresh()
            missing = [client for client in wanted if client not in self.members]
            present = len(wanted) - len(missing)
            if not missing or (present >= least and time.monotonic() >= until):
                break
            if time.monotonic() >= until:
                reasons = "; ".join(f"client {k}: {self._absence(k)}" for k in missing)
                raise TooFew(f"{present} of {len(wanted)} nodes are there, {least} are needed ({reasons})")
            time.sleep(SLOWEST)
        for client in missing:
            self.note(f"client {client} is not there: {self._absence(client)}")

    def _absence(self, client: int) -> str:
        return self.refused.get(client, "no node is connected for it")

    def _refresh(self) -> None:
        """Drop the nodes that are gone, ask new ones to join."""
        online, now = self.post.nodes(), time.monotonic()
        for client, member in list(self.members.items()):
            if member.node not in online:
                self.note(f"client {client} ({member}) is gone")
                del self.members[client]
        joined = {member.node for member in self.members.values()}
        recent = {node for node, asked in self._asked.items() if now - asked < ASK_AGAIN}
        if new := online - joined - recent:
            self._join(new)

    def _join(self, new: set[int]) -> None:
        order = {"kind": "join", "card": self.card.to_json()}
        initial = {"initial": self.experiment.layout.tensors(self.experiment.initial)}
        answers = self.post.exchange(dict.fromkeys(new, (order, initial)), self.deploy.timeout)
        for node, answer in sorted(answers.items()):
            self._asked[node] = time.monotonic()
            if isinstance(answer, str):
                self.note(f"node {node} did not join: {answer}")
                continue
            told, client = answer[0], answer[0].client
            if client is None or client >= self.experiment.recipe.clients:
                self.note(f"node {node} did not join: it says to be client {client}")
                continue
            reason = told.refused or self._unfit(client, told.report)
            if reason is None and (other := self.members.get(client)) and self._alive(other):
                self.note(f"node {node} did not join: client {client} is {other} already")
            elif reason is not None:
                self.refused[client] = reason
                self.note(f"client {client} (node {node}) did not join: it {reason}")
            else:
                self.members[client] = Member(node, told.report.name if isinstance(told.report, Facts) else "")
                self.refused.pop(client, None)

    def _unfit(self, client: int, report: Message) -> str | None:
        """Whether a site is the one the federation began with."""
        partition = self.experiment.partition
        for field, count in (("train", len(partition.train(client))), ("test", len(partition.test(client)))):
            found = getattr(report, field, None)
            if found != count:
                return f"has {found} {field} images, and {count} belong to client {client}"
        return None

    def _alive(self, member: Member) -> bool:
        """Whether a node still answers; one that was killed is listed for a while."""
        order = {"kind": "join", "card": self.card.to_json()}
        initial = {"initial": self.experiment.layout.tensors(self.experiment.initial)}
        return not isinstance(
            self.post.exchange({member.node: (order, initial)}, self.deploy.timeout)[member.node], str
        )

    # what they do

    def run(self, jobs: Sequence[Job], done: Callable[[int], None] | None = None) -> list[Report | None]:
        if not jobs or jobs[0].kind not in REMOTE:
            return self.local.run(jobs, done)
        if jobs[0].kind == "train":
            cohort = [job.arguments["client"] for job in jobs]
            self.assemble_round(cohort)
        reports: list[Report | None] = [None] * len(jobs)
        orders, place = {}, {}
        for i, job in enumerate(jobs):
            if job.prepare:
                job.prepare(0)
            client = job.arguments["client"]
            member = self.members.get(client)
            if member is None:
                reports[i] = {"lost": self._absence(client)}
            else:
                orders[member.node], place[member.node] = self._order(job), i
        number = jobs[0].arguments.get("round", 0)
        heard = (lambda node: done(place[node])) if done else None
        if jobs[0].kind == "train" and self.deploy.secure_aggregation is not None:
            taken = self._summed(orders, {node: jobs[i] for node, i in place.items()}, number, heard)
        else:
            answers = self.post.exchange(orders, self.deploy.timeout, number, heard, self._expected(jobs[0]))
            taken = {
                node: answer if isinstance(answer, str) else self._take(jobs[place[node]], *answer)
                for node, answer in answers.items()
            }
        for node, report in taken.items():
            if isinstance(report, str):
                member = self._leave(jobs[place[node]].arguments["client"], node)
                report = {"lost": f"{member.name}: {report}" if member.name else report}
                if jobs[0].kind == "client":  # a round's line names lost uploads; a lost test has no other place
                    self.note(
                        f"the test of client {jobs[place[node]].arguments['client']} does not count: {report['lost']}"
                    )
            reports[place[node]] = report
        return reports

    def _leave(self, client: int, node: int) -> Member:
        """It has to join again."""
        self._asked.pop(node, None)
        return self.members.pop(client)

    def _summed(
        self, orders: Mapping[int, Order], jobs: Mapping[int, Job], number: int, heard: Callable[[int], None] | None
    ) -> dict[int, Report | str]:
        """Train under secure aggregation: what comes on the board, in every client's row, is the mean of those in the sum."""
        settings, recipe = self.deploy.secure_aggregation, self.experiment.recipe
        assert settings is not None
        summand = Summand(self.experiment, settings)
        vector = Item("its masked vector", (summand.length,), torch.int32, 0, 4 * summand.length)

        def send(orders: Mapping[int, Order], said: Mapping[int, ConfigRecord]) -> dict[int, Heard | str]:
            trains = any(order["kind"] == "train" for order, _ in orders.values())
            answers = self.post.exchange_keys(
                orders,
                said,
                self.deploy.timeout,
                number,
                heard if trains else None,
                {MASKED: {"sum": vector}} if trains else {},
            )
            found: dict[int, Heard | str] = {}
            for node, answer in answers.items():
                if isinstance(answer, str):
                    found[node] = answer
                elif reason := _foreign(answer[0], jobs[node].arguments["client"]):
                    found[node] = reason
                else:
                    found[node] = answer[1], answer[2]
            return found

        samples = {node: len(self.experiment.training(job.arguments["client"], number)) for node, job in jobs.items()}
        cohort = {job.arguments["client"]: node for node, job in jobs.items()}
        least, model = floor(settings, recipe.cohort_size), digest(self.board.down)
        terms = Terms(self.card.sites.federation, number, cohort, sum(samples.values()), model)
        summed = SecureRound(settings, least, terms, summand, self.board.down, send, orders, samples).run()
        taken: dict[int, Report | str] = {node: {"lost": f"secure aggregation: {summed.failure}"} for node in orders}
        taken |= summed.lost
        if summed.found is None:
            self.note(f"round {number} has no sum: {summed.failure}")
            return taken
        if summed.found.clipped:
            self.note(
                f"round {number}: {summed.found.clipped} numbers were clipped at "
                f"deploy.secure_aggregation.clipping_range, {settings.clipping_range:g}"
            )
        in_rows(summed.found, [self.board.up(jobs[node].arguments["row"]) for node in summed.nodes])
        for node in summed.nodes:
            if node in summed.lost:  # its vector is in the sum, and it did not help to unmask it
                client = jobs[node].arguments["client"]
                self.note(f"client {client} ({self._leave(client, node)}): {summed.lost[node]}")
            taken[node] = {"loss": summed.found.loss, "seconds": 0.0}
        return taken

    def assemble_round(self, cohort: Sequence[int]) -> None:
        """Look for nodes that came or went; wait only if too few are there for the round to count."""
        self._refresh()
        least = max(min(self.deploy.min_cohort, len(cohort)), 1)
        if sum(client in self.members for client in cohort) < least:
            self.note(f"waiting for {least} of the clients {', '.join(map(str, cohort))}")
            until = time.monotonic() + self.deploy.join_timeout
            while sum(client in self.members for client in cohort) < least:
                if time.monotonic() > until:
                    reasons = "; ".join(f"client {k}: {self._absence(k)}" for k in cohort if k not in self.members)
                    raise TooFew(f"a round needs {least} of its {len(cohort)} nodes ({reasons})")
                time.sleep(SLOWEST)
                self._refresh()

    def _order(self, job: Job) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
        client = job.arguments["client"]
        known = {name: value for name, value in job.arguments.items() if name not in ("client", "row")}
        order: dict[str, Any] = {"kind": job.kind, "federation": self.card.sites.federation, "arguments": known}
        if job.kind == "act":
            part = job.arguments["part"]
            order |= {"base": job.arguments["round"], "into": job.arguments["round"], "keep": self.ledger.kept(client)}
            order["before"] = self.ledger.version(client)
            return order, {"message": prefixed(scoped(self.board.message, part), part)}
        if job.kind == "train":
            order |= {"into": job.arguments["round"], "keep": self.ledger.kept(client)}
        if job.kind != "client" or job.arguments["personal"]:
            order["base"] = self.ledger.version(client)
        order["at"] = int(self.board.down["round"])
        return order, {"down": self._down()}

    def _down(self) -> dict[str, Tensor]:
        """What is broadcast, without what every node has had since it joined."""
        fixed = prefixed(self.experiment.messages.fixed, "fixed")
        return {
            name: tensor
            for name, tensor in self.experiment.messages.down.views(self.board.down_row).items()
            if name not in fixed or not bool((tensor == fixed[name]).all())
        }

    def _expected(self, job: Job) -> Expected:
        """The tensors that an answer may bring, and no others."""
        messages = self.experiment.messages
        if job.kind in ("train", "act"):
            return {"up": messages.up.by_name}
        if job.kind == "tell":
            own = job.arguments["part"] + "."
            return {"findings": {name: it for name, it in messages.findings.by_name.items() if name.startswith(own)}}
        return {}

    def _take(self, job: Job, reply: Reply, groups: dict[str, Tensors]) -> Report | str:
        """Check an answer and put its tensors on the board; or why it is not accepted."""
        client, messages = job.arguments["client"], self.experiment.messages
        reason = _foreign(reply, client) or self._miscounted(job, reply.report)
        if reason:
            return reason
        if job.kind in ("train", "act"):
            reason = fit(groups.get("up", {}), messages.up, self.board.up_rows[job.arguments["row"]])
        if job.kind == "tell":
            row, part = job.arguments["row"], job.arguments["part"]
            here = {name: t for name, t in self.board.findings(row).items() if not name.startswith(part + ".")}
            reason = fit({**here, **groups.get("findings", {})}, messages.findings, self.board.finding_rows[row])
        return reason or _report(reply.report)

    def _miscounted(self, job: Job, report: Message) -> str | None:
        """A site tests on all of its test images, whose number is known."""
        if isinstance(report, Tested):
            held = len(self.experiment.at(job.arguments["round"]).partition.test(job.arguments["client"]))
            if report.total != held:
                return f"it tested on {report.total} images, and it has {held}"
        return None

    def hand_out(self, served: Mapping[str, Tensor]) -> None:
        """Give every site the served model to keep."""
        self.board.broadcast(served)
        self._refresh()
        orders = {}
        for client, member in self.members.items():
            order: dict[str, Any] = {"kind": "keep", "federation": self.card.sites.federation, "arguments": {}}
            order |= {"base": self.ledger.version(client), "at": int(self.board.down["round"])}
            orders[member.node] = order, {"down": self._down()}
        answers = self.post.exchange(orders, self.deploy.timeout)
        for client in range(self.experiment.recipe.clients):
            site = self.members.get(client)
            answer = answers[site.node] if site else self._absence(client)
            reason = answer if isinstance(answer, str) else _foreign(answer[0], client)
            if reason:
                self.note(f"client {client} did not get the final model: {reason}")


def _foreign(reply: Reply, client: int) -> str | None:
    """Why a reply is not an answer of this client's."""
    if reply.refused is not None:
        return f"it {reply.refused}"
    return None if reply.client == client else f"it answers for client {reply.client}"


def _report(report: Message) -> Report:
    """The numbers as the engine takes them from a lane."""
    found = report.model_dump()
    if isinstance(report, Acted) and report.loss is None:
        found["loss"] = math.nan
    return found
