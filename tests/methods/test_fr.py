"""FedFR."""

from __future__ import annotations

import pytest
import reference
import torch
from reference_regularizers import feature_norm
from tiny import MODEL_BYTES, agree, problem, seen, traffic, train

from fedloom.methods.fr import FR


@pytest.mark.parametrize(("mu", "batch"), [(0.005, "full"), (0.05, 64)])
def test_the_norm_of_features_is_penalized(mu: float, batch: int | str) -> None:
    run = train(f"fr(mu={mu})", batch=batch, workers=2)
    agree(run, reference.fedavg(problem(run), feature_norm(mu)))


def test_the_norm_is_not_squared() -> None:
    f = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    torch.testing.assert_close(FR(mu=0.5).regularizer(*seen(f)), torch.tensor(0.5 * (5 + 2) / 2))
    torch.testing.assert_close(FR(mu=0.5).regularizer(*seen(10 * f)), 10 * FR(mu=0.5).regularizer(*seen(f)))


def test_features_that_are_all_zero_are_left_where_they_are() -> None:
    f = torch.tensor([[0.0, 0.0], [0.0, 2.0]], requires_grad=True)
    FR(mu=1).regularizer(*seen(f)).backward()
    torch.testing.assert_close(f.grad, torch.tensor([[0.0, 0.0], [0.0, 0.5]]))


def test_without_its_term_it_is_fedavg_bit_for_bit() -> None:
    assert train("fr(mu=0)").summary["digest"] == train("fedavg").summary["digest"]


def test_the_stronger_the_term_the_shorter_the_features() -> None:
    x, _ = reference.training_images()
    lengths = []
    for mu in (0.0, 0.02, 0.1):
        w = reference.read(train(f"fedfr(mu={mu})", epochs=20, batch=64).path / "final.safetensors")
        lengths.append(float(reference.features(w, x).square().sum(1).sqrt().mean()))
    assert lengths[2] < 0.8 * lengths[1] < 0.8**2 * lengths[0]


def test_nothing_more_travels_than_with_fedavg() -> None:
    assert traffic(train("fr")) == {(MODEL_BYTES, MODEL_BYTES)}
