"""The server's side of secure aggregation: five stages a round, after which it knows a sum and nothing that is in it.

Flower's own workflow for SecAgg+ drives strategies of its older interface, and a node that leaves before it has shared its keys
ends the round there. These are the same stages over messages, with the same words and keys: nodes send public keys; they
send shares of their secrets, encrypted for one another; they train and send masked vectors; they give up what unmasks the
sum. Before that they sign whose sum it is, if the recipe has them authenticated. A node may leave at any point, as long as
enough of those it shared its keys with remain.

What the engine gets in the place of every upload is their mean. Parts that make nothing but sums of uploads, which
are the only ones allowed, cannot tell the difference.
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

from fedloom.deploy.checked import Tensors
from fedloom.deploy.masking import CLIENTS, CONFIRM, MASKED, SIGNATURE, numbers
from fedloom.deploy.masks import Numbers, unmasked
from fedloom.deploy.quorum import counts
from fedloom.deploy.schema import Terms
from fedloom.deploy.summand import Cohort, Sum, Summand
from fedloom.errors import FedloomError
from fedloom.recipe import SecAgg

Heard = tuple[ConfigRecord, dict[str, Tensors]]
Order = tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]]


class Send(Protocol):
    """Gives each node its order and Flower's part of it; says what each answered, or why it did not."""

    def __call__(self, orders: Mapping[int, Order], said: Mapping[int, ConfigRecord]) -> dict[int, Heard | str]: ...


class Failed(FedloomError):
    """A round that has no sum."""


@dataclass(frozen=True)
class Summed:
    """The sum of a round, the nodes that are in it, and why others are not."""

    found: Sum | None
    nodes: tuple[int, ...]
    lost: dict[int, str]  # what was wrong with single nodes
    failure: str = ""  # why there is no sum


class SecureRound:
    """One round among nodes, each with so many samples; `least` of them must be in a sum."""

    def __init__(
        self,
        settings: SecAgg,
        least: int,
        terms: Terms,
        summand: Summand,
        down: Mapping[str, Tensor],
        send: Send,
        orders: Mapping[int, Order],
        samples: Mapping[int, int],
    ) -> None:
        self.summand, self.down, self.send, self.orders, self.samples = summand, down, send, orders, samples
        self.settings, self.least, self.terms = settings, least, terms
        self.of = Cohort(len(orders), terms.samples)
        self.shares, self.threshold = counts(settings, len(orders))
        self.client = {node: client for client, node in terms.cohort.items()}
        self.lost: dict[int, str] = {}
        self.keys: dict[int, list[bytes]] = {}
        self.signatures: dict[int, bytes] = {}  # of keys, by node
        order = list(orders)
        random.SystemRandom().shuffle(order)  # who is whose neighbour must not be known beforehand
        half = range(-(self.shares // 2), self.shares // 2 + 1)
        self.near = {node: {order[(i + step) % len(order)] for step in half} for i, node in enumerate(order)}

    def run(self) -> Summed:
        try:
            self.keys = self._public_keys()
            ciphertexts = self._shared_keys()
            total, there = self._masked(ciphertexts)
            gone = ciphertexts.keys() - there
            confirmed = self._confirmed(there) if self.settings.authenticated else {}
            found = self._unmask(total, there, gone, confirmed)
        except Failed as error:
            return Summed(None, (), self.lost, str(error))
        return Summed(found, tuple(node for node in self.orders if node in there), self.lost)

    # the stages

    def _public_keys(self) -> dict[int, list[bytes]]:
        self._enough(self.orders.keys(), "are there")
        said = ConfigRecord({Key.STAGE: Stage.SETUP, **numbers(self.settings, len(self.orders))})
        order: Order = ({"kind": "keys", "terms": self.terms.to_json()}, {})
        found = {}
        for node, (keys, _) in self._ask(dict.fromkeys(self.orders, said), dict.fromkeys(self.orders, order)).items():
            pair, signature = [keys.get(Key.PUBLIC_KEY_1), keys.get(Key.PUBLIC_KEY_2)], keys.get(SIGNATURE, b"")
            if all(_is_public_key(key) for key in pair) and isinstance(signature, bytes):
                found[node], self.signatures[node] = pair, signature
            else:
                self.lost[node] = "it sent no public keys"
        self._enough(found.keys(), "sent their keys")
        return found  # type: ignore[return-value]

    def _shared_keys(self) -> dict[int, dict[int, bytes]]:
        """By sender: what it encrypted for each neighbour."""
        said = {}
        for node in self.keys:
            near: dict[str, Any] = {str(other): self._signed(other) for other in self._near(node, self.keys)}
            said[node] = ConfigRecord({Key.STAGE: Stage.SHARE_KEYS, **near})
        found: dict[int, dict[int, bytes]] = {}
        for node, (keys, _) in self._ask(said).items():
            to: Any = keys.get(Key.DESTINATION_LIST)
            ciphertexts: Any = keys.get(Key.CIPHERTEXT_LIST)
            wanted = set(self._near(node, self.keys)) - {node}
            if _list_of(to, int) and _list_of(ciphertexts, bytes) and set(to) == wanted and len(to) == len(ciphertexts):
                found[node] = dict(zip(to, ciphertexts, strict=True))
            else:
                self.lost[node] = "it did not share its keys with its neighbours"
        self._enough(found.keys(), "shared their keys")
        return found

    def _signed(self, node: int) -> list[bytes]:
        """Public keys as other nodes want them."""
        return [*self.keys[node], self.signatures[node]] if self.settings.authenticated else self.keys[node]

    def _masked(self, sent: Mapping[int, Mapping[int, bytes]]) -> tuple[Numbers, set[int]]:
        """The sum of masked vectors; each is added as it is seen, and none is kept."""
        said, orders = {}, {}
        for node in sent:
            sources = [other for other in self._near(node, sent) if other != node]
            content: dict[str, Any] = {
                Key.STAGE: Stage.COLLECT_MASKED_VECTORS,
                Key.SOURCE_LIST: sources,
                Key.CIPHERTEXT_LIST: [sent[source][node] for source in sources],
            }
            said[node] = ConfigRecord(content)
            orders[node] = self.orders[node]
        total, there = np.zeros(self.summand.length, dtype=np.uint32), set()
        for node, (_, groups) in self._ask(said, orders).items():
            vector = groups.get(MASKED, {}).get("sum")
            if set(groups) != {MASKED} or vector is None or str(vector.dtype) != "torch.int32":
                self.lost[node] = "it sent no masked vector"
            elif vector.shape != (self.summand.length,):
                self.lost[node] = f"its masked vector has shape {tuple(vector.shape)}, not ({self.summand.length},)"
            else:
                total += vector.numpy().view(np.uint32)
                there.add(node)
        self._enough(there, "sent their vectors")
        return total, there

    def _confirmed(self, there: set[int]) -> dict[int, str]:
        """Signatures, by node, on the list of clients that are in the sum."""
        said = ConfigRecord({Key.STAGE: CONFIRM, CLIENTS: sorted(self.client[node] for node in there)})
        found: dict[int, str] = {}
        for node, (keys, _) in self._ask(dict.fromkeys(there, said)).items():
            signature = keys.get(SIGNATURE)
            if isinstance(signature, bytes):
                found[node] = signature.hex()
            else:
                self.lost[node] = "it did not confirm the sum"
        if len(found) < self.least:
            raise Failed(f"{len(found)} of {len(there)} nodes confirmed the sum, and {self.least} are needed")
        return found

    def _unmask(self, total: Numbers, there: set[int], gone: set[int], confirmed: Mapping[int, str]) -> Sum:
        said = {}
        order: Order = (
            {"kind": "keys", "signed": [[self.client[node], text] for node, text in sorted(confirmed.items())]},
            {},
        )
        for node in sorted(confirmed) if self.settings.authenticated else sorted(there):
            content: dict[str, Any] = {
                Key.STAGE: Stage.UNMASK,
                Key.ACTIVE_NODE_ID_LIST: self._near(node, there),
                Key.DEAD_NODE_ID_LIST: self._near(node, gone),
            }
            said[node] = ConfigRecord(content)
        shares: dict[int, list[bytes]] = {node: [] for node in there | gone}
        for node, (keys, _) in self._ask(said, dict.fromkeys(said, order)).items():
            owners: Any = keys.get(Key.NODE_ID_LIST)
            pieces: Any = keys.get(Key.SHARE_LIST)
            wanted = self._near(node, there) + self._near(node, gone)
            if _list_of(owners, int) and _list_of(pieces, bytes) and owners == wanted and len(owners) == len(pieces):
                for owner, piece in zip(owners, pieces, strict=True):
                    shares[owner].append(piece)
            else:
                self.lost[node] = "it did not say what unmasks the sum"
        for node in there | gone:
            if len(shares[node]) < self.threshold:
                raise Failed(f"{len(shares[node])} shares came back to unmask the sum, and {self.threshold} are needed")
        try:
            secrets = {node: combine_shares(pieces) for node, pieces in shares.items()}
            dropped = [(node, secrets[node], {v: self.keys[v][0] for v in self._near(node, there)}) for node in gone]
            summed = unmasked(total, [secrets[node] for node in there], dropped)
            return self.summand.decode(summed, self.down, [self.samples[node] for node in there], self.of)
        except ValueError as error:  # of Flower, of cryptography, of decode
            reason = str(error) if isinstance(error, FedloomError) else "a share of a key is wrong"
            raise Failed(reason) from None

    # what they have in common

    def _ask(self, said: Mapping[int, ConfigRecord], orders: Mapping[int, Order] | None = None) -> dict[int, Heard]:
        found: dict[int, Heard] = {}
        keys: Order = ({"kind": "keys"}, {})
        for node, answer in self.send(orders or dict.fromkeys(said, keys), said).items():
            if isinstance(answer, str):
                self.lost[node] = answer
            else:
                found[node] = answer
        return found

    def _near(self, node: int, among: Collection[int]) -> list[int]:
        """Those a node shares its keys with, itself included, that are still there."""
        return sorted(self.near[node].intersection(among))

    def _enough(self, there: Collection[int], what: str) -> None:
        """Whether each node's secrets could still be put together, and nodes would still help to unmask a sum."""
        nearest = min((len(self._near(node, there)) for node in there), default=0)
        if nearest < self.least:
            among = (
                "" if self.shares >= len(self.orders) else f" (of one of them, {nearest} of {self.shares} neighbours)"
            )
            raise Failed(f"{len(there)} of {len(self.orders)} nodes {what}{among}, and {self.least} are needed")


def in_rows(found: Sum, rows: Collection[Mapping[str, Tensor]]) -> None:
    """The mean, where the engine looks for uploads."""
    for row in rows:
        for name, tensor in found.tensors.items():
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
