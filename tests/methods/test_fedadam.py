"""FedAdam (Reddi et al. 2021)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_adaptive import Row, adaptive, in_order
from reference_personal import NORMED
from tiny import MODEL_BYTES, agree, checkpoint, gap, problem, traffic, train

from fedloom import FedloomError, method
from fedloom.methods.api.secure_sums import check_sums
from fedloom.methods.fedadam import FedAdam


def moved(v: Row, update: Row) -> Row:
    return 0.95 * v + 0.05 * update**2


def test_it_is_the_papers_algorithm_over_several_rounds() -> None:
    text = "fedadam(lr=0.02, beta1=0.8, beta2=0.95, tau=0.01)"
    run = train(text, lr=0.05, rounds=5, workers=2)
    p = problem(run)
    w, m, v = adaptive(p, 0.02, 0.8, 0.01, moved)
    agree(run, w, atol=2e-5)
    kept = checkpoint(run)
    torch.testing.assert_close(kept["server.fedadam.m"].double(), in_order(m, p), rtol=0, atol=1e-5)
    torch.testing.assert_close(kept["server.fedadam.v"].double(), in_order(v, p), rtol=0, atol=1e-5)


def test_the_step_starts_from_the_aggregate_of_another_part() -> None:
    run = train("median + fedadam(lr=0.02, beta1=0.8, beta2=0.95, tau=0.01)", lr=0.05)
    agree(
        run, adaptive(problem(run), 0.02, 0.8, 0.01, moved, lambda updates, _: np.median(updates, axis=0))[0], atol=2e-5
    )
    assert gap(run, train("trimmed(share=0.1) + fedadam(lr=0.02, beta1=0.8, beta2=0.95, tau=0.01)", lr=0.05)) > 1e-4


def test_with_a_large_tau_it_is_a_plain_step_along_the_mean_update() -> None:
    """v stays near its start tau^2, of which the first round keeps beta2: w + lr D / (tau (1 + sqrt(beta2)))."""
    tau = 1e3
    lr = tau * (1 + 0.99**0.5)
    assert gap(train(f"fedadam(lr={lr}, beta1=0, tau={tau})", rounds=1), train("fedavg", rounds=1)) < 1e-5


def test_statistics_of_normalizers_are_averaged_and_not_adapted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("net")
    (folder / "normed.py").write_text(NORMED)
    fields = {"model": f"{folder}/normed.py:normed", "rounds": 1, "epochs": 1}
    adapted, plain = train("fedadam", **fields), train("fedavg", **fields)
    for name, value in adapted.weights.items():
        assert torch.equal(value, plain.weights[name]) == ("running" in name or "num_batches" in name), name


def test_only_the_server_keeps_anything_and_nothing_more_travels() -> None:
    run = train("fedadam")
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}
    assert not list((run.path / "checkpoints" / "clients").iterdir())
    check_sums(method("fedadam"), "samples", {})


@pytest.mark.parametrize("other", ["nova", "scaffold", "fn", "babu", "feddyn", "fedper + kd", "clipped"])
def test_it_adds_up_with_parts_of_other_kinds(other: str) -> None:
    run = train(f"{other} + fedadam", epochs=1, rounds=2)
    assert all(line["lost"] == 0 for line in run.rounds)
    assert gap(run, train(other, epochs=1, rounds=2)) > 1e-4
    assert gap(run, train("fedadam + " + other, epochs=1, rounds=2)) == 0


def test_a_second_server_step_and_bad_values_are_refused() -> None:
    with pytest.raises(
        FedloomError, match="fedadam and fedavgm both decide what the server does with the aggregate; keep one"
    ):
        method("fedadam + fedavgm")
    with pytest.raises(FedloomError, match=r"method: fedadam\(beta1=1\): input should be less than 1"):
        method("fedadam(beta1=1)")
    with pytest.raises(FedloomError, match=r"method: fedadam\(tau=0\)"):
        method("fedadam(tau=0)")


def test_the_defaults_are_those_that_the_file_states() -> None:
    assert FedAdam() == FedAdam(lr=0.01, beta1=0.9, beta2=0.99, tau=0.001)
