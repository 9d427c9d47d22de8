"""The nodes of a federation in place of lanes: jobs go out as messages, what comes back is checked and put on the board.

What the server computes itself (tests on its own images, its own training) goes to lanes of its own machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord
from torch import Tensor

from fedloom.deploy.agreement import Terms
from fedloom.deploy.checked import Tensors, fit
from fedloom.deploy.post import SLOWEST, Post
from fedloom.deploy.quorum import floor
from fedloom.deploy.secure import Heard, Order, SecureRound, in_rows
from fedloom.deploy.site import Card
from fedloom.deploy.summand import Summand
from fedloom.engine.arena import prefixed, scoped
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
            told, client = answer[0], answer[0].get("client")
            if not isinstance(client, int) or not 0 <= client < self.experiment.recipe.clients:
                self.note(f"node {node} did not join: it says to be client {client!r}")
                continue
            reason = told.get("refused") or self._unfit(client, told.get("report"))
            if reason is None and (other := self.members.get(client)) and self._alive(other):
                self.note(f"node {node} did not join: client {client} is {other} already")
            elif reason is not None:
                self.refused[client] = str(reason)
                self.note(f"client {client} (node {node}) did not join: it {reason}")
            else:
                self.members[client] = Member(node, str(told["report"].get("name", ""))[:80])
                self.refused.pop(client, None)

    def _unfit(self, client: int, report: Any) -> str | None:
        """Whether a site is the one the federation began with."""
        partition = self.experiment.partition
        for field, count in (("train", len(partition.train(client))), ("test", len(partition.test(client)))):
            found = report.get(field) if isinstance(report, dict) else None
            if found != count:
                return f"has {found!r} {field} images, and {count} belong to client {client}"
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
            answers = self.post.exchange(orders, self.deploy.timeout, number, heard)
            taken = {
                node: answer if isinstance(answer, str) else self._take(jobs[place[node]], *answer)
                for node, answer in answers.items()
            }
        for node, report in taken.items():
            if isinstance(report, str):
                member = self._leave(jobs[place[node]].arguments["client"], node)
                report = {"lost": f"{member.name}: {report}" if member.name else report}
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

        def send(orders: Mapping[int, Order], said: Mapping[int, ConfigRecord]) -> dict[int, Heard | str]:
            trains = any(order["kind"] == "train" for order, _ in orders.values())
            answers = self.post.exchange_keys(orders, said, self.deploy.timeout, number, heard if trains else None)
            found: dict[int, Heard | str] = {}
            for node, answer in answers.items():
                if isinstance(answer, str):
                    found[node] = answer
                elif "refused" in answer[0]:
                    found[node] = f"it {str(answer[0]['refused'])[:500]}"
                elif answer[0].get("client") != jobs[node].arguments["client"]:
                    found[node] = f"it answers for client {answer[0].get('client')!r}"
                else:
                    found[node] = answer[1], answer[2]
            return found

        samples = {node: len(self.experiment.training(job.arguments["client"], number)) for node, job in jobs.items()}
        cohort, least = (
            {job.arguments["client"]: node for node, job in jobs.items()},
            floor(settings, recipe.cohort_size),
        )
        model, federation = digest(self.board.down), self.card.sites.federation
        terms = Terms(federation, number, cohort, sum(samples.values()), model)
        summand = Summand(self.experiment, settings)
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

    def _take(self, job: Job, told: dict[str, Any], groups: dict[str, Tensors]) -> Report | str:
        """Check an answer and put its tensors on the board; or why it is not accepted."""
        if "refused" in told:
            return f"it {str(told['refused'])[:500]}"
        report, client, messages = told.get("report"), job.arguments["client"], self.experiment.messages
        if told.get("client") != client or not isinstance(report, dict):
            return f"it answers for client {told.get('client')!r}"
        reason: str | None = None
        if job.kind in ("train", "act"):
            reason = fit(groups.pop("up", {}), messages.up, self.board.up_rows[job.arguments["row"]])
        if job.kind == "tell":
            row, part = job.arguments["row"], job.arguments["part"]
            here = {name: t for name, t in self.board.findings(row).items() if not name.startswith(part + ".")}
            reason = fit({**here, **groups.pop("findings", {})}, messages.findings, self.board.finding_rows[row])
        if reason or groups:
            return reason or f"{next(iter(groups))} was not asked for"
        return _sound(job.kind, report)

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
            if not isinstance(answer, str) and "refused" in answer[0]:
                answer = f"it {answer[0]['refused']}"
            if isinstance(answer, str):
                self.note(f"client {client} did not get the final model: {answer}")


def _sound(kind: str, report: dict[str, Any]) -> Report | str:
    """The numbers that a report is used for, and no others."""
    kinds: dict[str, dict[str, tuple[type, ...]]] = {
        "train": {"loss": (int, float), "steps": (int,), "seconds": (int, float)},
        "act": {"loss": (int, float), "steps": (int,)},
        "tell": {},
        "client": {"correct": (int,), "total": (int,)},
    }
    wanted = kinds[kind]
    for name, types in wanted.items():
        value: Any = report.get(name)
        known = isinstance(value, types) and not isinstance(value, bool)
        if not known or (name != "loss" and not 0 <= float(value) < 2**53):
            return f"its {name} is {value!r}"
    if kind == "client" and report["correct"] > report["total"]:
        return f"it has {report['correct']} of {report['total']} right"
    return {name: report[name] for name in wanted}
