"""Client-level differential privacy: the sum, the noise, the accountant, and what would leak."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import rdp
from reference import BODY, Weights, cross_entropy, flat, read, square
from scipy.integrate import quad
from scipy.stats import norm
from tiny import BODY_BYTES, MODEL_BYTES, gap, problem, traffic, train

from fedloom import FedloomError, Part
from fedloom.engine.server.cohort import sample_clients
from fedloom.methods import ClientContext
from fedloom.methods.dp import ANY, BERNOULLI, SAMPLED
from fedloom.recipe import recipe
from fedloom.rng import torch_generator


class DpBroken(Part):
    """Clients with so many samples, or all of them, send what is not finite."""

    samples: int = 0

    def after_training(self, client: ClientContext) -> None:
        if not self.samples or client.samples == self.samples:
            client.weights.fill_(math.nan)


def private(run: Any, clip: float, m: int, lost: tuple[int, ...] = ()) -> tuple[Weights, list[float]]:
    """Clipped updates summed and divided by m, without noise; and the norms before clipping."""
    p = problem(run)
    w, norms = p.initial, []
    for t, cohort in p.rounds:
        total = {n: torch.zeros_like(v) for n, v in w.items()}
        for k in (k for k in cohort if k not in lost):
            w_k = p.local(w, t, k, cross_entropy)
            norms.append(square({n: w_k[n] - w[n] for n in w}) ** 0.5)
            total = {n: total[n] + min(1.0, clip / norms[-1]) * (w_k[n] - w[n]) for n in w}
        w = {n: w[n] + total[n] / m for n in w}
    return w, norms


def difference(run: Any, expected: Weights) -> torch.Tensor:
    return flat(read(run.path / "final.safetensors")) - flat(expected)


def test_without_noise_it_is_the_uniform_mean_of_clipped_updates() -> None:
    run = train("dp(clip=0.88, noise=0)", workers=2)
    expected, norms = private(run, 0.88, 3)
    assert difference(run, expected).abs().max() < 1e-5
    assert min(norms) < 0.87 < 0.89 < max(norms)
    assert run.summary["epsilon"] is None and "noise is 0" in run.summary["privacy"]["note"]
    assert gap(train("dp(clip=1e9, noise=0)"), train("fedavg", weighting="uniform")) < 1e-5


def test_the_noise_has_the_deviation_of_the_equation_and_is_drawn_anew_in_every_round() -> None:
    one = train("dp(clip=0.5, noise=0.8)", rounds=1)
    moved = difference(one, private(one, 0.5, 3)[0])
    std = 0.8 * 0.5 / 3
    assert float(moved.std()) == pytest.approx(std, rel=0.04)  # 4,810 coordinates: a deviation is known to 1 %
    assert abs(float(moved.mean())) < 4 * std / math.sqrt(len(moved))
    assert float((moved / std).abs().max()) < 6
    assert one.summary["privacy"]["noise_std"] == pytest.approx(std)
    drawn = [torch.randn(len(moved), generator=torch_generator(0, "dp", t)) for t in (1, 2)]
    torch.testing.assert_close(moved.float(), std * drawn[0], rtol=0, atol=1e-5)
    two = train("dp(clip=1e-6, noise=1e5)", rounds=2)  # updates of no length: what is left is the noise of both rounds
    torch.testing.assert_close(difference(two, problem(two).initial).float(), 0.1 / 3 * sum(drawn), rtol=0, atol=1e-5)


def test_a_lost_upload_is_a_zero_update_and_everybody_lost_is_noise_alone() -> None:
    sizes = [len(y) for _, y in problem(train("fedavg", rounds=1)).data]
    cohort = problem(train("fedavg", rounds=1)).cohorts[0]
    run = train(f"dp(clip=0.5, noise=0) + dpbroken(samples={sizes[cohort[0]]})", rounds=1)
    assert run.rounds[0]["lost"] == 1
    assert difference(run, private(run, 0.5, 3, (cohort[0],))[0]).abs().max() < 1e-5
    nobody = train("dp(clip=0.5, noise=0.8) + dpbroken", rounds=1)
    assert nobody.rounds[0]["lost"] == 3
    noise = difference(nobody, problem(nobody).initial)
    assert float(noise.std()) == pytest.approx(0.8 * 0.5 / 3, rel=0.04)


def renyi(noise: float, rounds: int, clients: int, cohort: int, delta: float) -> float:
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.GaussianDpEvent(noise * 1.0 / 2.0)  # noise * clip over a sensitivity of 2 * clip
    for _ in range(rounds):
        accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(clients, cohort, event))
    return float(accountant.get_epsilon(delta))


def gaussian_delta(epsilon: float, noise: float, rounds: int) -> float:
    """The privacy profile of a Gaussian mechanism (Balle and Wang 2018, theorem 8); mu = sensitivity / noise."""
    mu = 2 * math.sqrt(rounds) / noise
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.slow
def test_epsilon_is_the_accountants_and_falls_with_noise() -> None:
    found = []
    for noise in (4.0, 8.0, 16.0):
        summary = train(f"dp(noise={noise}, delta=0.001)", clients=10, fraction=0.1, split="iid").summary
        assert summary["delta"] == 0.001
        bounds = summary["privacy"]["bounds"]
        assert bounds[SAMPLED] == pytest.approx(renyi(noise, 3, 10, 1, 0.001), rel=1e-9)
        assert gaussian_delta(bounds[ANY], noise, 3) == pytest.approx(0.001, rel=1e-3)
        assert summary["epsilon"] == min(bounds.values())
        found.append(summary["epsilon"])
    assert found == sorted(found, reverse=True) and found[0] > 2 * found[-1] > 0
    assert found[-1] == bounds[SAMPLED]  # and here sampling helps


def test_full_participation_is_one_gaussian_and_the_default_delta_is_told() -> None:
    summary = train("dp(noise=3)", fraction=1.0).summary
    assert summary["delta"] == pytest.approx(5**-1.1)
    assert list(summary["privacy"]["bounds"]) == [ANY]
    assert gaussian_delta(summary["epsilon"], 3, 3) == pytest.approx(5**-1.1, rel=1e-3)


def hockey_stick(epsilon: float, noise: float, q: float) -> float:
    """The delta of one round in which a client of update -clip is replaced by one of +clip, each there with probability q."""

    def density(x: float, center: float) -> float:
        return float(q * norm.pdf(x, center, noise) + (1 - q) * norm.pdf(x, 0, noise))

    def above(x: float) -> float:
        return max(density(x, 1) - math.exp(epsilon) * density(x, -1), 0.0)

    return float(quad(above, -20, 20, limit=1000, points=[-1, 0, 1, 2, 4])[0])


def test_epsilon_under_bernoulli_participation_is_that_of_the_subsampled_gaussian() -> None:
    fields = {"clients": 10, "split": "iid", "participation": "bernoulli"}
    once = train("dp(noise=1.5, delta=0.001)", **fields, fraction=0.2, rounds=1).summary
    found = once["privacy"]["bounds"][BERNOULLI]
    assert hockey_stick(found, 1.5, 0.2) == pytest.approx(0.001, rel=0.02)
    assert once["epsilon"] == found < once["privacy"]["bounds"][ANY]
    assert "Bernoulli" in once["privacy"]["sampling"] and once["privacy"]["cohort"] == 2
    thrice = train("dp(noise=1.5, delta=0.001)", **fields, fraction=0.2, rounds=3).summary
    assert once["epsilon"] < thrice["epsilon"] < 3 * once["epsilon"]
    everyone = train("dp(noise=3, delta=0.001)", **fields, fraction=1.0, rounds=3).summary
    assert list(everyone["privacy"]["bounds"]) == [ANY]
    small = train("dp(noise=0.1, delta=0.001)", **fields, fraction=0.2, rounds=1).summary
    assert list(small["privacy"]["bounds"]) == [ANY]


def test_a_bernoulli_cohort_is_divided_by_its_expected_size_and_an_empty_one_gets_noise() -> None:
    run = train("dp(clip=0.5, noise=0)", participation="bernoulli", fraction=0.4, rounds=6, epochs=1)
    sizes = [len(line["cohort"]) for line in run.rounds]
    assert len(set(sizes)) > 1
    assert difference(run, private(run, 0.5, 2)[0]).abs().max() < 1e-5
    seed = next(
        s
        for s in range(100)
        if not sample_clients(recipe({"participation": "bernoulli", "clients": 5, "fraction": 0.2, "seed": s}), 1)
    )
    nobody = train("dp(clip=0.5, noise=0.8)", participation="bernoulli", fraction=0.2, rounds=1, seed=seed)
    assert nobody.rounds[0]["cohort"] == []
    noise = difference(nobody, problem(nobody).initial)
    assert float(noise.std()) == pytest.approx(0.8 * 0.5, rel=0.04)


def test_a_kept_optimizer_is_state_and_sampling_is_not_counted_on() -> None:
    fields = {"clients": 10, "fraction": 0.1, "split": "iid", "rounds": 2, "optimizer": {"name": "adam", "keep": True}}
    summary = train("dp(noise=8)", **fields, lr=0.003).summary
    assert list(summary["privacy"]["bounds"]) == [ANY] and "keep state" in summary["privacy"]["note"]


@pytest.mark.parametrize("other", ["fedper", "moon"])
def test_where_clients_remember_sampling_is_not_counted_on(other: str) -> None:
    summary = train(f"dp(noise=8) + {other}", clients=10, fraction=0.1, split="iid", rounds=2).summary
    assert list(summary["privacy"]["bounds"]) == [ANY] and "keep state" in summary["privacy"]["note"]


@pytest.mark.parametrize("other", ["scaffold", "fnr"])
def test_what_would_be_uploaded_beside_the_weights_is_refused(other: str) -> None:
    for text in (f"dp + {other}", f"{other} + dp"):
        with pytest.raises(FedloomError) as caught:
            train(text)
        said = f"method: {other} lets clients send more than weights, which dp would neither clip nor hide; keep one"
        assert str(caught.value) == said


def test_work_on_single_clients_models_at_the_server_is_refused() -> None:
    class DpDistil(Part):
        def after_aggregation(self, server: Any) -> None: ...

    with pytest.raises(
        FedloomError, match="method: dpdistil continues at the server after aggregation, which dp would"
    ):
        train("dp + dpdistil")


def test_a_survey_at_the_end_is_refused_and_its_part_without_one_is_not() -> None:
    with pytest.raises(
        FedloomError, match="method: dp: at the end all clients would be asked for sums over their data"
    ):
        train("dp + sphere(calibrate=true)")
    assert train("dp + sphere", rounds=1).summary["epsilon"] > 0


def test_shared_statistics_are_refused_and_others_are_not() -> None:
    fields: dict[str, Any] = {"rounds": 1, "fraction": 0.2, "epochs": 1, "lr": 0.01}
    with pytest.raises(FedloomError, match=r"method: dp: averaged statistics of normalizers .* bn to batch or local"):
        train("dp + gela", **fields)
    assert not Path("runs").exists()
    assert train("dp + gela", bn="batch", **fields).summary["epsilon"] > 0


def test_only_what_is_shared_is_noised_and_nothing_more_travels() -> None:
    run = train("dp + babu", rounds=1)
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}
    final, initial = read(run.path / "final.safetensors"), problem(run).initial
    assert {n for n in final if not torch.equal(final[n], initial[n])} == set(BODY)
    assert traffic(train("dp", rounds=1)) == {(MODEL_BYTES, MODEL_BYTES)}


def test_one_client_needs_a_delta() -> None:
    with pytest.raises(FedloomError, match="give delta"):
        train("dp", clients=1, fraction=1.0, split="iid")


@pytest.mark.slow
def test_a_missing_accountant_is_told_before_anything_is_written() -> None:
    code = (
        "import sys; sys.modules['dp_accounting'] = None\n"
        "from fedloom.cli import main; sys.argv = ['fedloom', 'run', '--method', 'dp', '--rounds', '1']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert '[privacy]"' in done.stderr.replace("\n", " ")
    assert not Path("runs").exists()


@pytest.mark.slow
def test_the_command_line_prints_epsilon() -> None:
    command = [sys.executable, "-m", "fedloom", "run", "--method", "dp(noise=2)", "--rounds", "1", "--name", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    epsilon = json.loads(Path("runs/x/summary.json").read_text())["epsilon"]
    assert "epsilon at delta 0.037" in done.stdout and f"{epsilon:.3g}" in done.stdout
