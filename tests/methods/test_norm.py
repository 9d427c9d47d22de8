"""norm: another normalizer in a net."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reference_norms import MAPS, Normalized, accuracy, federated, is_statistic
from tiny import agree, distance, gap, memories, problem, traffic, train

from fedloom import FedloomError

FIELDS: dict[str, Any] = {"model": "maps.py:maps", "lr": 0.05, "rounds": 2}
KINDS = ("bn", "gn", "ln", "in", "frn", "rbn", "sn")


@pytest.fixture(autouse=True)
def _net() -> None:
    Path("maps.py").write_text(MAPS)


@pytest.mark.parametrize("kind", KINDS)
def test_training_averaging_and_evaluation_are_those_of_the_equations(kind: str) -> None:
    run = train(f"norm(kind={kind})", **FIELDS)
    told, net = problem(run), Normalized(kind)
    w = federated(told, net)
    agree(run, w, atol=5e-5)
    assert any(is_statistic(name) for name in w) == (kind in ("bn", "rbn", "sn"))
    assert run.summary["test_accuracy"] == pytest.approx(accuracy(told, net, w), abs=1e-9)


def test_weights_and_features_may_be_normalized_together_in_any_order() -> None:
    run = train("norm(kind=gn) + wn", **FIELDS)
    agree(run, federated(problem(run), Normalized("gn", wn=True)), atol=5e-5)
    assert gap(run, train("wn + norm(kind=gn)", **FIELDS)) == 0


def test_none_leaves_a_net_without_normalizers_as_it_is() -> None:
    assert gap(train("norm(kind=none)", **FIELDS), train("fedavg", **FIELDS)) == 0


@pytest.mark.parametrize("kind", ["gn", "sn", "frn"])
def test_fedbn_keeps_whatever_normalizes_with_its_client(kind: str) -> None:
    run = train(f"fedbn + norm(kind={kind})", **FIELDS)
    own = tuple(n for n in run.weights if ".norm." in n or n.endswith("threshold"))
    assert distance(run, own) == 0 < distance(run)
    shared = 4 * sum(value.numel() for name, value in run.weights.items() if name not in own)
    assert traffic(run) == {(shared, shared)}
    assert "selectors" not in run.rounds[0]
    kept = sum(run.weights[name].numel() for name in own if not is_statistic(name))
    assert all(len(tensors["personal"]) == kept for tensors in memories(run).values())


def test_shares_of_a_switchable_normalizer_are_logged_every_round() -> None:
    run = train("norm(kind=sn)", **FIELDS)
    for line in run.rounds:
        assert set(line["selectors"]) == {"body.0.norm", "body.2.norm"}
        assert all(
            sum(shares) == pytest.approx(1, abs=1e-5)
            for layer in line["selectors"].values()
            for shares in layer.values()
        )
    last = run.rounds[-1]["selectors"]["body.2.norm"]
    for leaf in ("mean", "var"):
        expected = run.weights[f"body.2.norm.{leaf}_selector"].softmax(0).tolist()
        assert last[leaf] == pytest.approx(expected, abs=1e-6)
    assert run.rounds[0]["selectors"] != run.rounds[1]["selectors"]


@pytest.mark.parametrize(
    ("text", "model", "sentence"),
    [
        ("norm(kind=xn)", "cnn", "method: norm(kind='xn'): input should be 'bn', 'gn', 'ln', 'in', 'frn', 'rbn', 'sn'"),
        ("norm(groups=5)", "cnn", "method: norm: groups=5 does not divide the 32 channels at body.0"),
        ("norm", "mlp", "method: norm: this net has no normalizer, and no convolution that one could follow"),
        ("norm + agn", "cnn", "method: norm and agn both replace the norm; keep one"),
        ("norm(kind=bn) + fednn", "cnn", "method: norm and agn both replace the norm; keep one"),
    ],
)
def test_what_cannot_be_is_refused(text: str, model: str, sentence: str) -> None:
    with pytest.raises(FedloomError) as caught:
        train(text, model=model)
    assert str(caught.value).startswith(sentence)
    assert not list(Path().glob("runs"))
