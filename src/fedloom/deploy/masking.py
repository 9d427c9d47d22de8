"""A node's side of secure aggregation: four messages a round, by Flower's SecAgg+.

Setup, sharing of keys and unmasking are Flower's own client mod, `secaggplus_mod`, which keeps its secrets in the node's
context. Between them stands the masked upload, which is made here for the sake of better masks and exact repetition
(`masks.py`, `summand.py`). What a server could ask to learn more than a sum is refused before the mod sees it: other
numbers of shares than the recipe's, seeds and keys of the same node, or of nodes that it does not know.

An upload is checked here, by the node itself, since nobody else can look at it.
"""

from __future__ import annotations

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

from fedloom.deploy.checked import Tensors
from fedloom.deploy.masks import masked
from fedloom.deploy.schema import Asked, Order, Train
from fedloom.deploy.site import Refusal, Resident, Site, read
from fedloom.deploy.summand import UNITS, Cohort, Summand
from fedloom.deploy.wire import Arrays
from fedloom.engine.server import flaw
from fedloom.recipe import SecAgg

Reply = tuple[dict[str, Tensors], ConfigRecord]  # a masked vector or nothing, and what Flower's protocol says
MASKED = "masked"


def counts(settings: SecAgg, cohort: int) -> tuple[int, int]:
    """Into how many shares a node's keys go in a round, and how many of them bring them back."""
    shares = cohort if settings.num_shares is None else min(settings.num_shares, cohort)
    return shares, max(round(settings.reconstruction_threshold * shares), shares // 2 + 1, 2)


def terms(settings: SecAgg, cohort: int) -> dict[str, Any]:
    """What nodes and server agree on in a round, in Flower's words."""
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


def mask(site: Site, order: Order, arrays: Arrays, message: Message, context: Context) -> Reply:
    """One of the four stages."""
    site.agree(order)
    settings, said = site.recipe.deploy.secure_aggregation, message.content[RECORD_KEY_CONFIGS]
    if settings is None or not isinstance(said, ConfigRecord):
        raise Refusal("has a recipe without secure aggregation")
    stage = said.get(Key.STAGE)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        return _upload(site, settings, order, arrays, said, context)
    read(arrays, {})
    if stage == Stage.SETUP:
        _check_terms(settings, said, site.recipe.cohort_size)
    if stage == Stage.UNMASK:
        _check_unmasking(_state(context), said)
    reply = secaggplus_mod(message, context, _never)
    return {}, reply.content.config_records[RECORD_KEY_CONFIGS]


def _never(message: Message, context: Context) -> Message:
    raise Refusal("was asked to train outside the stage for it")


def _state(context: Context) -> SecAggPlusState:
    return SecAggPlusState(**context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord()))


def _check_terms(settings: SecAgg, said: ConfigRecord, most: int) -> None:
    cohort = said.get(Key.SAMPLE_NUMBER)
    if not isinstance(cohort, int) or not 2 <= cohort <= most:
        raise Refusal(f"was asked to mask among {cohort!r} nodes, and the recipe's rounds have 2 to {most}")
    for key, value in terms(settings, cohort).items():
        if said.get(key) != value:
            raise Refusal(f"was asked to mask with {key} {said.get(key)!r}, and the recipe says {value!r}")


def _check_unmasking(state: SecAggPlusState, said: ConfigRecord) -> None:
    """The seed of a node is for the sum it is in, its key for one it is not in: both together would show its upload."""
    there, gone = (said.get(key) for key in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST))
    if not isinstance(there, list) or not isinstance(gone, list):
        raise Refusal("was not told whom to unmask")
    if len({*there, *gone}) < len(there) + len(gone) or state.nid not in there:
        raise Refusal("was asked for both secrets of a node, or to unmask a sum that it is not in")
    if unknown := {*there, *gone} - set(state.sk1_share_dict):
        raise Refusal(f"was asked for a secret of node {min(unknown)}, which it does not have")


def _upload(
    site: Site,
    settings: SecAgg,
    order: Order,
    arrays: Arrays,
    said: ConfigRecord,
    context: Context,
) -> Reply:
    """Train as in any round, and mask what comes out."""
    if not isinstance(order, Train):
        raise Refusal(f"was asked to mask the answer to {order.kind!r}")
    state = _state(context)
    check_stage(state.current_stage, said)
    state.current_stage = Stage.COLLECT_MASKED_VECTORS
    check_configs(state.current_stage, said)
    others = _take_shares(state, said)
    resident = Resident.of(site, order.federation)
    report, sent = resident.work(order, arrays)
    experiment = resident.worker.experiment
    samples = len(experiment.training(site.node.client, order.arguments.round))
    of = _cohort(order.of, samples)
    if reason := flaw(experiment.messages.up, sent["up"]):
        raise Refusal(f"has an upload whose {reason}")
    vector, clipped = Summand(experiment, settings).encode(
        sent["up"], resident.board.down, samples, float(report["loss"]), of
    )
    if clipped:
        log(WARNING, "fedloom: %d numbers of the upload were clipped at %g", clipped, settings.clipping_range)
    public = {node: state.public_keys_dict[node][0] for node in others}
    hidden: Tensor = torch.from_numpy(masked(vector, state.rd_seed, state.nid, state.sk1, public).view("int32"))
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())
    return {MASKED: {"sum": hidden}}, ConfigRecord({})


def _take_shares(state: SecAggPlusState, said: ConfigRecord) -> list[int]:
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
    if len(found) + 1 < state.threshold:
        raise Refusal(f"has {len(found)} nodes to mask with, and {state.threshold - 1} are needed")
    return found


def _cohort(given: Asked | None, samples: int) -> Cohort:
    if given is None or given.samples < samples:
        raise Refusal(f"was not told what its {samples} samples are a share of")
    return Cohort(given.clients, given.samples)
