"""Any text in a recipe, a flag, a method or a split gives a value or a short error message."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import texts

import fedloom as fl
from fedloom.data import check_spec
from fedloom.errors import one_line, shown
from fedloom.methods import method
from fedloom.recipe import assign, read_recipe, recipe

Take = Callable[[str], object]


def from_file(text: str) -> object:
    Path("recipe.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    parsed = recipe(read_recipe("recipe.yaml"))
    method(parsed.method)
    check_spec(parsed.split)
    return parsed


def from_setting(text: str) -> object:
    fields: dict[str, Any] = {}
    assign(fields, text)
    return recipe(fields)


def check_sentence(take: Take, text: str) -> bool:
    """Whether it was refused; anything but a value or a short sentence is a failure."""
    began = time.monotonic()
    try:
        take(text)
    except fl.FedloomError as error:
        message = str(error)
        assert message.isprintable(), text[:200]
        assert len(message) <= 1500, text[:200]
        for begin in range(0, min(len(text), 5000) - 120, 40):  # no more of it than a line
            assert len(set(text[begin : begin + 120])) < 2 or text[begin : begin + 120] not in message
        assert "9" * 100 not in message and "x" * 301 not in message
        return True
    finally:
        assert time.monotonic() - began < 5, text[:200]
    return False


TAKEN: list[tuple[Take, list[str]]] = [
    (from_file, texts.RECIPES),
    (from_setting, [f"{field}={value}" for field in ("lr", "data.resize", "name", "data") for value in texts.VALUES]),
    (from_setting, ["", "=", "a", ".=1", "...=1", "data.x.y=1", "a." * 5000 + "b=1", "lr.x=1", "x" * 10**5 + "=1"]),
    (method, texts.METHODS),
    (check_spec, texts.SPLITS),
]


@pytest.mark.parametrize(("take", "given"), TAKEN, ids=["recipes", "values", "settings", "methods", "splits"])
def test_odd_texts_are_values_or_sentences(take: Take, given: list[str]) -> None:
    refused = sum(check_sentence(take, text) for text in given)
    assert refused > len(given) / 2


SEEDS: list[tuple[Take, list[str]]] = [
    (from_file, ["method: prox(mu=0.1)\nlr: 0.1\ndata: {name: digits, normalize: [[0.1], [0.2]]}\nparts: [a, b]\n"]),
    (from_setting, ["data.normalize=[[0.1], [2.5e-3]]", "deploy.timeout=1e3", "batch=full", "seed=2024-01-01"]),
    (method, ["scaffold + prox(mu=0.01, beta=null)", "norm(kind=gn) + fn", "dp(noise=1.0, clip=0.1) + babu"]),
    (check_spec, ["dirichlet:0.5+noise:0.1; 30: shards:2", "iid+quantity:0.3", "domains+shards:2; 9: same"]),
]
MUTATED = 250
SIGNS = "[]{}()&*!|>'\"%@`,:;=+-.#?~\\/<> \n\t\0\x1b\ud800\u2028e9" + "0123456789ax"


def mutated(draw: random.Random, text: str, pool: list[str]) -> str:
    """A few cuts, doublings and strange insertions."""
    for _ in range(draw.randint(1, 4)):
        at, to = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        piece = draw.choice(
            ["", draw.choice(SIGNS), draw.choice(SIGNS) * 50, draw.choice(pool)[:6000], text[at:to] * 3]
        )
        text = text[:at] + piece + text[to if draw.random() < 0.5 else at :]
    return text[:20_000]


@pytest.mark.parametrize(("take", "given"), SEEDS, ids=["recipes", "settings", "methods", "splits"])
def test_mutated_texts_are_values_or_sentences(take: Take, given: list[str]) -> None:
    draw = random.Random(15)
    refused = sum(check_sentence(take, mutated(draw, draw.choice(given), texts.VALUES)) for _ in range(MUTATED))
    assert refused > 0


@pytest.fixture
def odd_places() -> Iterator[None]:
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    os.mkfifo("pipe.npz")
    os.mkfifo("pipe.safetensors")
    yield


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    from fedloom.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.usefixtures("odd_places")
@pytest.mark.parametrize("path", texts.PATHS, ids=lambda path: repr(path[:12]))
@pytest.mark.parametrize(
    "form", ["{}", "--data {}.npz", "--data {}", "--data folder:{}", "--init {}.safetensors", "--init {}",
             "--split file:{}", "--resume {}", "--model {}.py:f", "--parts {}.py", "--out {}/x/y", "--name {}"],
)  # fmt: skip
def test_odd_paths_are_sentences_and_nothing_hangs(path: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().iterdir())
    flag, _, rest = form.rpartition(" ")
    if "\0" in path and flag in ("", "--resume"):
        pytest.skip("no argument of a process can hold it")
    code, message = command(
        capsys, "run", "--rounds", "1", "--clients", "10", "--workers", "1", "-q", *flag.split(), rest.format(path)
    )
    if code == 0:  # a name that is odd, and allowed
        assert flag in ("--name", "--out")
        return
    assert code == 2, message
    assert len(message.strip().splitlines()) == 1
    assert len(message) < 1600
    assert sorted(Path().iterdir()) == before


def test_long_numbers_in_any_flag_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    from fedloom.recipe import FLAGS

    for name in FLAGS:
        if name not in ("name", "out", "track"):
            code, message = command(capsys, "run", f"--{name.replace('_', '-')}", texts.LONG)
            assert (code, len(message.strip().splitlines())) == (2, 1), (name, message)
            assert len(message) < 1600
    for words in (
        ["compare", "--seeds"],
        ["sweep", "--over"],
        ["watch", ".", "--port"],
        ["list"],
        ["bench", "--seconds"],
    ):
        code, message = command(capsys, *words, texts.LONG)
        assert (code, len(message.strip().splitlines())) == (2, 1), (words, message)
    assert list(Path().iterdir()) == []


def test_what_is_echoed_is_one_short_line() -> None:
    assert shown("ab\ncd\x1b") == "'ab\\ncd\\x1b'"
    assert len(shown("x" * 10**6)) < 90
    assert len(shown({"a": [[[["x" * 100]] * 100]]})) <= 80
    assert len(shown(10**5000)) < 90
    assert one_line("a\nb\tc\0") == "a b c\\x00"
    assert one_line("a plain sentence, /with/a/path; 2 × “things”") == "a plain sentence, /with/a/path; 2 × “things”"
    assert len(one_line("word " * 10**5)) <= 1500
