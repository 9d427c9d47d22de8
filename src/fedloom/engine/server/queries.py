"""Queries of parts to clients: further training of some clients of the cohort, messages to single ones, or sums over all
clients' data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedloom.engine.server.acceptance import Acceptance
from fedloom.engine.server.aggregation import RoundServer, Upload, flaw
from fedloom.engine.server.machinery import Machinery
from fedloom.engine.tasks import Assignment
from fedloom.engine.tasks.query import Ask, Deliver, Refine, state_to_refine
from fedloom.engine.tensor_layout import scoped
from fedloom.errors import FedloomError


class Queries:
    """The queries of one round."""

    def __init__(self, machinery: Machinery, acceptance: Acceptance) -> None:
        self.machinery, self.acceptance = machinery, acceptance
        self.program = machinery.experiment.program

    def ask(
        self, server: RoundServer, part: str, name: str, message: Mapping[str, Tensor], clients: Sequence[int] | None
    ) -> dict[str, Tensor]:
        """Send a part's query to clients, and return the summed replies."""
        query = self.program.messages.queries.get(f"{part}.{name}")
        if query is None:
            raise FedloomError(f"method: {part} asks {name!r}, which its `queries` does not name")
        slots = scoped(self.machinery.buffers.message, f"{part}.{name}")
        if set(message) != set(slots):
            declared, sent = (", ".join(names) or "nothing" for names in (slots, message))
            raise FedloomError(f"method: {part} declares a message of {declared}, but sends {sent}")
        for key, tensor in message.items():
            slots[key].copy_(tensor)
        if query.trains:
            self._refine(server, part, name, clients or ())
            return {}
        if query.delivers:
            self._deliver(server, part, name, clients or ())
            return {}
        return self._sum(server, part, name)

    def _refine(self, server: RoundServer, part: str, query: str, clients: Sequence[int]) -> None:
        """Some clients of the cohort train further; their uploads are replaced."""
        machinery, messages = self.machinery, self.program.messages
        number, buffers = machinery.state.round + 1, machinery.buffers
        accepted = self._asked(server, part, clients)
        assignments = []
        for client in clients:
            row = accepted[client].row
            before, after = machinery.client_state.get(client), buffers.state_rows[row]
            state = state_to_refine(self.program.method, messages.state, part, before, after)
            prepare = self._restore_row(row, buffers.up_rows[row].clone(), state)
            assignments.append(Assignment(Refine(client, number, row, part, query), accepted[client].samples, prepare))
        asking = self.program.method.named(part)
        for client, report in zip(clients, machinery.work(assignments), strict=True):
            upload = accepted[client]
            again = self.acceptance.one(
                client, upload.row, report, machinery.expected_steps.refining(asking, client, number)
            )
            if again is None:
                server.drop(upload)
            else:
                upload.segments += again.segments
        server.accepted = self.acceptance.plausible(server.accepted)
        server.down += len(assignments) * messages.message.payload_of(f"{part}.{query}")
        server.up += len(assignments) * messages.up.payload

    def _deliver(self, server: RoundServer, part: str, query: str, clients: Sequence[int]) -> None:
        """A message to some clients of the cohort, which change their own state; one that is lost leaves it as it was."""
        machinery, messages, buffers = self.machinery, self.program.messages, self.machinery.buffers
        accepted, number = self._asked(server, part, clients), machinery.state.round + 1
        rows = [accepted[client].row for client in clients]
        prepares = [
            self._restore_row(row, buffers.up_rows[row].clone(), buffers.state_rows[row].clone()) for row in rows
        ]
        assignments = [
            Assignment(Deliver(client, number, row, part, query), 1, prepare)
            for client, row, prepare in zip(clients, rows, prepares, strict=True)
        ]
        for row, prepare, report in zip(rows, prepares, machinery.work(assignments), strict=True):
            if report is None or "lost" in report or flaw(messages.state, buffers.views(row).state):
                prepare(0)
        server.down += len(assignments) * messages.message.payload_of(f"{part}.{query}")

    def _asked(self, server: RoundServer, part: str, clients: Sequence[int]) -> dict[int, Upload]:
        """The accepted uploads by client; all of these clients must be among them."""
        accepted = {upload.client: upload for upload in server.accepted}
        for client in clients:
            if client not in accepted:
                raise FedloomError(f"method: {part} asks client {client} again, which is not in this round's cohort")
        return accepted

    def _sum(self, server: RoundServer, part: str, query: str) -> dict[str, Tensor]:
        """The replies of all clients under the current weights, summed in client order; as many at a time as there are rows."""
        machinery, messages = self.machinery, self.program.messages
        buffers, number, clients = machinery.buffers, machinery.state.round + 1, machinery.experiment.recipe.clients
        buffers.broadcast(machinery.state.broadcast())
        new_state = buffers.state_rows.clone()  # of this round's clients, which are not committed yet
        total: dict[str, Tensor] = {}
        for begin in range(0, clients, buffers.rows):
            assignments = []
            for row, client in enumerate(range(begin, min(begin + buffers.rows, clients))):
                size = len(machinery.experiment.data.at(number).partition.train(client))
                prepare = machinery.load_state(client, row)
                assignments.append(Assignment(Ask(client, number, row, part, query), size, prepare))
            for row, report in enumerate(machinery.work(assignments)):
                reply = scoped(buffers.views(row).reply, f"{part}.{query}")
                if report is None or "lost" in report or not all(bool(v.isfinite().all()) for v in reply.values()):
                    continue
                for name, value in reply.items():
                    total[name] = total[name] + value.double() if name in total else value.double()
        buffers.state_rows.copy_(new_state)
        message = messages.message.payload_of(f"{part}.{query}")
        server.down += clients * (messages.download + machinery.state.changed_fixed + message)
        server.up += clients * messages.reply.payload_of(f"{part}.{query}")
        return total

    def _restore_row(self, row: int, upload: Tensor, state: Tensor) -> Callable[[int], None]:
        def prepare(_: int) -> None:
            self.machinery.buffers.up_rows[row].copy_(upload)
            self.machinery.buffers.state_rows[row].copy_(state)

        return prepare
