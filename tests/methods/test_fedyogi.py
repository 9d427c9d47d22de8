"""FedYogi (Reddi et al. 2021)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_adaptive import Row, adaptive, in_order
from reference_personal import NORMED
from tiny import MODEL_BYTES, agree, checkpoint, gap, problem, traffic, train

from fedloom import FedloomError, method
from fedloom.methods.api.secure_sums import check_sums
from fedloom.methods.fedyogi import FedYogi


def moved(v: Row, update: Row) -> Row:
    return v - 0.05 * update**2 * np.sign(v - update**2)


def test_it_is_the_papers_algorithm_over_several_rounds() -> None:
    text = "fedyogi(lr=0.02, beta1=0.8, beta2=0.95, tau=0.01)"
    run = train(text, lr=0.05, rounds=5, workers=2)
    p = problem(run)
    w, m, v = adaptive(p, 0.02, 0.8, 0.01, moved)
    agree(run, w, atol=2e-5)
    kept = checkpoint(run)
    torch.testing.assert_close(kept["server.fedyogi.m"].double(), in_order(m, p), rtol=0, atol=1e-5)
    torch.testing.assert_close(kept["server.fedyogi.v"].double(), in_order(v, p), rtol=0, atol=1e-5)


def test_the_step_starts_from_the_aggregate_of_another_part() -> None:
    run = train("median + fedyogi(lr=0.02, beta1=0.8, beta2=0.95, tau=0.01)", lr=0.05)
    agree(
        run, adaptive(problem(run), 0.02, 0.8, 0.01, moved, lambda updates, _: np.median(updates, axis=0))[0], atol=2e-5
    )
    assert gap(run, train("trimmed(share=0.1) + fedyogi(lr=0.02, beta1=0.8, beta2=0.95, tau=0.01)", lr=0.05)) > 1e-4


def test_with_a_large_tau_it_is_fedavg() -> None:
    """v stays at its start tau^2, so that w + lr D / (2 tau) is the mean for lr = 2 tau."""
    assert gap(train("fedyogi(lr=2e3, beta1=0, tau=1e3)"), train("fedavg")) < 1e-5


def test_where_updates_are_larger_than_v_it_starts_as_fedadam_does_up_to_beta2() -> None:
    """v + (1 - b) D^2 against b v + (1 - b) D^2: equal for beta2 near 1."""
    one, other = (train(f"{name}(beta2=0.999999)", rounds=1) for name in ("fedyogi", "fedadam"))
    assert gap(one, other) < 1e-5


def test_statistics_of_normalizers_are_averaged_and_not_adapted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("net")
    (folder / "normed.py").write_text(NORMED)
    fields = {"model": f"{folder}/normed.py:normed", "rounds": 1, "epochs": 1}
    adapted, plain = train("fedyogi", **fields), train("fedavg", **fields)
    for name, value in adapted.weights.items():
        assert torch.equal(value, plain.weights[name]) == ("running" in name or "num_batches" in name), name


def test_only_the_server_keeps_anything_and_nothing_more_travels() -> None:
    run = train("fedyogi")
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}
    assert not list((run.path / "checkpoints" / "clients").iterdir())
    check_sums(method("fedyogi"), "samples", {})


@pytest.mark.parametrize("other", ["nova", "scaffold", "fn", "babu", "feddyn", "fedper + kd", "clipped"])
def test_it_adds_up_with_parts_of_other_kinds(other: str) -> None:
    run = train(f"{other} + fedyogi", epochs=1, rounds=2)
    assert all(line["lost"] == 0 for line in run.rounds)
    assert gap(run, train(other, epochs=1, rounds=2)) > 1e-4
    assert gap(run, train("fedyogi + " + other, epochs=1, rounds=2)) == 0


def test_a_second_server_step_and_bad_values_are_refused() -> None:
    with pytest.raises(
        FedloomError, match="fedyogi and fedavgm both decide what the server does with the aggregate; keep one"
    ):
        method("fedyogi + fedavgm")
    with pytest.raises(FedloomError, match=r"method: fedyogi\(beta1=1\): input should be less than 1"):
        method("fedyogi(beta1=1)")
    with pytest.raises(FedloomError, match=r"method: fedyogi\(tau=0\)"):
        method("fedyogi(tau=0)")


def test_the_defaults_are_those_that_the_file_states() -> None:
    assert FedYogi() == FedYogi(lr=0.01, beta1=0.9, beta2=0.99, tau=0.001)
