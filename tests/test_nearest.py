"""Proposals for names that are unknown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedloom.cli import names
from fedloom.cli.application import COMMANDS
from fedloom.data.sources import find
from fedloom.elsewhere import ABSENT, ELSEWHERE
from fedloom.errors import FedloomError
from fedloom.methods import method
from fedloom.nearest import near, unknown_data, unknown_part
from fedloom.recipe import Recipe


@pytest.mark.parametrize(
    ("name", "proposal"),
    [
        ("scafold", "scaffold"),
        ("fedavg-m", "fedavgm"),
        ("Fed_Prox", "fedprox"),
        ("FedDr+", "feddrplus"),
        ("fedadm", "fedadam"),
        ("prx", "prox"),
        ("trimmed-mean", "trimmed"),
        ("FedOpt", "fedadam"),
        ("per-fedavg", "perfedavg"),
        ("GN", "norm(kind=gn)"),
        ("DP-SGD", "dp"),
        ("contrastive", "moon"),
    ],
)
def test_another_spelling_or_another_library_s_name_is_understood(name: str, proposal: str) -> None:
    assert near(name, names.methods(), "methods") == [proposal]


@pytest.mark.parametrize(
    "name", ["q-ffl", "qfedavg", "FedPAQ", "kNN-Per", "GPFL", "FedBuff", "fedxyz", "banana", "fed"]
)
def test_what_is_like_no_method_gets_no_proposal(name: str) -> None:
    assert near(name, names.methods(), "methods") == []


def test_a_known_method_that_is_missing_is_said_to_be_missing() -> None:
    said = "method: unknown part 'q-ffl'; fedloom does not have it; `fedloom list methods` shows all"
    assert unknown_part("q-ffl", names.methods()) == said


def test_a_path_without_its_form_is_answered_with_the_form(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    table = tmp_path / "rows.csv"
    table.write_text('age,"sex, at birth",outcome\n51,m,ill\n')
    for name, said in (
        (
            str(table),
            f"'{table}' is a table; write table:{table}?target=COLUMN, where COLUMN has the labels: one of age, ",
        ),
        (
            "rows.parquet",
            "does not exist, and would be a table; write table:rows.parquet?target=COLUMN, where COLUMN has",
        ),
        (f"{tmp_path}/images", f"is a folder; write folder:{tmp_path}/images"),
        ("cifar-10", "; did you mean cifar10? "),
    ):
        assert said in unknown_data(name, ["cifar10"], {}, None, ["folder:PATH", "PATH.npz"])
        if "/" in name:
            with pytest.raises(FedloomError, match=re.escape(said)):
                find(name)


def test_every_proposal_exists_and_nothing_that_is_absent_does() -> None:
    known = {
        "methods": names.methods(),
        "models": names.models(),
        "splits": names.splits(),
        "metrics": names.metrics(),
        "fields": Recipe.model_fields,
        "commands": COMMANDS,
    }
    for kind, entries in ELSEWHERE.items():
        for name, proposal in entries.items():
            assert name not in known[kind]
            first = proposal.split(" ")[0].split("(")[0].partition(":")[0]
            assert first in known[kind], proposal
    for proposal in ELSEWHERE["methods"].values():
        method(proposal.partition(" with ")[0])
    assert not ABSENT & set(names.methods())
