"""Lists that fit a terminal, descriptions, and the recipe explained and printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedloom.cli.application import application
from fedloom.cli.examples import EXAMPLES
from fedloom.cli.kinds import KINDS
from fedloom.cli.main import main
from fedloom.methods.api.registry import PARTS
from fedloom.recipe import Recipe
from fedloom.recipe.groups import GROUPS, OTHER, grouped
from fedloom.report.catalog.kinds import kind
from fedloom.report.catalog.methods import meanings
from fedloom.report.catalog.render import description_lines, list_lines


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.parametrize("name", KINDS)
def test_lists_fit_80_columns_and_name_every_entry_once(name: str) -> None:
    entries = kind(name).entries()
    lines = list(list_lines(entries, 80))
    assert max(map(len, lines)) <= 80
    assert all(not line.startswith(" ") or line.startswith("  ") for line in lines)
    names = [line[2:].split(" ")[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert names == [entry.name for entry in entries]
    whole = list(list_lines(entries, None))
    assert all(any(entry.summary in line for line in whole) for entry in entries)  # unwrapped where nobody looks


def test_methods_are_grouped_by_what_a_user_looks_for() -> None:
    groups = {entry.name: entry.group for entry in kind("methods").entries()}
    assert groups["scaffold"] == groups["fedavg"] == "Local training, one global model"
    assert (groups["fn"], groups["agn"], groups["fedadam"]) == ("Heads", "Normalizers", "Server")
    assert (groups["krum"], groups["dp"], groups["ditto"]) == (*["Robust and private"] * 2, "Personal models")
    assert groups["feddrplus"] != groups["fedprox"]


@pytest.mark.parametrize(
    ("list_", "name", "words"),
    [
        (
            "methods",
            "scaffold",
            ["c_i+ = c_i - c", "2.00 times the bytes", "needs plain SGD", "not with dp", "Karimireddy"],
        ),
        ("methods", "prox", ["mu=0.01", "0 is FedAvg; tuned over log:0.001..1", "prox(mu=?)", "also called fedprox"]),
        ("methods", "feddrplus", ["feddrplus = dr + fd", "of dr:", "fd.beta=0.9", "10 to 50 times", "FedDr+"]),
        ("methods", "fedavg", ["the empty sum", "fedloom run --method fedavg"]),
        ("methods", "fn + prox(mu=0.1)", ["prox.mu=0.1", '"fn + prox(mu=0.1)"']),
        ("methods", "babu", ["1.00 times the bytes", "Oh et al."]),
        ("models", "mlp", ["hidden=64", "197,322"]),
        ("splits", "dirichlet", ["Dir(A)", "dirichlet:0.5", "Li et al. 2022"]),
        ("metrics", "macro_f1", ["higher", "test_macro_f1"]),
        ("data", "digits", ["1797"]),
        ("protocols", "fedbabu", ["mobilenet", "--protocol fedbabu"]),
        ("papers", "fedbabu", ["fedbabu/table5"]),
    ],
)
def test_a_description_has_what_a_reader_needs(list_: str, name: str, words: list[str]) -> None:
    description = kind(list_).describe(name)
    text = " ".join(" ".join(description_lines(description, 80)).split())
    assert [word for word in words if word not in text] == []
    assert description.to_json()["name"] == name


def test_an_unknown_entry_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean scaffold?" in call(capsys, "list", "methods", "scafold")[2]
    assert "did you mean resnet18 or resnet50" in call(capsys, "list", "models", "resnet")[2]
    assert "did you mean methods?" in call(capsys, "list", "method")[2]


def test_every_hyperparameter_says_what_it_means() -> None:
    own = {name: part for name, part in PARTS.items() if part.__module__.startswith("fedloom.")}
    silent = [(name, key) for name, part in own.items() for key in part.hyperparameters() if key not in meanings(part)]
    assert silent == [], "write a text below the field"


@pytest.mark.parametrize("words", [[], ["flower"]], ids=str)
def test_no_command_is_a_request_for_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, err = call(capsys, *words)
    assert (code, err) == (0, "") and "Usage" in out


def test_list_alone_counts_what_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list")
    assert code == 0
    assert all(name in out for name in KINDS)


def test_a_printed_recipe_is_one_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "recipe", "--method", "fn", "--set", "data.validation=0.1")
    assert code == 0
    assert yaml.safe_load(out) == {
        **Recipe().model_dump(mode="json"),
        "method": "fn",
        "data": yaml.safe_load(out)["data"],
    }
    Path("r.yaml").write_text(out)
    assert call(capsys, "recipe", "r.yaml")[1] == out
    assert yaml.safe_load(call(capsys, "recipe", "r.yaml", "--rounds", "3")[1])["rounds"] == 3


def test_fields_that_the_data_may_decide_are_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    given = yaml.safe_load(call(capsys, "recipe", "--data", "femnist", "--clients", "5")[1])
    assert "split" not in given and given["clients"] == 5


def test_a_protocol_is_printed_as_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    made = yaml.safe_load(call(capsys, "recipe", "--protocol", "fedbabu", "--method", "fn")[1])
    assert (made["model"], made["method"], made["rounds"]) == ("mobilenet", "fn", 320)


def test_every_field_is_explained_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(Recipe.model_fields)
    assert OTHER not in grouped()
    code, out, _ = call(capsys, "recipe", "--explain")
    assert code == 0
    for word in ("Evaluation:", "data.validation ", "deploy.secure_aggregation", "default 0.9", "--weight-decay"):
        assert word in out
    assert "local learning rate [float; default 0.1; --lr]" in call(capsys, "recipe", "lr")[1]
    assert call(capsys, "recipe", "optimizer")[1].count("optimizer.") == 5
    assert "did you mean lr" in call(capsys, "recipe", "--explain", "learning_rate")[2]


def test_help_shows_arguments_types_defaults_and_examples() -> None:
    shown = CliRunner().invoke(application(), ["run", "--help"], env={"COLUMNS": "120"}).output
    for words in (
        "a YAML file; flags override",
        "number of rounds [50]",
        "INTEGER",
        "Rounds and local training",
        "Examples",
    ):
        assert words in shown
    shown = CliRunner().invoke(application(), ["compare", "--help"], env={"COLUMNS": "120"}).output
    assert "epochs of fine-tuning [5]" in shown and "[--personal]" in shown and "default:" not in shown


def test_every_command_has_examples_that_it_understands(capsys: pytest.CaptureFixture[str]) -> None:
    from typer.main import get_command

    root = get_command(application())
    for name, lines in EXAMPLES.items():
        command = root
        for word in name.split() if name != "fedloom" else []:
            command = command.commands[word]  # type: ignore[attr-defined]
        for line in lines if name != "fedloom" else []:
            assert line.startswith(f"fedloom {name}"), line
            assert len(line) <= 76, line
            flags = [word for word in line.split() if word.startswith("--")]
            known = [flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
            assert [flag for flag in flags if flag not in known] == [], line
