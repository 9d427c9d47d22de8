"""The parts of the benchmark that do not depend on how fast this machine is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.bench import MEASUREMENTS, Effort, Figure, bench, read_stored, save_stored, speed_up
from fedloom.bench.training import WORKLOADS, operations
from fedloom.cli.main import main
from fedloom.errors import FedloomError

QUICK = Effort(0.0, quick=True)


def test_operations_of_lenet_are_those_counted_by_hand() -> None:
    # multiply-adds a sample: two convolutions and three matrix products; backward does each twice, but not for the input
    first = 28 * 28 * 64 * 75
    others = 10 * 10 * 64 * 1600 + 1600 * 384 + 384 * 192 + 192 * 10
    assert operations(WORKLOADS[0]) == 2 * (2 * first + 3 * others)


def test_an_unknown_measurement_is_refused_by_name() -> None:
    with pytest.raises(FedloomError, match="lenet, cnn, mobilenet"):
        list(bench(QUICK, "alexnet", lambda text: None))


def test_figures_are_compared_with_those_of_the_same_machine_and_effort(tmp_path: Path) -> None:
    file, fast = tmp_path / "figures.json", Figure("lenet", "", 200.0, "samples/s")
    save_stored([fast, Figure("start", "", 0.5, "s", "lower")], QUICK, file)
    save_stored([Figure("lenet", "", 100.0, "samples/s")], QUICK, file)  # replaces one, keeps the other
    stored = read_stored(QUICK, file)
    assert stored == {"lenet": 100.0, "start": 0.5}
    assert speed_up(fast, stored) == 2
    assert speed_up(Figure("start", "", 0.25, "s", "lower"), stored) == 2
    assert speed_up(Figure("tiny-eager", "", 1.0, "rounds/s"), stored) is None
    assert read_stored(Effort(0.0, "bf16", quick=True), file) == {}


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "\x00"])
def test_a_damaged_file_of_figures_is_no_error(content: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(content)
    assert read_stored(QUICK, file) == {}
    save_stored([Figure("lenet", "", 1.0, "samples/s")], QUICK, file)
    assert read_stored(QUICK, file) == {"lenet": 1.0}


def test_figures_are_printed_as_json_with_the_ratio_to_stored_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "figures.json")
    for words in (["--save"], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["bench", "--only", "tiny", "--quick", "--seconds", "0", "--stored", file, *words])
        assert ended.value.code == 0
        printed = capsys.readouterr().out
    content = json.loads(printed)
    assert [figure["name"] for figure in content["figures"]] == ["tiny-eager", "tiny-vmapped"]
    assert all(figure["value"] > 0 and figure["speed_up"] > 0 for figure in content["figures"])
    assert content["machine"]["cores"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("cnn", {"cnn"}),
        ("tiny", {"tiny-eager", "tiny-vmapped"}),
        ("start", {"start", "compare"}),
        ("kinds", {"lstm", "table"}),
        ("ray", {"ray-mlp", "ray-lenet"}),
    ],
)
def test_a_quick_bench_measures_what_its_name_says(only: str, names: set[str]) -> None:
    figures = list(bench(QUICK, only, lambda text: None))
    assert names <= {figure.name for figure in figures}
    assert all(figure.value > 0 for figure in figures)
    assert all(len(figure.columns) == 7 for figure in figures if "limit" in figure.columns)


def test_every_net_is_a_measurement() -> None:
    assert {workload.name for workload in WORKLOADS} < set(MEASUREMENTS)
