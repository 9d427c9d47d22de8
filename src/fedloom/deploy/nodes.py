"""The nodes of a federation in place of lanes: jobs go out as messages, what comes back is checked and put on the board.

What the server computes itself (tests on its own images, its own training) goes to lanes of its own machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord
from torch import Tensor

from fedloom.deploy.checked import Tensors, fit
from fedloom.deploy.identity import Bindings
from fedloom.deploy.members import Members
from fedloom.deploy.post import POLL, SLOWEST, Post
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
            answers = self.post.exchange(orders, self.deploy.timeout, number, heard, self.members.meanwhile)
            taken, late = {}, {}
            for node, answer in answers.items():
                taken[node] = answer if isinstance(answer, str) else self._take(jobs[place[node]], *answer)
        for node, report in taken.items():
            client, member = jobs[place[node]].arguments["client"], at[node]
            if isinstance(report, str):
                reports[place[node]] = {"lost": f"{member.name}: {report}" if member.name else str(report)}
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
        settings = self.deploy.secure_aggregation
        assert settings is not None

        def send(orders: Mapping[int, Order], said: Mapping[int, ConfigRecord]) -> dict[int, Heard | str]:
            trains = any(order["kind"] == "train" for order, _ in orders.values())
            tick, meanwhile = heard if trains else None, self.members.meanwhile
            answers = self.post.exchange_keys(orders, said, self.deploy.timeout, number, tick, meanwhile)
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
        summed = SecureRound(settings, Summand(self.experiment, settings), self.board.down, send, orders, samples).run()
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
        taken |= {node: {"loss": summed.found.loss, "steps": 0, "seconds": 0.0} for node in summed.nodes}
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
