"""Secure aggregation: the sums are right, and a method that needs more than sums is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, grid, serve
from secret import CLOSE, FIELDS, apart, plain, secure, vectors

import fedloom as fl
from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.deploy.secagg.quorum import least_sites, share_counts
from fedloom.deploy.site.worker import SiteWorker
from fedloom.errors import FedloomError
from fedloom.recipe import SecAgg, recipe


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SiteWorker._latest = None


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {}),
        ("scaffold + fn", {"weighting": "samples"}),
        ("scaffold", {"weighting": "uniform", "fraction": 0.75}),
        ("fedrep + prox", {"model": "mlp", "rounds": 1}),
        ("feddyn", {"weighting": "uniform"}),
        ("norm(kind=bn)", {"model": "cnn", "rounds": 1}),  # statistics in the sum
        ("server-data", {}),
    ],
)
def test_a_masked_federation_ends_with_the_weights_of_a_run(method: str, more: dict[str, Any], tmp_path: Path) -> None:
    alone = fl.run(plain(method=method, **more), out=str(tmp_path / "alone"))
    together = serve(secure({"method": method, **more}), tmp_path / "together")
    assert together.summary["lost"] == 0
    assert apart(alone, together) < CLOSE
    for ours, theirs in zip(together.rounds, alone.rounds, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-4)
    personal = alone.summary.get("personal_accuracy")
    assert together.summary.get("personal_accuracy") == (personal and pytest.approx(personal, abs=0.01))


def test_one_round_is_off_by_half_a_unit_a_client(tmp_path: Path) -> None:
    for span in (16.0, 2.0**14):
        fields = {"method": "fedavg", "rounds": 1}
        alone = fl.run(plain(**fields), out=str(tmp_path / f"alone-{span}"))
        together = serve(secure(fields, clipping_range=span), tmp_path / f"together-{span}")
        largest = max(float(w.abs().max()) for w in alone.weights.values())
        single = 4 * torch.finfo(torch.float32).eps * largest  # both add up in single precision
        assert apart(alone, together) <= 4 / 2 * span / 2**30 + single


def test_masks_change_nothing_so_the_same_recipe_gives_the_same_bits(tmp_path: Path) -> None:
    seen: list[dict[int, np.ndarray]] = []
    runs = []
    for turn in ("a", "b"):
        package = application(FIELDS, tmp_path / turn / "app")
        nodes = grid(package, tmp_path / turn, 4)
        runs.append(serve_app(read(package / "server_app.py"), Settings(out=str(tmp_path / turn / "run")), nodes))
        seen.append(vectors(nodes, "1"))
    assert runs[0].summary["digest"] == runs[1].summary["digest"]
    for node, vector in seen[0].items():
        assert (vector == seen[1][node]).mean() < 0.01


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("nova", "nova aggregates uploads in its own way"),
        ("fedexp", "exp aggregates uploads in its own way"),
        ("feddc", "feddc aggregates uploads in its own way"),
        ("median", "median aggregates"),
        ("trimmed", "trimmed aggregates"),
        ("fedavg + clipped", "clipped aggregates"),
        ("fn + dp(noise=0)", "dp aggregates"),
        ("fnr", "fnr asks clients a second time"),
        ("feddf", "feddf trains on at the server"),
        ("fedgen", "fedgen lets clients send more than weights"),
        ("fedftg", "fedftg lets clients send more than weights"),
        ("feddyn", "feddyn adds up all clients' weights alike"),
        ("sphere(calibrate=true)", "sphere asks every client for sums over its data, which are not masked"),
    ],
)
def test_what_needs_more_than_a_sum_is_refused_by_name(method: str, reason: str, tmp_path: Path) -> None:
    data = {"name": "digits", "public": 0.1, "validation": 0.1}
    with pytest.raises(FedloomError) as error:
        application(FIELDS | {"method": method, "data": data, "model": "mlp"}, tmp_path / "app")
    assert str(error.value).startswith(f"deploy.secure_aggregation: {reason}")
    assert not (tmp_path / "app").exists()


def test_a_part_of_your_own_is_refused_until_it_says_that_sums_will_do(tmp_path: Path) -> None:
    class Kept(fl.Part):
        """Keeps the mean of what clients add."""

        def server_state(self, w: Any, task: Any) -> Any:
            return {"seen": torch.zeros(3)}

        def uploads(self, w: Any, task: Any) -> Any:
            return {"told": torch.zeros(3)}

        def after_training(self, client: Any) -> None:
            client.upload["told"] = torch.full((3,), float(client.samples))

        def after_aggregation(self, server: Any) -> None:
            server.state["seen"] = server.mean(server.extras("told"))

        def log(self, server: Any) -> Any:
            return {"seen": server.state["seen"].tolist()}

    fields = secure({"method": "kept", "rounds": 1}, clipping_range=2000.0)
    with pytest.raises(FedloomError, match="kept lets clients send more than weights, which takes more than the sums"):
        serve(fields, tmp_path / "refused")
    Kept.sums = "shares"
    means = serve(fields, tmp_path / "masked").rounds[0]["seen"]
    del fields["deploy"]["secure_aggregation"]
    assert means == pytest.approx(serve(fields, tmp_path / "plain").rounds[0]["seen"], abs=1e-3)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"deploy": {"secure_aggregation": 3}}, "deploy.secure_aggregation: must be true, false, or fields of it"),
        ({"deploy": {"secure_aggregation": {"num_shares": 4}}}, "deploy.secure_aggregation.num_shares: must be odd"),
        (
            {"deploy": {"secure_aggregation": {"reconstruction_threshold": 0.5}}},
            "deploy.secure_aggregation.reconstruction_threshold: must be greater than 0.5",
        ),
        ({"deploy": {"secure_aggregation": {"clipping": 1}}}, "did you mean clipping_range?"),
        ({"deploy": {"secure_aggregation": {"min_clients": 1}}}, "min_clients: must be greater than or equal to 2"),
        (
            {"deploy": {"secure_aggregation": {"min_clients": 2}}},
            "min_clients is 2; of a round's 4 clients, 3 are needed",
        ),
        (
            {"deploy": {"secure_aggregation": {"min_clients": 5}}},
            "min_clients is 5; of a round's 4 clients, 3 are needed",
        ),
        ({"deploy": {"secure_aggregation": {"num_shares": 3}}}, "num_shares is 3 of a round's 4 clients"),
        (
            {"deploy": {"secure_aggregation": {"num_shares": 3, "authenticated": False, "min_clients": 4}}},
            "min_clients is 4; of a round's 4 clients, 2 are needed in any case (reconstruction_threshold) and 3 can be",
        ),
        ({"deploy": {"secure_aggregation": True}, "fraction": 0.25}, "a round has 1 client"),
        (
            {"deploy": {"secure_aggregation": True}, "analyze_every": 1},
            "analyze_every needs the updates of single clients",
        ),
    ],
)
def test_impossible_settings_are_one_sentence(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(FedloomError) as error:
        application(FIELDS | fields, tmp_path / "app")
    assert reason in str(error.value)


def test_secure_aggregation_is_part_of_what_a_site_agrees_to() -> None:
    off, on = recipe(plain()), recipe(FIELDS)
    assert off.digest() != on.digest()
    assert off.digest() == recipe(plain(deploy={"secure_aggregation": False, "timeout": 9})).digest()
    for field in ({"clipping_range": 8.0}, {"min_clients": 4}, {"authenticated": False}):
        assert on.digest() != recipe(secure(**field)).digest()
    assert on.digest() == recipe(secure(min_clients=None, authenticated=True)).digest()
    assert recipe({**on.model_dump()}).digest() == on.digest()


@pytest.mark.parametrize("cohort", range(2, 40))
def test_half_of_the_shares_never_bring_a_secret_back(cohort: int) -> None:
    for threshold in (0.51, 0.67, 1.0):
        for number in (None, 3, 7):
            shares, least = share_counts(SecAgg(num_shares=number, reconstruction_threshold=threshold), cohort)
            assert shares / 2 < least <= shares


@pytest.mark.parametrize("size", range(2, 40))
def test_a_sum_is_of_the_threshold_of_a_full_round_or_more(size: int) -> None:
    for threshold in (0.51, 0.67, 1.0):
        settings = SecAgg(reconstruction_threshold=threshold)
        least = least_sites(settings, size)
        assert 2 * least > size  # two sums of one round have a site in common
        assert all(share_counts(settings, cohort)[1] <= least for cohort in range(least, size + 1))
        assert least_sites(SecAgg(reconstruction_threshold=threshold, min_clients=size), size) == size
