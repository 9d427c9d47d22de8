"""A client's number belongs to the site that holds its key, whoever else claims to be that client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, confirmed, grid
from flwr.app import Context, Message

import fedloom as fl
from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.app_template import write_sites
from fedloom.deploy.flower.server import serve
from fedloom.deploy.keys.certs import make
from fedloom.deploy.keys.identity import KeyBindings, proof
from fedloom.deploy.keys.roster import Roster
from fedloom.deploy.messages.schema import Challenge, SiteFacts, parse_order, parse_reply
from fedloom.deploy.messages.wire import unpack
from fedloom.deploy.site.config import NodeConfig
from fedloom.deploy.site.worker import SiteWorker
from fedloom.errors import FedloomError
from fedloom.recipe import recipe
from fedloom.runs.run import Run

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "iid",
    "clients": 3,
    "model": "linear",
    "rounds": 4,
    "fraction": 1.0,
    "lr": 0.05,
    "eval_every": 0,
    "deploy": {"timeout": 5, "join_timeout": 3},
}
VICTIM = 1  # the client that somebody else wants to be
NUMBERS = [99, 103]  # of the node that wants to: below and above all others


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SiteWorker._latest = None


class Federation:
    """An app, its nodes, and what may happen to them on the way."""

    def __init__(self, folder: Path, roster: bool = False, data: str = "split") -> None:
        self.folder = folder
        self.package = application(FIELDS, folder / "app", data)  # type: ignore[arg-type]
        self.nodes = grid(self.package, folder, 3)
        self.settings: dict[str, Any] = {"out": str(folder / "run"), "data": data, "scale": 16.0}
        if roster:
            self.settings["roster"] = str(self.keys(self.nodes.configs, folder / "keys"))
        if data == "sites":
            for client, path in enumerate(write_sites(folder / "files", recipe(FIELDS))):
                self.nodes.configs[100 + client]["data"] = str(path)

    def keys(self, configs: dict[int, dict[str, Any]], folder: Path) -> Path:
        """A key for each of these nodes; the roster of them."""
        names = [f"site-{config['partition-id']}" for config in configs.values()]
        make(folder, names, ["127.0.0.1"])
        listed = {}
        for config, name in zip(configs.values(), names, strict=True):
            config["key"] = str(folder / f"{name}.key")
            listed[config["partition-id"]] = name, (folder / f"{name}.pub").read_text()
        Roster.of(listed).write(folder / "sites.json")
        return folder / "sites.json"

    def stranger(self, number: int, **config: Any) -> None:
        """A node that claims to be the victim, listed by the order of numbers, with a state folder of its own."""
        twin = {**self.nodes.configs[100 + VICTIM], "name": "stranger", "state": str(self.folder / "strange"), **config}
        if "key" in twin and "key" not in config:
            del twin["key"]
        self.nodes.configs = dict(sorted({**self.nodes.configs, number: twin}.items()))

    def in_round(self, number: int, change: Callable[[], None]) -> None:
        """Change something as soon as node 100 has answered the order of a round."""

        def tamper(reply: Message, context: Context) -> Message:
            if reply.metadata.group_id == str(number):
                del self.nodes.tamper[100]
                change()
            return reply

        self.nodes.tamper[100] = tamper

    def serve(self, **settings: Any) -> Run:
        given, made = read(self.package / "server_app.py"), Settings(**self.settings, **settings)
        return serve(given, confirmed(given, made, self.nodes) if made.data == "sites" else made, self.nodes)

    def worked(self) -> set[int]:
        """The nodes that were asked to train."""
        return {node for node, reply in self.nodes.sent if reply.metadata.message_type == "train"}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_node_never_displaces_the_one_that_is_there(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Federation(tmp_path)
    made.in_round(2, lambda: made.stranger(number))
    run = made.serve()
    assert run.summary["lost"] == 0
    assert made.worked() == {100, 101, 102}
    assert f"node {number} did not join: it claims to be client {VICTIM}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_nobody_takes_the_place_of_a_site_that_is_away(number: int, tmp_path: Path) -> None:
    made = Federation(tmp_path)

    def swap() -> None:
        made.stranger(number)
        del made.nodes.configs[100 + VICTIM]

    made.in_round(2, swap)
    run = made.serve()
    assert number not in made.worked()
    assert run.rounds[-1]["lost_clients"] == {str(VICTIM): "no node that holds its key is connected"}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_resumed_server_knows_whose_a_client_is(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Federation(tmp_path)

    class Killed(BaseException): ...

    pull = made.nodes.pull_messages

    def dying(numbers: Iterable[str]) -> list[Message]:
        replies = pull(numbers)
        if any(reply.metadata.group_id == "3" for reply in replies):
            raise Killed
        return replies

    made.nodes.pull_messages = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        made.serve()
    made.nodes.pull_messages = pull  # type: ignore[method-assign]
    made.stranger(number)
    run = made.serve(resume=True)
    assert number not in made.worked()
    assert run.summary["digest"] == fl.run(FIELDS, out=str(tmp_path / "alone")).summary["digest"]
    assert "is not the one that joined first (client 1 site-1)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_site_that_is_started_again_under_another_number_is_back(tmp_path: Path) -> None:
    made = Federation(tmp_path)

    def restart() -> None:
        made.nodes.configs[107] = made.nodes.configs.pop(100 + VICTIM)

    made.in_round(2, restart)
    run = made.serve()
    assert 107 in made.worked()
    assert run.rounds[-1]["lost"] == 0


@pytest.mark.parametrize("data", ["split", "sites"])
@pytest.mark.parametrize("number", NUMBERS)
def test_with_a_roster_even_the_first_to_come_must_hold_the_sites_key(data: str, number: int, tmp_path: Path) -> None:
    made = Federation(tmp_path, roster=True, data=data)
    made.stranger(number)
    run = made.serve()
    assert run.summary["lost"] == 0
    assert made.worked() == {100, 101, 102}


def test_a_listed_sites_key_does_not_open_another_sites_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Federation(tmp_path, roster=True)
    made.stranger(99, key=made.nodes.configs[102]["key"])
    assert made.serve().summary["lost"] == 0
    assert made.worked() == {100, 101, 102}
    assert "is not the roster's for it" in capsys.readouterr().out


def test_what_one_node_signed_is_of_no_use_to_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Federation(tmp_path, roster=True)
    made.stranger(103)

    def relay(reply: Message, context: Context) -> Message:
        content, _ = unpack(reply.content)
        overheard = [unpack(other.content)[0] for node, other in made.nodes.sent if node == 100 + VICTIM]
        reports = [one["report"] for one in overheard if "signature" in one.get("report", {})]
        if "report" in content and reports:
            content["report"] = reports[-1]
            reply.content["fedloom"]["json"] = json.dumps(content)  # type: ignore[index]
        return reply

    made.nodes.tamper[103] = relay
    assert made.serve().summary["lost"] == 0
    assert 103 not in made.worked()
    assert "and its signature is wrong" in capsys.readouterr().out


@pytest.fixture
def asked(tmp_path: Path) -> tuple[KeyBindings, NodeConfig, dict[str, str]]:
    node = NodeConfig(VICTIM, "site", state=str(tmp_path / "state"))
    bindings = KeyBindings("0123456789abcdef", "feed")
    return bindings, node, bindings.challenge(7)


def proved(node: NodeConfig, digest: str, number: int, question: dict[str, str]) -> SiteFacts:
    """What a node answers to the question who it is."""
    order = parse_order(json.dumps({"kind": "hello", "digest": digest, **question}))
    assert isinstance(order, Challenge)
    return facts_with(proof(node, digest, number, order))


def facts_with(proof: dict[str, Any]) -> SiteFacts:
    """An answer with this proof, as it is read."""
    inputs = {"kind": "image", "shape": [1, 8, 8], "dtype": "uint8", "scale": 16.0, "vocabulary": 0, "padding": 0}
    data = {"train": 1, "test": 1, "inputs": inputs, "schema_digest": "", "class_names": ["0"]}
    facts = {"name": "", **data, "version": "0"}
    report = parse_reply(json.dumps({"client": VICTIM, "digest": "feed", "report": facts | proof}), SiteFacts).report
    assert isinstance(report, SiteFacts)
    return report


def test_a_proof_counts_once_for_one_node_federation_recipe_and_client(
    asked: tuple[KeyBindings, NodeConfig, dict[str, str]],
) -> None:
    bindings, node, order = asked
    good = proved(node, "feed", 7, order)
    assert bindings.flaw(VICTIM, 7, good) is None
    assert "does not prove" in str(bindings.flaw(VICTIM, 7, good))
    for other in (
        proved(node, "feed", 8, order),
        proved(node, "beef", 7, order),
        proved(NodeConfig(2, state=node.state), "feed", 7, order),
        proved(node, "feed", 7, order | {"nonce": "0" * 32}),
        proved(node, "feed", 7, order | {"federation": "0" * 16}),
    ):
        bindings._nonces[7] = order["nonce"]
        assert "signature is wrong" in str(bindings.flaw(VICTIM, 7, other))


@pytest.mark.parametrize(
    "given",
    [
        *({}, {"key": 1, "signature": 2}, {"key": "", "signature": ""}, {"key": "x" * 10**6}),
        {"key": "ecdsa-sha2-nistp384 AAAA", "signature": "00"},
        {"key": "\ud800", "signature": "\ud800"},
        {"key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE9tJ1q0rjv0Xc1zj0S5c2r4Yb0B0yqkqkqkqkqkqkqk", "signature": "00"},
    ],
)
def test_whatever_is_sent_in_place_of_a_proof_is_a_reason_and_no_error(
    given: dict[str, Any], asked: tuple[KeyBindings, NodeConfig, dict[str, str]]
) -> None:
    try:
        reason = asked[0].flaw(VICTIM, 7, facts_with(given))
    except FedloomError as error:
        reason = str(error)
    assert reason


def test_one_key_is_one_client(asked: tuple[KeyBindings, NodeConfig, dict[str, str]], tmp_path: Path) -> None:
    bindings, node, order = asked
    report = proved(node, "feed", 7, order)
    assert bindings.flaw(VICTIM, 7, report) is None
    bindings.bind(VICTIM, report)
    twin = NodeConfig(2, key=str(tmp_path / "state" / f"client-{VICTIM:06d}.key"))
    again = proved(twin, "feed", 8, bindings.challenge(8))
    assert "is client 1's" in str(bindings.flaw(2, 8, again))


def test_the_run_folder_lists_the_keys_and_a_damaged_list_is_not_carried_on(tmp_path: Path) -> None:
    made = Federation(tmp_path, roster=True)
    run = made.serve()
    bound, listed = Roster.read(run.path / "nodes.json"), Roster.read(made.settings["roster"])
    assert bound.digest == listed.digest
    (run.path / "nodes.json").write_text("{}")
    with pytest.raises(FedloomError, match=r"nodes\.json is damaged"):
        KeyBindings("0123456789abcdef", "feed").keep(run.path / "nodes.json")


def test_a_roster_without_one_of_the_clients_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    made = Federation(tmp_path, roster=True)
    short = {client: (str(client), entry.key) for client, entry in Roster.read(made.settings["roster"]).entries.items()}
    del short[2]
    Roster.of(short).write(Path(made.settings["roster"]))
    with pytest.raises(FedloomError, match="lists no key for client 2"):
        made.serve()
    assert not (tmp_path / "run").exists()
