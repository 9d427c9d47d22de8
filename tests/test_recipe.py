"""Recipes: what is wrong with one is said in a sentence that names the field and what is allowed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedloom.errors import FedloomError
from fedloom.recipe import Data, Recipe, assign, read_recipe, recipe


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lr": -1}, ["greater than 0", "-1"]),
        ({"lr": "fast"}, ["a number", "fast"]),
        ({"lr": math.inf}, ["finite", "inf"]),
        ({"clients": 0}, ["greater than or equal to 1", "0"]),
        ({"clients": 2.5}, ["whole number", "2.5"]),
        ({"clients": "many"}, ["whole number", "many"]),
        ({"rounds": None}, ["whole number", "None"]),
        ({"fraction": 0}, ["greater than 0"]),
        ({"fraction": 1.5}, ["less than or equal to 1", "1.5"]),
        ({"momentum": 1}, ["less than 1"]),
        ({"weight_decay": -0.1}, ["greater than or equal to 0"]),
        ({"batch": 0}, ["greater than or equal to 1", "full"]),
        ({"batch": "half"}, ["whole number", "full", "half"]),
        ({"workers": 0}, ["greater than or equal to 1", "auto"]),
        ({"workers": "some"}, ["whole number", "auto", "some"]),
        ({"weighting": "size"}, ["samples", "uniform", "size"]),
        ({"precision": "fp16"}, ["fp32", "bf16", "fp16"]),
        ({"bn": "global"}, ["running", "batch", "local", "global"]),
        ({"seed": -1}, ["greater than or equal to 0"]),
        ({"method": 3}, ["a text", "3"]),
        ({"name": "a/b"}, ["slashes", "a/b"]),
        ({"clip": 0}, ["greater than 0"]),
        ({"eval_batch": 0}, ["greater than or equal to 1"]),
        ({"schedule": "linear"}, ["constant", "step", "cosine", "exp:", "linear"]),
        ({"schedule": "exp:2"}, ["exp:FACTOR", "(0, 1]", "exp:2"]),
        ({"schedule": "exp:0"}, ["exp:FACTOR", "(0, 1]"]),
        ({"schedule": "exp:fast"}, ["exp:FACTOR", "(0, 1]"]),
        ({"schedule": "exp"}, ["exp:FACTOR"]),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_told_with_its_field_and_what_is_allowed(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FedloomError) as caught:
        recipe(fields)
    said = str(caught.value)
    assert said.startswith(f"{next(iter(fields))}: ")
    assert "\n" not in said
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ({"normalize": "some"}, "data.normalize", ["set", "none", "some"]),
        ({"resize": 0}, "data.resize", ["greater than or equal to 1", "0"]),
        ({"resize": "big"}, "data.resize", ["whole number", "big"]),
        ({"validation": 1}, "data.validation", ["less than 1"]),
        ({"name": 3}, "data.name", ["a text", "3"]),
        ({"nmae": "digits"}, "data.nmae", ["unknown field", "did you mean name?"]),
        ({"zzz": 1}, "data.zzz", ["unknown field", "name", "normalize", "resize", "validation"]),
    ],
)
def test_a_wrong_value_inside_of_data_is_told_with_its_full_name(
    data: dict[str, Any], field: str, words: list[str]
) -> None:
    with pytest.raises(FedloomError) as caught:
        recipe({"data": data})
    assert str(caught.value).startswith(f"{field}: ")
    assert [word for word in words if word not in str(caught.value)] == []


def test_an_unknown_field_is_told_with_the_nearest_one_or_with_all() -> None:
    with pytest.raises(FedloomError, match=re.escape("metod: unknown field; did you mean method?")):
        recipe({"metod": "fedavg"})
    with pytest.raises(FedloomError) as caught:
        recipe({"zzz": 1})
    assert str(caught.value).startswith("zzz: unknown field; known are ")
    assert [field for field in Recipe.model_fields if field not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"learning_rate": 1}, "learning_rate: unknown field; did you mean lr?"),
        ({"data": {"nmae": "digits"}}, "data.nmae: unknown field; did you mean name?"),
        ({"lr": "fast"}, "lr: must be a number (got fast)"),
        ({"rounds": 2.5}, "rounds: must be a whole number (got 2.5)"),
        ({"eval_test": "maybe"}, "eval_test: must be true or false (got maybe)"),
        ({"data": 3}, "data: must be a name, or fields of it: name, normalize, resize"),
        ({"deploy": 3}, "deploy: must be fields of it: min_cohort, max_distance"),
    ],
)
def test_a_recipe_made_in_python_is_refused_in_the_same_sentences(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FedloomError, match=re.escape(said)):
        Recipe(**fields)


def test_defaults_that_no_validator_has_seen_are_those_that_one_makes() -> None:
    for name in ("data", "optimizer", "deploy"):
        field = Recipe.model_fields[name]
        assert field.default == type(field.default)()
        assert field.default.model_dump() == type(field.default)().model_dump()


def test_an_unknown_field_is_told_before_any_wrong_value() -> None:
    with pytest.raises(FedloomError, match="metod: unknown field"):
        recipe({"lr": -1, "metod": "fedavg"})


def test_a_recipe_is_shown_by_what_differs_from_the_defaults() -> None:
    assert repr(Recipe()) == "Recipe()"
    made = recipe({"method": "prox", "data": {"name": "digits", "validation": 0.1}, "lr": 0.3})
    assert repr(made) == "Recipe(data=Data(validation=0.1), method='prox', lr=0.3)"
    assert eval(repr(made), {"Recipe": Recipe, "Data": Data}) == made


def test_short_forms_mean_the_long_ones() -> None:
    assert recipe({"data": "digits"}) == recipe({"data": {"name": "digits"}}) == recipe({})
    assert recipe({"parts": "mine.py"}).parts == ("mine.py",)
    assert recipe({"lr": "0.5", "clients": "7", "batch": "16", "workers": "2"}) == recipe(
        {"lr": 0.5, "clients": 7, "batch": 16, "workers": 2}
    )


def test_a_recipe_is_a_value() -> None:
    given = recipe({"rounds": 3})
    with pytest.raises(ValueError, match="frozen"):
        given.rounds = 4
    assert given.changed(rounds=4).rounds == 4
    assert given.changed(rounds=4).changed(rounds=3) == given
    with pytest.raises(FedloomError, match="rounds: "):
        given.changed(rounds=0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lr": 1e-5, "weight_decay": 1e-10, "batch": "full", "clip": 0.1, "schedule": "exp:0.998"},
        {"data": {"name": "a b.npz", "normalize": [[0.1, 0.2], [1, 2]], "resize": 16, "validation": 0.1}},
        {"method": "prox(mu=0.01)", "name": "007", "parts": ["a.py", "b.c"]},
    ],
)
def test_a_recipe_comes_back_from_its_file(fields: dict[str, Any]) -> None:
    given = recipe(fields)
    Path("recipe.yaml").write_text(given.to_yaml())
    again = recipe(read_recipe("recipe.yaml"))
    assert again == given
    assert again.digest() == given.digest()
    assert set(yaml.safe_load(given.to_yaml())) == set(Recipe.model_fields)


def test_a_digest_is_about_results_and_nothing_else() -> None:
    plain = recipe({})
    for aside in (
        {"workers": 3},
        {"out": "x", "name": "y"},
        {"checkpoint_seconds": 0},
        {"memory_mb": 1},
        {"eval_every": 0},
        {"eval_clients": 2},
    ):
        assert recipe(aside).digest() == plain.digest(), aside
    others = [
        {"lr": 0.2},
        {"seed": 1},
        {"rounds": 51},
        {"method": "fn"},
        {"batch": "full"},
        {"data": {"normalize": "none"}},
        {"bn": "batch"},
        {"clip": 1.0},
        {"weighting": "uniform"},
        {"kernels": "torch"},
    ]
    assert len({plain.digest(), *(recipe(fields).digest() for fields in others)}) == len(others) + 1


def test_the_digest_of_a_recipe_stays_when_fields_are_added_that_it_does_not_use() -> None:
    assert recipe({}).digest() == recipe({"kernels": "auto"}).digest() == "fcb551d291ed74d3"
    other = {
        "model": "lenet",
        "method": "scaffold + fn",
        "vmap": 8,
        "batch": "full",
        "data": {"name": "x", "resize": 20},
    }
    assert recipe(other).digest() == "1a23fd7da2807e8f"


def rates(**fields: Any) -> list[float]:
    given = recipe({"lr": 0.1, **fields})
    return [given.rate(round) for round in range(1, given.rounds + 1)]


def test_the_rate_is_constant_unless_told_otherwise() -> None:
    assert rates(rounds=5) == [0.1] * 5


def test_the_step_schedule_divides_by_ten_at_half_and_at_three_quarters() -> None:
    assert rates(rounds=8, schedule="step") == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)
    assert rates(rounds=10, schedule="step") == pytest.approx([0.1] * 5 + [0.01] * 3 + [0.001] * 2)


def test_the_exponential_schedule_multiplies_each_round() -> None:
    assert rates(rounds=4, schedule="exp:0.5") == pytest.approx([0.1, 0.05, 0.025, 0.0125])


def test_the_cosine_schedule_falls_from_the_rate_towards_zero() -> None:
    assert rates(rounds=4, schedule="cosine") == pytest.approx(
        [0.1, 0.05 * (1 + math.sqrt(0.5)), 0.05, 0.05 * (1 - math.sqrt(0.5))]
    )


def test_settings_reach_every_field() -> None:
    fields: dict[str, Any] = {"data": "digits"}
    for setting in ("data.normalize=none", "data.resize = 16", "weight-decay=1e-3", "batch=full", "clip=null"):
        assign(fields, setting)
    assign(fields, "parts=[a.py, b.py]")
    given = recipe(fields)
    assert (given.data.name, given.data.normalize, given.data.resize) == ("digits", "none", 16)
    assert (given.weight_decay, given.batch, given.clip, given.parts) == (0.001, "full", None, ("a.py", "b.py"))


def test_a_setting_of_data_on_a_plain_recipe_keeps_its_set() -> None:
    fields: dict[str, Any] = {}
    assign(fields, "data.normalize=[[0.5], [0.25]]")
    assert recipe(fields).data.normalize == ([0.5], [0.25])
    assert recipe(fields).data.name == "digits"


@pytest.mark.parametrize("setting", ["lr", "=3", "", "lr.x=3", "lr=[1"])
def test_a_setting_that_cannot_be_read_is_told(setting: str) -> None:
    with pytest.raises(FedloomError, match="--set: ") as caught:
        assign({"lr": 0.1}, setting)
    assert setting.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"lr: [1, 2\nrounds: 3\n", "file.yaml is not valid YAML \\(line 2\\)"),
        (b"- lr\n- rounds\n", "file.yaml must hold fields such as `method: fedavg`"),
        (b"", "file.yaml must hold fields"),
        (b"\xff\xfe\x00", "cannot read file.yaml: not a text file"),
        (b"lr: !!python/object:os.system {}\n", "file.yaml is not valid YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_told(content: bytes, said: str) -> None:
    Path("file.yaml").write_bytes(content)
    with pytest.raises(FedloomError, match=f"recipe: .*{said}"):
        read_recipe("file.yaml")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(FedloomError, match=re.escape("recipe: cannot read nowhere.yaml: No such file or directory")):
        read_recipe("nowhere.yaml")
    with pytest.raises(FedloomError, match=re.escape("recipe: cannot read .: Is a directory")):
        read_recipe(".")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lr": float("nan")}, ["lr: must be", "nan"]),
        ({"schedule": "exp:1.2.3"}, ["schedule", "exp:FACTOR", "1.2.3"]),
        ({"data": {"normalize": [[0.1]]}}, ["data.normalize", "two lists"]),
    ],
)
def test_odd_values_get_a_whole_sentence_too(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(FedloomError) as said:
        recipe(fields)
    for word in words:
        assert word in str(said.value)
