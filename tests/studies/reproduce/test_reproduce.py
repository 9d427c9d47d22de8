"""Tables reproduced at a tiny scale: layout, reuse, divergence, kill and resume, and refusals."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedloom as fl
from fedloom.cli.main import main
from fedloom.rng import numpy_generator
from fedloom.studies.reproduce import plan
from fedloom.studies.reproduce.choose import choose

SMALL: dict[str, Any] = {"data.name": "digits", "model": "mlp", "clients": 10, "fraction": 0.3, "workers": 1}
FLAGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


def small(target: str = "fedbabu/table5", cells: str | None = "s=10", **more: Any) -> Any:
    return fl.reproduce(target, cells, scale=more.pop("scale", 0.1), **more, **SMALL)


def test_a_table_is_read_from_one_run_per_method_in_the_papers_layout(tmp_path: Path) -> None:
    done = small(out=tmp_path)
    assert len(done.outcomes) == 14 and len(done.plan.jobs) == 2
    for job in done.plan.jobs:
        run = fl.Run(job.folder)
        assert run.recipe.rounds == 3 and run.recipe.epochs == 10  # a tenth of 320 / 10
        (curve,) = [json.loads(path.read_text())["curve"] for path in (run.path / "personal").glob("*.json")]
        method = "FedBABU" if run.recipe.method == "babu" else "FedAvg"
        ours = {int(o.cell.labels["epochs"]): o.mean for o in done.outcomes if o.cell.labels["method"] == method}
        assert ours[0] == pytest.approx(100 * run.summary["client_accuracy"]["mean"])
        assert all(ours[k] == pytest.approx(100 * curve[k]["mean"]) for k in (1, 2, 3, 4, 5, 10))
    text = (tmp_path / "fedbabu-table5.md").read_text()
    assert "| s / method | epochs=0 | epochs=1 | epochs=2 |" in text
    assert "| s=10, FedAvg, published | 14.40 ± 5.64 | 27.43 ± 6.46 |" in text
    lines = [line for line in text.splitlines() if ", ours" in line]
    assert len(lines) == 2 and all("0.1 of the rounds" in line and "data.name=digits" in line for line in lines)
    with (tmp_path / "fedbabu-table5.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 14
    for row in rows:
        assert float(row["difference"]) == pytest.approx(float(row["ours"]) - float(row["published"]), abs=1e-3)
        assert row["ordering"] in ("holds", "reversed", "within noise") and "0.1 of the rounds" in row["departs"]
    assert "\\begin{tabular}" in (tmp_path / "fedbabu-table5.tex").read_text()
    section = json.loads((tmp_path / "fedbabu-table5.reproduction.json").read_text())
    assert section["title"].startswith("FedBABU, Table 5") and len(section["blocks"][0]["rows"]) == 6
    again = fl.load(tmp_path)
    assert isinstance(again, fl.Reproduction)
    assert (again.outcomes, again.tables) == (done.outcomes, done.tables)
    assert repr(again).endswith("fedbabu/table5, 14 of 14 cells)") and "14.40" in again._repr_html_()


def test_finished_runs_are_reused_wherever_they_are(tmp_path: Path) -> None:
    first = small(out=tmp_path / "one", methods="fedavg")
    (job,) = first.plan.jobs
    moved = tmp_path / "elsewhere" / "x"
    moved.parent.mkdir()
    job.folder.rename(moved)
    again = plan(
        *("fedbabu/table5", "s=10", "fedavg,fedbabu", 1, 0.1),
        sources=[tmp_path / "elsewhere"],
        out=tmp_path / "two",
        given=SMALL,
    )
    assert [j.folder == moved for j in again.jobs] == [True, False] and len(again.waiting) == 1
    assert "2 runs, 1 of them finished; about" in again.describe()
    other = plan("fedbabu/table5", "s=10", "fedavg", 1, 0.2, [tmp_path / "elsewhere"], tmp_path / "two", SMALL)
    assert len(other.waiting) == 1  # another number of rounds is another recipe
    before = sorted(path.name for path in moved.iterdir())
    read = small(out=tmp_path / "two", methods="fedavg", sources=[tmp_path / "elsewhere"])
    assert [o.values for o in read.outcomes] == [o.values for o in first.outcomes]
    assert sorted(path.name for path in moved.iterdir()) == before and not (tmp_path / "two" / "runs").exists()


def test_one_table_may_read_the_runs_of_another(tmp_path: Path) -> None:
    small(out=tmp_path, methods="fedavg")
    shared = plan("fedbabu/table1", "s=10, f=0.1, tau=10", None, 1, 0.1, [], tmp_path, SMALL)
    assert len(shared.jobs) == 1 and not shared.waiting  # 5 epochs of fine-tuning are inside 10
    assert "nothing is left to run" in shared.describe()


def test_a_cell_that_diverges_is_a_result_and_others_go_on(tmp_path: Path) -> None:
    done = fl.reproduce(
        "feddrplus/table2",
        "s=10",
        "fedavg,dr",
        scale=0.01,
        out=tmp_path,
        **{**SMALL, "momentum": 0.0, "augment": "none"},
    )
    assert not done.failures
    worse = fl.reproduce("fedbabu/table6", "s=10, tau=1", scale=0.01, out=tmp_path, **{**SMALL, "lr": 1e30})
    assert {item.failure for item in worse.outcomes} == {"diverged in round 1"}
    assert len(worse.outcomes) == 4
    assert "diverged in round 1" in (tmp_path / "fedbabu-table6.md").read_text()


def test_seeds_have_a_mean_and_a_deviation(tmp_path: Path) -> None:
    done = small("fedbabu/table1", "s=10, f=0.1, tau=10, metric=initial", seeds=2, out=tmp_path)
    (item,) = done.outcomes
    accuracies = [100 * fl.Run(job.folder).summary["client_accuracy"]["mean"] for job in done.plan.jobs]
    assert list(item.values) == pytest.approx(accuracies) and item.deviation is not None
    assert "2 seeds, mean ± deviation over seeds" in (tmp_path / "fedbabu-table1.md").read_text()


def test_the_released_codes_variant_is_run_where_asked_for(tmp_path: Path) -> None:
    cell = "s=10, f=0.1, tau=10"
    plain = plan("fedbabu/table4", cell, "FedPer", 1, 0.1, [], tmp_path, SMALL)
    variant = plan("fedbabu/table4", cell, "FedPer", 1, 0.1, [], tmp_path, SMALL, as_published=True)
    assert plain.jobs[0].cell.recipe.method == "fedper" and not plain.jobs[0].fine_tunings
    assert variant.jobs[0].cell.recipe.method == "fedper-reset" and variant.jobs[0].fine_tunings


@pytest.mark.slow
def test_kill_and_the_same_command_resume(tmp_path: Path) -> None:
    """Also: the bits are those of a job that was never killed."""
    settings = ["--methods", "fedavg,fedbabu", "--cells", "s=10, tau=1, f=0.1", "--scale", "0.2", *FLAGS]
    command = [
        sys.executable,
        "-m",
        "fedloom",
        "reproduce",
        "fedbabu/table4",
        *settings,
        "--out",
        str(tmp_path / "killed"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(fl.__file__).parents[1])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    logs = tmp_path / "killed" / "runs"
    until = time.monotonic() + 120
    while not [log for log in logs.glob("*/seed0/rounds.jsonl") if log.read_text().count("\n") > 5]:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert subprocess.run(command, env=environment, capture_output=True, timeout=300).returncode == 0
    command[-1] = str(tmp_path / "whole")
    assert subprocess.run(command, env=environment, capture_output=True, timeout=300).returncode == 0

    def digests(root: Path) -> dict[str, str]:
        return {p.parts[-3]: json.loads(p.read_text())["digest"] for p in root.glob("runs/*/seed0/summary.json")}

    assert digests(tmp_path / "killed") == digests(tmp_path / "whole") and len(digests(tmp_path / "whole")) == 2
    names = ("fedbabu-table4.md", "fedbabu-table4.csv")
    assert all((tmp_path / "killed" / n).read_text() == (tmp_path / "whole" / n).read_text() for n in names)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fedbab"], "paper 'fedbab' is unknown; did you mean fedbabu?"),
        (["fedbabu/table55"], "table of FedBABU 'table55' is unknown; did you mean table5"),
        (["fedbabu/5", "--cells", "s=11"], "cells: label of s '11' is unknown"),
        (["fedbabu/5", "--cells", "ss=10"], "cells: axis 'ss' is unknown; did you mean s?"),
        (["fedbabu/5", "--cells", "10"], "cells: cannot read '10'; write axis=label, as in s=10"),
        (["fedbabu/5", "--methods", "fedbab"], "methods: method 'fedbab' is unknown; did you mean"),
        (["fedbabu/5", "--scale", "2"], "scale: must be above 0 and at most 1 (got 2)"),
        (["fedbabu/5", "--seeds", "0"], "seeds: must be 1 or more (got 0)"),
        (["fedbabu/5", "--from", "nowhere"], "from: there is no folder nowhere"),
        (["fedbabu/5", "--set", "method=fn"], "set: method belongs to the cells of the table"),
        (["fedbabu/5", "--set", "rouns=3"], "rouns: unknown field; did you mean rounds?"),
        (
            ["fednn/1", "--cells", "data=CIFAR10-C"],
            "the data set cifar10c is missing; put it at $FEDLOOM_DATA/cifar10c.npz",
        ),
        (
            ["fednn/2", "--cells", "data=PACS", "--set", "data.name=folder:x?test=*.txt"],
            "there is no such file or folder",
        ),
        (
            ["fednn/2", "--cells", "data=VLCS"],
            "vlcs.npz, or get it elsewhere: VLCS (the archive that DomainBed downloads)",
        ),
        (["fedfn/A12"], "none of these cells can be run: clients, epochs, batch size and the layers of the net"),
        (["list", "fedbab"], "paper 'fedbab' is unknown"),
    ],
)
def test_refusals(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *words])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_the_papers_images_may_come_from_a_folder_by_domain(tmp_path: Path) -> None:
    random = numpy_generator(0, "pictures")
    for name in (f"{domain}/{kind}/{k}.png" for domain in "pacs" for kind in ("dog", "cat") for k in range(6)):
        (tmp_path / "PACS" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 9, 3), dtype=np.uint8)).save(tmp_path / "PACS" / name)
    given = {"data.name": f"folder:{tmp_path / 'PACS'}", "data.resize": 8, "model": "cnn", "workers": 1, "epochs": 1}
    done = fl.reproduce("fednn/table2", "data=PACS", methods="FedAvg(GN)", scale=0.005, out=tmp_path / "out", **given)
    (outcome,) = done.outcomes
    run = fl.Run(done.plan.jobs[0].folder)
    assert (run.recipe.data.test_every, run.recipe.rounds, run.recipe.augment) == (10, 1, "crop+flip")
    with np.load(run.path / "partition.npz") as stored:
        assert (stored["train_offsets"][-1], stored["test_offsets"][-1]) == (43, 5)  # every tenth of 48
        assert len(stored["train_offsets"]) == 5  # four domains
    assert outcome.mean == pytest.approx(100 * run.summary["test_accuracy"])


def test_fedetf_is_fine_tuned_in_turns(tmp_path: Path) -> None:
    (job,) = plan(
        "feddrplus/table5", "s=10", "FedETF-FT", out=tmp_path, given={"data.name": "digits", "clients": 10}
    ).jobs
    assert job.fine_tunings == (fl.FineTuning("alternate", 123, 0.05),)


def test_cells_are_chosen_by_labels_and_methods() -> None:
    assert len(choose("fedbabu/table5")) == 28
    assert len(choose("FedBABU/Table 5", "s=10", "fedavg")) == 7
    assert len(choose("fedbabu/5", "s=10; s=50", "FedBABU")) == 14
    assert {cell.labels["f"] for cell in choose("fedbabu/1", "f=1")} == {"1.0"}
    assert {cell.name for cell in choose("fedfn/A9", None, "fn")} == {"FedFN", "FedFN-FT (0.1 × η)"}
    assert {cell.table for cell in choose("fedbabu", "tau=4")} == {"table1", "table3", "table4", "table6"}


def test_the_plan_says_how_long_it_takes_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "fedbabu/table5", "--cells", "s=10", "--plan", *FLAGS, "--out", str(tmp_path / "o")])
    assert stop.value.code == 0
    said = capsys.readouterr()
    assert "14 cells, 14 of them runnable, 2 runs; about" in said.err and not (tmp_path / "o").exists()


def test_the_list_names_tables_cells_time_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "list", "fedbabu"])
    out = capsys.readouterr().out
    assert "fedbabu/table5" in out and " 111 cells" in out and " h " in out
    assert re.search(r"(Here|Downloaded when first used): cifar100", out)
    with pytest.raises(SystemExit):
        main(["reproduce", "list", "fedfn/table3"])
    out = capsys.readouterr().out
    assert "method=FedBABU, pretrained=True, s=10" in out
    assert "Initial weights are downloaded: hf:timm/resnet18.tv_in1k" in out
    with pytest.raises(SystemExit):
        main(["reproduce", "list", "fedfn/A12"])
    assert "Not runnable (65 cells): clients, epochs, batch size" in capsys.readouterr().out


def test_a_second_stage_begins_with_the_weights_of_the_first(tmp_path: Path) -> None:
    """LG-FedAvg in FedBABU's Table 4: FedAvg first, then a quarter of the rounds at rate 0.001."""
    done = small("fedbabu/table4", "s=10, f=0.1, tau=4", methods="lg", scale=0.2, out=tmp_path)
    first, second = done.plan.jobs
    assert (first.cell.recipe.method, first.cell.recipe.rounds, first.cell.recipe.lr) == ("fedavg", 16, 0.1)
    assert (second.cell.recipe.method, second.cell.recipe.rounds, second.cell.recipe.lr) == ("lg", 4, 0.001)
    begun, ended = (fl.Run(job.folder) for job in (first, second))
    assert ended.summary["init"]["digest"] and ended.recipe.init == str(begun.path / "final.safetensors")
    (item,) = done.outcomes
    assert item.mean == pytest.approx(100 * ended.summary["personal_accuracy"]["mean"])
    again = plan("fedbabu/table4", "s=10, f=0.1, tau=4", "lg", 1, 0.2, [], tmp_path, SMALL)
    assert not again.waiting
    shared = plan("fedbabu/table4", "s=10, f=0.1, tau=4", "fedavg,lg", 1, 0.2, [], tmp_path, SMALL)
    assert len(shared.jobs) == 2 and [job.cell.recipe.method for job in shared.waiting] == [
        "fedavg"
    ]  # to be fine-tuned


def test_fewer_clients_can_be_fine_tuned_and_every_line_says_so(tmp_path: Path) -> None:
    tuned: list[tuple[int, int]] = []

    class Counting(fl.RunCallback):
        def client_tuned(self, done: int, total: int) -> None:
            tuned.append((done, total))

    done = small(out=tmp_path, methods="fedavg", tuned_clients=3, callbacks=[Counting()])
    assert tuned == [(1, 3), (2, 3), (3, 3)]
    (job,) = done.plan.jobs
    (path,) = (job.folder / "personal").glob("*.json")
    stored = json.loads(path.read_text())
    assert stored["sample"] == 3
    last = done.outcomes[-1]
    assert last.mean == pytest.approx(100 * stored["curve"][10]["mean"]) and last.test_samples < 200
    text = (tmp_path / "fedbabu-table5.md").read_text()
    assert all("3 clients fine-tuned" in line for line in text.splitlines() if ", ours" in line)
    whole = plan("fedbabu/table5", "s=10", "fedavg", 1, 0.1, [], tmp_path, SMALL)
    assert len(whole.waiting) == 1  # a sample of clients does not stand for all
