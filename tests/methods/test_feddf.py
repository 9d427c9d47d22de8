"""FedDF."""

from __future__ import annotations

import pytest
from reference_server import feddf
from tiny import MODEL_BYTES, agree, gap, problem, traffic, train

from fedloom import FedloomError

PUBLIC = {"data": {"public": 0.2}, "rounds": 1}


@pytest.mark.parametrize(("temperature", "batch"), [(1.0, 64), (3.0, 100)])
def test_the_mean_of_the_logits_is_distilled_into_the_average(temperature: float, batch: int) -> None:
    run = train(f"feddf(steps=8, batch={batch}, lr=0.01, temperature={temperature})", **PUBLIC)
    agree(run, feddf(problem(run), 8, batch, 0.01, temperature), atol=1e-4)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_it_changes_the_average() -> None:
    assert gap(train("feddf(steps=8, lr=0.01)", **PUBLIC), train("fedavg", **PUBLIC)) > 1e-3


def test_without_public_images_it_is_refused() -> None:
    with pytest.raises(FedloomError, match=r"method: feddf: .*data\.public"):
        train("feddf")


def test_with_images_for_validation_the_best_weights_are_kept() -> None:
    """At a rate that ruins the net no checked weights are better than the first checked ones, at step 100."""
    fields = {"data": {"public": 0.2, "validation": 0.1}, "rounds": 1, "epochs": 1, "clients": 2}
    longer = train("feddf(steps=600, lr=1e-9, patience=100, batch=8)", **fields)
    assert gap(longer, train("feddf(steps=200, lr=1e-9, patience=100, batch=8)", **fields)) < 1e-6
