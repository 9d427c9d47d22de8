"""wn: convolutions that use their weight standardized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reference_norms import MAPS, Normalized, federated
from tiny import agree, distance, gap, problem, traffic, train

from fedloom import FedloomError

FIELDS: dict[str, Any] = {"model": "maps.py:maps", "lr": 0.05, "rounds": 2}


@pytest.fixture(autouse=True)
def _net() -> None:
    Path("maps.py").write_text(MAPS)


def test_the_raw_weight_is_trained_sent_and_averaged() -> None:
    run = train("wn", **FIELDS)
    agree(run, federated(problem(run), Normalized("none", wn=True)), atol=5e-5)
    plain = train("fedavg", **FIELDS)
    assert set(run.weights) == set(plain.weights)
    assert traffic(run) == traffic(plain)
    assert gap(run, plain) > 0.01


def test_the_form_of_the_published_code_is_another_one() -> None:
    run = train("wn(ddof=1, eps=1e-5, outside=true)", **FIELDS)
    assert gap(run, train("wn", **FIELDS)) > 1e-4
    assert distance(run) > 1e-2
    assert run.summary["method"] == "wn(ddof=1, eps=1e-05, outside=true)"


def test_a_net_without_convolutions_is_refused() -> None:
    with pytest.raises(FedloomError, match="method: wn: this net has no convolution with more than one weight"):
        train("wn", model="mlp")
