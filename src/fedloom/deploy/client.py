"""The ClientApp: hands Flower's messages to the site, and what it answers back."""

from __future__ import annotations

from logging import ERROR, WARNING
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

from fedloom.deploy import app
from fedloom.deploy.agreement import Credentials
from fedloom.deploy.identity import proof
from fedloom.deploy.masking import is_masking, mask
from fedloom.deploy.schema import SAID, Order, Question, outgoing, parse_order, plain
from fedloom.deploy.site import Node, Refusal, Site
from fedloom.deploy.wire import Arrays, pack, text_of
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe


def client_app(module: str | Path) -> ClientApp:
    """The app of a node; `module` is the file it stands in, beside recipe.yaml."""
    recipe = app.read(module)
    made = ClientApp()
    for kind in (made.train, made.evaluate, made.query):
        kind()(lambda message, context: answer(recipe, message, context))
    return made


def answer(recipe: Recipe, message: Message, context: Context) -> Message:
    """A reply in any case; of an error only what says nothing about the site's data, the rest stays in its log."""
    number = context.node_config.get("partition-id")
    told = {"client": number if isinstance(number, int) else None, "digest": recipe.digest()}
    try:
        order = _order(message)
        arrays = Arrays(message.content, RECORD_KEY_CONFIGS, recipe.deploy.max_message_mb * 2**20)
        site = Site(recipe, Node.of(context.node_config, recipe.clients))
        credentials = Credentials.of(site)
        if is_masking(message):
            hidden, said = mask(site, credentials, order, arrays, message, context)
            content = pack({**told, "report": {}}, **hidden, **{RECORD_KEY_CONFIGS: said})
            return Message(content, reply_to=message)
        report, sent = site.answer(order, arrays)
        if isinstance(order, Question):
            report |= proof(site.node, site.digest, context.node_id, order)
        return Message(pack({**told, "report": outgoing(report)}, **sent), reply_to=message)
    except Refusal as error:
        log(WARNING, "fedloom: this node %s", error)
        reason = str(error)
    except Exception as error:
        if isinstance(error, FedloomError):
            log(ERROR, "fedloom: %s", error)
        else:
            log(ERROR, "fedloom: the job failed", exc_info=error)
        reason = f"failed ({type(error).__name__}); the node's own log says why"
    return Message(pack({**told, "refused": plain(reason, SAID)}), reply_to=message)


def _order(message: Message) -> Order:
    try:
        return parse_order(text_of(message.content))
    except FedloomError as error:
        raise Refusal(f"got an order that it cannot read: {error}") from None
