"""A server that lies: it drives secure aggregation message by message, honestly until a test tells it otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from federations import application, grid
from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

from fedloom.deploy.app import read
from fedloom.deploy.masking import numbers
from fedloom.deploy.masks import unmasked
from fedloom.deploy.quorum import counts
from fedloom.deploy.schema import Card, Terms
from fedloom.deploy.site import Resident
from fedloom.deploy.summand import Cohort, Summand
from fedloom.deploy.wire import pack, unpack
from fedloom.engine.board import Board
from fedloom.engine.setup import prepare
from fedloom.engine.sites import Sites
from fedloom.weights import digest

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "iid",
    "clients": 10,
    "model": "linear",
    "method": "fedavg",
    "rounds": 3,
    "fraction": 1.0,
    "lr": 0.05,
}
Keys = dict[int, list[bytes]]  # by client: two public keys and a signature


FEDERATION = "0123456789abcdef"


class Refused(Exception):
    """What a node answered in place of what it was asked for."""


@dataclass
class Puppet:
    """A node of the server's own invention, in the place of a client."""

    client: int
    node: int

    def __post_init__(self) -> None:
        one, two = generate_key_pairs(), generate_key_pairs()
        self.private = private_key_to_bytes(one[0]), private_key_to_bytes(two[0])
        self.public = [public_key_to_bytes(one[1]), public_key_to_bytes(two[1])]
        self.seed = os.urandom(32)

    def _between(self, other: bytes) -> bytes:
        return generate_shared_key(bytes_to_private_key(self.private[1]), bytes_to_public_key(other))

    def shares_for(self, node: int, public: bytes, shares: int, threshold: int) -> bytes:
        pieces = [create_shares(secret, threshold, shares)[0] for secret in (self.seed, self.private[0])]
        return encrypt(self._between(public), share_keys_plaintext_concat(self.node, node, *pieces))

    def open(self, public: bytes, ciphertext: bytes) -> bytes:
        """The share of a node's seed in what it sent to this puppet."""
        return share_keys_plaintext_separate(decrypt(self._between(public), ciphertext))[2]


class Liar:
    """The server of a federation, with all nodes joined."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | bool = True, **fields: Any) -> None:
        made = FIELDS | {"deploy": {"secure_aggregation": settings}} | fields
        package = application(made, folder / "app")
        self.recipe = read(package / "server_app.py")
        self.nodes = grid(package, folder, self.recipe.clients)
        self.experiment = prepare(self.recipe)
        self.board = Board(self.experiment, 1)
        self.weights = self.experiment.initial.clone()
        assert self.recipe.deploy.secure_aggregation is not None
        self.settings = self.recipe.deploy.secure_aggregation
        self.federation = FEDERATION
        for client in range(self.recipe.clients):
            self.join(client)

    # messages

    def say(
        self, client: int, order: Mapping[str, Any], record: Mapping[str, Any] | None = None, **groups: Any
    ) -> tuple[dict[str, Any], ConfigRecord, dict[str, Any]]:
        """One message to a node, and its answer; as it would arrive over the network."""
        beside = {} if record is None else {RECORD_KEY_CONFIGS: ConfigRecord({**record})}
        content = pack({**order, "digest": self.recipe.digest()}, **groups, **beside)
        message = Message(content, dst_node_id=100 + client, message_type="train", group_id="1")
        message.metadata.__dict__["_message_id"] = "message"
        node = 100 + client
        context = Context(0, node, self.nodes.configs[node], self.nodes.states[node], {})
        reply = message_from_proto(
            message_to_proto(self.nodes.app(message_from_proto(message_to_proto(message)), context))
        )
        told, tensors = unpack(reply.content, RECORD_KEY_CONFIGS)
        if "refused" in told:
            raise Refused(told["refused"])
        said = reply.content.get(RECORD_KEY_CONFIGS)
        return told["report"], said if isinstance(said, ConfigRecord) else ConfigRecord(), tensors

    def card(self, **changes: Any) -> dict[str, Any]:
        images, task = self.experiment.images, self.experiment.task
        sites = Sites(self.federation, "split", images.shape, images.class_names, images.scale)
        made = Card(sites, task.samples, task.public, task.labelled).to_json()
        return {**made, **changes}

    def join(self, client: int, initial: torch.Tensor | None = None, **changes: Any) -> None:
        if initial is not None or changes:
            Resident._latest = None
        tensors = self.experiment.layout.tensors(self.experiment.initial if initial is None else initial)
        question = {"kind": "join", "federation": self.federation, "nonce": "0" * 32}
        self.say(client, question | {"card": self.card(**changes)}, initial=tensors)

    # the stages

    @property
    def samples(self) -> int:
        return sum(len(self.experiment.training(client, 1)) for client in range(self.recipe.clients))

    def terms(self, clients: Iterable[int] | None = None, round: int = 1, **changes: Any) -> dict[str, Any]:
        cohort = {client: 100 + client for client in (range(self.recipe.clients) if clients is None else clients)}
        made = Terms(self.federation, round, cohort, self.samples, digest(self.down(round)))
        return {**made.to_json(), **changes}

    def down(self, round: int) -> dict[str, torch.Tensor]:
        """What is broadcast."""
        views = self.board.down
        views["w"].copy_(self.weights[: len(views["w"])])
        views["round"].fill_(round - 1)
        return views

    def setup(self, client: int, terms: Mapping[str, Any], **changes: Any) -> list[bytes]:
        record = {Key.STAGE: Stage.SETUP, **numbers(self.settings, len(terms["cohort"] or ())), **changes}
        _, said, _ = self.say(client, {"kind": "keys", "terms": dict(terms)}, record)
        found: Any = [said[Key.PUBLIC_KEY_1], said[Key.PUBLIC_KEY_2], said.get("signature", b"")]
        return list(found)

    def share(self, client: int, keys: Keys) -> dict[int, bytes]:
        """Ciphertexts, by the client they are for."""
        signed = self.settings.authenticated
        known: dict[str, Any] = {str(100 + k): parts if signed else parts[:2] for k, parts in keys.items()}
        _, said, _ = self.say(client, {"kind": "keys"}, {Key.STAGE: Stage.SHARE_KEYS, **known})
        to: Any = said[Key.DESTINATION_LIST]
        ciphertexts: Any = said[Key.CIPHERTEXT_LIST]
        return {node - 100: ciphertext for node, ciphertext in zip(to, ciphertexts, strict=True)}

    def collect(
        self, client: int, sent: Mapping[int, bytes], round: int = 1, down: Mapping[str, torch.Tensor] | None = None
    ) -> np.ndarray:
        """The masked vector of a client, which got these ciphertexts."""
        views = self.down(round) if down is None else down
        order: dict[str, Any] = {"kind": "train", "federation": self.federation, "arguments": {"round": round}}
        order |= {"into": round, "keep": [], "base": None, "at": round - 1}
        record: dict[str, Any] = {Key.STAGE: Stage.COLLECT_MASKED_VECTORS}
        record |= {Key.SOURCE_LIST: [100 + k for k in sent], Key.CIPHERTEXT_LIST: list(sent.values())}
        tensors = {name: tensor for name, tensor in views.items() if name != "round"}
        found: np.ndarray = self.say(client, order, record, down=tensors)[2]["masked"]["sum"].numpy().view(np.uint32)
        return found

    def confirm(self, client: int, clients: Iterable[int]) -> str:
        _, said, _ = self.say(client, {"kind": "keys"}, {Key.STAGE: "confirm", "clients": list(clients)})
        signature = said["signature"]
        assert isinstance(signature, bytes)
        return signature.hex()

    def unmask(
        self, client: int, there: Iterable[int], gone: Iterable[int] = (), signed: Mapping[int, str] | None = None
    ) -> dict[int, bytes]:
        """Shares of secrets, by the client whose they are."""
        record: dict[str, Any] = {Key.STAGE: Stage.UNMASK, Key.ACTIVE_NODE_ID_LIST: [100 + k for k in there]}
        record[Key.DEAD_NODE_ID_LIST] = [100 + k for k in gone]
        order = {"kind": "keys", "signed": [[k, text] for k, text in (signed or {}).items()]}
        _, said, _ = self.say(client, order, record)
        owners: Any = said[Key.NODE_ID_LIST]
        pieces: Any = said[Key.SHARE_LIST]
        return {node - 100: piece for node, piece in zip(owners, pieces, strict=True)}

    # several at once

    def up_to_masks(self, clients: list[int], round: int = 1, terms: Mapping[str, Any] | None = None) -> None:
        """All stages up to the masked vectors, honestly."""
        told = self.terms(clients, round) if terms is None else terms
        keys = {client: self.setup(client, told) for client in clients}
        sent = {client: self.share(client, keys) for client in clients}
        for client in clients:
            self.collect(client, {k: sent[k][client] for k in clients if k != client}, round)

    def show(self, victim: int, clients: list[int]) -> torch.Tensor:
        """Invent everybody but the victim, and recover its update."""
        puppets = {client: Puppet(client, 100 + client) for client in clients if client != victim}
        keys = {client: [*puppet.public, b"none"] for client, puppet in puppets.items()}
        keys[victim] = self.setup(victim, self.terms(clients))
        sent = self.share(victim, {client: keys[client] for client in sorted(keys)})
        shares, threshold = counts(self.settings, len(clients))
        public = keys[victim][1]
        back = {k: puppet.shares_for(100 + victim, public, shares, threshold) for k, puppet in puppets.items()}
        total = self.collect(victim, back)
        seed = combine_shares([puppet.open(public, sent[client]) for client, puppet in puppets.items()])
        dropped = [(p.node, p.private[0], {100 + victim: keys[victim][0]}) for p in puppets.values()]
        count = len(self.experiment.training(victim, 1))
        summand = Summand(self.experiment, self.settings)
        found = summand.decode(
            unmasked(total, [seed], dropped), self.down(1), [count], Cohort(len(clients), self.samples)
        )
        return found.tensors["w"]
