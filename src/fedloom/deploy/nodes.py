"""The nodes of a federation in place of lanes: jobs go out as messages, what comes back is checked and put on the board.

What the server computes itself (tests on its own images, its own training) goes to lanes of its own machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord
from torch import Tensor

from fedloom.deploy.checked import Tensors, fit
from fedloom.deploy.identity import Bindings
from fedloom.deploy.masking import MASKED
from fedloom.deploy.members import Members
from fedloom.deploy.post import POLL, SLOWEST, Post
from fedloom.deploy.quorum import floor
from fedloom.deploy.schema import Acted, Card, Message, Reply, Terms, Tested
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

Note = Callable[[str], None]


class Nodes:
    """Runs clients' jobs on nodes; stands where lanes stand."""

    def __init__(
        self,
        post: Post,
        experiment: Experiment,
        board: Board,
        ledger: Ledger,
        local: Lanes,
        card: Card,
        bindings: Bindings,
        note: Note,
    ) -> None:
        self.post, self.experiment, self.board, self.ledger = post, experiment, board, ledger
        self.local, self.card, self.note = local, card, note
        self.deploy = experiment.recipe.deploy
        self.members = Members(post, experiment, card, bindings, note)

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
        until, pause = time.monotonic() + self.deploy.join_timeout, POLL
        while True:
            self.members.refresh()
            missing = [client for client in wanted if client not in self.members]
            present = len(wanted) - len(missing)
            if not missing or (present >= least and time.monotonic() >= until):
                break
            if time.monotonic() >= until:
                reasons = "; ".join(f"client {k}: {self.members.absence(k)}" for k in missing)
                raise TooFew(f"{present} of {len(wanted)} nodes are there, {least} are needed ({reasons})")
            time.sleep(pause)
            pause = min(pause * 1.2, SLOWEST)
        for client in missing:
            self.note(f"client {client} is not there: {self.members.absence(client)}")

    # what they do

    def run(self, jobs: Sequence[Job], done: Callable[[int], None] | None = None) -> list[Report | None]:
        if not jobs or jobs[0].kind not in REMOTE:
            return self.local.run(jobs, done)
        if jobs[0].kind == "train":
            cohort = [job.arguments["client"] for job in jobs]
            self.assemble_round(cohort)
        reports: list[Report | None] = [None] * len(jobs)
        orders, place, at = {}, {}, {}
        for i, job in enumerate(jobs):
            if job.prepare:
                job.prepare(0)
            client = job.arguments["client"]
            member = self.members.get(client)
            if member is None:
                reports[i] = {"lost": self.members.absence(client)}
            else:
                orders[member.node], place[member.node], at[member.node] = self._order(job), i, member
        number = jobs[0].arguments.get("round", 0)
        heard = (lambda node: done(place[node])) if done else None
        if jobs[0].kind == "train" and self.deploy.secure_aggregation is not None:
            taken, late = self._summed(orders, {node: jobs[i] for node, i in place.items()}, number, heard)
        else:
            expected, meanwhile = self._expected(jobs[0]), self.members.meanwhile
            answers = self.post.exchange(orders, self.deploy.timeout, number, heard, expected, meanwhile)
            taken, late = {}, {}
            for node, answer in answers.items():
                taken[node] = answer if isinstance(answer, str) else self._take(jobs[place[node]], *answer)
        for node, report in taken.items():
            client, member = jobs[place[node]].arguments["client"], at[node]
            if isinstance(report, str):
                lost = f"{member.name}: {report}" if member.name else str(report)
                if jobs[0].kind == "client":  # a round's line names lost uploads; a lost test has no other place
                    self.note(f"the test of client {client} does not count: {lost}")
                reports[place[node]] = {"lost": lost}
                self.members.failed(client, member, report)
                continue
            reports[place[node]] = report
            if node in late:
                self.note(f"client {client} ({member}): {late[node]}")
                self.members.failed(client, member, late[node])
            else:
                self.members.answered(member)
        return reports

    def _summed(
        self, orders: Mapping[int, Order], jobs: Mapping[int, Job], number: int, heard: Callable[[int], None] | None
    ) -> tuple[dict[int, Report | str], dict[int, str]]:
        """Train under secure aggregation: what comes on the board, in every client's row, is the mean of those in the sum.

        Beside the reports: what was wrong with nodes whose vector is in the sum, and who did not help to unmask it."""
        settings, recipe = self.deploy.secure_aggregation, self.experiment.recipe
        assert settings is not None
        summand = Summand(self.experiment, settings)
        vector = Item("its masked vector", (summand.length,), torch.int32, 0, 4 * summand.length)

        def send(orders: Mapping[int, Order], said: Mapping[int, ConfigRecord]) -> dict[int, Heard | str]:
            trains = any(order["kind"] == "train" for order, _ in orders.values())
            tick, expected = (heard, {MASKED: {"sum": vector}}) if trains else (None, {})
            answers = self.post.exchange_keys(
                orders, said, self.deploy.timeout, number, tick, expected, self.members.meanwhile
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
            return taken, {}
        if summed.found.clipped:
            self.note(
                f"round {number}: {summed.found.clipped} numbers were clipped at "
                f"deploy.secure_aggregation.clipping_range, {settings.clipping_range:g}"
            )
        in_rows(summed.found, [self.board.up(jobs[node].arguments["row"]) for node in summed.nodes])
        taken |= {node: {"loss": summed.found.loss, "seconds": 0.0} for node in summed.nodes}
        return taken, {node: summed.lost[node] for node in summed.nodes if node in summed.lost}

    def assemble_round(self, cohort: Sequence[int]) -> None:
        """Look for nodes that came or went; wait only if too few are there for the round to count."""
        self.members.refresh()
        least = max(min(self.deploy.min_cohort, len(cohort)), 1)
        if sum(client in self.members for client in cohort) < least:
            self.note(f"waiting for {least} of the clients {', '.join(map(str, cohort))}")
            until = time.monotonic() + self.deploy.join_timeout
            while sum(client in self.members for client in cohort) < least:
                if time.monotonic() > until:
                    reasons = "; ".join(
                        f"client {k}: {self.members.absence(k)}" for k in cohort if k not in self.members
                    )
                    raise TooFew(f"a round needs {least} of its {len(cohort)} nodes ({reasons})")
                time.sleep(SLOWEST)
                self.members.refresh()

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
        self.members.refresh()
        orders = {}
        for client, member in self.members.items():
            order: dict[str, Any] = {"kind": "keep", "federation": self.card.sites.federation, "arguments": {}}
            order |= {"base": self.ledger.version(client), "at": int(self.board.down["round"])}
            orders[member.node] = order, {"down": self._down()}
        answers = self.post.exchange(orders, self.deploy.timeout)
        for client in range(self.experiment.recipe.clients):
            site = self.members.get(client)
            answer = answers[site.node] if site else self.members.absence(client)
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
