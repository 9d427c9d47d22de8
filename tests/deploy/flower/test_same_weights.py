"""Promise 6: a recipe on nodes ends with the weights of `fedloom run`, whatever the method keeps, broadcasts or asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedloom as fl

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import serve

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 4,
    "model": "mlp",
    "rounds": 3,
    "fraction": 0.75,
    "lr": 0.05,
    "eval_every": 0,
}
METHODS = [
    "fedavg",
    "scaffold + fn",  # controls: memory, extra broadcast and upload
    "fedrep",  # personal heads
    "feddrplus",  # a head that is fixed, and a teacher
    "fnr",  # a second act
    "fnr(epochs=1) + scaffold",  # after which controls are computed again, from memory as it was before the round
    "fedpac",  # a head for each client, sent to it alone
    "pfedfda",  # a fixed head that changes in every round
    "feddbe + scaffold",  # asks before the first round
    "fedala(first=2)",  # adapts before training
    "moon",  # a whole model remembered
    "feddc",  # knows how many images all clients hold
    "fedexp",  # serves other weights than it trains
    "babu + dp(clip=0.5, noise=0)",  # without noise, which is secret on nodes: see test_noise.py
    "fedavg + clipped",
    "feddf(steps=20)",  # the server trains on images that nobody holds, taught by the uploads
    "server-data",  # the server trains on a share of all images
    "fednn",  # a temperature that is a function of the round
    "fedper + fedyogi",  # an optimizer that sites keep, and local work that they draw
    "fedadam",  # cohorts of any size, some of them empty
    "fedprox",  # with torch's own convolutions: nodes follow `kernels`
]


MORE: dict[str, dict[str, Any]] = {
    "fednn": {"model": "cnn", "rounds": 2},
    "fedper + fedyogi": {"optimizer": {"name": "adam", "keep": True}, "steps": "2..9", "lr": 0.003, "rounds": 4},
    "fedadam": {"participation": "bernoulli", "fraction": 0.3, "epochs": "1..3", "optimizer": "adamw", "rounds": 6},
    "fedprox": {"model": "cnn", "rounds": 2, "kernels": "torch"},
    "feddf(steps=20)": {"data": {"name": "digits", "public": 0.1, "validation": 0.1}, "rounds": 2},
}


@pytest.mark.parametrize("method", METHODS)
def test_nodes_end_with_the_weights_of_a_run(method: str, tmp_path: Path) -> None:
    fields = FIELDS | {"method": method} | MORE.get(method, {})
    alone = fl.run(fields, out=str(tmp_path / "alone"))
    together = serve(fields, tmp_path / "together")
    assert together.summary["digest"] == alone.summary["digest"]
    assert together.summary["lost"] == 0
    lines = [{k: v for k, v in line.items() if "seconds" not in k} for line in together.rounds]
    assert lines == [{k: v for k, v in line.items() if "seconds" not in k} for line in alone.rounds]
    assert together.summary.get("personal_accuracy") == alone.summary.get("personal_accuracy")
