"""The back-end whose workers are Flower nodes: tasks go out as messages, answers are checked and written into the buffers.

Tasks that are not a client's work, such as tests on the server's own data, run on workers of the server's machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord
from torch import Tensor

from fedloom.deploy.flower.members import Members
from fedloom.deploy.flower.transport import MAX_POLL_SECONDS, POLL_SECONDS, FlowerTransport
from fedloom.deploy.keys.identity import KeyBindings
from fedloom.deploy.messages.checked import Tensors, pack_checked
from fedloom.deploy.messages.schema import FederationInfo, Reply, RoundTerms, StrictModel, order_for, report_model
from fedloom.deploy.messages.wire import Expected, OutgoingOrder
from fedloom.deploy.secagg.client import MASKED
from fedloom.deploy.secagg.encoding import SumEncoder
from fedloom.deploy.secagg.quorum import least_sites
from fedloom.deploy.secagg.server import SecureRound, StageAnswer, write_mean
from fedloom.engine.backends.fork import ForkBackend
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.experiment import Experiment
from fedloom.engine.store.ledger import Ledger
from fedloom.engine.tasks import Assignment, ClientTask, CohortTask, Report, Task
from fedloom.engine.tasks.query import query_items
from fedloom.engine.tensor_layout import Item, prefixed
from fedloom.errors import TooFew
from fedloom.io.digest import digest

Note = Callable[[str], None]


class Nodes:
    """Clients' tasks are performed by nodes, all others by workers of this machine."""

    def __init__(
        self,
        transport: FlowerTransport,
        experiment: Experiment,
        buffers: SharedBuffers,
        ledger: Ledger,
        local: ForkBackend,
        info: FederationInfo,
        bindings: KeyBindings,
        note: Note,
    ) -> None:
        self.transport, self.experiment, self.buffers, self.ledger = transport, experiment, buffers, ledger
        self.local, self.info, self.note = local, info, note
        self.deploy = experiment.recipe.deploy
        self.members = Members(transport, experiment, info, bindings, note)

    @property
    def count(self) -> int:
        return self.local.count

    @property
    def deaths(self) -> int:
        return self.local.deaths

    @property
    def replica(self) -> Replica:
        return self.local.replica

    # waiting for nodes

    def assemble(self, wanted: Sequence[int], least: int) -> None:
        """Wait until the nodes of these clients have joined; after deploy.join_timeout, go on with `least` of them or stop."""
        until, pause = time.monotonic() + self.deploy.join_timeout, POLL_SECONDS
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
            pause = min(pause * 1.2, MAX_POLL_SECONDS)
        for client in missing:
            self.note(f"client {client} is not there: {self.members.absence(client)}")

    # tasks

    def run(self, assignments: Sequence[Assignment], done: Callable[[int], None] | None = None) -> list[Report | None]:
        if not assignments or not assignments[0].task.remote:
            return self.local.run(assignments, done)
        tasks = [_client_task(assignment.task) for assignment in assignments]
        first = tasks[0]
        if first.starts_round:
            self.assemble_round([task.client for task in tasks])
        reports: list[Report | None] = [None] * len(tasks)
        orders, places, members = {}, {}, {}  # by node
        for place, (assignment, task) in enumerate(zip(assignments, tasks, strict=True)):
            if assignment.prepare:
                assignment.prepare(0)
            member = self.members.get(task.client)
            if member is None:
                reports[place] = {"lost": self.members.absence(task.client)}
            else:
                orders[member.node], places[member.node], members[member.node] = self._order(task), place, member
        on_answer = (lambda node: done(places[node])) if done else None
        late: dict[int, str] = {}
        if first.starts_round and self.deploy.secure_aggregation is not None:
            training = {node: task for node, place in places.items() if isinstance(task := tasks[place], CohortTask)}
            results, late = self._secure_round(orders, training, first.round, on_answer)
        else:
            answers = self.transport.exchange(
                orders,
                self.deploy.timeout,
                first.round,
                on_answer,
                self._expected(first),
                self.members.refresh_while_waiting,
                report_model(type(first), self.experiment.recipe),
                message_type(first),
            )
            results = {
                node: answer if isinstance(answer, str) else self._accept(tasks[places[node]], *answer)
                for node, answer in answers.items()
            }
        for node, report in results.items():
            task, member = tasks[places[node]], members[node]
            if isinstance(report, str):
                lost = f"{member.name}: {report}" if member.name else str(report)
                if not first.outputs:  # lost uploads are named in the record of the round, lost tests only here
                    self.note(f"the {task} does not count: {lost}")
                reports[places[node]] = {"lost": lost}
                self.members.failed(task.client, member, report)
                continue
            reports[places[node]] = report
            if node in late:
                self.note(f"client {task.client} ({member}): {late[node]}")
                self.members.failed(task.client, member, late[node])
            else:
                self.members.succeeded(member)
        return reports

    def _secure_round(
        self,
        orders: Mapping[int, OutgoingOrder],
        tasks: Mapping[int, CohortTask],
        round: int,
        on_answer: Callable[[int], None] | None,
    ) -> tuple[dict[int, Report | str], dict[int, str]]:
        """Train under secure aggregation. The row of every client in the sum gets the mean of their uploads.

        Returns the reports, and what went wrong with nodes after their vector was in the sum."""
        settings, recipe = self.deploy.secure_aggregation, self.experiment.recipe
        assert settings is not None
        encoder = SumEncoder(self.experiment, settings)
        vector = Item("its masked vector", (encoder.length,), torch.int32, 0, 4 * encoder.length)

        def send(
            orders: Mapping[int, OutgoingOrder], records: Mapping[int, ConfigRecord]
        ) -> dict[int, StageAnswer | str]:
            trains = any("task" in order for order, _ in orders.values())
            tick, expected = (on_answer, {MASKED: {"sum": vector}}) if trains else (None, {})
            answers = self.transport.exchange_keys(
                orders, records, self.deploy.timeout, round, tick, expected, self.members.refresh_while_waiting
            )
            checked: dict[int, StageAnswer | str] = {}
            for node, answer in answers.items():
                if isinstance(answer, str):
                    checked[node] = answer
                elif reason := _not_from(tasks[node].client, answer[0]):
                    checked[node] = reason
                else:
                    checked[node] = answer[1], answer[2]
            return checked

        samples = {node: len(self.experiment.training(task.client, round)) for node, task in tasks.items()}
        cohort = {task.client: node for node, task in tasks.items()}
        least, model = least_sites(settings, recipe.cohort_size), digest(self.buffers.down)
        terms = RoundTerms(self.info.sites.federation, round, cohort, sum(samples.values()), model)
        result = SecureRound(settings, least, terms, encoder, self.buffers.down, send, orders, samples).run()
        reports: dict[int, Report | str] = {node: {"lost": f"secure aggregation: {result.failure}"} for node in orders}
        reports |= result.lost
        if result.sum is None:
            self.note(f"round {round} has no sum: {result.failure}")
            return reports, {}
        if result.sum.clipped:
            self.note(
                f"round {round}: {result.sum.clipped} numbers were clipped at "
                f"deploy.secure_aggregation.clipping_range, {settings.clipping_range:g}"
            )
        write_mean(result.sum, [self.buffers.up(tasks[node].row) for node in result.nodes])
        reports |= {node: {"loss": result.sum.loss, "seconds": 0.0} for node in result.nodes}
        return reports, {node: result.lost[node] for node in result.nodes if node in result.lost}

    def assemble_round(self, cohort: Sequence[int]) -> None:
        """Check which nodes are online; wait only if there are too few for the round to count."""
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
                time.sleep(MAX_POLL_SECONDS)
                self.members.refresh()

    def _order(self, task: ClientTask) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
        """A task as a message. State and uploads are stored at the node; the order names their versions."""
        client, order = task.client, {**order_for(task), "federation": self.info.sites.federation}
        groups: dict[str, Mapping[str, Tensor]] = {}
        if "state" in task.outputs:
            order |= {"into": task.round, "keep": self.ledger.kept(client)}
        if "message" in task.inputs:
            names = query_items(self.experiment.program.messages.message, task)
            groups["message"] = {name: self.buffers.message[name] for name in names}
        if "upload" in task.inputs:  # the node has what it uploaded in this round
            return {**order, "base": task.round, "before": self.ledger.version(client)}, groups
        if "state" in task.inputs:
            order["base"] = self.ledger.version(client)
        order["at"] = int(self.buffers.down["round"])
        return order, {**groups, "down": self._down()}

    def _down(self) -> dict[str, Tensor]:
        """What is broadcast, without the constants that every node got when it joined."""
        fixed = prefixed(self.experiment.program.messages.fixed, "fixed")
        return {
            name: tensor
            for name, tensor in self.experiment.program.messages.down.views(self.buffers.down_row).items()
            if name not in fixed or not bool((tensor == fixed[name]).all())
        }

    def _expected(self, task: ClientTask) -> Expected:
        """The tensors that an answer may contain."""
        groups: dict[str, Mapping[str, Item]] = {}
        if "upload" in task.outputs:
            groups["up"] = self.experiment.program.messages.up.by_name
        if "reply" in task.outputs:
            groups["reply"] = query_items(self.experiment.program.messages.reply, task)
        return groups

    def _accept(self, task: ClientTask, reply: Reply, groups: dict[str, Tensors]) -> Report | str:
        """Check an answer and write its tensors into the buffers; a string says why it is not accepted."""
        messages, report = self.experiment.program.messages, _report(reply.report)
        reason = _not_from(task.client, reply) or task.flaw(report, self.experiment)
        if reason is not None or not isinstance(task, CohortTask):
            return reason or report
        if "upload" in task.outputs:
            reason = pack_checked(groups.get("up", {}), messages.up, self.buffers.up_rows[task.row])
        if "reply" in task.outputs:
            own = query_items(messages.reply, task)
            others = {name: t for name, t in self.buffers.views(task.row).reply.items() if name not in own}
            reason = pack_checked(
                {**others, **groups.get("reply", {})}, messages.reply, self.buffers.reply_rows[task.row]
            )
        return reason or report

    def hand_out(self, served: Mapping[str, Tensor]) -> None:
        """Send every site the served model to store."""
        self.buffers.broadcast(served)
        self.members.refresh()
        orders = {}
        for client, member in self.members.items():
            order: dict[str, Any] = {"kind": "keep", "federation": self.info.sites.federation}
            order |= {"base": self.ledger.version(client), "at": int(self.buffers.down["round"])}
            orders[member.node] = order, {"down": self._down()}
        answers = self.transport.exchange(orders, self.deploy.timeout)
        for client in range(self.experiment.recipe.clients):
            site = self.members.get(client)
            answer = answers[site.node] if site else self.members.absence(client)
            reason = answer if isinstance(answer, str) else _not_from(client, answer[0])
            if reason:
                self.note(f"client {client} did not get the final model: {reason}")


def message_type(task: ClientTask) -> str:
    """Flower's name for what a task asks of a node."""
    if "upload" in task.outputs:
        return "train"
    return "query" if task.outputs else "evaluate"


def _not_from(client: int, reply: Reply) -> str | None:
    """Why a reply is not an answer of this client."""
    if reply.refused is not None:
        return f"it {reply.refused}"
    return None if reply.client == client else f"it answers for client {reply.client}"


def _report(report: StrictModel) -> Report:
    """The numbers as a worker reports them; a loss that is not finite is sent as null."""
    return {name: math.nan if value is None else value for name, value in report.model_dump().items()}


def _client_task(task: Task) -> ClientTask:
    assert isinstance(task, ClientTask)  # nodes do the work of clients
    return task
