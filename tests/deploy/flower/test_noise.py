"""Noise that hides something: of the seed in a simulation, of the operating system's randomness on nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import serve

import fedloom as fl
from fedloom.deploy.site.worker import SiteWorker
from fedloom.methods.api.context import ClientContext
from fedloom.rng import secret_normal, torch_generator
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import Run

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "iid",
    "clients": 4,
    "model": "mlp",
    "method": "dp(clip=1e-6, noise=1e4)",  # updates of no length: what is left of a round is its noise
    "rounds": 1,
    "fraction": 0.5,
    "eval_every": 0,
}
DEVIATION = 1e-6 * 1e4 / 2  # noise clip / m


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SiteWorker._latest = None


def noise(run: Run) -> torch.Tensor:
    """What a run added to its first weights, as one vector."""
    experiment = RunFolder(run.path).experiment()
    final = experiment.program.initial.clone()
    experiment.program.layout.read(run.weights, final)
    return (final - experiment.program.initial)[: experiment.program.layout.shared]


def of_seed(count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch_generator(0, "dp", 1))


def test_noise_on_nodes_is_not_the_seeds_and_is_new_in_every_run(tmp_path: Path) -> None:
    one, two = (noise(serve(FIELDS, tmp_path / name)) for name in ("one", "two"))
    alone = noise(fl.run(FIELDS, out=str(tmp_path / "alone")))
    for vector in (one, two, alone):
        assert float(vector.std()) == pytest.approx(DEVIATION, rel=0.05)
        assert abs(float(vector.mean())) < 5 * DEVIATION / len(vector) ** 0.5
    known = of_seed(len(alone))
    assert correlation(alone, known) > 0.99
    for a, b in ((one, known), (two, known), (one, two)):
        assert abs(correlation(a, b)) < 0.1


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def test_on_nodes_epsilon_does_not_count_on_cohorts_that_every_site_can_compute(tmp_path: Path) -> None:
    fields = FIELDS | {"method": "dp(clip=0.5, noise=8, delta=0.001)", "clients": 10, "fraction": 0.1}
    together = serve(fields, tmp_path / "together").summary
    alone = fl.run(fields, out=str(tmp_path / "alone")).summary
    assert together["epsilon"] > alone["epsilon"]
    assert list(together["privacy"]["bounds"]) == ["whoever takes part, exact Gaussian"]
    assert "every site knows the seed" in together["privacy"]["note"]


class Hushed(fl.Part):
    """Clients blur what they send."""

    def after_training(self, client: ClientContext) -> None:
        client.weights.add_(client.noise(len(client.weights)), alpha=0.01)


def test_a_client_that_adds_noise_draws_it_from_the_seed_in_simulation_and_not_on_a_node(tmp_path: Path) -> None:
    fields = FIELDS | {"method": "hushed", "lr": 1e-6}
    alone = [noise(fl.run(fields, out=str(tmp_path / name))) for name in ("one", "two")]
    assert torch.equal(*alone)
    together = noise(serve(fields, tmp_path / "together"))
    assert float(together.std()) == pytest.approx(float(alone[0].std()), rel=0.1)
    assert abs(correlation(together, alone[0])) < 0.1


def test_secret_numbers_are_normal_and_use_all_bits_that_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(count: int, real: Any = os.urandom) -> bytes:
        asked.append(count)
        return bytes(real(count))

    monkeypatch.setattr("fedloom.rng.os.urandom", counted)
    for count in (0, 1, 2, 7, (1 << 20) + 3):
        asked.clear()
        noise = secret_normal(count)
        assert noise.shape == (count,) and noise.dtype == torch.float32 and bool(noise.isfinite().all())
        assert sum(asked) >= 8 * count
    many = np.sort(noise.double().numpy())
    from scipy.stats import norm

    steps = np.arange(1, len(many) + 1) / len(many)
    assert np.abs(norm.cdf(many) - steps).max() < 2 / len(many) ** 0.5  # Kolmogorov: 1.36 in 95 % of cases, 2 in 99.9 %
