"""The ServerApp: the same round loop and run folder as `fedloom run`, with nodes in place of workers."""

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
from fedloom.deploy.flower import app, claims
from fedloom.deploy.flower.app import Settings
from fedloom.deploy.flower.invitations import Invitations
from fedloom.deploy.flower.nodes import Nodes
from fedloom.deploy.flower.transport import FlowerTransport
from fedloom.deploy.keys.identity import KeyBindings, server_roster
from fedloom.deploy.keys.roster import Roster
from fedloom.deploy.messages.schema import FederationInfo, Reply, SiteFacts
from fedloom.deploy.messages.wire import OutgoingOrder
from fedloom.engine.backends.fork import ForkBackend
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.server.callback import RunCallback
from fedloom.engine.server.cohort import largest_cohort
from fedloom.engine.server.round import Federation
from fedloom.engine.sites import Sites, sized
from fedloom.engine.store.ledger import Ledger
from fedloom.engine.store.state import State
from fedloom.engine.threads import one_thread
from fedloom.errors import FedloomError, TooFew
from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.recipe import Recipe
from fedloom.runs.folder import RunFolder, create, refuse_existing
from fedloom.runs.run import Run, go


def server_app(module: str | Path) -> ServerApp:
    """The app of the server; `module` is the file of the caller, next to recipe.yaml."""
    recipe = app.read(module)
    server = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(recipe, Settings.of(context.run_config), grid)

    server.main()(main)
    return server


def serve(recipe: Recipe, settings: Settings, grid: Grid) -> Run:
    """Run a recipe on the nodes of a grid, or resume it."""
    if not settings.out:
        raise FedloomError("app config: out is missing; it is the run folder of the server")
    if settings.data == "sites":
        app.check_sites(recipe)
    path = Path(settings.out).expanduser().resolve()
    log, roster = LogCallback(), server_roster(settings.roster, recipe.clients)
    experiment, folder, bindings = (_resumed if settings.resume else _new)(recipe, settings, path, grid, log, roster)
    bindings.keep(folder.nodes)
    run = go(experiment.as_deployed(), folder, log, _backend(grid, log, bindings))
    summary = run.summary
    headline = find_metric(recipe.headline)
    value = summary.get(f"test_{headline.name}")
    log.say(f"done: test {headline.title} {_text(headline, value)}, {summary['lost']} uploads lost")
    log.say(f"run folder: {run.path}")
    return run


def _new(
    recipe: Recipe, settings: Settings, path: Path, grid: Grid, log: LogCallback, roster: Roster | None
) -> tuple[Experiment, RunFolder, KeyBindings]:
    refuse_existing(path)
    named = recipe.changed(name=path.name.lstrip(".") or None, out=str(path))
    federation = uuid.uuid4().hex[:16]
    bindings = KeyBindings(federation, recipe.digest(), roster)
    if settings.data == "split":
        experiment = prepare(named)
        app.check_federated(experiment)
        dataset = experiment.data.dataset
        sites = Sites(federation, "split", dataset.inputs, dataset.class_names)
        return experiment, create(experiment, path, sites), bindings
    tested = load(settings.test, recipe.data.resize, recipe.data.test_every) if settings.test else None
    facts = _collect_facts(FlowerTransport(grid, recipe.digest()), recipe, bindings, log)
    inputs, names = settings.agreed(*claims.agreed(facts, recipe.deploy))
    claims.confirm(facts, recipe, settings.confirm, log.say)
    if tested is not None:
        names, inputs = tested.class_names, replace(inputs, shape=tested.shape)
    sites = Sites(federation, "sites", inputs, names, settings.test or None)
    partition = sized([site.train for site in facts], [site.test for site in facts])
    experiment = prepare(named, partition, dataset=sites.dataset(tested))
    app.check_federated(experiment)
    return experiment, create(experiment, path, sites), bindings


def _resumed(
    recipe: Recipe, settings: Settings, path: Path, grid: Grid, log: LogCallback, roster: Roster | None
) -> tuple[Experiment, RunFolder, KeyBindings]:
    folder = RunFolder(path)
    stored, sites = folder.recipe(), Sites.read(folder.sites)
    if stored.digest() != recipe.digest():
        raise FedloomError(f"out: {path} belongs to recipe {stored.digest()}, and the app's is {recipe.digest()}")
    if sites is None:
        raise FedloomError(f"out: {path} was not started on nodes; resume it with: fedloom run --resume {path}")
    if folder.finished:
        raise FedloomError(f"out: {path} is finished")
    tested = load(sites.test, recipe.data.resize, recipe.data.test_every) if sites.test else None
    experiment = folder.experiment(sites.dataset(tested) if sites.data == "sites" else None)
    # nodes have the app's recipe, so they report its metrics
    experiment = experiment.with_recipe(stored.changed(deploy=recipe.deploy.model_dump(), metrics=recipe.metrics))
    app.check_federated(experiment)
    return experiment, folder, KeyBindings(sites.federation, recipe.digest(), roster)


def _collect_facts(
    transport: FlowerTransport, recipe: Recipe, bindings: KeyBindings, log: LogCallback
) -> list[SiteFacts]:
    """What every site claims about its data, by client; all sites are needed to start."""
    until = time.monotonic() + recipe.deploy.join_timeout
    facts: dict[int, SiteFacts] = {}
    problems: dict[int, str] = {}
    accepted: set[int] = set()

    def question(node: int) -> OutgoingOrder:
        return {"kind": "hello", **bindings.challenge(node)}, {}

    invitations = Invitations(transport, question, recipe.deploy.timeout)
    while len(facts) < recipe.clients:
        online = transport.nodes()
        invitations.keep(online)
        invitations.ask(online - accepted)
        for node, answer in invitations.collect().items():
            reason = answer if isinstance(answer, str) else _accept_facts(recipe, node, answer[0], bindings, facts)
            if reason is None:
                accepted.add(node)
                problems.pop(node, None)
            elif problems.get(node) != reason:
                problems[node] = reason
                log.note(f"node {node} cannot take part: {reason}")
        if len(facts) == recipe.clients:
            break
        if time.monotonic() > until:
            missing = ", ".join(str(k) for k in range(recipe.clients) if k not in facts)
            reasons = "".join(f"; node {node}: {reason}" for node, reason in problems.items())
            raise TooFew(f"clients {missing} have not connected within {recipe.deploy.join_timeout:g} s{reasons}")
        time.sleep(1.0)
    return [facts[client] for client in range(recipe.clients)]


def _accept_facts(
    recipe: Recipe, node: int, reply: Reply, bindings: KeyBindings, known: dict[int, SiteFacts]
) -> str | None:
    client, facts = reply.client, reply.report
    if reply.refused is not None:
        return f"it {reply.refused}"
    if client is None or client >= recipe.clients or client in known:
        return f"it claims to be client {client}" + (", which is connected already" if client in known else "")
    assert isinstance(facts, SiteFacts)
    if reason := bindings.flaw(client, node, facts) or claims.excessive(facts, recipe.deploy):
        return reason
    bindings.bind(client, facts)
    known[client] = facts
    return None


def _backend(
    grid: Grid, log: LogCallback, bindings: KeyBindings
) -> Callable[[Experiment, RunFolder], AbstractContextManager[Federation]]:
    @contextmanager
    def federation(experiment: Experiment, folder: RunFolder) -> Iterator[Federation]:
        recipe, messages = experiment.recipe, experiment.program.messages
        sites = Sites.read(folder.sites)
        assert sites is not None
        with one_thread():
            buffers = SharedBuffers(experiment, largest_cohort(recipe))
            ledger = Ledger(messages.state, messages.state_row, folder.client_memory, 0)
            task = experiment.program.task
            info = FederationInfo(sites, task.samples, task.public, task.labeled)
            workers = ForkBackend(Replica(experiment), buffers, 1)
            workers.inline = True  # Flower's threads in this process would not survive a fork
            with workers as local:
                transport = FlowerTransport(grid, recipe.digest())
                nodes = Nodes(transport, experiment, buffers, ledger, local, info, bindings, log.note)
                nodes.assemble(range(recipe.clients), max(recipe.deploy.min_cohort, 1))
                fed = Federation(experiment, State(experiment), ledger, buffers, nodes, concurrent=recipe.clients)
                yield fed
                if fed.state.round == recipe.rounds:
                    nodes.hand_out(fed.state.served())

    return federation


class LogCallback(RunCallback):
    """Prints the progress of a run as lines for a log."""

    def __init__(self) -> None:
        self._rounds, self._headline = 0, find_metric("accuracy")

    def say(self, text: str) -> None:
        print(f"fedloom: {text}", flush=True)

    def run_started(self, experiment: Experiment, folder: Path, rounds_done: int) -> None:
        self._rounds, self._headline = experiment.recipe.rounds, find_metric(experiment.recipe.headline)
        resumed = f", continuing after round {rounds_done}" if rounds_done else ""
        self.say(
            f"{experiment.program.method} on {experiment.recipe.clients} clients, recipe {experiment.recipe.digest()}{resumed}"
        )

    def round_ended(self, line: dict[str, Any]) -> None:
        loss = "–" if line["train_loss"] is None else f"{line['train_loss']:.4f}"
        name = f"test_{self._headline.name}"
        test = f", test {_text(self._headline, line[name])}" if name in line else ""
        lost = "".join(f", lost client {k}: {why}" for k, why in line.get("lost_clients", {}).items())
        self.say(f"round {line['round']}/{self._rounds}: loss {loss}{test}, {line['seconds']:.1f} s{lost}")

    def note(self, text: str) -> None:
        self.say(text)


def _text(metric: Metric, value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{metric.text(value)} %" if metric.format == "percent" else metric.text(value)
