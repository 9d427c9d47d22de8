"""The logs must contain the lines that a checkpoint has seen: edited, damaged and incomplete logs are detected and repaired."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import Notes, check_whole, checkpoints

import fedloom as fl
from fedloom.io.files import read_tensors, write_tensors

FIELDS = {"clients": 5, "fraction": 1.0, "rounds": 4, "workers": 1, "eval_clients": 1, "checkpoint_seconds": 0}
Lines = list[str]


@pytest.fixture
def run(straight: Callable[..., fl.Run]) -> fl.Run:
    return straight(**FIELDS)


def unfinished(run: fl.Run) -> Path:
    shutil.copytree(run.path, "copy")
    for name in ("summary.json", "final.safetensors"):
        (Path("copy") / name).unlink()
    return Path("copy")


def edited(number: int, **changes: Any) -> Callable[[Lines], Lines]:
    """Change the values of one line; None removes the key."""

    def edit(lines: Lines) -> Lines:
        content = {**json.loads(lines[number]), **changes}
        lines[number] = json.dumps({key: value for key, value in content.items() if value is not None})
        return lines

    return edit


def in_place_of(number: int, other: int) -> Callable[[Lines], Lines]:
    """Replace a line by a copy of another one, with its own round number."""

    def copy(lines: Lines) -> Lines:
        lines[number] = json.dumps({**json.loads(lines[other]), "round": number + 1})
        return lines

    return copy


def swapped(lines: Lines) -> Lines:
    first, second = (json.loads(lines[number]) for number in (0, 1))
    return [json.dumps({**second, "round": 1}), json.dumps({**first, "round": 2}), *lines[2:]]


def without(number: int) -> Callable[[Lines], Lines]:
    return lambda lines: lines[:number] + lines[number + 1 :]


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
@pytest.mark.parametrize(
    ("damage", "begun"),
    [
        (edited(0, cohort=[1], accuracy=[1.0] * 5), 0),
        (edited(3, train_loss=0.5, correct=[1] * 5), 3),
        (edited(2, lost=None, accuracy=None), 0),
        (in_place_of(2, 1), 0),
        (in_place_of(3, 2), 3),
        (swapped, 0),
        (lambda lines: [*lines[:3], lines[3].replace("0.", "0.00", 1)], 3),
        (without(3), 3),
        (without(0), 0),
        (lambda lines: [*lines[:2], lines[2][: len(lines[2]) // 2], lines[3]], 0),
        (lambda lines: [*lines[:3], "\0" * 40 + "\x01\x02", lines[3]], 3),
        (lambda lines: [*lines[:3], lines[3].replace("0.", "1e999, 0.", 1)], 3),
    ],
    ids=[
        *("first", "last", "key taken", "copied", "copied last", "swapped", "digit", "no last", "no first"),
        *("half", "junk", "endless"),
    ],
)
def test_rounds_whose_lines_changed_are_repeated(
    name: str, damage: Callable[[Lines], Lines], begun: int, run: fl.Run
) -> None:
    path, notes = unfinished(run), Notes()
    log = path / name
    log.write_text("\n".join(damage(log.read_text().splitlines())) + "\n")
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [begun]
    assert len(notes.said) == (1 if begun == 3 else 2)
    assert all(f"copy/{name}" in said for said in notes.said)


@pytest.mark.parametrize(("name", "begun"), [("rounds.jsonl", 0), ("clients.jsonl", 4)])
def test_a_duplicate_line_is_removed(name: str, begun: int, run: fl.Run) -> None:
    path, notes = unfinished(run), Notes()
    lines = (path / name).read_text().splitlines(keepends=True)
    (path / name).write_text("".join([lines[0], *lines]))
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [begun]


def test_a_line_of_clients_that_no_round_wrote_is_detected(straight: Callable[..., fl.Run]) -> None:
    run = straight(**{**FIELDS, "eval_clients": 2})
    path, notes = unfinished(run), Notes()
    log = path / "clients.jsonl"
    log.write_text(json.dumps({**json.loads(log.read_text().splitlines()[0]), "round": 1}) + "\n" + log.read_text())
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [0]
    assert "clients.jsonl was changed" in notes.said[0]


def test_lines_after_the_checkpoint_are_removed_silently(run: fl.Run) -> None:
    path, notes = unfinished(run), Notes()
    checkpoints(path)[-1].unlink()
    for name in ("rounds.jsonl", "clients.jsonl"):
        log = path / name
        log.write_bytes(log.read_bytes()[:-30])
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert (notes.begun, notes.said) == ([3], [])


def test_a_valid_log_is_continued_without_being_rewritten(run: fl.Run) -> None:
    path, notes = unfinished(run), Notes()
    before = [(path / name).stat().st_ino for name in ("rounds.jsonl", "clients.jsonl")]
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert (notes.begun, notes.said) == ([4], [])
    assert [(path / name).stat().st_ino for name in ("rounds.jsonl", "clients.jsonl")] == before


def test_a_checkpoint_without_a_checksum_of_the_log_is_accepted(run: fl.Run) -> None:
    path, notes = unfinished(run), Notes()
    for checkpoint in checkpoints(path):
        tensors, metadata = read_tensors(checkpoint)
        write_tensors(checkpoint, tensors, {name: text for name, text in metadata.items() if name != "log"})
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert (notes.begun, notes.said) == ([4], [])


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
def test_a_finished_run_refuses_an_edited_log(name: str, run: fl.Run) -> None:
    shutil.copytree(run.path, "copy")
    copy = fl.Run(Path("copy"))
    assert copy.rounds == run.rounds
    log = Path("copy") / name
    log.write_text("\n".join(edited(1, cohort=[0], accuracy=[1.0] * 5)(log.read_text().splitlines())) + "\n")
    with pytest.raises(fl.FedloomError, match=rf"copy/{name} was changed after round 4.*--resume copy"):
        _ = copy.rounds if name == "rounds.jsonl" else copy.clients
    (Path("copy") / "summary.json").unlink()  # as the sentence says
    check_whole(fl.run(resume="copy"), run)
