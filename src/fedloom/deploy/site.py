"""A node: its own data, its own memory on its own disk, and a lane's work when the server asks for it.

Nothing leaves but what `Site.answer` returns; `plan.py` lists it. Memory (SCAFFOLD's control, a personal head) lies in
the site's state folder, one file a version; the server only names versions. So it survives a restart of the node, and
a server that goes back to a checkpoint finds its sites where they were then.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom import __version__
from fedloom.data import ImageSet, Pipeline, load
from fedloom.deploy import private
from fedloom.deploy.checked import Tensors, fit
from fedloom.deploy.private import Refusal as Refusal
from fedloom.deploy.schema import NAME, Act, Card, Hello, Join, Order, Train, Work, plain, shown
from fedloom.deploy.wire import Arrays, Expected
from fedloom.engine.arena import prefixed, scoped
from fedloom.engine.board import Board
from fedloom.engine.files import read_tensors
from fedloom.engine.lanes import keep_freed_memory, perform
from fedloom.engine.setup import Experiment, Public, one_thread, prepare
from fedloom.engine.sites import alone, fitted
from fedloom.engine.worker import Worker, memory_to_act_on
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe
from fedloom.weights import digest

KEYS = ("partition-id", "num-partitions", "name", "data", "state", "recipe", "device", "roster", "key")
OPEN = ("train", "act", "tell")  # orders whose answers say something of a single site's data
Answer = tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]
TOLD = {"train": ("loss", "steps", "seconds"), "act": ("loss", "steps"), "tell": (), "client": ("correct", "total")}


@dataclass(frozen=True)
class Node:
    """`--node-config` of a SuperNode."""

    client: int
    name: str = ""
    data: str | None = None
    state: str = ""
    recipe: str | None = None  # the only digest this site takes part in
    device: str | None = None
    roster: str | None = None  # a file with all sites' public keys
    key: str | None = None  # a file with this site's private key

    @classmethod
    def of(cls, config: Mapping[str, Any], clients: int) -> Node:
        if unknown := sorted(set(config) - set(KEYS)):
            raise Refusal(f"node config: {unknown[0]} is unknown; known are {', '.join(KEYS)}")
        number = config.get("partition-id")
        if not isinstance(number, int) or not 0 <= number < clients:
            raise Refusal(f"node config: partition-id is {number!r}; the recipe has clients 0 to {clients - 1}")
        named = ("name", "data", "state", "recipe", "device", "roster", "key")
        texts = {key: str(config[key]) for key in named if key in config}
        return cls(client=number, **texts)

    @property
    def root(self) -> Path:
        return Path(self.state or os.environ.get("FEDLOOM_SITES") or "~/.fedloom/sites").expanduser()

    def home(self, federation: str) -> Path:
        return private.home(self.root, federation, self.client)


class Site:
    """One node in one federation."""

    def __init__(self, recipe: Recipe, node: Node) -> None:
        self.digest = recipe.digest()
        self.recipe = recipe if node.device is None else recipe.changed(device=node.device)
        self.node = node

    def agree(self, order: Order) -> None:
        """Refuse an order that is not about the recipe that this site agreed to."""
        if self.node.recipe is not None and self.node.recipe != self.digest:
            raise Refusal(f"takes part in recipe {self.node.recipe} only, and this is {self.digest}")
        if order.digest != self.digest:
            raise Refusal(f"has recipe {self.digest}, the server {order.digest}")

    def answer(self, order: Order, arrays: Arrays) -> Answer:
        """Do what the server asks, if it asks for the recipe that this site agreed to."""
        self.agree(order)
        if order.kind in OPEN and self.recipe.deploy.secure_aggregation is not None:
            raise Refusal(f"was asked to {order.kind} without masks, and its recipe has secure aggregation")
        if isinstance(order, Hello):
            return self.facts(*self._own()), {}
        if isinstance(order, Join):
            return self.join(order.card.card(), _only(read(arrays, None), "initial"))
        if isinstance(order, Work):
            return Resident.of(self, order.federation).work(order, arrays)
        raise Refusal(f"was asked for {order.kind} without masks")

    # joining

    def join(self, card: Card, initial: Tensors) -> Answer:
        home = self.node.home(card.sites.federation)
        private.make(home, self.node.root)
        private.write_tensors(home / "initial.safetensors", initial)
        node = {"data": str(Path(self.node.data).resolve()) if self.node.data else None, "name": self.node.name}
        content = {"card": card.to_json(), "client": self.node.client, "recipe": self.recipe.to_yaml(), **node}
        private.write(home / "site.json", json.dumps(content, indent=2) + "\n")
        worker = Resident.of(self, card.sites.federation).worker
        if unknown := set(initial) - set(worker.experiment.layout.entries):
            raise Refusal(f"got first weights with {shown(min(unknown))}, which the recipe's net does not have")
        partition, client = worker.experiment.partition, self.node.client
        return self.facts(worker.experiment.images, len(partition.train(client)), len(partition.test(client))), {}

    def facts(self, images: ImageSet, train: int, test: int) -> dict[str, Any]:
        """All that a site tells about itself and its data."""
        return {
            "name": plain(self.node.name, NAME),
            "train": train,
            "test": test,
            "shape": list(images.shape),
            "class_names": list(images.class_names),
            "version": __version__,
        }

    def _own(self) -> tuple[ImageSet, int, int]:
        images = self.images()
        return images, len(images.train_y), len(images.test_y)

    def images(self) -> ImageSet:
        if self.node.data is None:
            raise Refusal("node config: data is missing; every site of this federation gives its own")
        where = self.node.data
        if Path(where).expanduser().is_dir():
            where = f"folder:{where}"
        return load(where, self.recipe.data.resize)

    # the experiment as it is here

    def experiment(self, card: Card, initial: Mapping[str, Tensor]) -> Experiment:
        if card.sites.data == "split":
            if self.node.data is not None:
                raise Refusal("node config: data is given, but this federation is a trial on the recipe's own data")
            return prepare(self.recipe, initial=initial)
        images = self.images()
        try:
            images = fitted(images, card.sites)
        except FedloomError as error:
            raise Refusal(str(error)) from None
        return of_site(self.recipe, self.node.client, images, card, initial)


def of_site(
    recipe: Recipe, client: int, images: ImageSet, card: Card, initial: Mapping[str, Tensor] | None
) -> Experiment:
    """What the server's experiment is, with one client's images in it and nobody else's."""
    public = None
    if card.public:  # they are the server's; here it is enough to know how many there are
        first = images.train_x[:0]
        y = torch.full((card.public,), 0 if card.labelled else -1)
        public = Public(first, y, Pipeline.of(images, recipe.data.normalize))
        recipe = recipe.changed(data={**recipe.data.model_dump(), "public_from": None})
    own = alone(client, recipe.clients, images)
    return prepare(recipe, own, initial, images=images, samples=card.samples, public=public)


def joined(card: Any, initial: Mapping[str, Tensor]) -> str:
    """Digest of what the server told a node when it joined: first weights, scale and classes all change its uploads."""
    return hashlib.sha256(f"{json.dumps(card, sort_keys=True)} {digest(initial)}".encode()).hexdigest()


def read(arrays: Arrays, expected: Expected | None) -> dict[str, Tensors]:
    """The tensors of an order; those that were not agreed on are refused before they are copied."""
    try:
        return arrays.read(expected)
    except FedloomError as error:
        raise Refusal(f"got a message whose tensors do not fit: {error}") from None


def _only(groups: dict[str, Tensors], name: str) -> Tensors:
    if unknown := set(groups) - {name}:
        raise Refusal(f"got a message with {shown(min(unknown))}, which it does not know")
    return groups.get(name, {})


class Resident:
    """A worker and a board of one row, and the site's files. Kept between messages where the process lives on."""

    _latest: tuple[tuple[Any, ...], Resident] | None = None

    def __init__(self, site: Site, federation: str) -> None:
        self.home, self.node, self.federation = site.node.home(federation), site.node, federation
        try:
            told = json.loads(private.file(self.home, "site.json").read_text(encoding="utf-8"))
            initial, _ = read_tensors(private.file(self.home, "initial.safetensors"))
        except Refusal:
            raise
        except (OSError, FedloomError):
            raise Refusal("has not joined this federation, or its state folder is gone") from None
        self.joined = joined(told["card"], initial)
        keep_freed_memory()
        torch.set_num_threads(1)
        with one_thread():
            self.worker = Worker(replace(site.experiment(Card.of(told["card"]), initial), deployed=True))
            self.board = Board(self.worker.experiment, 1)

    @classmethod
    def of(cls, site: Site, federation: str) -> Resident:
        """In Flower's simulation one process serves many clients of the same data, one after the other."""
        shared = site.node.data is None
        key = (federation, site.digest, site.node.state, site.node.device, None if shared else site.node)
        if cls._latest is None or cls._latest[0] != key:
            cls._latest = key, cls(site, federation)
        resident = cls._latest[1]
        resident.home, resident.node = site.node.home(federation), site.node
        return resident

    def work(self, order: Work, arrays: Arrays) -> Answer:
        """One job, as a lane does it."""
        kind, arguments = order.kind, {**order.arguments.model_dump(), "client": self.node.client, "row": 0}
        messages, board = self.worker.experiment.messages, self.board
        self._begin(order, read(arrays, self._expected(order)))
        if kind == "keep":
            self._keep(order)
            return {}, {}
        done = perform(self.worker, board, 0, {"kind": kind, "arguments": arguments})
        report = {name: done[name] for name in TOLD[kind]}  # a lane says more of its time
        if kind == "tell":
            return report, {"findings": prefixed(scoped(board.findings(0), arguments["part"]), arguments["part"])}
        if isinstance(order, Train | Act):
            if messages.memory.nbytes or messages.message.nbytes:
                self._remember(order.into, order.keep)
            return report, {"up": board.up(0)}
        return report, {}

    def _expected(self, order: Work) -> Expected:
        messages = self.worker.experiment.messages
        if isinstance(order, Act):
            own = order.arguments.part + "."
            return {"message": {name: item for name, item in messages.message.by_name.items() if name.startswith(own)}}
        return {"down": messages.down.by_name}

    def _begin(self, order: Work, groups: Mapping[str, Tensors]) -> None:
        """Broadcast, memory, upload and message as they are when the job begins."""
        messages, board = self.worker.experiment.messages, self.board
        board.memory_rows[0].copy_(messages.memory_row)
        for name, first in messages.uploads.items():
            board.up(0)[name].copy_(first)
        for name, value in messages.fixed.items():
            board.down[f"fixed.{name}"].copy_(value)
        board.down["round"].fill_(order.at)  # where the weights come from
        if order.base is not None:
            self.recall(order.base, again=order.kind == "act")
        if isinstance(order, Act):
            self._rewind(order)
            # what was broadcast is remembered; the messages of other parts are left as they are
            sent = {**board.message, **groups.get("message", {})}
            reason = fit(sent, messages.message, board.message_row)
        else:
            reason = fit(groups.get("down", {}), messages.down, board.down_row, but="fixed")
        if reason:
            raise Refusal(f"got a message whose {reason}")

    # memory

    def _version(self, round: int) -> Path:
        return private.file(self.home, f"memory-round-{round:06d}.safetensors")

    def recall(self, version: int, again: bool = False) -> None:
        """The memory of a version; for a second act also what was broadcast and uploaded in the first."""
        path = self._version(version)
        try:
            tensors, _ = read_tensors(path)
        except FedloomError:
            raise Refusal(f"no longer has its memory of round {version}") from None
        messages, board = self.worker.experiment.messages, self.board
        rows = {"memory": (messages.memory, board.memory_rows[0])}
        if again:
            rows |= {"up": (messages.up, board.up_rows[0]), "down": (messages.down, board.down_row)}
        for group, (packing, row) in rows.items():
            if reason := fit(scoped(tensors, group), packing, row):
                raise Refusal(f"has a memory of round {version} whose {reason}")

    def _rewind(self, order: Act) -> None:
        """For a second act: what parts remember that will finish again, as it was before the round."""
        messages, row = self.worker.experiment.messages, self.board.memory_rows[0]
        after = row.clone()
        row.copy_(messages.memory_row)
        if order.before is not None:
            self.recall(order.before)
        method, part = self.worker.experiment.method, order.arguments.part
        row.copy_(memory_to_act_on(method, messages.memory, part, row, after))

    def _remember(self, version: int, kept: Sequence[int]) -> None:
        board, messages = self.board, self.worker.experiment.messages
        tensors = prefixed(board.views(0).memory, "memory")
        if messages.message.nbytes:
            tensors |= {**prefixed(board.up(0), "up"), **prefixed(messages.down.views(board.down_row), "down")}
        whole = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
        private.write_tensors(self._version(version), whole, durable=True)
        wanted = {self._version(number).name for number in (version, *kept)}
        for path in self.home.glob("memory-round-*.safetensors"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def _keep(self, order: Work) -> None:
        """The run is over: the served model stays here, beside the memory that belongs to it."""
        told = {"version": "" if order.base is None else str(order.base), "round": str(order.at)}
        views = self.worker.experiment.messages.down.views(self.board.down_row)
        down = {name: tensor for name, tensor in views.items() if tensor.numel()}
        private.write_tensors(self.home / "served.safetensors", down, told, durable=True)
