"""Display names of methods."""

from __future__ import annotations

import pytest

import fedloom as fl
from fedloom.runs.labels import read_labels, without_unknown

ROWS = ["fedavg @ lr=0.1", "dr + fd(beta=0.8) @ lr=0.3", "prox(mu=0.1)", "prox(mu=1)", "fn @ lr=0.3"]


@pytest.mark.parametrize(
    ("given", "row", "name"),
    [
        ("dr + fd=FedDr+", ROWS[1], "FedDr+"),
        ("dr+fd( beta=0.8 )=FedDr+ (beta=0.8)", ROWS[1], "FedDr+ (beta=0.8)"),
        ("feddrplus=FedDr+", ROWS[1], "FedDr+"),
        ("dr + fd(beta=?)=FedDr+", ROWS[1], "FedDr+"),
        ("fn @ lr=0.3=FedFN", ROWS[4], "FedFN"),
        ("fedprox(mu=1)=FedProx", ROWS[3], "FedProx"),
        ("fedavg = FedAvg", ROWS[0], "FedAvg"),
    ],
)
def test_a_label_finds_its_method_by_text_by_sum_or_by_parts(given: str, row: str, name: str) -> None:
    assert read_labels([given], ROWS) == {row: name}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["fedavg"], "label: cannot read 'fedavg'; write METHOD=NAME"),
        (["nova=FedNova"], "label: 'nova' is none of the methods, which are fedavg @ lr=0.1; "),
        (["fn @ lr=0.1=FedFN"], "label: 'fn @ lr' is none of the methods"),
        (["prox=FedProx"], r"label: 'prox' could be prox\(mu=0.1\) or prox\(mu=1\)"),
        (["fn="], "label: the name of 'fn' must have 1 to 80 printable characters"),
        (["fn=a", "fedavg=a"], "label: two methods would be called 'a'"),
        (["fn=a", "fedfn=b"], r"label: fn @ lr=0.3 is named twice"),
    ],
)
def test_labels_that_name_no_method_or_two_are_refused(given: list[str], said: str) -> None:
    with pytest.raises(fl.FedloomError, match=said):
        read_labels(given, ROWS)


def test_what_tuning_chooses_is_left_out_of_a_methods_name() -> None:
    assert without_unknown("dr + fd(beta=?)") == "dr + fd"
    assert without_unknown("moon(weight=?, temperature=0.5)") == "moon(temperature=0.5)"
    assert without_unknown("moon(temperature=0.5, weight=?)") == "moon(temperature=0.5)"
