"""Analysis while a run goes: what it says, and that training does not notice."""

from __future__ import annotations

from typing import Any

import pytest
from plainly import Plain, features_of, four_factors, scalars_of

import fedloom as fl
from fedloom.io.files import append_line

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 5, "workers": 2, "eval_every": 0}


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]


def analyzed(run: fl.Run) -> list[dict[str, Any]]:
    return fl.Analysis(run.path / "analysis").rounds


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "scaffold"},
        {"method": "fedper + moon"},
        {"method": "fnr(epochs=1)"},
        {"method": "gela", "augment": "crop+flip"},  # brings batch normalization
    ],
    ids=str,
)
def test_weights_and_log_are_the_same_with_and_without(fields: dict[str, Any]) -> None:
    without = fl.run({**FIELDS, **fields}, out="without")
    run = fl.run({**FIELDS, **fields}, analyze_every=2, out="with", workers=1)
    assert run.summary["digest"] == without.summary["digest"]
    assert run.summary["recipe_digest"] == without.summary["recipe_digest"]
    assert untimed(run.rounds) == untimed(without.rounds)
    assert not (without.path / "analysis").exists()
    lines = analyzed(run)
    assert [line["round"] for line in lines] == [2, 4, 5]
    assert [line["clients"] for line in lines] == [run.rounds[i]["cohort"] for i in (1, 3, 4)]


def test_a_line_says_what_the_weights_of_its_round_say() -> None:
    """The last round's global model is the stored one, and one round from the start is an analysis of the same clients."""
    run = fl.run(FIELDS, analyze_every=5)
    plain, weights = Plain(run), run.weights
    like = four_factors(features_of("mlp", weights, plain.x), plain.y, weights["head.weight"].double().numpy())
    line = analyzed(run)[-1]
    assert line["factors"] == pytest.approx(scalars_of(like), abs=1e-5)
    assert (line["images"], line["images_global"]) == (200, 360)
    assert line["norms"]["feature_seen"] > line["norms"]["feature_unseen"] > 0
    assert line["alignment"]["gap_seen"] > 0 > line["alignment"]["gap_unseen"]
    assert 0 < line["drift"]["mean_norm"] < line["drift"]["norm"]


def test_lines_are_those_that_an_analysis_of_the_round_before_makes() -> None:
    """A run of four rounds, analyzed at its end with the clients of round five, trains them as round five did."""
    whole = fl.run(FIELDS, batch="full", analyze_every=1)
    shorter = fl.run(FIELDS, batch="full", rounds=4)
    line = analyzed(whole)[-1]
    again = fl.analyze(shorter, what="norms,alignment,drift", clients=line["clients"], images=200).summary
    for section, names in (
        ("norms", ("feature_seen", "feature_unseen", "weight_seen", "weight_unseen")),
        ("alignment", ("seen", "unseen", "gap_seen", "gap_unseen", "distance_seen", "angle_unseen")),
        ("drift", ("norm", "mean_norm", "to_mean", "cosine_to_mean", "cosine_pairwise")),
    ):
        for name in names:
            assert again[section][name] == pytest.approx(line[section][name], rel=1e-4), name


def test_lines_beyond_the_round_that_is_carried_on_are_cut_and_made_again() -> None:
    run = fl.run(FIELDS, analyze_every=1, checkpoint_seconds=1000, out="x")
    like = untimed(analyzed(run))
    (run.path / "summary.json").unlink()
    for checkpoint in (run.path / "checkpoints").glob("*.safetensors"):
        checkpoint.unlink()
    append_line(run.path / "analysis" / "rounds.jsonl", {"round": 6, "clients": []})
    assert untimed(analyzed(fl.run(resume="x"))) == like


def test_a_negative_number_of_rounds_is_refused() -> None:
    with pytest.raises(fl.FedloomError, match="analyze_every: must be greater than or equal to 0"):
        fl.run(FIELDS, analyze_every=-1)
