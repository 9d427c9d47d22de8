"""FedAdagrad (Reddi et al. 2021)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_adaptive import Row, adaptive, in_order
from reference_personal import NORMED
from tiny import MODEL_BYTES, agree, checkpoint, gap, problem, traffic, train

from fedloom import FedloomError, method
from fedloom.methods.api.secure_sums import check_sums
from fedloom.methods.fedadagrad import FedAdagrad


def moved(v: Row, update: Row) -> Row:
    return v + update**2


def test_it_is_the_papers_algorithm_over_several_rounds() -> None:
    text = "fedadagrad(lr=0.05, beta1=0.3, tau=0.02)"
    run = train(text, lr=0.05, rounds=5, workers=2)
    p = problem(run)
    w, m, v = adaptive(p, 0.05, 0.3, 0.02, moved)
    agree(run, w, atol=2e-5)
    kept = checkpoint(run)
    torch.testing.assert_close(kept["server.fedadagrad.m"].double(), in_order(m, p), rtol=0, atol=1e-5)
    torch.testing.assert_close(kept["server.fedadagrad.v"].double(), in_order(v, p), rtol=0, atol=1e-5)


def test_the_step_starts_from_the_aggregate_of_another_part() -> None:
    run = train("median + fedadagrad(lr=0.05, beta1=0.3, tau=0.02)", lr=0.05)
    agree(
        run, adaptive(problem(run), 0.05, 0.3, 0.02, moved, lambda updates, _: np.median(updates, axis=0))[0], atol=2e-5
    )
    assert gap(run, train("trimmed(share=0.1) + fedadagrad(lr=0.05, beta1=0.3, tau=0.02)", lr=0.05)) > 1e-4


def test_with_a_large_tau_it_is_fedavg() -> None:
    """v stays at its start tau^2, so that w + lr D / (2 tau) is the mean for lr = 2 tau."""
    assert gap(train("fedadagrad(lr=2e3, tau=1e3)"), train("fedavg")) < 1e-5


def test_steps_shorten_with_the_rounds() -> None:
    v = [checkpoint(train("fedadagrad", rounds=rounds))["server.fedadagrad.v"] for rounds in (1, 2, 3)]
    assert bool((v[0] <= v[1]).all()) and bool((v[1] <= v[2]).all()) and float(v[2].sum()) > float(v[0].sum())


def test_statistics_of_normalizers_are_averaged_and_not_adapted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("net")
    (folder / "normed.py").write_text(NORMED)
    fields = {"model": f"{folder}/normed.py:normed", "rounds": 1, "epochs": 1}
    adapted, plain = train("fedadagrad", **fields), train("fedavg", **fields)
    for name, value in adapted.weights.items():
        assert torch.equal(value, plain.weights[name]) == ("running" in name or "num_batches" in name), name


def test_only_the_server_keeps_anything_and_nothing_more_travels() -> None:
    run = train("fedadagrad")
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}
    assert not list((run.path / "checkpoints" / "clients").iterdir())
    check_sums(method("fedadagrad"), "samples", {})


@pytest.mark.parametrize("other", ["nova", "scaffold", "fn", "babu", "feddyn", "fedper + kd", "clipped"])
def test_it_adds_up_with_parts_of_other_kinds(other: str) -> None:
    run = train(f"{other} + fedadagrad", epochs=1, rounds=2)
    assert all(line["lost"] == 0 for line in run.rounds)
    assert gap(run, train(other, epochs=1, rounds=2)) > 1e-4
    assert gap(run, train("fedadagrad + " + other, epochs=1, rounds=2)) == 0


def test_a_second_server_step_and_bad_values_are_refused() -> None:
    with pytest.raises(
        FedloomError, match="fedadagrad and fedavgm both decide what the server does with the aggregate; keep one"
    ):
        method("fedadagrad + fedavgm")
    with pytest.raises(FedloomError, match=r"method: fedadagrad\(beta1=1\): input should be less than 1"):
        method("fedadagrad(beta1=1)")
    with pytest.raises(FedloomError, match=r"method: fedadagrad\(tau=0\)"):
        method("fedadagrad(tau=0)")


def test_the_defaults_are_those_that_the_file_states() -> None:
    assert FedAdagrad() == FedAdagrad(lr=0.1, beta1=0.0, tau=0.01)
