"""A protocol applied to a sum: rates, hyper-parameters, rounds, and what is given explicitly."""

from __future__ import annotations

import pytest

from fedloom.errors import FedloomError
from fedloom.papers import apply, protocol, table_cells
from fedloom.papers.comparison import rows


def test_a_part_brings_its_own_rate_and_hyper_parameters() -> None:
    known = protocol("feddrplus-cifar100")
    assert apply(known, "fedavg", {})["lr"] == 0.1
    assert apply(known, "dr + fd", {})["lr"] == 5.0
    assert apply(known, "spherefed + prox", {})["lr"] == 6.5
    assert apply(known, "sphere", {})["lr"] == 0.1  # cross-entropy is another method
    assert apply(protocol("fednn-digit"), "prox", {})["method"] == "prox(mu=0.001)"
    assert apply(protocol("fednn-digit"), "fedprox + fn", {})["method"] == "prox(mu=0.001) + fn"


def test_what_is_given_explicitly_wins() -> None:
    known = protocol("feddrplus-cifar100")
    assert apply(known, "dr", {"lr": "0.3"})["lr"] == "0.3"
    assert apply(protocol("fednn-digit"), "prox(mu=0.01)", {})["method"] == "prox"  # 0.01 is the part's default
    assert apply(protocol("fedbabu"), "fn", {"epochs": 4})["rounds"] == 80
    assert apply(protocol("fedbabu"), "fn", {"epochs": 4, "rounds": 7})["rounds"] == 7
    with pytest.raises(FedloomError, match=r"rounds x epochs = 320; epochs 1\.\.5 is no number, so give rounds too"):
        apply(protocol("fedbabu"), "fn", {"epochs": "1..5"})


def test_another_data_set_does_not_inherit_the_constants_of_the_papers_one() -> None:
    fields = apply(protocol("fedbabu"), "fedavg", {"data": "digits"})
    assert fields["data.name"] == "digits" and "data.normalize" not in fields


def test_a_cell_keeps_them_if_its_data_are_named_by_their_place() -> None:
    (cell,) = [one for one in table_cells("fednn", "table2") if one.id == "method=FedAvg(BN), data=PACS"]
    fields = cell.fields({"data.name": "folder:/data/PACS", "data.resize": 64})
    assert fields["data.name"] == "folder:/data/PACS"
    assert (fields["data.resize"], fields["data.test_every"]) == (64, 10)
    assert fields["data.normalize"] == [[0.5] * 3, [0.5] * 3]
    assert "data.normalize" not in cell.fields({"data.name": "digits"})


def test_a_convex_share_replaces_the_weight_of_a_regularizer() -> None:
    assert apply(protocol("feddrplus"), "moon(beta=0.5)", {})["method"] == "moon(beta=0.5)"
    assert "weight=1.0" in apply(protocol("feddrplus"), "moon", {})["method"]


def test_a_comparison_gives_every_method_its_own_settings() -> None:
    known = protocol("feddrplus-cifar100")
    assert rows(known, ["fedavg", "dr + fd", "etf @ lr=2", "prox"], {}) == [
        *("fedavg", "dr + fd @ lr=5.0", "etf @ lr=2", "prox(mu=0.001)"),
    ]
    assert rows(known, ["dr"], {"lr": 1}) == ["dr"]
    assert rows(known, ["dr"], {}, swept=["lr"]) == ["dr"]
    assert rows(protocol("fedbabu"), ["fedavg @ epochs=4"], {}) == ["fedavg @ epochs=4 rounds=80"]
