"""Checkpoints: two are kept, a damaged one is passed over, and the end is the same."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from folders import Notes, check_whole, checkpoints, drafts, remembered, spoken
from processes import Child, die_at

import fedloom as fl
from fedloom.io.files import read_tensors, write_tensors
from fedloom.runs.folder import RunFolder

FIELDS = {"clients": 5, "fraction": 1.0, "rounds": 4, "workers": 1, "eval_every": 0, "method": "scaffold"}
Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def unfinished(run: fl.Run, name: str) -> Path:
    """A copy of a run's folder as it was before the end was written, with the checkpoints of its last two rounds."""
    path = Path(name)
    shutil.copytree(run.path, path)
    (path / "summary.json").unlink()
    (path / "final.safetensors").unlink()
    return path


@pytest.fixture
def run(straight: Callable[..., fl.Run]) -> fl.Run:
    return straight(**FIELDS, checkpoint_seconds=0)


def test_exactly_two_are_kept(run: fl.Run) -> None:
    assert [path.name for path in checkpoints(run.path)] == ["round-000003.safetensors", "round-000004.safetensors"]


@pytest.mark.parametrize("damage", [flip, cut, empty])
def test_a_damaged_newest_one_falls_back_to_the_one_before(damage: Damage, run: fl.Run) -> None:
    path, notes = unfinished(run, "copy"), Notes()
    newest = checkpoints(path)[-1]
    damage(newest)
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [3]
    assert len(notes.said) == 1
    assert str(newest) in notes.said[0]
    assert "damaged" in notes.said[0]


@pytest.mark.parametrize("damage", [flip, cut, empty])
def test_when_both_are_damaged_the_run_starts_over(damage: Damage, run: fl.Run) -> None:
    path, notes = unfinished(run, "copy"), Notes()
    for checkpoint in checkpoints(path):
        damage(checkpoint)
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [0]
    assert len(notes.said) == 2


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink])
def test_a_damaged_memory_of_a_client_counts_as_a_damaged_checkpoint(damage: Damage, run: fl.Run) -> None:
    path, notes = unfinished(run, "copy"), Notes()
    damage(path / "checkpoints" / "clients" / "client-000002-round-000004.safetensors")
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [3]
    assert "client-000002-round-000004" in notes.said[0]


def test_a_damaged_memory_in_both_checkpoints_starts_the_run_over(run: fl.Run) -> None:
    path, notes = unfinished(run, "copy"), Notes()
    for found in (path / "checkpoints" / "clients").glob("client-000002-*"):
        flip(found)
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [0]


def test_memory_of_the_wrong_shape_is_not_taken(run: fl.Run) -> None:
    path, notes = unfinished(run, "copy"), Notes()
    write_tensors(
        path / "checkpoints" / "clients" / "client-000002-round-000004.safetensors",
        {"scaffold.control": torch.zeros(3)},
    )
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [3]


def test_a_checkpoint_of_another_recipe_is_refused(run: fl.Run) -> None:
    path, other = unfinished(run, "copy"), fl.run(FIELDS, lr=0.05)
    for checkpoint in checkpoints(path):
        checkpoint.unlink()
    shutil.copy(checkpoints(other.path)[-1], path / "checkpoints")
    with pytest.raises(fl.FedloomError, match=r"round-000004\.safetensors belongs to another recipe"):
        fl.run(resume=path)


def test_a_kill_while_one_is_written_spares_both_that_are_there(run: fl.Run) -> None:
    """Dies at every step of the third checkpoint; then the newest is damaged, and the one before must do."""
    tried, step = 0, 1
    while True:
        path = Path(f"killed-{step}")

        def work(step: int = step, path: Path = path) -> None:
            class Late(fl.RunCallback):
                def round_ended(self, line: dict[str, int]) -> None:
                    if line["round"] == 3:
                        die_at(step)

            fl.run(FIELDS, checkpoint_seconds=0, out=str(path), callbacks=[Late()])

        if Child(work).wait() != -signal.SIGKILL or len(checkpoints(path)) == 3 or checkpoints(path)[0].stem[-1] != "1":
            break
        flip(checkpoints(path)[-1])
        notes = Notes()
        check_whole(fl.run(resume=path, callbacks=[notes]), run)
        assert notes.begun == [1]
        tried, step = tried + 1, step + 3
    assert tried >= 4


def drop(number: int) -> Damage:
    def damage(log: Path) -> None:
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(lines[:number] + lines[number + 1 :]))

    return damage


@pytest.mark.parametrize(
    ("damage", "begun"),
    [
        (drop(3), 3),  # the last line, so the checkpoint before will do
        (drop(1), 0),
        (lambda log: log.write_bytes(log.read_bytes()[:-20]), 3),
        (lambda log: log.write_bytes(log.read_bytes()[:-20] + b"\0" * 20 + b"\n"), 3),
        (lambda log: log.write_text("[1]\n" + log.read_text()), 0),
        (lambda log: log.write_text(log.read_text() * 2), 4),
        (Path.unlink, 0),
    ],
    ids=["last", "middle", "cut", "zeros", "garbage", "twice", "gone"],
)
def test_a_log_with_a_gap_is_made_good(damage: Damage, begun: int, run: fl.Run) -> None:
    path, notes = unfinished(run, "copy"), Notes()
    damage(path / "rounds.jsonl")
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [begun]


def test_a_log_without_its_clients_is_made_good(run: fl.Run) -> None:
    path, notes = unfinished(run, "copy"), Notes()
    (path / "clients.jsonl").unlink()
    check_whole(fl.run(resume=path, callbacks=[notes]), run)
    assert notes.begun == [3]
    assert "ahead of the log" in notes.said[0]


def test_memory_that_no_checkpoint_speaks_of_is_removed_over_many_rounds() -> None:
    most = 0

    class Counts(fl.RunCallback):
        def round_ended(self, line: dict[str, int]) -> None:
            nonlocal most
            path = Path("runs/many")
            most = max(most, len(remembered(path)))
            if checkpoints(path):
                assert spoken(path) == remembered(path)
            assert not drafts(path)

    run = fl.run(FIELDS, rounds=15, clients=10, fraction=0.4, checkpoint_seconds=0, name="many", callbacks=[Counts()])
    assert most <= 10 + 4  # everybody's newest, and those of a cohort that the older checkpoint still speaks of
    assert spoken(run.path) == remembered(run.path)
    assert len(checkpoints(run.path)) == 2


def test_drafts_of_a_killed_process_are_swept_and_nothing_else(run: fl.Run) -> None:
    path = unfinished(run, "copy")
    left = [
        path / ".rounds.jsonl.abcd_123",
        path / "checkpoints" / ".round-000005.safetensors.x1y2z3w4",
        path / "checkpoints" / "clients" / ".client-000001-round-000005.safetensors.x1y2z3w4",
    ]
    for draft in (*left, path / ".notes", path / ".gitignore"):
        draft.write_text("half")
    fl.run(resume=path)
    assert {draft.name for draft in drafts(path)} == {".notes", ".gitignore"}


def test_it_holds_the_state_of_the_server_under_plain_names(run: fl.Run) -> None:
    tensors, metadata = read_tensors(checkpoints(run.path)[-1])
    assert sorted(tensors) == ["clients", "server.scaffold.control", "statistics", "versions", "w"]
    seal = RunFolder(run.path).log().seal()
    assert metadata == {"round": "4", "recipe": run.recipe.digest(), "log": seal}
    assert tensors["clients"].tolist() == [0, 1, 2, 3, 4]
    assert tensors["versions"].tolist() == [4] * 5
