"""Whatever stands in a file that somebody names: content, or one sentence, soon and in bounded memory."""

from __future__ import annotations

import random
import time
from pathlib import Path

import broken_files
import pytest

import fedloom as fl
from fedloom.data import load
from fedloom.data.partition.partition import Partition, notes
from fedloom.data.sources.npz import outline
from fedloom.engine.initial_weights import read_initial_weights
from fedloom.recipe import recipe


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def check_sentence(error: fl.FedloomError) -> None:
    assert str(error).isprintable()
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("name", "content"), list(broken_files.archives()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_odd_archives_are_refused_soon(name: str, content: bytes) -> None:
    path = Path("set.npz")
    path.write_bytes(content)
    began = time.monotonic()
    with pytest.raises(fl.FedloomError) as caught:
        load(str(path))
    check_sentence(caught.value)
    assert "set.npz" in str(caught.value)
    with pytest.raises(fl.FedloomError, match=r"set\.npz"):
        Partition.load(path)
    assert notes(path) == {}
    assert "\n" not in outline(path)
    assert time.monotonic() - began < 5
    assert not Path("cache").exists() or not list(Path("cache").iterdir())


def test_a_sound_archive_is_read() -> None:
    Path("set.npz").write_bytes(broken_files.packed(broken_files.sound()))
    assert load("set.npz").train_y.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("name", "content"), list(broken_files.safetensors()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_odd_safetensors_are_read_or_refused(name: str, content: bytes) -> None:
    Path("start.safetensors").write_bytes(content)
    try:
        read_initial_weights(recipe({"init": "start.safetensors"}))
    except fl.FedloomError as error:
        check_sentence(error)
    with pytest.raises(fl.FedloomError) as caught:  # none of it fits a net
        fl.run(init="start.safetensors", rounds=1, workers=1)
    check_sentence(caught.value)
    assert str(caught.value).startswith("init: ")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "content"), list(broken_files.pictures()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_broken_pictures_are_refused_or_made_good(name: str, content: bytes) -> None:
    for place in ("a", "b"):
        Path(f"set/{place}").mkdir(parents=True)
        Path(f"set/{place}/1.{name.partition(' ')[0].lower().replace('nothing', 'png')}").write_bytes(content)
    try:
        load("folder:set")
    except fl.FedloomError as error:
        check_sentence(error)


DAMAGED = 300


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Bits flipped, bytes cut out, doubled or set."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(changed)) if changed else 0
        match draw.randrange(4):
            case 0 if changed:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at : at + draw.choice([1, 4, 100])]
            case 2:
                changed[at:at] = changed[at : at + draw.choice([1, 8, 64])]
            case _:
                changed[at : at + 4] = draw.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
    return bytes(changed)


def test_archives_with_flipped_bytes_are_read_or_refused() -> None:
    draw = random.Random(15)
    whole = [content for name, content in broken_files.archives() if name != "bomb"]
    whole += [broken_files.packed(broken_files.sound(), method) for method in (0, 8)] * 10
    for number in range(DAMAGED):
        path = Path(f"set{number}.npz")
        path.write_bytes(damaged(draw, draw.choice(whole)))
        for read in (lambda p: load(str(p)), Partition.load, notes, outline):
            try:
                read(path)
            except fl.FedloomError as error:
                check_sentence(error)
        path.unlink()


def test_safetensors_with_flipped_bytes_are_read_or_refused() -> None:
    draw = random.Random(15)
    whole = [content for _, content in broken_files.safetensors()]
    given = recipe({"init": "start.safetensors"})
    for _ in range(DAMAGED):
        Path("start.safetensors").write_bytes(damaged(draw, draw.choice(whole)))
        try:
            read_initial_weights(given)
        except fl.FedloomError as error:
            check_sentence(error)


def test_a_bomb_is_refused_for_what_it_would_unfold_to() -> None:
    content = broken_files.bomb(2**21)
    Path("set.npz").write_bytes(content)
    assert len(content) < 2**20
    with pytest.raises(
        fl.FedloomError, match=r"set\.npz decompresses to 536,870,9\d\d bytes, more than 200 times its size"
    ):
        load("set.npz")
