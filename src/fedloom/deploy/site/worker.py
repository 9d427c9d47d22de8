"""The worker of a site: a replica, buffers of one row, and the client's state in files of the site.

A client's state (SCAFFOLD's control, a personal head) has one file per version, and the server only names versions. So it
survives a restart of the node, and a server that returns to a checkpoint finds the state of that time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.deploy.messages.checked import Tensors, pack_checked
from fedloom.deploy.messages.schema import FederationInfo, KeepOrder, TaskOrder
from fedloom.deploy.messages.wire import ArrivedTensors, Expected
from fedloom.deploy.site import private
from fedloom.deploy.site.config import NodeConfig
from fedloom.deploy.site.local_data import site_experiment
from fedloom.deploy.site.private import Refusal
from fedloom.engine.backends.memory import keep_freed_memory
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.tasks import ClientTask
from fedloom.engine.tasks.query import query_items
from fedloom.engine.tensor_layout import Item, prefixed, scoped
from fedloom.engine.threads import one_thread
from fedloom.errors import FedloomError
from fedloom.io.digest import digest
from fedloom.io.files import read_tensors
from fedloom.recipe import Recipe

Answer = tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]  # a report, and groups of tensors


def read_expected(arrived: ArrivedTensors, expected: Expected | None) -> dict[str, Tensors]:
    """The tensors of an order; any that were not agreed on are refused before they are copied."""
    try:
        return arrived.read(expected)
    except FedloomError as error:
        raise Refusal(f"got a message whose tensors do not fit: {error}") from None


def join_digest(info: Any, initial: Mapping[str, Tensor]) -> str:
    """Digest of all that the server told a node on joining: initial weights, scale and classes change its uploads."""
    return hashlib.sha256(f"{json.dumps(info, sort_keys=True)} {digest(initial)}".encode()).hexdigest()


class SiteWorker:
    """Performs tasks as a local worker does. Kept between messages as long as the process lives."""

    _latest: tuple[tuple[Any, ...], SiteWorker] | None = None

    def __init__(self, recipe: Recipe, node: NodeConfig, federation: str) -> None:
        self.home, self.node, self.federation = node.home(federation), node, federation
        try:
            stored = json.loads(private.file(self.home, "site.json").read_text(encoding="utf-8"))
            initial, _ = read_tensors(private.file(self.home, "initial.safetensors"))
        except Refusal:
            raise
        except (OSError, FedloomError):
            raise Refusal("has not joined this federation, or its state folder is gone") from None
        self.join_digest = join_digest(stored["info"], initial)
        keep_freed_memory()
        torch.set_num_threads(1)
        with one_thread():
            info = FederationInfo.from_json(stored["info"])
            self.replica = Replica(site_experiment(recipe, node, info, initial).as_deployed())
            self.buffers = SharedBuffers(self.replica.experiment, 1)

    @classmethod
    def of(cls, recipe: Recipe, node: NodeConfig, federation: str) -> SiteWorker:
        """The latest worker if it fits. In Flower's simulation one process serves many clients of the same data in turn."""
        same_data = node.data is None
        key = (federation, recipe.digest(), recipe.metrics, node.state, node.device, None if same_data else node)
        if cls._latest is None or cls._latest[0] != key:
            cls._latest = key, cls(recipe, node, federation)
        worker = cls._latest[1]
        worker.home, worker.node = node.home(federation), node
        return worker

    def perform(self, task: ClientTask, order: TaskOrder, arrived: ArrivedTensors) -> Answer:
        messages, buffers = self.replica.experiment.program.messages, self.buffers
        self._fill_buffers(task, order, read_expected(arrived, self._expected(task)))
        full_report = task.perform(self.replica, buffers, 0)
        reported = task.reported(self.replica.recipe)  # a local worker also reports its timing
        report = {name: full_report[name] for name in reported}
        groups: dict[str, Mapping[str, Tensor]] = {}
        if "reply" in task.outputs:
            groups["reply"] = {name: buffers.views(0).reply[name] for name in query_items(messages.reply, task)}
        if "state" in task.outputs and (messages.state.nbytes or messages.message.nbytes):
            self._store_state(order.into or 0, order.keep or ())
        if "upload" in task.outputs:
            groups["up"] = buffers.up(0)
        return report, groups

    def keep(self, order: KeepOrder, arrived: ArrivedTensors) -> Answer:
        """Store the served model at the end of a run, with the version of the state that belongs to it."""
        messages = self.replica.experiment.program.messages
        self._receive(order.at, order.base, read_expected(arrived, {"down": messages.down.by_name}))
        metadata = {"version": "" if order.base is None else str(order.base), "round": str(order.at)}
        views = messages.down.views(self.buffers.down_row)
        down = {name: tensor for name, tensor in views.items() if tensor.numel()}
        private.write_tensors(self.home / "served.safetensors", down, metadata, durable=True)
        return {}, {}

    # buffers

    def _expected(self, task: ClientTask) -> Expected:
        messages = self.replica.experiment.program.messages
        groups: dict[str, Mapping[str, Item]] = {}
        if "message" in task.inputs:
            groups["message"] = query_items(messages.message, task)
        if "upload" not in task.inputs:  # otherwise the broadcast was stored with the upload
            groups["down"] = messages.down.by_name
        return groups

    def _fill_buffers(self, task: ClientTask, order: TaskOrder, groups: Mapping[str, Tensors]) -> None:
        """Broadcast, state, upload and message as they must be when the task starts."""
        messages, buffers = self.replica.experiment.program.messages, self.buffers
        if "upload" in task.inputs:
            self._reset(order.at)
            if order.base is not None:
                self.load_state(order.base, with_upload=True)
            self._rewind(task, order)
        else:
            self._receive(order.at, order.base, groups)
        message = {**buffers.message, **groups.get("message", {})}  # messages of other queries stay as they are
        if reason := pack_checked(message, messages.message, buffers.message_row):
            raise Refusal(f"got a message whose {reason}")

    def _reset(self, at: int) -> None:
        """Initial values, and the round that the weights come from."""
        messages, buffers = self.replica.experiment.program.messages, self.buffers
        buffers.state_rows[0].copy_(messages.state_row)
        for name, first in messages.uploads.items():
            buffers.up(0)[name].copy_(first)
        for name, value in messages.fixed.items():
            buffers.down[f"fixed.{name}"].copy_(value)
        buffers.down["round"].fill_(at)

    def _receive(self, at: int, base: int | None, groups: Mapping[str, Tensors]) -> None:
        """The broadcast, and a version of the client's state."""
        self._reset(at)
        if base is not None:
            self.load_state(base)
        messages, buffers = self.replica.experiment.program.messages, self.buffers
        if reason := pack_checked(groups.get("down", {}), messages.down, buffers.down_row, optional="fixed"):
            raise Refusal(f"got a message whose {reason}")

    def _rewind(self, task: ClientTask, order: TaskOrder) -> None:
        """For a task that continues the round: the state that it starts from, which may be partly that before the round."""
        messages, row = self.replica.experiment.program.messages, self.buffers.state_rows[0]
        after = row.clone()
        row.copy_(messages.state_row)
        if order.before is not None:
            self.load_state(order.before)
        row.copy_(task.starting_state(self.replica.experiment.program.method, messages.state, row, after))

    # state in files

    def _version(self, round: int) -> Path:
        return private.file(self.home, f"memory-round-{round:06d}.safetensors")

    def load_state(self, version: int, with_upload: bool = False) -> None:
        """A version of the client's state; `with_upload`: also what was broadcast and uploaded in that round."""
        path = self._version(version)
        try:
            tensors, _ = read_tensors(path)
        except FedloomError:
            raise Refusal(f"no longer has its state of round {version}") from None
        messages, buffers = self.replica.experiment.program.messages, self.buffers
        rows = {"memory": (messages.state, buffers.state_rows[0])}
        if with_upload:
            rows |= {"up": (messages.up, buffers.up_rows[0]), "down": (messages.down, buffers.down_row)}
        for group, (layout, row) in rows.items():
            if reason := pack_checked(scoped(tensors, group), layout, row):
                raise Refusal(f"has a state of round {version} whose {reason}")

    def _store_state(self, version: int, kept: Sequence[int]) -> None:
        buffers, messages = self.buffers, self.replica.experiment.program.messages
        tensors = prefixed(buffers.views(0).state, "memory")
        if messages.message.nbytes:  # a query may continue the round
            tensors |= {**prefixed(buffers.up(0), "up"), **prefixed(messages.down.views(buffers.down_row), "down")}
        not_empty = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
        private.write_tensors(self._version(version), not_empty, durable=True)
        wanted = {self._version(number).name for number in (version, *kept)}
        for path in self.home.glob("memory-round-*.safetensors"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)
