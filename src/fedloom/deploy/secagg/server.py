"""The server's side of secure aggregation: five stages per round, after which the server knows the sum and nothing else.

Nodes send public keys; they send shares of their secrets, encrypted for one another; they train and send masked vectors; they
sign which sites are in the sum (if the recipe asks for authentication); they reveal what unmasks the sum. A node may leave at
any point, as long as enough of the nodes that it shared its secrets with remain. Stages and record keys are those of Flower's
SecAgg+ workflow. That workflow itself needs strategies of an older interface, and fails a round in which a node leaves before
it has shared its keys.

The engine gets the mean in place of every upload. Only parts that compute nothing but sums of uploads are allowed, so the
result is the same.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flwr.app import ConfigRecord
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from torch import Tensor

from fedloom.deploy.messages.checked import Tensors
from fedloom.deploy.messages.schema import RoundTerms
from fedloom.deploy.messages.wire import OutgoingOrder
from fedloom.deploy.secagg.client import CLIENTS, CONFIRM, MASKED, SIGNATURE, protocol_settings
from fedloom.deploy.secagg.encoding import CohortTotals, Numbers, SecureSum, SumEncoder
from fedloom.deploy.secagg.masks import unmasked
from fedloom.deploy.secagg.quorum import share_counts
from fedloom.errors import FedloomError
from fedloom.recipe import SecAgg

StageAnswer = tuple[ConfigRecord, dict[str, Tensors]]


class Send(Protocol):
    """Sends each node an order and a record of Flower's protocol; returns the answers, or why there is none."""

    def __call__(
        self, orders: Mapping[int, OutgoingOrder], records: Mapping[int, ConfigRecord]
    ) -> dict[int, StageAnswer | str]: ...


class NoSum(FedloomError):
    """The round has no sum."""


@dataclass(frozen=True)
class RoundSum:
    """The sum of a round, the nodes that are in it, and what went wrong with others."""

    sum: SecureSum | None
    nodes: tuple[int, ...]
    lost: dict[int, str]  # by node
    failure: str = ""  # why there is no sum


class SecureRound:
    """One round. `samples`: by node. `least`: the fewest nodes that a sum may have."""

    def __init__(
        self,
        settings: SecAgg,
        least: int,
        terms: RoundTerms,
        encoder: SumEncoder,
        down: Mapping[str, Tensor],
        send: Send,
        orders: Mapping[int, OutgoingOrder],
        samples: Mapping[int, int],
    ) -> None:
        self.encoder, self.down, self.send, self.orders, self.samples = encoder, down, send, orders, samples
        self.settings, self.least, self.terms = settings, least, terms
        self.totals = CohortTotals(len(orders), terms.samples)
        self.shares, self.threshold = share_counts(settings, len(orders))
        self.client = {node: client for client, node in terms.cohort.items()}
        self.lost: dict[int, str] = {}
        self.keys: dict[int, list[bytes]] = {}
        self.signatures: dict[int, bytes] = {}  # of keys, by node
        order = list(orders)
        random.SystemRandom().shuffle(order)  # neighbors must not be predictable
        half = range(-(self.shares // 2), self.shares // 2 + 1)
        self.near = {node: {order[(i + step) % len(order)] for step in half} for i, node in enumerate(order)}

    def run(self) -> RoundSum:
        try:
            self.keys = self._public_keys()
            ciphertexts = self._shared_keys()
            total, present = self._masked_vectors(ciphertexts)
            dropped = ciphertexts.keys() - present
            confirmed = self._confirmed(present) if self.settings.authenticated else {}
            unmasked_sum = self._unmask(total, present, dropped, confirmed)
        except NoSum as error:
            return RoundSum(None, (), self.lost, str(error))
        return RoundSum(unmasked_sum, tuple(node for node in self.orders if node in present), self.lost)

    # the stages

    def _public_keys(self) -> dict[int, list[bytes]]:
        self._check_enough(self.orders.keys(), "are connected")
        record = ConfigRecord({Key.STAGE: Stage.SETUP, **protocol_settings(self.settings, len(self.orders))})
        order: OutgoingOrder = ({"kind": "keys", "terms": self.terms.to_json()}, {})
        public_keys = {}
        answers = self._ask(dict.fromkeys(self.orders, record), dict.fromkeys(self.orders, order))
        for node, (keys, _) in answers.items():
            pair, signature = [keys.get(Key.PUBLIC_KEY_1), keys.get(Key.PUBLIC_KEY_2)], keys.get(SIGNATURE, b"")
            if all(_is_public_key(key) for key in pair) and isinstance(signature, bytes):
                public_keys[node], self.signatures[node] = pair, signature
            else:
                self.lost[node] = "it sent no public keys"
        self._check_enough(public_keys.keys(), "sent their keys")
        return public_keys  # type: ignore[return-value]

    def _shared_keys(self) -> dict[int, dict[int, bytes]]:
        """By sender: the ciphertext for each neighbor."""
        records = {}
        for node in self.keys:
            near: dict[str, Any] = {str(other): self._signed(other) for other in self._near(node, self.keys)}
            records[node] = ConfigRecord({Key.STAGE: Stage.SHARE_KEYS, **near})
        sent: dict[int, dict[int, bytes]] = {}
        for node, (keys, _) in self._ask(records).items():
            receivers: Any = keys.get(Key.DESTINATION_LIST)
            ciphertexts: Any = keys.get(Key.CIPHERTEXT_LIST)
            wanted = set(self._near(node, self.keys)) - {node}
            well_typed = _list_of(receivers, int) and _list_of(ciphertexts, bytes)
            if well_typed and set(receivers) == wanted and len(receivers) == len(ciphertexts):
                sent[node] = dict(zip(receivers, ciphertexts, strict=True))
            else:
                self.lost[node] = "it did not share its keys with its neighbors"
        self._check_enough(sent.keys(), "shared their keys")
        return sent

    def _signed(self, node: int) -> list[bytes]:
        """The public keys of a node as other nodes expect them."""
        return [*self.keys[node], self.signatures[node]] if self.settings.authenticated else self.keys[node]

    def _masked_vectors(self, sent: Mapping[int, Mapping[int, bytes]]) -> tuple[Numbers, set[int]]:
        """The sum of the masked vectors, and the nodes in it. No single vector is kept."""
        records, orders = {}, {}
        for node in sent:
            sources = [other for other in self._near(node, sent) if other != node]
            content: dict[str, Any] = {
                Key.STAGE: Stage.COLLECT_MASKED_VECTORS,
                Key.SOURCE_LIST: sources,
                Key.CIPHERTEXT_LIST: [sent[source][node] for source in sources],
            }
            records[node] = ConfigRecord(content)
            orders[node] = self.orders[node]
        total, present = np.zeros(self.encoder.length, dtype=np.uint32), set()
        for node, (_, groups) in self._ask(records, orders).items():
            vector = groups.get(MASKED, {}).get("sum")
            if set(groups) != {MASKED} or vector is None or str(vector.dtype) != "torch.int32":
                self.lost[node] = "it sent no masked vector"
            elif vector.shape != (self.encoder.length,):
                self.lost[node] = f"its masked vector has shape {tuple(vector.shape)}, not ({self.encoder.length},)"
            else:
                total += vector.numpy().view(np.uint32)
                present.add(node)
        self._check_enough(present, "sent their vectors")
        return total, present

    def _confirmed(self, present: set[int]) -> dict[int, str]:
        """Signatures, by node, on the list of clients that are in the sum."""
        record = ConfigRecord({Key.STAGE: CONFIRM, CLIENTS: sorted(self.client[node] for node in present)})
        signatures: dict[int, str] = {}
        for node, (keys, _) in self._ask(dict.fromkeys(present, record)).items():
            signature = keys.get(SIGNATURE)
            if isinstance(signature, bytes):
                signatures[node] = signature.hex()
            else:
                self.lost[node] = "it did not confirm the sum"
        if len(signatures) < self.least:
            raise NoSum(f"{len(signatures)} of {len(present)} nodes confirmed the sum, and {self.least} are needed")
        return signatures

    def _unmask(self, total: Numbers, present: set[int], dropped: set[int], confirmed: Mapping[int, str]) -> SecureSum:
        records = {}
        order: OutgoingOrder = (
            {"kind": "keys", "signed": [[self.client[node], text] for node, text in sorted(confirmed.items())]},
            {},
        )
        for node in sorted(confirmed) if self.settings.authenticated else sorted(present):
            content: dict[str, Any] = {
                Key.STAGE: Stage.UNMASK,
                Key.ACTIVE_NODE_ID_LIST: self._near(node, present),
                Key.DEAD_NODE_ID_LIST: self._near(node, dropped),
            }
            records[node] = ConfigRecord(content)
        shares: dict[int, list[bytes]] = {node: [] for node in present | dropped}
        for node, (keys, _) in self._ask(records, dict.fromkeys(records, order)).items():
            owners: Any = keys.get(Key.NODE_ID_LIST)
            pieces: Any = keys.get(Key.SHARE_LIST)
            wanted = self._near(node, present) + self._near(node, dropped)
            if _list_of(owners, int) and _list_of(pieces, bytes) and owners == wanted and len(owners) == len(pieces):
                for owner, piece in zip(owners, pieces, strict=True):
                    shares[owner].append(piece)
            else:
                self.lost[node] = "it did not send what unmasks the sum"
        for node in present | dropped:
            if len(shares[node]) < self.threshold:
                raise NoSum(f"{len(shares[node])} shares came back to unmask the sum, and {self.threshold} are needed")
        try:
            secrets = {node: combine_shares(pieces) for node, pieces in shares.items()}
            uncanceled = [
                (node, secrets[node], {other: self.keys[other][0] for other in self._near(node, present)})
                for node in dropped
            ]
            total = unmasked(total, [secrets[node] for node in present], uncanceled)
            return self.encoder.decode(total, self.down, [self.samples[node] for node in present], self.totals)
        except ValueError as error:  # from Flower, cryptography or decode
            reason = str(error) if isinstance(error, FedloomError) else "a share of a key is wrong"
            raise NoSum(reason) from None

    # shared by the stages

    def _ask(
        self, records: Mapping[int, ConfigRecord], orders: Mapping[int, OutgoingOrder] | None = None
    ) -> dict[int, StageAnswer]:
        answers: dict[int, StageAnswer] = {}
        keys: OutgoingOrder = ({"kind": "keys"}, {})
        for node, answer in self.send(orders or dict.fromkeys(records, keys), records).items():
            if isinstance(answer, str):
                self.lost[node] = answer
            else:
                answers[node] = answer
        return answers

    def _near(self, node: int, among: Collection[int]) -> list[int]:
        """The nodes among these that a node shares its secrets with, including itself."""
        return sorted(self.near[node].intersection(among))

    def _check_enough(self, present: Collection[int], what: str) -> None:
        """Fail if some node's secrets could not be reconstructed, or nodes would refuse to unmask the sum."""
        nearest = min((len(self._near(node, present)) for node in present), default=0)
        if nearest < self.least:
            among = (
                "" if self.shares >= len(self.orders) else f" (of one of them, {nearest} of {self.shares} neighbors)"
            )
            raise NoSum(f"{len(present)} of {len(self.orders)} nodes {what}{among}, and {self.least} are needed")


def write_mean(mean: SecureSum, rows: Collection[Mapping[str, Tensor]]) -> None:
    """Write the mean into rows of uploads."""
    for row in rows:
        for name, tensor in mean.tensors.items():
            row[name].copy_(tensor)


def _list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)


def _is_public_key(value: Any) -> bool:
    if not isinstance(value, bytes):
        return False
    try:
        bytes_to_public_key(value)
    except (ValueError, TypeError):
        return False
    return True
