"""The one round loop: sample clients, broadcast, train locally, combine. Every method runs through it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

from torch import Tensor

from fedloom.engine.arena import scoped
from fedloom.engine.board import Board
from fedloom.engine.bounds import absurd
from fedloom.engine.clock import ASIDE, RoundClock
from fedloom.engine.cohort import drawn
from fedloom.engine.lanes import Job, Report
from fedloom.engine.memory import ClientMemory
from fedloom.engine.server import RoundServer, Upload, flaw, weighted_sum
from fedloom.engine.setup import Experiment
from fedloom.engine.state import State
from fedloom.engine.work import Expected, LocalWork
from fedloom.engine.worker import Worker, memory_to_act_on
from fedloom.errors import FedloomError, TooFew
from fedloom.recipe import Recipe

ACCURACIES = ("test_accuracy", "validation_accuracy", "client_accuracy", "personal_accuracy", "evaluation_seconds")
SECONDS = ("seconds", "phase_seconds")
LINE = frozenset(
    ("round", "cohort", "lr", "train_loss", *SECONDS, "bytes_down", "bytes_up", "lost", "lost_clients", *ACCURACIES)
)
REASONS = 5  # so many lost clients are told in a sentence
Progress = Callable[[int], None]  # called with the number of clients done in this round


class Observer(Protocol):
    """Somebody who measures rounds from inside; nothing that it sees may be changed."""

    def due(self, number: int) -> bool: ...
    def trained(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """Clients have trained from what was `sent`: their uploads and new memory lie on the board."""

    def combined(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """Second acts are over and the state holds the new weights; clients' memory in `federation` is still the old."""


class Runner(Protocol):
    """Where clients run: lanes of this machine, or nodes elsewhere."""

    @property
    def count(self) -> int: ...
    @property
    def deaths(self) -> int: ...
    @property
    def worker(self) -> Worker: ...  # of this process

    def run(self, jobs: Sequence[Job], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """Reports in the order of the jobs; for a client that is lost None, or a report with the reason as `lost`."""
        ...


@dataclass
class Federation:
    """A server with its lanes: `round()` makes one round and leaves a consistent state behind, or an untouched one."""

    experiment: Experiment
    state: State
    memory: ClientMemory
    board: Board
    lanes: Runner
    progress: Progress | None = None
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
    observer: Observer | None = None
    tested: list[Report | None] | None = None  # what clients said of the served model, where they test it
    together: int | None = None  # so many clients work at the same time; None: one a lane
    clock: RoundClock = field(default_factory=RoundClock)

    def cohort(self, round: int) -> list[int]:
        """The clients of a round: a function of seed and round alone."""
        return [0] if self.experiment.pooled else drawn(self.experiment.recipe, round)

    @property
    def _always(self) -> bool:
        combiner = self.experiment.method.the("combine")
        return combiner is not None and combiner.always

    @cached_property
    def work(self) -> LocalWork:
        return LocalWork(self.experiment)

    def round(self, cohort: list[int] | None = None) -> dict[str, Any]:
        """One round; returns its line of rounds.jsonl. The state moves only when all clients are done."""
        clock = self.clock = RoundClock()
        experiment, state = self.experiment, self.state
        number = state.round + 1
        cohort = self.cohort(number) if cohort is None else cohort
        with clock.phase("communication"):
            sent = state.broadcast()
            self.board.broadcast(sent)
        observer = self.observer if self.observer is not None and self.observer.due(number) else None
        if observer is not None:
            sent = {name: tensor.clone() for name, tensor in sent.items()}
        lost: dict[int, str] = {}
        uploads = self._train(cohort, number, lost)
        self._enough(uploads, cohort, lost)
        down, up = len(cohort) * experiment.messages.download, len(cohort) * experiment.messages.up.payload
        if observer is not None:
            with clock.phase(ASIDE):
                observer.trained(self, sent, uploads)
        server = RoundServer(
            state, uploads, lambda *asked: self._ask(server, lost, *asked), lambda part: self._survey(server, part)
        )
        if uploads or self._always:
            risky = experiment.method.hooked("refine") or experiment.method.hooked("after_uploads")
            before = {name: tensor.clone() for name, tensor in state.tensors().items()} if risky else None
            try:
                with clock.phase("aggregation"):
                    self._combine(server, cohort, lost)
            except BaseException:
                if before is not None:  # second acts may lose everybody, the server's training may be interrupted
                    state.load(before, state.round)
                raise
            down, up = down + server.down, up + server.up
            uploads = server.accepted
        logged = self._log(server)
        if observer is not None:
            with clock.phase(ASIDE):
                observer.combined(self, sent, uploads)
        with clock.phase("communication"):
            for upload in uploads:
                self.memory.put(upload.client, self.board.memory_rows[upload.row], number)
        if experiment.pooled:  # where all data lie in one place, nothing travels
            down = up = 0
        state.round = number
        phases = clock.read()
        line: dict[str, Any] = {
            "round": number,
            "cohort": cohort,
            "lr": experiment.recipe.rate(number),
            "train_loss": _mean_loss(uploads),
            "seconds": round(sum(phases.values()), 6),
            "phase_seconds": {name: round(value, 6) for name, value in phases.items()},
            "bytes_down": down,
            "bytes_up": up,
            "lost": len(lost),
        }
        if lost:
            line["lost_clients"] = {str(client): reason for client, reason in lost.items()}
        return {**line, **logged}

    def _work(self, jobs: Sequence[Job], done: Callable[[int], None] | None = None) -> list[Report | None]:
        """Let lanes do these, and note what of the time was work."""
        with self.clock.phase("communication"):
            began = time.perf_counter()
            reports = self.lanes.run(jobs, done)
            lanes = min(self.together or self.lanes.count, len(jobs))
            self.clock.worked(reports, time.perf_counter() - began, max(lanes, 1))
        return reports

    def _train(self, cohort: Sequence[int], number: int, lost: dict[int, str]) -> list[Upload]:
        groups = stacked([len(self.experiment.training(client, number)) for client in cohort], self.experiment.recipe)
        jobs = [self._job(cohort, rows, number) for rows in groups]
        done = 0

        def tick(i: int) -> None:
            nonlocal done
            done += len(groups[i])
            if self.progress:
                self.progress(done)

        reports: list[Report | None] = [None] * len(cohort)
        with self.interruptible():
            found = self._work(jobs, tick)
            fallen = [[row] for rows, report in zip(groups, found, strict=True) if report is None for row in rows]
            if (
                len(fallen) > 1 and self.experiment.recipe.stack != "off"
            ):  # who killed its lane did so to its stack, too
                groups += fallen
                found += self._work([self._job(cohort, rows, number) for rows in fallen])
        for rows, report in zip(groups, found, strict=True):
            for place, row in enumerate(rows):
                reports[row] = report["each"][place] if report and "each" in report else report
        uploads = []
        with self.clock.phase("aggregation"):
            for row, (client, report) in enumerate(zip(cohort, reports, strict=True)):
                upload = self._accept(client, row, report, lost, self.work.training(client, number))
                if upload:
                    uploads.append(upload)
            return self._plausible(uploads, lost)

    def _job(self, cohort: Sequence[int], rows: Sequence[int], number: int) -> Job:
        """The training of one client, or of some that stand together."""
        clients, ready = [cohort[row] for row in rows], [self._remember(cohort[row], row) for row in rows]
        cost = sum(len(self.experiment.training(client, number)) for client in clients)
        if self.experiment.recipe.stack == "off":
            return Job("train", {"client": clients[0], "round": number, "row": rows[0]}, cost, ready[0])

        def prepare(lane: int) -> None:
            for each in ready:
                each(lane)

        return Job("stack", {"clients": clients, "round": number, "rows": list(rows)}, cost, prepare)

    def _remember(self, client: int, row: int) -> Callable[[int], None]:
        def prepare(_: int) -> None:
            if self.experiment.messages.memory.nbytes:
                self.board.memory_rows[row].copy_(self.memory.get(client))
            sent = self.board.up(row)
            for name, first in self.experiment.messages.uploads.items():
                sent[name].copy_(first)  # else it is what the last client in this row sent

        return prepare

    def _accept(
        self, client: int, row: int, report: Report | None, lost: dict[int, str], expected: Expected
    ) -> Upload | None:
        """One upload, looked at by itself."""
        if report is None or "lost" in report:
            lost[client] = report["lost"] if report else "its lane died every time"
            return None
        tensors, messages = self.board.up(row), self.experiment.messages
        steps = int(report.get("steps", expected.least))  # a secure sum does not say whose steps are in it
        reason = (
            flaw(messages.up, tensors) or flaw(messages.memory, self.board.views(row).memory) or expected.flaw(steps)
        )
        if reason:
            lost[client] = reason
            return None
        samples = len(self.experiment.training(client, self.state.round + 1))
        return Upload(client, row, samples, expected.segments(steps), float(report["loss"]), tensors)

    def _plausible(self, uploads: Sequence[Upload], lost: dict[int, str]) -> list[Upload]:
        """All uploads that came, looked at together: those that are beyond all measure are lost."""
        combiner = self.experiment.method.the("combine")
        factor = self.experiment.recipe.deploy.max_distance
        if combiner is not None and combiner.bounds:
            factor = None
        found = absurd(uploads, {"w": self.state.w, "statistics": self.state.statistics}, factor)
        lost.update(found)
        return [upload for upload in uploads if upload.client not in found]

    def _enough(self, uploads: Sequence[Upload], cohort: Sequence[int], lost: Mapping[int, str]) -> None:
        """Whether so many uploads make a round; else the run stops, with everything as it was before the round."""
        wanted = self.experiment.recipe.deploy.min_cohort
        least = min(0 if wanted == 1 and self._always else wanted, len(cohort))
        if len(uploads) >= least:
            return
        told = [f"client {client}: {reason}" for client, reason in lost.items()]
        reasons = "; ".join(told[:REASONS] + [f"and {len(told) - REASONS} more"] * (len(told) > REASONS))
        number, bad = self.state.round + 1, ("is not finite", "too large to compute with")
        if uploads or least > 1:
            raise TooFew(
                f"round {number}: {len(uploads)} of {len(cohort)} uploads arrived, "
                f"deploy.min_cohort is {least} ({reasons})"
            )
        diverged = all(reason.endswith(bad) for reason in lost.values())
        raise TooFew(
            f"round {number}: all {len(cohort)} uploads are lost, so there is nothing to combine ({reasons}); "
            + ("training has diverged: lower lr or clip gradients" if diverged else "the run can be resumed")
        )

    def _combine(self, server: RoundServer, cohort: Sequence[int], lost: Mapping[int, str]) -> None:
        """Second acts, the new weights, and what follows them."""
        state, method = self.state, self.experiment.method
        for part in method.hooked("after_uploads"):
            part.after_uploads(server.scope(part))
        self._enough(server.accepted, cohort, lost)
        if not server.accepted and not self._always:
            return
        uploads = [upload.tensors["w"] for upload in server.accepted]
        combiner = method.the("combine")
        if combiner is None:
            weighted_sum(uploads, server.shares, out=state.w)
        else:
            state.w.copy_(combiner.combine(server.scope(combiner)))
        if state.statistics.numel() and server.accepted:
            rows = [upload.tensors["statistics"] for upload in server.accepted]
            state.statistics.copy_(weighted_sum(rows, server.shares))
        for part in method.hooked("after_combine"):
            part.after_combine(server.scope(part))
        self._check_state("combining")
        for part in method.hooked("refine"):
            self._refine(server, part.name)
            self._check_state(f"the server's training by {part.name}")
        if state.round + 1 == self.experiment.recipe.rounds:
            for part in method.hooked("conclude"):
                part.conclude(server.scope(part))
                self._check_state(f"what {part.name} does at the end")

    def _check_state(self, what: str) -> None:
        """Everything that the next round begins with: weights, statistics, parts' memory."""
        if reason := self.state.flaw():
            raise FedloomError(f"{reason} after {what} in round {self.state.round + 1}; lower lr or clip gradients")

    def _refine(self, server: RoundServer, part: str) -> None:
        """Train the new weights on the server: one lane does it, by the same loop as a client's."""
        state, board = self.state, self.board
        peers = [(u.row, u.samples, share) for u, share in zip(server.accepted, server.shares, strict=True)]

        def prepare(_: int) -> None:
            board.broadcast(state.broadcast())
            for name, home in board.server.items():
                home.copy_(state.memory[name])

        arguments = {"round": state.round + 1, "part": part, "peers": peers}
        with self.interruptible():
            (report,) = self._work([Job("refine", arguments, prepare=prepare)])
        if report is None:
            raise FedloomError(f"the server's training by {part} failed: its lane died every time")
        refined = board.refined().up
        state.w.copy_(refined["w"])
        state.statistics.copy_(refined["statistics"])
        for name, value in board.server.items():
            state.memory[name].copy_(value)

    def _survey(self, server: RoundServer, part: str) -> dict[str, Tensor]:
        """What all clients tell under the new weights, summed in their order; a cohort of them at a time."""
        clients, rows = self.experiment.recipe.clients, len(self.board.finding_rows)
        self.board.broadcast(self.state.broadcast())
        kept = self.board.memory_rows.clone()  # what this round's clients will remember
        total: dict[str, Tensor] = {}
        for begin in range(0, clients, rows):
            some = range(begin, min(begin + rows, clients))
            jobs = []
            for row, client in enumerate(some):
                arguments = {"client": client, "round": self.state.round + 1, "row": row, "part": part}
                size = len(self.experiment.at(self.state.round + 1).partition.train(client))
                jobs.append(Job("tell", arguments, size, self._recall(client, row)))
            for row, report in enumerate(self._work(jobs)):
                told = scoped(self.board.findings(row), part)
                if (
                    report is None
                    or "lost" in report
                    or not all(bool(value.isfinite().all()) for value in told.values())
                ):
                    continue
                for name, value in told.items():
                    total[name] = total[name] + value.double() if name in total else value.double()
        self.board.memory_rows.copy_(kept)
        server.down += clients * (self.experiment.messages.download)
        server.up += clients * self.experiment.messages.findings.payload_of(part)
        return total

    def _recall(self, client: int, row: int) -> Callable[[int], None]:
        def prepare(_: int) -> None:
            if self.experiment.messages.memory.nbytes:
                self.board.memory_rows[row].copy_(self.memory.get(client))

        return prepare

    def _log(self, server: RoundServer) -> dict[str, Any]:
        """What parts have to say about this round."""
        told: dict[str, Any] = {}
        for part in self.experiment.method.hooked("log"):
            for name, value in part.log(server.scope(part)).items():
                if name in told or name in LINE:
                    raise FedloomError(f"method: {part.name} logs {name!r}, which the line of a round has already")
                told[name] = value
        return told

    def _ask(
        self,
        server: RoundServer,
        lost: dict[int, str],
        part: str,
        clients: Sequence[int],
        message: Mapping[str, Tensor],
    ) -> None:
        """Run a part's second act on some clients of the cohort; their uploads are replaced."""
        place = {upload.client: upload for upload in server.accepted}
        slots = scoped(self.board.message, part)
        if set(message) != set(slots):
            told = ", ".join(message) or "nothing"
            raise FedloomError(
                f"method: {part} declares a message of {', '.join(slots) or 'nothing'}, but sends {told}"
            )
        for name, tensor in message.items():
            slots[name].copy_(tensor)
        jobs, method, number = [], self.experiment.method, self.state.round + 1
        for client in clients:
            if client not in place:
                raise FedloomError(f"method: {part} asks client {client} again, who is not in this round's cohort")
            upload = place[client]
            arguments = {"client": client, "round": number, "row": upload.row, "part": part}
            after = self.board.memory_rows[upload.row]
            memory = memory_to_act_on(method, self.experiment.messages.memory, part, self.memory.get(client), after)
            saved = self.board.up_rows[upload.row].clone(), memory
            jobs.append(Job("act", arguments, upload.samples, self._put_back(upload.row, saved)))
        (acting,) = (each for each in method.parts if each.name == part)
        for client, report in zip(clients, self._work(jobs), strict=True):
            upload = place[client]
            again = self._accept(client, upload.row, report, lost, self.work.acting(acting, client, number))
            if again is None:
                server.drop(upload)
            else:
                upload.segments += again.segments
        server.accepted = self._plausible(server.accepted, lost)
        server.down += len(jobs) * self.experiment.messages.message.payload_of(part)
        server.up += len(jobs) * self.experiment.messages.up.payload

    def _put_back(self, row: int, saved: tuple[Tensor, Tensor]) -> Callable[[int], None]:
        def prepare(_: int) -> None:
            self.board.up_rows[row].copy_(saved[0])
            self.board.memory_rows[row].copy_(saved[1])

        return prepare


def stacked(sizes: Sequence[int], recipe: Recipe) -> list[list[int]]:
    """Places in the cohort that train together: one each, or stacks of near sizes, as even as they can be.

    Clients with the most samples stand together, so that few wait for others. A function of the cohort alone.
    """
    if recipe.stack == "off":
        return [[place] for place in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    count = -(-len(order) // int(recipe.stack))
    bounds = [len(order) * i // count for i in range(count + 1)]
    return [order[begin:end] for begin, end in pairwise(bounds)]


def _mean_loss(uploads: Sequence[Upload]) -> float | None:
    """Over clients, weighted by samples; each client's own is a mean over its steps."""
    total = sum(upload.samples for upload in uploads)
    if not total:
        return None
    loss = sum(upload.loss * upload.samples for upload in uploads) / total
    return loss if math.isfinite(loss) else None
