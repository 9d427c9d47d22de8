"""fedloom split: what it prints, stores, reads and draws."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedloom as fl
from fedloom.cli.main import main


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["split", *arguments])
    told = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, told.out, told.err


def test_a_split_is_printed_with_its_numbers_and_a_map(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "--split", "shards:2+noise:0.1", "--clients", "10", "--seed", "3")
    assert code == 0
    found = fl.split(split="shards:2+noise:0.1", clients=10, seed=3)
    numbers = found.strength()
    for value in (numbers.class_entropy, numbers.jensen_shannon, numbers.earth_mover, numbers.size_gini):
        assert f"{value:.3f}" in out
    assert "noise 0.1" in out
    rows = [line.split()[1] for line in out.splitlines() if "·" in line and line.split()[0].isdecimal()]
    assert len(rows) == 10
    y = found.dataset.train_y.numpy()
    for client, row in enumerate(rows):
        held = {k for k in range(10) if row[2 * k] != "·"}
        assert held == set(y[found.partition.train(client)].tolist())


def test_what_is_stored_is_what_a_run_would_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "--split", "dirichlet:0.5+rotate", "--clients", "6", "-o", "s.npz", "-q")
    assert (code, out) == (0, "s.npz\n")
    run = fl.run(split="dirichlet:0.5+rotate", clients=6, rounds=1, eval_every=0)
    with np.load(run.path / "partition.npz") as ran, np.load("s.npz", allow_pickle=False) as stored:
        assert all(np.array_equal(ran[name], stored[name]) for name in ran.files)
    code, from_file, _ = command(capsys, "--from", "s.npz")
    assert code == 0
    code, from_run, _ = command(capsys, "--from", str(run.path))
    assert code == 0
    assert from_file.splitlines()[1:] == from_run.splitlines()[1:]  # all but the title
    assert "rotated 60°" in from_file


def test_stages_are_shown_stored_and_drawn_each(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--split", "iid; 4: shards:2", "--clients", "5", "-o", "s.npz", "--picture", "s.svg"]
    code, out, _ = command(capsys, *arguments)
    assert code == 0
    assert "from round 1" in out
    assert "from round 4" in out
    assert all(Path(name).exists() for name in ("s.npz", "s-4.npz", "s.svg", "s-4.svg"))


@pytest.mark.parametrize(("clients", "shape"), [(10, "circle"), (50, "rect")])
def test_the_picture_has_a_mark_for_every_class_a_client_holds(
    capsys: pytest.CaptureFixture[str], clients: int, shape: str
) -> None:
    assert command(capsys, "--split", "shards:2", "--clients", str(clients), "--picture", "s.svg", "-q")[0] == 0
    root = ET.parse("s.svg").getroot()
    marks = [node for node in root.iter(f"{{http://www.w3.org/2000/svg}}{shape}") if len(node)]
    found = fl.split(split="shards:2", clients=clients)
    y = found.dataset.train_y.numpy()
    expected = {}
    for client in range(clients):
        for label, count in zip(*np.unique(y[found.partition.train(client)], return_counts=True), strict=True):
            expected[f"client {client}, {label}: {count}"] = int(count)
    assert {mark[0].text for mark in marks} == set(expected)
    if shape == "circle":  # the area is the number of images
        area = {str(mark[0].text): float(mark.attrib["r"]) ** 2 for mark in marks}
        scale = max(area.values()) / max(expected.values())
        assert all(area[key] == pytest.approx(scale * count, rel=0.01) for key, count in expected.items())


def test_a_png_is_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capsys, "--picture", "s.png", "-q")[0] == 0
    with Image.open("s.png") as picture:
        assert len(set(picture.convert("L").tobytes())) > 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "s.txt"], "output: s.txt must end in .npz"),
        (["-o", "absent/s.npz"], "absent/s.npz cannot be written"),
        (["--picture", "s.gif"], "picture: s.gif must end in .svg or .png"),
        (["--from", "absent.npz"], "absent.npz is not a partition"),
        (["--from", "."], "is not a run folder"),
        (["--split", "shards:0"], "a client needs at least one shard"),
        (["--clients", "0"], "clients: must be"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    code, _, err = command(capsys, *arguments)
    assert code == 2
    assert words in err.replace("\n", " ")


def test_a_stored_split_says_who_holds_what_itself(capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "-o", "s.npz", "-q")
    code, _, err = command(capsys, "--from", "s.npz", "--clients", "4")
    assert (code, "leave out clients" in err) == (2, True)


def test_python_hands_out_what_a_client_sees() -> None:
    found = fl.split(data="digits", split="iid+noise:0.5", clients=4)
    x, y = found.samples(3)
    index = found.partition.train(3)
    plain = found.dataset.train_x[index].float()
    assert (x.float() - plain).std().item() / 16 == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(y, found.dataset.train_y[index])
    assert len(found.samples(0, "test")[0]) == len(found.partition.test(0))
