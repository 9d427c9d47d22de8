"""MOON."""

from __future__ import annotations

import pytest
import torch
from reference import Problem, Weights, flat
from reference_regularizers import contrast, moon
from tiny import MODEL_BYTES, agree, distance, gap, memories, problem, seen, traffic, train
from torch import Tensor

from fedloom import FedloomError, Run
from fedloom.methods.moon import Moon

PROJECTED = (
    *("body.0.1.weight", "body.0.1.bias"),  # the mlp's body
    *("body.1.weight", "body.1.bias", "body.3.weight", "body.3.bias"),  # d -> d, ReLU, d -> 16
    *("head.weight", "head.bias"),
)


def projected(w: Weights, x: Tensor) -> Tensor:
    """The authors' features: two more layers behind the body."""
    f = torch.relu(x @ w["body.0.1.weight"].T + w["body.0.1.bias"])
    hidden = torch.relu(f @ w["body.1.weight"].T + w["body.1.bias"])
    return hidden @ w["body.3.weight"].T + w["body.3.bias"]


def projected_cross_entropy(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    z = projected(w, x) @ w["head.weight"].T + w["head.bias"]
    return -z.log_softmax(1)[torch.arange(len(y)), y].mean()


def newcomers(told: Problem) -> set[int]:
    """Clients that take part, but not in the first round: their previous weights are not those of the round's start."""
    return {k for cohort in told.cohorts for k in cohort} - set(told.cohorts[0])


def remembers(run: Run, last: list[Weights], names: tuple[str, ...] = ()) -> None:
    for k, tensors in memories(run).items():
        torch.testing.assert_close(tensors["moon.previous"].double(), flat(last[k], names), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("weight", "temperature", "batch"), [(0.1, 0.5, "full"), (5.0, 0.5, "full"), (1.0, 0.2, 64)])
def test_features_are_drawn_to_the_global_models_and_away_from_the_clients_last(
    weight: float, temperature: float, batch: int | str
) -> None:
    # under seed 0 a hidden unit passes so close to zero that processors round it to either side of the ReLU's kink
    run = train(f"moon(weight={weight}, temperature={temperature})", batch=batch, rounds=4, workers=2, seed=1)
    told = problem(run)
    assert newcomers(told) and any(sum(k in cohort for cohort in told.cohorts) > 1 for k in range(5))
    w, last = moon(told, temperature, weight)
    agree(run, w)
    assert set(memories(run)) == {k for cohort in told.cohorts for k in cohort}
    remembers(run, last)


@pytest.mark.parametrize("beta", [0.5, 0.1])
def test_or_the_contrast_is_mixed_in(beta: float) -> None:
    run = train(f"moon(beta={beta})", rounds=4)
    agree(run, moon(problem(run), beta=beta)[0])


def test_the_term_is_felt() -> None:
    assert gap(train("moon(weight=5)", rounds=4), train("fedavg", rounds=4)) > 1e-3


def test_without_its_term_it_is_fedavg_bit_for_bit() -> None:
    plain = train("fedavg").summary["digest"]
    assert train("moon(weight=0)").summary["digest"] == plain
    assert train("moon(beta=1)").summary["digest"] == plain


def test_in_the_first_round_both_teachers_are_the_drawn_weights_so_nothing_pulls() -> None:
    run = train("moon(weight=5)", rounds=1)
    assert gap(run, train("fedavg", rounds=1)) < 1e-6
    first = run.rounds[0]["train_loss"] - train("fedavg", rounds=1).rounds[0]["train_loss"]
    assert first == pytest.approx(5 * torch.tensor(2.0).log().item(), rel=1e-5)


def test_a_newcomers_last_weights_are_the_drawn_ones() -> None:
    """In a later round they are not the broadcast ones, so a client's first round is not FedAvg's."""
    run, plain = train("moon(weight=5)", rounds=2, fraction=0.2), train("fedavg", rounds=2, fraction=0.2)
    assert newcomers(problem(run)) == set(problem(run).cohorts[1])
    assert gap(run, plain) > 1e-3
    agree(run, moon(problem(run), weight=5)[0])


def test_the_contrast_is_as_printed() -> None:
    z, z_g, z_prev = torch.randn(3, 6, 4, dtype=torch.double).unbind()
    batch, client = seen(z, y=torch.zeros(6, dtype=torch.long))
    client.teacher = lambda _, name="global": seen({"global": z_g, "previous": z_prev}[name])[0]
    torch.testing.assert_close(Moon(temperature=0.3).term(batch, client), contrast(z, z_g, z_prev, 0.3))


def test_features_that_are_all_zero_have_a_finite_gradient() -> None:
    z = torch.zeros(2, 4, requires_grad=True)
    batch, client = seen(z, torch.rand(2, 4), torch.tensor([0, 1]))
    Moon().term(batch, client).backward()
    assert z.grad is not None and z.grad.isfinite().all()


def test_only_the_model_travels() -> None:
    assert traffic(train("moon")) == {(MODEL_BYTES, MODEL_BYTES)}


# with the authors' projection


def test_a_projection_stands_between_body_and_head() -> None:
    run = train("moon(projection=16)", rounds=1)
    shapes = {name: tuple(tensor.shape) for name, tensor in run.weights.items()}
    assert set(shapes) == set(PROJECTED)
    assert [shapes[name] for name in PROJECTED if name.endswith("weight")] == [(64, 64), (64, 64), (16, 64), (10, 16)]
    assert distance(run, ("body.1.weight",)) > 1e-3 < distance(run, ("body.3.weight",))
    bytes_ = 4 * (2 * 64 * 65 + 16 * 65 + 10 * 17)
    assert traffic(run) == {(bytes_, bytes_)}


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_its_output_is_contrasted_and_classified(weight: float) -> None:
    run = train(f"moon(weight={weight}, projection=16)", rounds=4)
    w, last = moon(problem(run), weight=weight, base=projected_cross_entropy, said=projected)
    agree(run, w)
    remembers(run, last, PROJECTED)


def test_another_head_may_be_put_on_the_projection_but_not_before_it() -> None:
    run = train("moon(projection=16) + fn", rounds=1)
    assert run.weights["head.weight"].shape == (10, 16) and "head.bias" not in run.weights
    for other in ("fn", "sphere", "etf", "gela", "dr"):
        with pytest.raises(
            FedloomError, match="method: moon: the projection goes before a linear head that is trained"
        ):
            train(f"{other} + moon(projection=16)", rounds=1)
