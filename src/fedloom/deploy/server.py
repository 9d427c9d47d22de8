"""The ServerApp: an ordinary run in an ordinary run folder, with nodes in place of lanes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedloom.data import load
from fedloom.deploy import app, claims
from fedloom.deploy.app import Settings
from fedloom.deploy.identity import Bindings, known_sites
from fedloom.deploy.invitations import Invitations
from fedloom.deploy.nodes import Nodes
from fedloom.deploy.post import Post
from fedloom.deploy.roster import Roster
from fedloom.deploy.schema import Card, Facts, Reply
from fedloom.deploy.secure import Order
from fedloom.engine.board import Board
from fedloom.engine.folder import RunFolder, create, refuse_existing
from fedloom.engine.lanes import Lanes
from fedloom.engine.ledger import Ledger
from fedloom.engine.rounds import Federation
from fedloom.engine.setup import Experiment, one_thread, prepare
from fedloom.engine.sites import Sites, sized
from fedloom.engine.state import State
from fedloom.engine.worker import Worker
from fedloom.errors import FedloomError, TooFew
from fedloom.recipe import Recipe
from fedloom.run import Run, go


def server_app(module: str | Path) -> ServerApp:
    """The app of the server; `module` is the file it stands in, beside recipe.yaml."""
    recipe = app.read(module)
    made = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(recipe, Settings.of(context.run_config), grid)

    made.main()(main)
    return made


def serve(recipe: Recipe, settings: Settings, grid: Grid) -> Run:
    """Run a recipe on the nodes of a grid, or carry it on."""
    if not settings.out:
        raise FedloomError("app config: out is missing; it is the server's run folder")
    if settings.data == "sites":
        app.check_sites(recipe)
    path = Path(settings.out).expanduser().resolve()
    watcher, roster = Lines(), known_sites(settings.roster, recipe.clients)
    experiment, folder, bindings = (_resumed if settings.resume else _new)(
        recipe, settings, path, grid, watcher, roster
    )
    bindings.keep(folder.nodes)
    run = go(replace(experiment, deployed=True), folder, watcher, _machinery(grid, watcher, bindings))
    summary = run.summary
    watcher.say(f"done: test accuracy {_percent(summary['test_accuracy'])}, {summary['lost']} uploads lost")
    watcher.say(f"run folder: {run.path}")
    return run


def _new(
    recipe: Recipe, settings: Settings, path: Path, grid: Grid, watcher: Lines, roster: Roster | None
) -> tuple[Experiment, RunFolder, Bindings]:
    refuse_existing(path)
    told = recipe.changed(name=path.name.lstrip(".") or None, out=str(path))
    federation = uuid.uuid4().hex[:16]
    bindings = Bindings(federation, recipe.digest(), roster)
    if settings.data == "split":
        experiment = prepare(told)
        app.check_federated(experiment)
        images = experiment.images
        sites = Sites(federation, "split", images.shape, images.class_names, images.scale)
        return experiment, create(experiment, path, sites), bindings
    tested = load(settings.test, recipe.data.resize) if settings.test else None
    found = _hello(Post(grid, recipe.digest()), recipe, bindings, watcher)
    shape, names = settings.agreed(*claims.agreed(found, recipe.deploy))
    claims.confirm(found, recipe, settings.confirm, watcher.say)
    if tested is not None:
        names, shape = tested.class_names, tested.shape
    sites = Sites(federation, "sites", shape, names, settings.scale, settings.test or None)
    partition = sized([site.train for site in found], [site.test for site in found])
    experiment = prepare(told, partition, images=sites.images(tested))
    app.check_federated(experiment)
    return experiment, create(experiment, path, sites), bindings


def _resumed(
    recipe: Recipe, settings: Settings, path: Path, grid: Grid, watcher: Lines, roster: Roster | None
) -> tuple[Experiment, RunFolder, Bindings]:
    folder = RunFolder(path)
    stored, sites = folder.recipe(), Sites.read(folder.sites)
    if stored.digest() != recipe.digest():
        raise FedloomError(f"out: {path} belongs to recipe {stored.digest()}, and the app's is {recipe.digest()}")
    if sites is None:
        raise FedloomError(f"out: {path} was not begun on nodes; carry it on with: fedloom run --resume {path}")
    if folder.finished:
        raise FedloomError(f"out: {path} is finished")
    tested = load(sites.test, recipe.data.resize) if sites.test else None
    experiment = folder.experiment(sites.images(tested) if sites.data == "sites" else None)
    experiment = replace(experiment, recipe=stored.changed(deploy=recipe.deploy.model_dump()))
    app.check_federated(experiment)
    return experiment, folder, Bindings(sites.federation, recipe.digest(), roster)


def _hello(post: Post, recipe: Recipe, bindings: Bindings, watcher: Lines) -> list[Facts]:
    """What every site claims about its data, in the order of clients; all of them are needed to begin."""
    until = time.monotonic() + recipe.deploy.join_timeout
    found: dict[int, Facts] = {}
    troubles: dict[int, str] = {}
    settled: set[int] = set()

    def question(node: int) -> Order:
        return {"kind": "hello", **bindings.question(node)}, {}

    invitations = Invitations(post, "hello", question, recipe.deploy.timeout)
    while len(found) < recipe.clients:
        online = post.nodes()
        invitations.keep(online)
        invitations.ask(online - settled)
        for node, answer in invitations.collect().items():
            reason = answer if isinstance(answer, str) else _take_hello(recipe, node, answer[0], bindings, found)
            if reason is None:
                settled.add(node)
                troubles.pop(node, None)
            elif troubles.get(node) != reason:
                troubles[node] = reason
                watcher.note(f"node {node} cannot take part: {reason}")
        if len(found) == recipe.clients:
            break
        if time.monotonic() > until:
            missing = ", ".join(str(k) for k in range(recipe.clients) if k not in found)
            said = "".join(f"; node {node}: {reason}" for node, reason in troubles.items())
            raise TooFew(f"clients {missing} have not connected within {recipe.deploy.join_timeout:g} s{said}")
        time.sleep(1.0)
    return [found[client] for client in range(recipe.clients)]


def _take_hello(recipe: Recipe, node: int, reply: Reply, bindings: Bindings, found: dict[int, Facts]) -> str | None:
    client, facts = reply.client, reply.report
    if reply.refused is not None:
        return f"it {reply.refused}"
    if client is None or client >= recipe.clients or client in found:
        return f"it says to be client {client}" + (", who is there already" if client in found else "")
    assert isinstance(facts, Facts)
    if reason := bindings.flaw(client, node, facts) or claims.excessive(facts, recipe.deploy):
        return reason
    bindings.bind(client, facts)
    found[client] = facts
    return None


def _machinery(
    grid: Grid, watcher: Lines, bindings: Bindings
) -> Callable[[Experiment, RunFolder], AbstractContextManager[Federation]]:
    @contextmanager
    def federation(experiment: Experiment, folder: RunFolder) -> Iterator[Federation]:
        recipe, messages = experiment.recipe, experiment.messages
        sites = Sites.read(folder.sites)
        assert sites is not None
        with one_thread():
            board = Board(experiment, recipe.cohort_size)
            ledger = Ledger(messages.memory, messages.memory_row, folder.client_memory, 0)
            task = experiment.task
            card = Card(sites, task.samples, task.public, task.labelled)
            lanes = Lanes(Worker(experiment), board, 1)
            lanes.inline = True  # Flower runs threads of its own in this process, which a fork would not survive
            with lanes as local:
                post = Post(grid, recipe.digest())
                nodes = Nodes(post, experiment, board, ledger, local, card, bindings, watcher.note)
                nodes.assemble(range(recipe.clients), max(recipe.deploy.min_cohort, 1))
                fed = Federation(experiment, State(experiment), ledger, board, nodes, together=recipe.clients)
                yield fed
                if fed.state.round == recipe.rounds:
                    nodes.hand_out(fed.state.served())

    return federation


class Lines:
    """Says in lines, for logs, what a progress bar shows."""

    def __init__(self) -> None:
        self._rounds = 0

    def say(self, text: str) -> None:
        print(f"fedloom: {text}", flush=True)

    def begin(self, experiment: Experiment, folder: Path, done: int) -> None:
        self._rounds = experiment.recipe.rounds
        went = f", carrying on after round {done}" if done else ""
        self.say(
            f"{experiment.method} on {experiment.recipe.clients} clients, recipe {experiment.recipe.digest()}{went}"
        )

    def client(self, done: int) -> None: ...

    def round(self, line: dict[str, Any]) -> None:
        loss = "–" if line["train_loss"] is None else f"{line['train_loss']:.4f}"
        told = f", test {_percent(line['test_accuracy'])}" if "test_accuracy" in line else ""
        lost = "".join(f", lost client {k}: {why}" for k, why in line.get("lost_clients", {}).items())
        self.say(f"round {line['round']}/{self._rounds}: loss {loss}{told}, {line['seconds']:.1f} s{lost}")

    def note(self, text: str) -> None:
        self.say(text)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"
