"""Clients have names where the data name them and the split keeps them apart, wherever clients are shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedloom as fl
from fedloom.cli.main import main
from fedloom.data.split.client_names import client_names
from fedloom.report.page.content import content

HOSPITALS = ["Bern", "Lyon", "Turin"]


@pytest.fixture
def data() -> str:
    """90 patients of three hospitals in two domains."""
    generator = np.random.default_rng(0)
    hospital = np.arange(90) % 3
    np.savez(
        "patients.npz",
        x=generator.normal(size=(90, 4)).astype(np.float32),
        y=generator.integers(0, 2, 90),
        class_names=np.array(["benign", "malignant"]),
        client=hospital,
        client_names=np.array(HOSPITALS),
        domain=hospital // 2,
        domain_names=np.array(["old", "new"]),
    )
    return "patients.npz"


@pytest.mark.parametrize(
    ("split", "clients", "names"),
    [
        ("natural", 3, tuple(HOSPITALS)),
        ("iid", 3, ()),
        ("domains", 2, ("old", "new")),
        ("domains", 4, ("old 1", "old 2", "new 1", "new 2")),
    ],
)
def test_each_client_is_called_after_the_one_group_that_it_holds(
    data: str, split: str, clients: int, names: tuple[str, ...]
) -> None:
    assert client_names(fl.split(data=data, split=split, clients=clients).stages[0]) == names


def test_terminal_picture_page_and_frames_show_the_names(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["split", "--data", data, "--picture", "s.svg"])
    shown = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0 and "classes: 0 benign, 1 malignant" in shown
    for number, name in enumerate(HOSPITALS):
        assert any(line.split()[:2] == [str(number), name] for line in shown)  # of the table
        assert any(line.split()[:1] == [name] for line in shown)  # of the map
        assert f">{name}</text>" in Path("s.svg").read_text()
    run = fl.run(data=data, model="linear", rounds=1, workers=1, out="run")
    assert run.clients_frame()["name"].tolist() == HOSPITALS
    page = content([run.path])
    assert page["splits"][0]["names"] == page["series"][0]["runs"][0]["names"] == HOSPITALS
