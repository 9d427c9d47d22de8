"""A node's side of secure aggregation: five messages a round, four of them by Flower's SecAgg+.

Setup, sharing of keys and unmasking are Flower's own client mod, `secaggplus_mod`, which keeps its secrets in the node's
context. Between them stands the masked upload, which is made here for the sake of better masks and exact repetition
(`masks.py`, `summand.py`), and the confirmation: nodes sign which sites are in the sum, and give up what unmasks it only when a
quorum signed the same. What a server could ask to learn more than such a sum is refused before the mod sees it: cohorts
that the recipe does not draw or allow, other numbers of shares, keys that no site of the roster signed for this very
round (`agreement.py`), a sum of too few, secrets of both kinds of one node.

An upload is checked here, by the node itself, since nobody else can look at it.
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

from fedloom.deploy.agreement import Agreement, Credentials, joined_as, remember_sum
from fedloom.deploy.checked import Tensors
from fedloom.deploy.masks import masked
from fedloom.deploy.quorum import counts, floor
from fedloom.deploy.schema import Keys, Order, Terms, Train
from fedloom.deploy.site import Refusal, Resident, Site, read
from fedloom.deploy.summand import UNITS, Cohort, Summand
from fedloom.deploy.wire import Arrays
from fedloom.engine.cohort import drawn
from fedloom.engine.server import flaw
from fedloom.recipe import SecAgg
from fedloom.weights import digest

Reply = tuple[dict[str, Tensors], ConfigRecord]  # a masked vector or nothing, and what Flower's protocol says
MASKED, SIGNATURE, CLIENTS = "masked", "signature", "clients"  # of messages, beside Flower's words
CONFIRM = "confirm"  # the stage between masked vectors and unmasking
STATE = "fedloom.secagg"  # what is kept of a round, beside Flower's state


def numbers(settings: SecAgg, cohort: int) -> dict[str, Any]:
    """What follows for a round from the recipe and the size of its cohort, in Flower's words."""
    shares, threshold = counts(settings, cohort)
    return {
        Key.SAMPLE_NUMBER: cohort,
        Key.SHARE_NUMBER: shares,
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: settings.clipping_range,
        Key.TARGET_RANGE: 2 * UNITS,
        Key.MOD_RANGE: 2**32,
        Key.MAX_WEIGHT: 1.0,
    }


def is_masking(message: Message) -> bool:
    return RECORD_KEY_CONFIGS in message.content


def mask(
    site: Site, credentials: Credentials | None, order: Order, arrays: Arrays, message: Message, context: Context
) -> Reply:
    """One of the five stages."""
    site.agree(order)
    settings, said = site.recipe.deploy.secure_aggregation, message.content[RECORD_KEY_CONFIGS]
    if settings is None or not isinstance(said, ConfigRecord):
        raise Refusal("has a recipe without secure aggregation")
    stage = said.get(Key.STAGE)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        return _upload(Round.recall(site, settings, credentials, context), order, arrays, said, context)
    if not isinstance(order, Keys):
        raise Refusal(f"was asked to mask the answer to {order.kind!r}")
    read(arrays, {})
    if stage == Stage.SETUP:
        return {}, _setup(Round.begin(site, settings, credentials, order, said, message), message, context)
    round = Round.recall(site, settings, credentials, context)
    if stage == CONFIRM:
        return {}, _confirm(round, said, context)
    if stage == Stage.SHARE_KEYS:
        message.content[RECORD_KEY_CONFIGS] = _believed(round, said, _state(context))
    if stage == Stage.UNMASK:
        _check_unmasking(round, said, order, context)
    reply = secaggplus_mod(message, context, _never)
    return {}, reply.content.config_records[RECORD_KEY_CONFIGS]


def _never(message: Message, context: Context) -> Message:
    raise Refusal("was asked to train outside the stage for it")


def _state(context: Context) -> SecAggPlusState:
    return SecAggPlusState(**context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord()))


@dataclass(frozen=True)
class Round:
    """A round as this node took it on; its numbers are the node's own, from the recipe and the cohort."""

    site: Site
    settings: SecAgg
    terms: Terms
    agreement: Agreement | None  # None: keys are not authenticated

    @property
    def least(self) -> int:
        """The fewest nodes, this one included, that it masks with or helps to unmask."""
        return floor(self.settings, self.site.recipe.cohort_size)

    @property
    def clients(self) -> dict[int, int]:
        """By node."""
        return {node: client for client, node in self.terms.cohort.items()}

    @classmethod
    def begin(
        cls,
        site: Site,
        settings: SecAgg,
        credentials: Credentials | None,
        order: Keys,
        said: ConfigRecord,
        message: Message,
    ) -> Round:
        """Refuse a round that is not one of the recipe's."""
        if order.terms is None:
            raise Refusal("was not told whom to mask among")
        terms, recipe = order.terms.terms(), site.recipe
        if not 1 <= terms.round <= recipe.rounds:
            raise Refusal(f"was asked to mask in round {terms.round}, and the recipe has {recipe.rounds}")
        least, most, asked = floor(settings, recipe.cohort_size), recipe.cohort_size, len(terms.cohort)
        if not least <= asked <= most:
            raise Refusal(f"was asked to mask among {asked} nodes, and the recipe's rounds have {least} to {most}")
        if strange := set(terms.cohort) - set(drawn(recipe, terms.round)):
            raise Refusal(f"was asked to mask with client {min(strange)}, which round {terms.round} does not draw")
        if terms.cohort.get(site.node.client) != message.metadata.dst_node_id:
            raise Refusal("was asked to mask in a round that it is not in")
        for key, value in numbers(settings, asked).items():
            if said.get(key) != value:
                raise Refusal(f"was asked to mask with {key} {said.get(key)!r}, and the recipe says {value!r}")
        if credentials is None:
            return cls(site, settings, terms, None)
        if counts(settings, asked)[0] < asked:
            raise Refusal(f"was asked to mask with some of {asked} nodes only, among which a server could choose")
        return cls(site, settings, terms, Agreement.of(site, credentials, terms, joined_as(site, terms.federation)))

    @classmethod
    def recall(cls, site: Site, settings: SecAgg, credentials: Credentials | None, context: Context) -> Round:
        """The round that the last setup was of."""
        kept = context.state.config_records.get(STATE, ConfigRecord())
        if "terms" not in kept:
            raise Refusal("was asked to mask before the setup for it")
        terms = Terms.of(json.loads(str(kept["terms"])))
        if credentials is None:
            return cls(site, settings, terms, None)
        return cls(site, settings, terms, Agreement.of(site, credentials, terms, str(kept.get("joined"))))


def _setup(round: Round, message: Message, context: Context) -> ConfigRecord:
    reply = secaggplus_mod(message, context, _never).content.config_records[RECORD_KEY_CONFIGS]
    kept = context.state.config_records[STATE] = ConfigRecord({"terms": json.dumps(round.terms.to_json())})
    if round.agreement is not None:
        state, kept["joined"] = _state(context), round.agreement.common["joined"]
        reply[SIGNATURE] = round.agreement.sign_keys((state.pk1, state.pk2))
    return reply


def _believed(round: Round, said: ConfigRecord, state: SecAggPlusState) -> ConfigRecord:
    """The public keys of other nodes, if all of them belong to clients of the round whose sites signed them for it."""
    given = {name: value for name, value in said.items() if name != Key.STAGE}
    most, clients, believed = counts(round.settings, len(round.terms.cohort))[0], round.clients, {}
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
        believed[name] = [*pair]
    if str(state.nid) not in believed:
        raise Refusal("did not find its own keys among those of its round")
    return ConfigRecord({Key.STAGE: Stage.SHARE_KEYS, **believed})


def _confirm(round: Round, said: ConfigRecord, context: Context) -> ConfigRecord:
    """Sign which sites are in the sum. A node signs one such list a round, so that no two lists have enough signatures."""
    listed: Any = said.get(CLIENTS)
    state, clients = _state(context), round.clients
    if round.agreement is None or state.current_stage != Stage.COLLECT_MASKED_VECTORS:
        raise Refusal("was asked to confirm a sum that it is not in")
    if not isinstance(listed, list) or not all(type(client) is int for client in listed):
        raise Refusal("was not told whose sum to confirm")
    given: list[int] = sorted(listed)
    shared = {clients[node] for node in state.sk1_share_dict}
    if len(set(given)) < len(given) or round.site.node.client not in given or not shared.issuperset(given):
        raise Refusal("was asked to confirm a sum without it, or with a client that it does not mask with")
    if len(given) < round.least:
        raise Refusal(f"was asked to confirm a sum of {len(given)} sites, and {round.least} are needed")
    remember_sum(round.site, round.terms.round, given)
    context.state.config_records[STATE][CLIENTS] = given
    return ConfigRecord({SIGNATURE: round.agreement.sign_sum(given)})


def _check_unmasking(round: Round, said: ConfigRecord, order: Keys, context: Context) -> None:
    """The seed of a node is for the sum it is in, its key for one it is not in: both together would show its upload."""
    state = _state(context)
    there: Any = said.get(Key.ACTIVE_NODE_ID_LIST)
    gone: Any = said.get(Key.DEAD_NODE_ID_LIST)
    if not isinstance(there, list) or not isinstance(gone, list):
        raise Refusal("was not told whom to unmask")
    if len({*there, *gone}) < len(there) + len(gone) or state.nid not in there:
        raise Refusal("was asked for both secrets of a node, or to unmask a sum that it is not in")
    if unknown := {*there, *gone} - set(state.sk1_share_dict):
        raise Refusal(f"was asked for a secret of node {min(unknown)}, which it does not have")
    if len(there) < round.least:
        raise Refusal(f"was asked to unmask a sum of {len(there)} sites, and {round.least} are needed")
    if round.agreement is not None:
        clients = round.clients
        _check_quorum(round, round.agreement, sorted(clients[node] for node in there), order, context)


def _check_quorum(round: Round, agreement: Agreement, listed: list[int], order: Keys, context: Context) -> None:
    """Enough sites signed the list that this node signed, so that no other list of the round can have as many."""
    if context.state.config_records[STATE].get(CLIENTS) != listed:
        raise Refusal("was asked to unmask another sum than it confirmed")
    given = {client: bytes.fromhex(signature) for client, signature in order.signed}
    valid = sum(agreement.verifies_sum(client, listed, given.get(client, b"")) for client in listed)
    if valid < round.least:
        raise Refusal(f"was shown {valid} signatures of sites that confirm the sum, and {round.least} are needed")


def _upload(round: Round, order: Order, arrays: Arrays, said: ConfigRecord, context: Context) -> Reply:
    """Train as in any round, and mask what comes out."""
    site, settings, terms = round.site, round.settings, round.terms
    if not isinstance(order, Train):
        raise Refusal(f"was asked to mask the answer to {order.kind!r}")
    if (order.federation, order.arguments.round) != (terms.federation, terms.round):
        raise Refusal(f"was asked to train for another round than round {terms.round}, which its masks are for")
    state = _state(context)
    check_stage(state.current_stage, said)
    state.current_stage = Stage.COLLECT_MASKED_VECTORS
    check_configs(state.current_stage, said)
    others = _take_shares(state, said, round.least)
    resident = Resident.of(site, terms.federation)
    report, sent = resident.work(order, arrays)
    experiment = resident.worker.experiment
    if round.agreement is not None and resident.joined != round.agreement.common["joined"]:
        raise Refusal("joined anew since it signed what it joined with")
    if digest(resident.board.down) != terms.model:
        raise Refusal("was sent another model than the one that its peers were told of")
    samples = len(experiment.training(site.node.client, terms.round))
    if terms.samples < max(samples, 1):
        raise Refusal(f"was not told what its {samples} samples are a share of")
    if reason := flaw(experiment.messages.up, sent["up"]):
        raise Refusal(f"has an upload whose {reason}")
    vector, clipped = Summand(experiment, settings).encode(
        sent["up"], resident.board.down, samples, float(report["loss"]), Cohort(len(terms.cohort), terms.samples)
    )
    if clipped:
        log(WARNING, "fedloom: %d numbers of the upload were clipped at %g", clipped, settings.clipping_range)
    public = {node: state.public_keys_dict[node][0] for node in others}
    hidden: Tensor = torch.from_numpy(masked(vector, state.rd_seed, state.nid, state.sk1, public).view("int32"))
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())
    return {MASKED: {"sum": hidden}}, ConfigRecord({})


def _take_shares(state: SecAggPlusState, said: ConfigRecord, least: int) -> list[int]:
    """Shares of other nodes' secrets, kept for unmasking; those who sent them mask for this node, and it for them."""
    found: list[int] = []
    sources: Any = said[Key.SOURCE_LIST]
    ciphertexts: Any = said[Key.CIPHERTEXT_LIST]
    for source, ciphertext in zip(sources, ciphertexts, strict=True):
        if source not in state.ss2_dict or source in found:
            raise Refusal(f"got shares of node {source}, with which it has no key in common")
        sender, receiver, seed, key = share_keys_plaintext_separate(decrypt(state.ss2_dict[source], ciphertext))
        if (sender, receiver) != (source, state.nid):
            raise Refusal(f"got shares of node {sender} for {receiver} in place of those of {source}")
        state.rd_seed_share_dict[source], state.sk1_share_dict[source] = seed, key
        found.append(source)
    if len(found) + 1 < least:
        raise Refusal(f"has {len(found)} nodes to mask with, and {least - 1} are needed")
    return found
