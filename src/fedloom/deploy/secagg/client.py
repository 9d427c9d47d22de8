"""A node's side of secure aggregation: five stages per round, three of them by Flower's SecAgg+ client mod.

Setup, sharing of keys and unmasking are Flower's `secaggplus_mod`, which keeps its secrets in the context of the node. The
masked upload is made here, with stronger masks and exact repetition (`masks.py`, `encoding.py`). So is the confirmation: nodes
sign which sites are in the sum, and reveal what unmasks it only when a quorum has signed the same. Requests by which a server
could learn more than such a sum are refused before Flower's code sees them: cohorts that the recipe does not draw or allow,
other numbers of shares, keys that no site of the roster signed for this round (`agreement.py`), a sum of too few sites, both
secrets of one node.

Each node checks its own upload, since the server cannot see it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState, check_configs, check_stage
from flwr.common import log
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate
from torch import Tensor

from fedloom.deploy.messages.checked import Tensors
from fedloom.deploy.messages.schema import Order, RoundTerms, SecAggOrder, TaskOrder
from fedloom.deploy.messages.wire import ArrivedTensors
from fedloom.deploy.secagg.agreement import Agreement, Credentials, remember_sum, stored_join_digest
from fedloom.deploy.secagg.encoding import UNITS, CohortTotals, SumEncoder
from fedloom.deploy.secagg.masks import masked
from fedloom.deploy.secagg.quorum import least_sites, share_counts
from fedloom.deploy.site.private import Refusal
from fedloom.deploy.site.site import Site
from fedloom.deploy.site.worker import read_expected
from fedloom.engine.server.aggregation import flaw
from fedloom.engine.server.cohort import sample_clients
from fedloom.io.digest import digest
from fedloom.recipe import SecAgg

StageReply = tuple[dict[str, Tensors], ConfigRecord]  # a masked vector or nothing, and the record of Flower's protocol
MASKED, SIGNATURE, CLIENTS = "masked", "signature", "clients"  # keys of messages, in addition to Flower's
CONFIRM = "confirm"  # the stage between masked vectors and unmasking
STATE = "fedloom.secagg"  # of a round, in addition to Flower's state


def protocol_settings(settings: SecAgg, cohort: int) -> dict[str, Any]:
    """Flower's settings of a round, which follow from the recipe and the size of the cohort."""
    shares, threshold = share_counts(settings, cohort)
    return {
        Key.SAMPLE_NUMBER: cohort,
        Key.SHARE_NUMBER: shares,
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: settings.clipping_range,
        Key.TARGET_RANGE: 2 * UNITS,
        Key.MOD_RANGE: 2**32,
        Key.MAX_WEIGHT: 1.0,
    }


def is_secagg_message(message: Message) -> bool:
    return RECORD_KEY_CONFIGS in message.content


def answer_stage(
    site: Site,
    credentials: Credentials | None,
    order: Order,
    arrived: ArrivedTensors,
    message: Message,
    context: Context,
) -> StageReply:
    """A node's answer in one of the five stages."""
    site.check_recipe(order)
    settings, record = site.recipe.deploy.secure_aggregation, message.content[RECORD_KEY_CONFIGS]
    if settings is None or not isinstance(record, ConfigRecord):
        raise Refusal("has a recipe without secure aggregation")
    stage = record.get(Key.STAGE)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        return _upload(MaskedRound.recall(site, settings, credentials, context), order, arrived, record, context)
    if not isinstance(order, SecAggOrder):
        raise Refusal(f"was asked to mask the answer to {order.kind!r}")
    read_expected(arrived, {})
    if stage == Stage.SETUP:
        return {}, _setup(MaskedRound.begin(site, settings, credentials, order, record, message), message, context)
    round = MaskedRound.recall(site, settings, credentials, context)
    if stage == CONFIRM:
        return {}, _confirm(round, record, context)
    if stage == Stage.SHARE_KEYS:
        message.content[RECORD_KEY_CONFIGS] = _verified_keys(round, record, _state(context))
    if stage == Stage.UNMASK:
        _check_unmasking(round, record, order, context)
    reply = secaggplus_mod(message, context, _never)
    return {}, reply.content.config_records[RECORD_KEY_CONFIGS]


def _never(message: Message, context: Context) -> Message:
    raise Refusal("was asked to train in another stage than that of the masked vectors")


def _state(context: Context) -> SecAggPlusState:
    return SecAggPlusState(**context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord()))


@dataclass(frozen=True)
class MaskedRound:
    """A round as this node accepted it; its numbers are computed by the node from the recipe and the cohort."""

    site: Site
    settings: SecAgg
    terms: RoundTerms
    agreement: Agreement | None  # None: keys are not authenticated

    @property
    def least(self) -> int:
        """The fewest nodes, including this one, that it masks with or helps to unmask."""
        return least_sites(self.settings, self.site.recipe.cohort_size)

    @property
    def clients(self) -> dict[int, int]:
        """Clients by node."""
        return {node: client for client, node in self.terms.cohort.items()}

    @classmethod
    def begin(
        cls,
        site: Site,
        settings: SecAgg,
        credentials: Credentials | None,
        order: SecAggOrder,
        record: ConfigRecord,
        message: Message,
    ) -> MaskedRound:
        """Refuse a round that does not follow from the recipe."""
        if order.terms is None:
            raise Refusal("was asked to mask without the terms of the round")
        terms, recipe = order.terms.value(), site.recipe
        if not 1 <= terms.round <= recipe.rounds:
            raise Refusal(f"was asked to mask in round {terms.round}, and the recipe has {recipe.rounds}")
        least, most, asked = least_sites(settings, recipe.cohort_size), recipe.cohort_size, len(terms.cohort)
        if not least <= asked <= most:
            raise Refusal(f"was asked to mask among {asked} nodes, and the recipe's rounds have {least} to {most}")
        if outside := set(terms.cohort) - set(sample_clients(recipe, terms.round)):
            raise Refusal(f"was asked to mask with client {min(outside)}, which round {terms.round} does not draw")
        if terms.cohort.get(site.node.client) != message.metadata.dst_node_id:
            raise Refusal("was asked to mask in a round that it is not in")
        for key, value in protocol_settings(settings, asked).items():
            if record.get(key) != value:
                raise Refusal(f"was asked to mask with {key} {record.get(key)!r}, and the recipe says {value!r}")
        if credentials is None:
            return cls(site, settings, terms, None)
        if share_counts(settings, asked)[0] < asked:
            raise Refusal(f"was asked to mask with some of {asked} nodes only, among which a server could choose")
        return cls(
            site, settings, terms, Agreement.of(site, credentials, terms, stored_join_digest(site, terms.federation))
        )

    @classmethod
    def recall(cls, site: Site, settings: SecAgg, credentials: Credentials | None, context: Context) -> MaskedRound:
        """The round of the last setup."""
        stored = context.state.config_records.get(STATE, ConfigRecord())
        if "terms" not in stored:
            raise Refusal("was asked to mask before the setup for it")
        terms = RoundTerms.from_json(json.loads(str(stored["terms"])))
        if credentials is None:
            return cls(site, settings, terms, None)
        return cls(site, settings, terms, Agreement.of(site, credentials, terms, str(stored.get("joined"))))


def _setup(round: MaskedRound, message: Message, context: Context) -> ConfigRecord:
    reply = secaggplus_mod(message, context, _never).content.config_records[RECORD_KEY_CONFIGS]
    stored = context.state.config_records[STATE] = ConfigRecord({"terms": json.dumps(round.terms.to_json())})
    if round.agreement is not None:
        state, stored["joined"] = _state(context), round.agreement.common["joined"]
        reply[SIGNATURE] = round.agreement.sign_keys((state.pk1, state.pk2))
    return reply


def _verified_keys(round: MaskedRound, record: ConfigRecord, state: SecAggPlusState) -> ConfigRecord:
    """The public keys of other nodes, if all belong to clients of the round whose sites signed them for it."""
    given = {name: value for name, value in record.items() if name != Key.STAGE}
    most, clients, verified = share_counts(round.settings, len(round.terms.cohort))[0], round.clients, {}
    if not round.least <= len(given) <= most:
        raise Refusal(f"got the keys of {len(given)} nodes, and {round.least} to {most} are needed")
    for name, value in given.items():
        client = clients.get(int(name)) if name.isdecimal() and str(int(name)) == name else None
        if client is None:
            raise Refusal(f"got keys of node {name[:20]}, which is not in the round")
        parts: list[Any] = value if isinstance(value, list) else []
        if len(parts) != (2 if round.agreement is None else 3) or not all(isinstance(part, bytes) for part in parts):
            raise Refusal(f"got no signed keys of client {client}")
        pair = parts[0], parts[1]
        if client == round.site.node.client:
            if pair != (state.pk1, state.pk2):
                raise Refusal("got other keys as its own than it sent")
        elif round.agreement is not None and not round.agreement.verifies_keys(client, pair, parts[2]):
            raise Refusal(
                f"got keys of client {client} that its site did not sign for this round: another roster there, other "
                "terms, or a key of somebody else"
            )
        verified[name] = [*pair]
    if str(state.nid) not in verified:
        raise Refusal("did not find its own keys among those of its round")
    return ConfigRecord({Key.STAGE: Stage.SHARE_KEYS, **verified})


def _confirm(round: MaskedRound, record: ConfigRecord, context: Context) -> ConfigRecord:
    """Sign which sites are in the sum. A node signs one such list per round, so no two lists get enough signatures."""
    listed: Any = record.get(CLIENTS)
    state, clients = _state(context), round.clients
    if round.agreement is None or state.current_stage != Stage.COLLECT_MASKED_VECTORS:
        raise Refusal("was asked to confirm a sum that it is not in")
    if not isinstance(listed, list) or not all(type(client) is int for client in listed):
        raise Refusal("was asked to confirm a sum without a list of its clients")
    given: list[int] = sorted(listed)
    shared = {clients[node] for node in state.sk1_share_dict}
    if len(set(given)) < len(given) or round.site.node.client not in given or not shared.issuperset(given):
        raise Refusal("was asked to confirm a sum without it, or with a client that it does not mask with")
    if len(given) < round.least:
        raise Refusal(f"was asked to confirm a sum of {len(given)} sites, and {round.least} are needed")
    remember_sum(round.site, round.terms.round, given)
    context.state.config_records[STATE][CLIENTS] = given
    return ConfigRecord({SIGNATURE: round.agreement.sign_sum(given)})


def _check_unmasking(round: MaskedRound, record: ConfigRecord, order: SecAggOrder, context: Context) -> None:
    """The seed of a node unmasks a sum with it, its key a sum without it: both together would reveal its upload."""
    state = _state(context)
    present: Any = record.get(Key.ACTIVE_NODE_ID_LIST)
    dropped: Any = record.get(Key.DEAD_NODE_ID_LIST)
    if not isinstance(present, list) or not isinstance(dropped, list):
        raise Refusal("was asked to unmask without lists of nodes")
    if len({*present, *dropped}) < len(present) + len(dropped) or state.nid not in present:
        raise Refusal("was asked for both secrets of a node, or to unmask a sum that it is not in")
    if unknown := {*present, *dropped} - set(state.sk1_share_dict):
        raise Refusal(f"was asked for a secret of node {min(unknown)}, which it does not have")
    if len(present) < round.least:
        raise Refusal(f"was asked to unmask a sum of {len(present)} sites, and {round.least} are needed")
    if round.agreement is not None:
        clients = round.clients
        _check_quorum(round, round.agreement, sorted(clients[node] for node in present), order, context)


def _check_quorum(
    round: MaskedRound, agreement: Agreement, listed: list[int], order: SecAggOrder, context: Context
) -> None:
    """Check that enough sites signed the list that this node signed, so that no other list of the round can have as many."""
    if context.state.config_records[STATE].get(CLIENTS) != listed:
        raise Refusal("was asked to unmask another sum than it confirmed")
    signatures = {client: bytes.fromhex(signature) for client, signature in order.signed}
    valid = sum(agreement.verifies_sum(client, listed, signatures.get(client, b"")) for client in listed)
    if valid < round.least:
        raise Refusal(f"was shown {valid} signatures of sites that confirm the sum, and {round.least} are needed")


def _upload(
    round: MaskedRound, order: Order, arrived: ArrivedTensors, record: ConfigRecord, context: Context
) -> StageReply:
    """Train as in any round, and mask the upload."""
    site, settings, terms = round.site, round.settings, round.terms
    if not isinstance(order, TaskOrder):
        raise Refusal(f"was asked to mask the answer to {order.kind!r}")
    task = site.task(order)
    if not task.starts_round:
        raise Refusal(f"was asked to mask the answer to {task.kind!r}")
    if (order.federation, task.round) != (terms.federation, terms.round):
        raise Refusal(f"was asked to train for another round than round {terms.round}, which its masks are for")
    state = _state(context)
    check_stage(state.current_stage, record)
    state.current_stage = Stage.COLLECT_MASKED_VECTORS
    check_configs(state.current_stage, record)
    others = _store_shares(state, record, round.least)
    worker = site.worker(terms.federation)
    report, groups = worker.perform(task, order, arrived)
    experiment, upload = worker.replica.experiment, groups["up"]
    if round.agreement is not None and worker.join_digest != round.agreement.common["joined"]:
        raise Refusal("joined again since it signed what it was told on joining")
    if digest(worker.buffers.down) != terms.model:
        raise Refusal("was sent another model than the one that its peers were told of")
    samples = len(experiment.training(site.node.client, terms.round))
    if terms.samples < max(samples, 1):
        raise Refusal(f"was not told what its {samples} samples are a share of")
    if reason := flaw(experiment.program.messages.up, upload):
        raise Refusal(f"has an upload whose {reason}")
    vector, clipped = SumEncoder(experiment, settings).encode(
        upload,
        worker.buffers.down,
        samples,
        float(report["loss"]),
        CohortTotals(len(terms.cohort), terms.samples),
    )
    if clipped:
        log(WARNING, "fedloom: %d values of the upload were clipped at %g", clipped, settings.clipping_range)
    public = {node: state.public_keys_dict[node][0] for node in others}
    vector_tensor: Tensor = torch.from_numpy(masked(vector, state.rd_seed, state.nid, state.sk1, public).view("int32"))
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())
    return {MASKED: {"sum": vector_tensor}}, ConfigRecord({})


def _store_shares(state: SecAggPlusState, record: ConfigRecord, least: int) -> list[int]:
    """Store the shares of other nodes' secrets for unmasking; returns the nodes that sent them, and that are masked with."""
    senders: list[int] = []
    sources: Any = record[Key.SOURCE_LIST]
    ciphertexts: Any = record[Key.CIPHERTEXT_LIST]
    for source, ciphertext in zip(sources, ciphertexts, strict=True):
        if source not in state.ss2_dict or source in senders:
            raise Refusal(f"got shares of node {source}, with which it has no key in common")
        sender, receiver, seed, key = share_keys_plaintext_separate(decrypt(state.ss2_dict[source], ciphertext))
        if (sender, receiver) != (source, state.nid):
            raise Refusal(f"got shares of node {sender} for {receiver} in place of those of {source}")
        state.rd_seed_share_dict[source], state.sk1_share_dict[source] = seed, key
        senders.append(source)
    if len(senders) + 1 < least:
        raise Refusal(f"has {len(senders)} nodes to mask with, and {least - 1} are needed")
    return senders
