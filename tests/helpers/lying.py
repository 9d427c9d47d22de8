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

from fedloom.deploy.flower.app import read
from fedloom.deploy.messages.schema import FederationInfo, RoundTerms
from fedloom.deploy.messages.wire import pack, unpack
from fedloom.deploy.secagg.client import protocol_settings
from fedloom.deploy.secagg.encoding import CohortTotals, SumEncoder
from fedloom.deploy.secagg.masks import unmasked
from fedloom.deploy.secagg.quorum import share_counts
from fedloom.deploy.site.worker import SiteWorker
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.experiment import prepare
from fedloom.engine.sites import Sites
from fedloom.io.digest import digest

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
        self.buffers = SharedBuffers(self.experiment, 1)
        self.weights = self.experiment.program.initial.clone()
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
        answer, tensors = unpack(reply.content, RECORD_KEY_CONFIGS)
        if "refused" in answer:
            raise Refused(answer["refused"])
        reply_record = reply.content.get(RECORD_KEY_CONFIGS)
        return answer["report"], reply_record if isinstance(reply_record, ConfigRecord) else ConfigRecord(), tensors

    def info(self, **changes: Any) -> dict[str, Any]:
        images, task = self.experiment.data.dataset, self.experiment.program.task
        sites = Sites(self.federation, "split", images.inputs, images.class_names)
        made = FederationInfo(sites, task.samples, task.public, task.labeled).to_json()
        return {**made, **changes}

    def join(self, client: int, initial: torch.Tensor | None = None, **changes: Any) -> None:
        if initial is not None or changes:
            SiteWorker._latest = None
        tensors = self.experiment.program.layout.tensors(
            self.experiment.program.initial if initial is None else initial
        )
        question = {"kind": "join", "federation": self.federation, "nonce": "0" * 32}
        self.say(client, question | {"info": self.info(**changes)}, initial=tensors)

    # the stages

    @property
    def samples(self) -> int:
        return sum(len(self.experiment.training(client, 1)) for client in range(self.recipe.clients))

    def terms(self, clients: Iterable[int] | None = None, round: int = 1, **changes: Any) -> dict[str, Any]:
        cohort = {client: 100 + client for client in (range(self.recipe.clients) if clients is None else clients)}
        made = RoundTerms(self.federation, round, cohort, self.samples, digest(self.down(round)))
        return {**made.to_json(), **changes}

    def down(self, round: int) -> dict[str, torch.Tensor]:
        """What is broadcast."""
        views = self.buffers.down
        views["w"].copy_(self.weights[: len(views["w"])])
        views["round"].fill_(round - 1)
        return views

    def setup(self, client: int, terms: Mapping[str, Any], **changes: Any) -> list[bytes]:
        record = {Key.STAGE: Stage.SETUP, **protocol_settings(self.settings, len(terms["cohort"] or ())), **changes}
        _, reply_record, _ = self.say(client, {"kind": "keys", "terms": dict(terms)}, record)
        result: Any = [
            reply_record[Key.PUBLIC_KEY_1],
            reply_record[Key.PUBLIC_KEY_2],
            reply_record.get("signature", b""),
        ]
        return list(result)

    def share(self, client: int, keys: Keys) -> dict[int, bytes]:
        """Ciphertexts, by the client they are for."""
        signed = self.settings.authenticated
        known: dict[str, Any] = {str(100 + k): parts if signed else parts[:2] for k, parts in keys.items()}
        _, reply_record, _ = self.say(client, {"kind": "keys"}, {Key.STAGE: Stage.SHARE_KEYS, **known})
        to: Any = reply_record[Key.DESTINATION_LIST]
        ciphertexts: Any = reply_record[Key.CIPHERTEXT_LIST]
        return {node - 100: ciphertext for node, ciphertext in zip(to, ciphertexts, strict=True)}

    def collect(
        self, client: int, sent: Mapping[int, bytes], round: int = 1, down: Mapping[str, torch.Tensor] | None = None
    ) -> np.ndarray:
        """The masked vector of a client, which got these ciphertexts."""
        views = self.down(round) if down is None else down
        order: dict[str, Any] = {"kind": "task", "task": "train", "arguments": {"round": round}}
        order |= {"federation": self.federation, "into": round, "keep": [], "base": None, "at": round - 1}
        record: dict[str, Any] = {Key.STAGE: Stage.COLLECT_MASKED_VECTORS}
        record |= {Key.SOURCE_LIST: [100 + k for k in sent], Key.CIPHERTEXT_LIST: list(sent.values())}
        tensors = {name: tensor for name, tensor in views.items() if name != "round"}
        result: np.ndarray = self.say(client, order, record, down=tensors)[2]["masked"]["sum"].numpy().view(np.uint32)
        return result

    def confirm(self, client: int, clients: Iterable[int]) -> str:
        _, reply_record, _ = self.say(client, {"kind": "keys"}, {Key.STAGE: "confirm", "clients": list(clients)})
        signature = reply_record["signature"]
        assert isinstance(signature, bytes)
        return signature.hex()

    def unmask(
        self, client: int, there: Iterable[int], gone: Iterable[int] = (), signed: Mapping[int, str] | None = None
    ) -> dict[int, bytes]:
        """Shares of secrets, by the client whose they are."""
        record: dict[str, Any] = {Key.STAGE: Stage.UNMASK, Key.ACTIVE_NODE_ID_LIST: [100 + k for k in there]}
        record[Key.DEAD_NODE_ID_LIST] = [100 + k for k in gone]
        order = {"kind": "keys", "signed": [[k, text] for k, text in (signed or {}).items()]}
        _, reply_record, _ = self.say(client, order, record)
        owners: Any = reply_record[Key.NODE_ID_LIST]
        pieces: Any = reply_record[Key.SHARE_LIST]
        return {node - 100: piece for node, piece in zip(owners, pieces, strict=True)}

    # several at once

    def up_to_masks(self, clients: list[int], round: int = 1, terms: Mapping[str, Any] | None = None) -> None:
        """All stages up to the masked vectors, honestly."""
        announced = self.terms(clients, round) if terms is None else terms
        keys = {client: self.setup(client, announced) for client in clients}
        sent = {client: self.share(client, keys) for client in clients}
        for client in clients:
            self.collect(client, {k: sent[k][client] for k in clients if k != client}, round)

    def show(self, victim: int, clients: list[int]) -> torch.Tensor:
        """Invent everybody but the victim, and recover its update."""
        puppets = {client: Puppet(client, 100 + client) for client in clients if client != victim}
        keys = {client: [*puppet.public, b"none"] for client, puppet in puppets.items()}
        keys[victim] = self.setup(victim, self.terms(clients))
        sent = self.share(victim, {client: keys[client] for client in sorted(keys)})
        shares, threshold = share_counts(self.settings, len(clients))
        public = keys[victim][1]
        back = {k: puppet.shares_for(100 + victim, public, shares, threshold) for k, puppet in puppets.items()}
        total = self.collect(victim, back)
        seed = combine_shares([puppet.open(public, sent[client]) for client, puppet in puppets.items()])
        dropped = [(p.node, p.private[0], {100 + victim: keys[victim][0]}) for p in puppets.values()]
        count = len(self.experiment.training(victim, 1))
        encoder = SumEncoder(self.experiment, self.settings)
        result = encoder.decode(
            unmasked(total, [seed], dropped), self.down(1), [count], CohortTotals(len(clients), self.samples)
        )
        return result.tensors["w"]
