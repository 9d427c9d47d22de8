"""The ClientApp: passes Flower's messages to the site and returns its answers."""

from __future__ import annotations

from logging import ERROR, WARNING
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

from fedloom.deploy.flower import app
from fedloom.deploy.keys.identity import proof
from fedloom.deploy.messages.schema import REFUSAL_LENGTH, Challenge, Order, json_report, parse_order
from fedloom.deploy.messages.wire import ArrivedTensors, pack, text_of
from fedloom.deploy.secagg.agreement import Credentials
from fedloom.deploy.secagg.client import answer_stage, is_secagg_message
from fedloom.deploy.site.config import NodeConfig
from fedloom.deploy.site.private import Refusal
from fedloom.deploy.site.site import Site
from fedloom.errors import FedloomError, cleaned
from fedloom.recipe import Recipe


def client_app(module: str | Path) -> ClientApp:
    """The app of a node; `module` is the file of the caller, next to recipe.yaml."""
    recipe = app.read(module)
    client = ClientApp()
    for register in (client.train, client.evaluate, client.query):
        register()(lambda message, context: answer(recipe, message, context))
    return client


def answer(recipe: Recipe, message: Message, context: Context) -> Message:
    """Always a reply. Of an unexpected error the server learns the type only; the rest stays in the log of the node."""
    number = context.node_config.get("partition-id")
    envelope = {"client": number if isinstance(number, int) else None, "digest": recipe.digest()}
    try:
        order = _order(message)
        arrived = ArrivedTensors(message.content, RECORD_KEY_CONFIGS, recipe.deploy.max_message_mb * 2**20)
        site = Site(recipe, NodeConfig.of(context.node_config, recipe.clients))
        credentials = Credentials.of(site)
        if is_secagg_message(message):
            vector, record = answer_stage(site, credentials, order, arrived, message, context)
            content = pack({**envelope, "report": {}}, **vector, **{RECORD_KEY_CONFIGS: record})
            return Message(content, reply_to=message)
        report, groups = site.answer(order, arrived)
        if isinstance(order, Challenge):
            report |= proof(site.node, site.digest, context.node_id, order)
        return Message(pack({**envelope, "report": json_report(report)}, **groups), reply_to=message)
    except Refusal as error:
        log(WARNING, "fedloom: this node %s", error)
        reason = str(error)
    except Exception as error:
        if isinstance(error, FedloomError):
            log(ERROR, "fedloom: %s", error)
        else:
            log(ERROR, "fedloom: the task failed", exc_info=error)
        reason = f"failed ({type(error).__name__}); the node's own log says why"
    return Message(pack({**envelope, "refused": cleaned(reason, REFUSAL_LENGTH)}), reply_to=message)


def _order(message: Message) -> Order:
    try:
        return parse_order(text_of(message.content))
    except FedloomError as error:
        raise Refusal(f"got an order that it cannot read: {error}") from None
