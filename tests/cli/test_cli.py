"""The command line, called as a stranger calls it: real processes, real exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import fedloom as fl

SMALL = ["--rounds", "2", "--clients", "10", "--epochs", "1", "--eval-every", "0", "--workers", "1"]


def fedloom(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedloom", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The same without a new process, where only words and codes matter."""
    from fedloom.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


COMMANDS = [
    "run",
    "compare",
    "sweep",
    "personalize",
    "adopt",
    "export",
    "analyze",
    "report",
    "watch",
    "split",
    "list",
    "bench",
    "flower",
]


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["flower", "init"], ["flower", "plan"]], ids=str)
def test_every_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *words, "--help")
    assert (code, err) == (0, "")
    assert "Usage" in out and "--help" in out


def test_a_narrow_terminal_cuts_no_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    import fedloom.cli.console

    monkeypatch.setattr(fedloom.cli.console, "out", Console(width=60))
    code, out, _ = call(capsys, "compare", "--methods", "fedavg; scaffold + fn", "--seeds", "1", *SMALL)
    assert code == 0
    row = next(line for line in out.splitlines() if "scaffold + fn" in line and "seed" not in line)
    assert len(row.split()) > 6


def test_a_run_leaves_every_file_where_its_name_says() -> None:
    done = fedloom("run", *SMALL, "--method", "scaffold + fn", "--name", "x")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in Path("runs/x").iterdir()}
    assert names == {
        "recipe.yaml",
        "initial.safetensors",
        "final.safetensors",
        "partition.npz",
        "inputs.json",
        "labels.npz",
        "rounds.jsonl",
        "clients.jsonl",
        "summary.json",
        "checkpoints",
    }
    recipe = yaml.safe_load(Path("runs/x/recipe.yaml").read_text())
    assert recipe["method"] == "scaffold + fn"
    assert recipe["rounds"] == 2
    assert "runs/x" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--augment", "mirror"], ["augment", "none", "flip", "crop", "mirror"]),
        (["--lr", "-1"], ["lr", "greater than 0", "-1"]),
        (["--lr", "abc"], ["lr", "number", "abc"]),
        (["--batch", "zero"], ["batch", "full", "zero"]),
        (["--fraction", "1.5"], ["fraction", "1.5"]),
        (["--precision", "fp8"], ["precision", "fp32", "bf16"]),
        (["--schedule", "exp:3"], ["schedule", "cosine"]),
        (["--weighting", "size"], ["weighting", "samples", "uniform"]),
        (["--augment", "rotate"], ["augment", "crop+flip"]),
        (["--method", "scafold"], ["scafold", "did you mean scaffold"]),
        (["--method", "fn + dr"], ["fn and dr", "head"]),
        (["--method", "exp + nova"], ["exp and nova", "aggregated", "keep one"]),
        (["--method", "prox(mu=-1)"], ["prox", "mu"]),
        (["--method", "prox(nu=1)"], ["prox", "nu", "mu"]),
        (["--model", "lenot"], ["did you mean lenet"]),
        (["--model", "lenet"], ["16x16", "8x8"]),
        (["--split", "shrads:2"], ["did you mean shards"]),
        (["--split", "shards:3", "--clients", "7"], ["shards:3", "7 clients"]),
        (["--data", "nowhere.npz"], ["nowhere.npz"]),
        (["--set", "data.normalise=none"], ["did you mean normalize"]),
        (["--set", "learning=1"], ["learning", "unknown field"]),
        (["--lrr", "1"], ["--lrr"]),
        (["missing.yaml"], ["missing.yaml"]),
        (["--resume", "nowhere"], ["nowhere", "recipe.yaml"]),
    ],
)
def test_a_wrong_value_is_one_sentence_with_exit_code_2_and_nothing_written(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    code, out, err = call(capsys, "run", *arguments)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("error: ")
    for word in words:
        assert word in err
    assert list(Path().iterdir()) == []


def test_a_comparison_of_no_method_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "compare", "--methods", " ; ")
    assert (code, out) == (2, "")
    assert err.startswith("error: methods: none is given; write for instance --methods 'fedavg; ")
    assert list(Path().iterdir()) == []


def test_a_finished_run_is_shown_again_and_another_recipe_in_its_place_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(capsys, "run", *SMALL, "--name", "x", "-q")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    code, out, _ = call(capsys, "run", *SMALL, "--name", "x")
    assert code == 0
    assert "runs/x is finished and has the same recipe" in out and "global accuracy" in out
    code, _, err = call(capsys, "run", *SMALL, "--name", "x", "--lr", "0.5")
    assert code == 2
    assert "lr was 0.1, and now is 0.5" in err
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before


def test_a_run_is_called_what_the_user_typed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "run", *SMALL, "--method", "feddrplus", "--rounds", "1", "--name", "x")
    assert out.startswith("feddrplus on digits") and "\nfeddrplus " in out and "dr + fd" not in out
    assert json.loads(Path("runs/x/summary.json").read_text())["method"] == "dr + fd"


def test_a_comparison_says_once_how_a_table_became_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{k % 2},{k % 3},{'ab'[k % 2]}" for k in range(60)]
    Path("t.csv").write_text("\n".join(["one,two,label", *rows]) + "\n")
    data = ["--data", "table:t.csv?target=label", "--split", "iid", "--model", "linear"]
    code, out, _ = call(capsys, "compare", "--methods", "fedavg; fn", *data, *SMALL, "--clients", "2", "--no-personal")
    assert (code, out.count("data: 2 inputs from 2 numeric")) == (0, 1)


def test_resume_refuses_a_changed_recipe_and_returns_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", *SMALL, "--name", "x", "-q")[0] == 0
    code, _, err = call(capsys, "run", "--resume", "runs/x", "--lr", "0.5")
    assert code == 2
    assert "--lr" in err
    code, out, _ = call(capsys, "run", "--resume", "runs/x")
    rounds, reached = fl.load("runs/x").recipe.rounds, 100 * fl.load("runs/x").summary["test_accuracy"]
    assert code == 0
    assert f"runs/x is complete: round {rounds} of {rounds}, global accuracy {reached:.1f} %; " in out
    assert f"fedloom run runs/x/recipe.yaml --rounds {2 * rounds} --name NAME" in out


def test_the_recipe_of_a_run_is_run_again_under_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", *SMALL, "--name", "x", "-q")[0] == 0
    code, out, _ = call(capsys, "run", "runs/x/recipe.yaml", "--rounds", "3", "--name", "longer", "-q")
    assert (code, out.strip()) == (0, "runs/longer")
    short, longer = fl.load("runs/x"), fl.load("runs/longer")
    losses = [[line["train_loss"] for line in run.rounds] for run in (short, longer)]
    assert losses[1][:2] == losses[0] and len(losses[1]) == 3


def test_flags_go_over_a_recipe_file_and_set_reaches_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.yaml").write_text("method: prox\nrounds: 9\nclients: 10\ndata: {name: digits, normalize: none}\n")
    flags = ["--rounds", "1", "--set", "clip=5", "--set", "data.validation=0.1", "--split", "iid"]
    assert call(capsys, "run", "r.yaml", *flags, "--out", "here", "-q")[0] == 0
    recipe = yaml.safe_load(Path("here/recipe.yaml").read_text())
    assert (recipe["method"], recipe["rounds"], recipe["clip"]) == ("prox(mu=0.01, beta=null)", 1, 5.0)
    assert recipe["data"].items() >= {"name": "digits", "normalize": "none", "resize": None, "validation": 0.1}.items()
    assert "best_by_validation" in json.loads(Path("here/summary.json").read_text())


def test_quiet_prints_nothing_but_where_the_result_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", *SMALL, "-q", "--name", "x") == (0, "runs/x\n", "")


def test_parts_of_ones_own_come_from_a_file() -> None:
    Path("mine.py").write_text(
        "import fedloom as fl\n"
        "class Pull(fl.Part):\n"
        '    "Pulls the mean feature to zero."\n'
        "    strength: float = 0.1\n"
        "    penalty = lambda self, batch: self.strength * batch.features.mean(0).square().sum()\n"
    )
    done = fedloom("run", *SMALL, "--parts", "mine.py", "--method", "pull(strength=0.5) + prox", "--name", "x")
    assert done.returncode == 0, done.stderr
    assert (
        yaml.safe_load(Path("runs/x/recipe.yaml").read_text())["method"]
        == "pull(strength=0.5) + prox(mu=0.01, beta=null)"
    )
    listed = fedloom("list", "methods", "--parts", "mine.py")
    assert "pull" in listed.stdout


def test_compare_prints_one_row_a_method_and_skips_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", *SMALL, "--methods", "fedavg; fn @ lr=0.3", "--seeds", "2", "--name", "c"]
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    assert "fn @ lr=0.3" in out
    assert "personal" in out
    assert "±" in out
    folders = sorted(str(path) for path in Path("runs/c").glob("*/seed*"))
    assert folders == ["runs/c/fedavg/seed0", "runs/c/fedavg/seed1", "runs/c/fn-lr=0.3/seed0", "runs/c/fn-lr=0.3/seed1"]
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("final.safetensors")}
    assert call(capsys, *arguments)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("final.safetensors")} == before


def test_personalize_shows_every_epoch_and_stores_every_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", *SMALL, "--name", "x", "-q")[0] == 0
    code, out, _ = call(capsys, "personalize", "runs/x", "--part", "head", "--epochs", "2", "--lr", "0.01")
    assert code == 0
    assert "0 (initial)" in out
    stored = json.loads(Path("runs/x/personal/head-2-0.01.json").read_text())
    assert len(stored["clients"]) == 10
    assert len(stored["clients"][0]) == len(stored["curve"]) == 3
    code, _, err = call(capsys, "personalize", "runs/x", "--part", "neck")
    assert code == 2
    assert "full, head, body" in err


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", ["scaffold", "feddrplus = dr + fd", "Personal models:"]),
        ("models", ["mobilenet", "797,962"]),
        ("data", ["digits", "the extra hub"]),
        ("splits", ["dirichlet", "shards:2"]),
    ],
)
def test_list_names_what_recipes_may_use(capsys: pytest.CaptureFixture[str], what: str, names: list[str]) -> None:
    code, out, _ = call(capsys, "list", what)
    assert code == 0
    for name in names:
        assert name in " ".join(out.split())


def test_control_c_ends_with_a_folder_that_can_be_resumed() -> None:
    arguments = [sys.executable, "-m", "fedloom", "run", "--rounds", "500", "--name", "x", "--eval-every", "0"]
    running = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    rounds = Path("runs/x/rounds.jsonl")
    for _ in range(600):
        if rounds.exists() and len(rounds.read_text().splitlines()) >= 3:
            break
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "fedloom run --resume runs/x" in said
    assert not Path("runs/x/summary.json").exists()
    done = len(rounds.read_text().splitlines())
    assert 3 <= done < 500
    assert list(Path("runs/x/checkpoints").glob(f"round-{done:06d}.safetensors"))
