"""FedSOL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reference import BODY, dot_regression
from reference_personal import NORMED, STATISTICS
from reference_regularizers import cosines, fedsol
from tiny import BODY_BYTES, MODEL_BYTES, agree, distance, gap, problem, traffic, train


@pytest.mark.parametrize(("rho", "t", "batch"), [(1.0, 3.0, "full"), (0.3, 1.0, "full"), (0.5, 3.0, 64)])
def test_the_gradient_is_taken_where_distillation_would_have_pushed(rho: float, t: float, batch: int | str) -> None:
    run = train(f"fedsol(rho={rho}, t={t})", batch=batch, lr=0.05, workers=2)
    agree(run, fedsol(problem(run), rho, t))


@pytest.mark.parametrize("rho", [1.0, 5.0])
def test_adaptively_each_tensor_is_perturbed_where_it_has_moved(rho: float) -> None:
    run = train(f"fedsol(rho={rho}, adaptive=true)", lr=0.05)
    agree(run, fedsol(problem(run), rho, adaptive=True))
    assert gap(run, train(f"fedsol(rho={rho})", lr=0.05)) > 1e-3


def test_the_perturbed_loss_is_the_methods_own() -> None:
    """Only what is trained and shared is perturbed: with a fixed head, the body."""
    run = train("fedsol + dr", lr=1.0)
    agree(run, fedsol(problem(run), 1.0, base=dot_regression, said=cosines, names=BODY))
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


@pytest.mark.parametrize("model", ["mlp", "linear"])
@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_at_the_first_step_of_a_round_nothing_is_perturbed(model: str, adaptive: str) -> None:
    """There w = w_g and g_p = 0, to the bit: a rounding error would be stretched to the length rho."""
    fields = {"epochs": 1, "rounds": 3, "model": model}
    run, plain = train(f"fedsol(rho=100, adaptive={adaptive})", **fields), train("fedavg", **fields)
    assert run.summary["digest"] == plain.summary["digest"]


def test_without_a_perturbation_it_is_fedavg_bit_for_bit() -> None:
    assert train("fedsol(rho=0)", batch=64).summary["digest"] == train("fedavg", batch=64).summary["digest"]


def test_the_second_pass_leaves_no_trace_in_running_statistics() -> None:
    Path("normed.py").write_text(NORMED)
    fields = {"model": "normed.py:normed", "epochs": 1, "rounds": 1}
    run, plain = train("fedsol(rho=3)", **fields), train("fedavg", **fields)
    assert gap(run, plain) > 1e-3
    assert all(torch.equal(run.weights[name], plain.weights[name]) for name in STATISTICS)
    assert distance(run, STATISTICS) > 1e-2
    assert train("fedsol(rho=0)", **fields).summary["digest"] == plain.summary["digest"]


def test_the_teacher_costs_no_traffic() -> None:
    assert traffic(train("fedsol")) == {(MODEL_BYTES, MODEL_BYTES)}
