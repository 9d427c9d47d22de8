"""Files: whole or not at all, and a damaged one says so."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch

from fedloom.errors import FedloomError
from fedloom.io.files import append_line, read_lines, read_tensors, replace_lines, write, write_json, write_tensors

TENSORS = {"w": torch.arange(40.0), "count": torch.tensor([3]), "none": torch.zeros(0, 2)}


def test_a_file_is_replaced_in_one_move() -> None:
    path = Path("deep/down/file")
    write(path, "old")
    before = path.stat().st_ino
    with path.open() as reader:
        write(path, "new", durable=True)
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_ino != before
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_no_draft() -> None:
    write(Path("file"), "old")
    with pytest.raises(TypeError):
        write(Path("file"), 3)  # type: ignore[arg-type]
    assert Path("file").read_text() == "old"
    assert list(Path().iterdir()) == [Path("file")]


def test_files_have_the_usual_rights() -> None:
    Path("usual").touch()
    write(Path("file"), "x")
    assert stat.S_IMODE(Path("file").stat().st_mode) == stat.S_IMODE(Path("usual").stat().st_mode)


def test_json_is_plain_json() -> None:
    write_json(Path("file"), {"a": 1})
    assert json.loads(Path("file").read_text()) == {"a": 1}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(Path("file"), {"a": float("nan")})
    assert json.loads(Path("file").read_text()) == {"a": 1}


def test_lines_are_appended_whole_and_half_a_line_is_not_read() -> None:
    path = Path("log")
    assert read_lines(path) == []
    append_line(path, {"round": 1})
    append_line(path, {"round": 2})
    with path.open("a") as file:
        file.write('{"round": 3')
    assert read_lines(path) == [{"round": 1}, {"round": 2}]
    replace_lines(path, read_lines(path)[:1])
    append_line(path, {"round": 2})
    assert path.read_text() == '{"round": 1}\n{"round": 2}\n'


def test_tensors_are_read_back_with_their_metadata() -> None:
    write_tensors(Path("file"), TENSORS, {"round": "3"})
    tensors, metadata = read_tensors(Path("file"))
    assert metadata == {"round": "3"}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_every_flipped_bit_is_detected() -> None:
    path = Path("file")
    write_tensors(path, TENSORS, {"round": "3"})
    sound = path.read_bytes()
    for place in range(len(sound)):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(FedloomError, match="file is damaged"):
            read_tensors(path)


def test_every_truncation_is_detected() -> None:
    path = Path("file")
    write_tensors(path, TENSORS, {"round": "3"})
    sound = path.read_bytes()
    for length in range(0, len(sound), 7):
        path.write_bytes(sound[:length])
        with pytest.raises(FedloomError, match="file is damaged"):
            read_tensors(path)


def test_a_pickle_is_not_read() -> None:
    torch.save(TENSORS, "file")
    with pytest.raises(FedloomError, match="not a safetensors file"):
        read_tensors(Path("file"))
    with pytest.raises(FedloomError, match="there is no file nowhere"):
        read_tensors(Path("nowhere"))
