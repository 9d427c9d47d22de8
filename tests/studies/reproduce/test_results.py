"""Results on record: matched with published cells, and claims judged by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from fedloom.papers import PAPERS, paper, table_cells
from fedloom.papers.schema import Claim
from fedloom.report.reproductions import cells_section, claims_section, outcomes
from fedloom.studies.reproduce import CellOutcome, plan
from fedloom.studies.reproduce.claims import judge

RUN = [
    "--data",
    "cifar100",
    "--clients",
    "100",
    "--fraction",
    "0.1",
    "--model",
    "mobilenet",
    "--batch",
    "50",
    "--momentum",
    "0.9",
    "--schedule",
    "step",
    "--weighting",
    "uniform",
    "--augment",
    "crop+flip",
    "--set",
    "bn=batch",
    "--set",
    "eval_batch=100",
    "--eval-every",
    "0",
    "--split",
    "shards:10",
    "--rounds",
    "32",
    "--epochs",
    "10",
    "--lr",
    "0.1",
    "--weight-decay",
    "0.0",
]
DIGITS = """| row | method | published (table) | pooled test | mean of domains | last rounds' choice, share of bn |
|---|---|---|---|---|---|
| GN | `norm(kind=gn)` | 81.80 (2) | 81.80 ± 0.40 | 80.00 ± 0.40 |  |
| FedNN | `fednn` | 83.44 (2) | 83.00 ± 0.20 | 82.00 ± 0.20 | 0.50, 0.50 |
| FedProx, GN | `prox(mu=0.001) + norm(kind=gn)` | 81.80 (4) | 70.00 ± 0.40 | 80.00 ± 0.40 |  |
"""


def on_record(folder: Path, name: str, method: str, seed: int, curve: list[float], **flags: str) -> None:
    words = [*RUN, "--method", method, "--seed", str(seed)]
    for flag, value in flags.items():
        words[words.index(f"--{flag}") + 1] = value
    tuned: dict[str, Any] = {"part": "full", "epochs": len(curve) - 1, "lr": 0.001, "loss": "method"}
    tuned["curve"] = [{"mean": value} for value in curve]
    summary = {"test_accuracy": 0.2, "client_accuracy": {"mean": curve[0]}, "seconds": 64.0, "rounds": 32}
    content = {"cell": name, "run": words, "summary": summary, "personal": {"full-10-0.001": tuned}}
    (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    on_record(tmp_path, "a", "fedavg", 0, [0.15, 0.30, 0.45, 0.55, 0.60, 0.62, 0.62, 0.62, 0.62, 0.62, 0.63])
    on_record(tmp_path, "b", "fedbabu", 0, [0.18, 0.60, 0.64, 0.65, 0.66, 0.66, 0.66, 0.66, 0.66, 0.66, 0.632])
    on_record(tmp_path, "short", "fedavg", 0, [0.1, 0.1], rounds="31")  # another recipe
    failed = {"cell": "c", "run": [*RUN, "--method", "prox(mu=0.01)", "--seed", "0"]}
    failed |= {"failed": "error: round 13: all 10 uploads are lost (…); training has diverged: lower lr"}
    (tmp_path / "c.failed").write_text(json.dumps(failed))
    (tmp_path / "d.json").write_text(json.dumps({"cell": "digits", "domains": 3, "table": DIGITS}))
    return tmp_path


def test_a_result_is_that_of_every_cell_with_its_recipe_and_measure(folder: Path) -> None:
    by_table = outcomes("fedbabu", folder)
    ours = {item.cell.id: item for name in by_table for item in by_table[name] if item.values and name == "table5"}
    assert len(ours) == 14
    item = ours["s=10, method=FedBABU, epochs=1"]
    assert item.mean == pytest.approx(60.0) and item.difference == pytest.approx(60.0 - 63.29)
    assert item.differs == ("data.normalize set in place of [[0.507, 0.487, 0.441], [0.267, 0.256, 0.276]]",)
    initial, personal = (
        next(i for i in by_table["table1"] if i.cell.id == f"f=0.1, tau=10, s=10, metric={metric}")
        for metric in ("initial", "personalized")
    )
    assert (initial.mean, personal.mean) == (pytest.approx(15.0), pytest.approx(62.0))
    (diverged,) = [i for i in by_table["table6"] if i.failure and i.cell.labels["metric"] == "initial"]
    assert diverged.failure == "diverged in round 13" and diverged.cell.labels["method"] == "FedProx"
    assert sum(bool(item.values) for name in by_table for item in by_table[name]) == 14 + 2 + 2 + 2 + 1


def test_the_table_of_the_digits_gives_means_and_deviations(folder: Path) -> None:
    by_table = outcomes("fednn", folder)
    (fednn,) = [i for i in by_table["table2"] if i.cell.labels == {"method": "FedAvg+Ours", "data": "Digit"}]
    assert (fednn.mean, fednn.seeds) == (83.0, 3)
    assert fednn.deviation == pytest.approx(0.2 * (3 / 2) ** 0.5)  # of a sample
    assert "cohorts of exactly two" in fednn.differs
    assert not [i for i in by_table["table2"] if i.values and i.cell.labels["data"] != "Digit"]


def test_claims_are_judged_by_pairs_beyond_noise(folder: Path) -> None:
    lines = claims_section("fedbabu", folder).splitlines()
    verdicts = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in lines[2:]}
    assert verdicts["FedBABU personalizes faster: after one epoch of fine-tuning it is ahead."] == "holds (one seed)"
    assert verdicts["FedBABU's personalized accuracy is above FedAvg's."] == "holds (one seed)"
    assert (
        verdicts["Server data improve the personalized accuracy more where only the body learns from them."]
        == "not tested"
    )
    nn = claims_section("fednn", folder)
    assert "| FedNN is better than FedAvg without normalization, with BN and with GN. | holds |" in nn


@pytest.mark.parametrize("key", PAPERS)
def test_a_papers_own_numbers_bear_out_its_claims(key: str) -> None:
    """Also: every check names cells that can be compared."""
    printed = {
        table: [
            CellOutcome(c, () if c.value is None else (c.value,), 10_000, "failed") for c in table_cells(key, table)
        ]
        for table in paper(key).tables
    }
    for claim in paper(key).claims:
        verdict = judge(claim, printed)
        assert verdict.verdict in ("holds", "holds weaker") if claim.checks else claim.note, claim.text
        for check in claim.checks:
            assert judge(Claim(text="", checks=[check]), printed).pairs, (claim.text, check)


def test_the_section_lists_finished_cells_and_counts_the_others(folder: Path) -> None:
    text = cells_section("fedbabu", folder)
    assert "| Table 5 | s=10, method=FedAvg, epochs=0 | global model, mean over clients before fine-tuning |" in text
    assert "| diverged in round 13 |" in text and "Table 5: 14 of 28" in text
    assert "Table 1: 0 of 36" in cells_section("fedbabu", folder.parent / "nothing")


def test_every_cell_of_a_full_table_has_an_outcome(folder: Path) -> None:
    assert len(outcomes("fedbabu", folder)["table4"]) == len(table_cells("fedbabu", "table4"))


def test_reproduce_reads_results_on_record_in_place_of_runs(folder: Path, tmp_path: Path) -> None:
    done = fl.reproduce("fedbabu/table5", "s=10", sources=[folder], out=tmp_path / "out")
    assert not done.plan.waiting and len(done.plan.on_record) == 2
    ours = {item.cell.id: item for item in done.outcomes}
    assert ours["s=10, method=FedAvg, epochs=5"].mean == pytest.approx(62.0)
    assert all("data.normalize set in place of" in item.differs[0] for item in done.outcomes)
    text = (tmp_path / "out" / "fedbabu-table5.md").read_text()
    assert "FedBABU, ours | 18.00 o | 60.00 o |" in text and "Departs: " in text
    assert "Claim: FedBABU personalizes faster" in text and "Here (one seed): holds (1 of 1 pairs hold" in text
    assert not (tmp_path / "out" / "runs").exists()
    second = plan("fedbabu/table5", "s=10", "fedavg", 2, 1.0, [folder], tmp_path / "out", {"data.name": "digits"})
    assert len(second.waiting) == 2  # another data set is another recipe
