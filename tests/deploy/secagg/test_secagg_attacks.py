"""Secure aggregation against a server that lies: what it could learn a site's upload by is refused by the site's node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, credentials, grid, site_keys
from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage
from lying import FEDERATION, FIELDS, Liar, Puppet, Refused
from secret import silent

from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.server import serve
from fedloom.deploy.keys.certs import make
from fedloom.deploy.keys.roster import Roster, Signer
from fedloom.deploy.secagg.agreement import KEYS
from fedloom.deploy.site.worker import SiteWorker
from fedloom.engine.server.cohort import sample_clients

ALL = list(range(10))
VICTIM = 4


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    SiteWorker._latest = None
    yield
    SiteWorker._latest = None


def upload(folder: Path) -> torch.Tensor:
    """The victim's weights after round 1, as it would send them without masks."""
    plain = Liar(folder)
    node = plain.nodes.configs[100 + VICTIM]
    package = application(FIELDS, folder / "open")
    plain.nodes.app, plain.recipe = grid(package, folder / "open", 10).app, read(package / "server_app.py")
    node["state"] = str(folder / "open" / "sites")
    plain.join(VICTIM)
    order: dict[str, Any] = {"kind": "task", "task": "train", "federation": FEDERATION, "arguments": {"round": 1}}
    order |= {"into": 1, "keep": [], "base": None, "at": 0}
    down = {name: tensor for name, tensor in plain.down(1).items() if name != "round"}
    weights: torch.Tensor = plain.say(VICTIM, order, down=down)[2]["up"]["w"]
    return weights


def test_a_server_that_invents_the_other_nodes_sees_an_upload_if_keys_are_not_authenticated(tmp_path: Path) -> None:
    """What `authenticated: false` does not protect against; and the proof that the attack below is one."""
    server = Liar(tmp_path / "masked", {"authenticated": False})
    shown = server.show(VICTIM, ALL)
    assert float((shown - upload(tmp_path / "plain")).abs().max()) < 1e-6
    assert float((shown - server.experiment.program.initial[: len(shown)]).abs().max()) > 1e-3


def test_a_server_that_invents_the_other_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="keys of client 0 that its site did not sign for this round"):
        Liar(tmp_path).show(VICTIM, ALL)


@pytest.mark.parametrize("settings", [{}, {"authenticated": False}])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_cohort_below_the_recipes_floor_is_refused(size: int, settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"asked to mask among {size} nodes, and the recipe's rounds have 7 to 10"):
        Liar(tmp_path, settings or True).show(VICTIM, [VICTIM, *[k for k in ALL if k != VICTIM][: size - 1]])


def test_the_floor_is_the_recipes_own_where_it_says_one(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="among 8 nodes, and the recipe's rounds have 9 to 10"):
        Liar(tmp_path, {"min_clients": 9}).show(VICTIM, ALL[:8])


def change(**changes: Any) -> Callable[[Liar], dict[str, Any]]:
    return lambda server: server.terms() | changes


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (change(cohort=[[k, 100 + min(k, 8)] for k in ALL]), "its terms name a client or node twice"),
        (change(cohort=[[min(k, 8), 100 + k] for k in ALL]), "its terms name a client or node twice"),
        (change(cohort=[[k, 200 + k] for k in ALL]), "round that it is not in"),
        (change(cohort=[[k, 100 + k] for k in range(1, 11)]), "with client 10, which round 1 does not draw"),
        (change(cohort=[[k, 100.0 + k] for k in ALL]), "its terms.cohort.0.1 is 100.0"),
        (change(cohort=None), "its terms.cohort is None"),
        (change(cohort={"4": 104}), "its terms.cohort is {'4': 104}"),
        (change(round=4), "mask in round 4, and the recipe has 3"),
        (change(round=0), "mask in round 0, and the recipe has 3"),
        (change(round=True), "its terms.round is True"),
        (change(samples=-1), "its terms.samples is -1"),
        (change(federation="../../one"), "its terms.federation is '../../one'"),
        (change(federation="fedcba9876543210"), "has not joined this federation"),
        (change(model=3), "its terms.model is 3"),
    ],
)
def test_a_round_that_is_not_one_of_the_recipes_is_refused(
    terms: Callable[[Liar], Any], words: str, tmp_path: Path
) -> None:
    server = Liar(tmp_path)
    with pytest.raises(Refused, match=words):
        server.setup(VICTIM, terms(server))


def test_a_cohort_that_the_seed_does_not_draw_is_refused(tmp_path: Path) -> None:
    server = Liar(tmp_path, clients=12, fraction=0.5)
    members = sample_clients(server.recipe, 1)
    stranger = next(k for k in range(12) if k not in members)
    chosen = [*members[:-1], stranger]
    server.setup(members[0], server.terms(members))
    with pytest.raises(Refused, match=f"mask with client {stranger}, which round 1 does not draw"):
        server.setup(members[0], server.terms(chosen))


@pytest.mark.parametrize(
    ("number", "value"), [(Key.THRESHOLD, 2), (Key.SHARE_NUMBER, 2), (Key.SAMPLE_NUMBER, 2), (Key.THRESHOLD, 7.0)]
)
def test_numbers_of_shares_are_the_nodes_own(number: str, value: Any, tmp_path: Path) -> None:
    server = Liar(tmp_path)
    with pytest.raises(Refused, match=f"mask with {number} {value}, and the recipe says|failed \\(TypeError\\)"):
        server.setup(VICTIM, server.terms(), **{number: value})


class TestKeys:
    """What a node is sent as its peers' public keys."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Liar:
        return Liar(tmp_path)

    @pytest.fixture
    def keys(self, server: Liar) -> dict[int, list[bytes]]:
        return {client: server.setup(client, server.terms()) for client in ALL}

    def test_signed_ones_are_accepted(self, server: Liar, keys: dict[int, list[bytes]]) -> None:
        assert set(server.share(VICTIM, keys)) == set(ALL) - {VICTIM}

    def test_one_invented_key_among_honest_ones_is_refused(self, server: Liar, keys: dict[int, list[bytes]]) -> None:
        keys[7] = [*Puppet(7, 107).public, keys[7][2]]
        with pytest.raises(Refused, match="keys of client 7 that its site did not sign"):
            server.share(VICTIM, keys)

    def test_a_signature_of_a_key_that_is_not_in_the_roster_is_refused(
        self, server: Liar, keys: dict[int, list[bytes]], tmp_path: Path
    ) -> None:
        make(tmp_path / "own", ["site-7"], ["127.0.0.1"])
        puppet = Puppet(7, 107)
        content = {"client": 7, "keys": [key.hex() for key in puppet.public], "terms": server.terms()}
        keys[7] = [*puppet.public, Signer.read(tmp_path / "own" / "site-7.key").sign(KEYS, content)]
        with pytest.raises(Refused, match="keys of client 7 that its site did not sign"):
            server.share(VICTIM, keys)

    @pytest.mark.parametrize("last", [b"", b"\x00" * 96])
    def test_no_signature_is_no_signature(self, last: bytes, server: Liar, keys: dict[int, list[bytes]]) -> None:
        keys[7][2] = last
        with pytest.raises(Refused, match="keys of client 7 that its site did not sign"):
            server.share(VICTIM, keys)
        keys[7] = keys[7][:2]
        with pytest.raises(Refused, match="no signed keys of client 7"):
            server.share(VICTIM, keys)

    def test_a_client_does_not_stand_for_another(self, server: Liar, keys: dict[int, list[bytes]]) -> None:
        keys[7] = keys[8]
        with pytest.raises(Refused, match="keys of client 7 that its site did not sign"):
            server.share(VICTIM, keys)

    def test_keys_of_an_earlier_round_are_refused(self, server: Liar, keys: dict[int, list[bytes]]) -> None:
        later = {client: server.setup(client, server.terms(round=2)) for client in ALL}
        later[7] = keys[7]
        with pytest.raises(Refused, match="keys of client 7 that its site did not sign"):
            server.share(VICTIM, later)

    def test_its_own_keys_are_not_replaced(self, server: Liar, keys: dict[int, list[bytes]]) -> None:
        keys[VICTIM] = [*Puppet(VICTIM, 104).public, keys[VICTIM][2]]
        with pytest.raises(Refused, match="other keys as its own than it sent"):
            server.share(VICTIM, keys)
        del keys[VICTIM]
        with pytest.raises(Refused, match="did not find its own keys"):
            server.share(VICTIM, keys)

    def test_too_few_are_refused(self, server: Liar, keys: dict[int, list[bytes]]) -> None:
        with pytest.raises(Refused, match="keys of 6 nodes, and 7 to 10 are needed"):
            server.share(VICTIM, {client: keys[client] for client in ALL[:6]})

    def test_nodes_outside_of_the_round_are_refused(self, server: Liar, keys: dict[int, list[bytes]]) -> None:
        del keys[7]
        with pytest.raises(Refused, match="keys of node 111, which is not in the round"):
            server.share(VICTIM, keys | {11: keys[8]})


@pytest.mark.parametrize("what", ["samples", "model", "cohort", "info", "initial"])
def test_nodes_that_were_told_different_things_do_not_mask_together(what: str, tmp_path: Path) -> None:
    """Else the server makes the others' part of a sum vanish: by a share of too much, or a model that nobody learns from."""
    server = Liar(tmp_path)
    honest = server.terms()
    terms = dict(honest)
    if what == "samples":
        terms["samples"] = 2**52
    if what == "model":
        terms["model"] = "0" * 64
    if what == "cohort":
        terms["cohort"] = honest["cohort"][:8]
    keys = {VICTIM: server.setup(VICTIM, honest)}
    for client in ALL:
        if client != VICTIM and client in dict(terms["cohort"]):
            if what == "info":
                server.join(client, samples=1)
            if what == "initial":
                server.join(client, torch.zeros_like(server.experiment.program.initial))
            keys[client] = server.setup(client, terms)
    with pytest.raises(Refused, match="keys of client 0 that its site did not sign for this round"):
        server.share(VICTIM, {client: keys[client] for client in sorted(keys)})


def masked_up_to(server: Liar, victim: int = VICTIM) -> dict[int, bytes]:
    """What the other nodes sent to a victim."""
    keys = {client: server.setup(client, server.terms()) for client in ALL}
    sent = {client: server.share(client, keys) for client in ALL}
    return {client: sent[client][victim] for client in ALL if client != victim}


def test_a_node_does_not_train_another_model_than_it_signed(tmp_path: Path) -> None:
    server = Liar(tmp_path)
    sent = masked_up_to(server)
    down = {name: tensor.clone() for name, tensor in server.down(1).items()}
    down["w"].zero_()
    with pytest.raises(Refused, match="another model than the one that its peers were told of"):
        server.collect(VICTIM, sent, down=down)


def test_a_node_does_not_train_for_another_round_than_it_signed(tmp_path: Path) -> None:
    server = Liar(tmp_path)
    sent = masked_up_to(server)
    with pytest.raises(Refused, match="another round than round 1"):
        server.collect(VICTIM, sent, round=2)
    server.federation = "fedcba9876543210"
    server.join(VICTIM)
    with pytest.raises(Refused, match="another round than round 1"):
        server.collect(VICTIM, sent)


def test_a_node_that_is_joined_anew_after_it_signed_does_not_train(tmp_path: Path) -> None:
    server = Liar(tmp_path)
    sent = masked_up_to(server)
    server.join(VICTIM, samples=1)
    with pytest.raises(Refused, match="joined again since it signed"):
        server.collect(VICTIM, sent)


def test_a_node_masks_with_no_fewer_than_the_floor(tmp_path: Path) -> None:
    server = Liar(tmp_path)
    sent = masked_up_to(server)
    with pytest.raises(Refused, match="has 5 nodes to mask with, and 6 are needed"):
        server.collect(VICTIM, {client: sent[client] for client in list(sent)[:5]})


class TestSums:
    """Whose sum a server may have unmasked."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Liar:
        made = Liar(tmp_path)
        made.up_to_masks(ALL)
        return made

    def test_one_that_enough_sites_signed_is_unmasked(self, server: Liar) -> None:
        signed = {client: server.confirm(client, ALL[:8]) for client in ALL[:7]}
        shares = server.unmask(0, ALL[:8], ALL[8:], signed)
        assert set(shares) == set(ALL)

    def test_a_sum_of_few_is_refused(self, server: Liar) -> None:
        for listed in ([VICTIM], [VICTIM, 5], ALL[:6]):
            with pytest.raises(Refused, match=f"confirm a sum of {len(listed)} sites, and 7 are needed"):
                server.confirm(VICTIM, listed)
            gone = [client for client in ALL if client not in listed]
            with pytest.raises(Refused, match=f"unmask a sum of {len(listed)} sites, and 7 are needed"):
                server.unmask(VICTIM, listed, gone)

    def test_a_list_without_the_node_or_with_others_is_refused(self, server: Liar) -> None:
        for listed in ([0, 1, 2, 3, 5, 6, 7], [*ALL, 11], [*ALL, 4], [*ALL, -1]):
            with pytest.raises(Refused, match="a sum without it, or with a client that it does not mask with"):
                server.confirm(VICTIM, listed)

    def test_a_node_confirms_one_sum_a_round(self, server: Liar) -> None:
        server.confirm(VICTIM, ALL)
        with pytest.raises(Refused, match=r"was in a sum of round 1 of this recipe with clients 0, 1, .*, 9, and"):
            server.confirm(VICTIM, ALL[:9])

    def test_two_stories_have_no_sum(self, server: Liar) -> None:
        """Half of the nodes hear that client 9 is gone: its key from them and its seed from the others would show it."""
        one, other = ALL, ALL[:9]
        signed = {client: server.confirm(client, one if client < 5 else other) for client in ALL[:9]}
        for client, listed in ((0, one), (5, other)):
            with pytest.raises(Refused, match=r"shown [45] signatures of sites that confirm the sum, and 7 are needed"):
                server.unmask(client, listed, sorted(set(ALL) - set(listed)), signed)

    def test_another_sum_than_the_confirmed_one_is_refused(self, server: Liar) -> None:
        signed = {client: server.confirm(client, ALL) for client in ALL}
        with pytest.raises(Refused, match="another sum than it confirmed"):
            server.unmask(0, ALL[:8], ALL[8:], signed)

    def test_signatures_are_needed_of_different_sites(self, server: Liar) -> None:
        first = server.confirm(0, ALL)
        server.confirm(1, ALL)
        with pytest.raises(Refused, match="shown 1 signatures"):
            server.unmask(1, ALL, signed=dict.fromkeys(ALL, first))
        with pytest.raises(Refused, match="shown 0 signatures"):
            server.unmask(1, ALL, signed=dict.fromkeys(ALL, "30" * 104))
        with pytest.raises(Refused, match=r"its signed\.0\.1 is 'not hexadecimal'"):
            server.unmask(1, ALL, signed=dict.fromkeys(ALL, "not hexadecimal"))

    def test_a_sum_that_nobody_confirmed_is_refused(self, server: Liar) -> None:
        with pytest.raises(Refused, match="another sum than it confirmed"):
            server.unmask(0, ALL)

    def test_both_secrets_of_a_node_are_refused(self, server: Liar) -> None:
        signed = {client: server.confirm(client, ALL) for client in ALL}
        with pytest.raises(Refused, match="both secrets of a node"):
            server.unmask(0, ALL, [VICTIM], signed)
        server.unmask(0, ALL, signed=signed)
        with pytest.raises(Refused, match=r"failed \(ValueError\)"):  # what unmasks a sum is given once
            server.unmask(0, ALL, signed=signed)


def test_a_round_is_repeated_over_the_same_sites_only_also_in_a_new_federation(tmp_path: Path) -> None:
    """The difference of two sums of one round over all and all but one would be the one's upload."""
    server = Liar(tmp_path)
    server.up_to_masks(ALL)
    server.confirm(VICTIM, ALL)
    server.federation = "fedcba9876543210"
    for client in ALL:
        server.join(client)
    server.up_to_masks(ALL)
    server.confirm(VICTIM, ALL)
    with pytest.raises(Refused, match="was in a sum of round 1 of this recipe with clients 0, 1"):
        server.confirm(VICTIM, ALL[:9])
    server.up_to_masks(ALL, round=2)
    server.confirm(VICTIM, ALL[:9])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"roster": None}, "node config: roster or key is missing; secure aggregation needs roster=FILE"),
        ({"key": None}, "node config: roster or key is missing"),
        (
            {"key": str(site_keys(10) / "site-3.key")},
            "one that the roster lists for client 3, and this node is client 4",
        ),
        ({"roster": str(site_keys(9) / "roster.json")}, "one that the roster does not list, and this node is client 4"),
        ({"roster": "missing.json"}, r"failed \(FedloomError\); the node's own log says why"),
    ],
)
def test_a_node_without_its_place_in_a_roster_does_not_join(
    config: dict[str, str | None], words: str, tmp_path: Path
) -> None:
    server = Liar(tmp_path)
    node = server.nodes.configs[100 + VICTIM]
    node |= config
    server.nodes.configs[100 + VICTIM] = {name: value for name, value in node.items() if value is not None}
    with pytest.raises(Refused, match=words):
        server.join(VICTIM)
    with pytest.raises(Refused, match=words):
        server.setup(VICTIM, server.terms())


def test_a_site_with_another_roster_is_named_by_those_that_do_not_know_it(tmp_path: Path) -> None:
    fields = FIELDS | {"clients": 3, "rounds": 1, "deploy": {"timeout": 0.3, "join_timeout": 0.5, "min_cohort": 0}}
    fields["deploy"]["secure_aggregation"] = {"reconstruction_threshold": 1.0}
    package = application(fields, tmp_path / "app")
    nodes = grid(package, tmp_path, 3)
    listed = Roster.read(credentials(3, 0)["roster"]).entries
    swapped = {0: listed[0], 1: listed[2], 2: listed[1]}
    Roster.of({client: (entry.name, entry.key) for client, entry in swapped.items()}).write(tmp_path / "other.json")
    nodes.configs[100]["roster"] = str(tmp_path / "other.json")
    run = serve(read(package / "server_app.py"), Settings(out=str(tmp_path / "run")), nodes)
    reasons = run.rounds[0]["lost_clients"]
    assert "got keys of client 1 that its site did not sign" in reasons["0"]
    assert "got keys of client 0 that its site did not sign" in reasons["1"]
    assert run.rounds[0]["train_loss"] is None


def test_sites_may_run_a_recipe_again_as_long_as_the_same_ones_are_in_its_sums(tmp_path: Path) -> None:
    fields = FIELDS | {"clients": 4, "rounds": 2, "deploy": {"timeout": 0.3, "join_timeout": 0.5, "min_cohort": 0}}
    fields["deploy"]["secure_aggregation"] = True
    package = application(fields, tmp_path / "app")
    nodes, given = grid(package, tmp_path, 4), read(package / "server_app.py")
    first, second = (serve(given, Settings(out=str(tmp_path / name)), nodes) for name in ("first", "second"))
    assert first.summary["digest"] == second.summary["digest"]
    assert second.summary["lost"] == 0
    silent(Stage.COLLECT_MASKED_VECTORS)(nodes)
    third = serve(given, Settings(out=str(tmp_path / "third")), nodes)
    assert third.rounds[0]["lost"] == 0
    assert "was in a sum of round 2 of this recipe with clients 0, 1, 2, 3" in third.rounds[1]["lost_clients"]["0"]
    assert third.rounds[1]["lost"] == 4
