"""The papers' files: complete, consistent, and refused with a sentence where they are not."""

from __future__ import annotations

from collections import Counter

import pytest

from fedloom.data import check_spec
from fedloom.errors import FedloomError
from fedloom.methods import method
from fedloom.nets import spelled_model
from fedloom.papers import PAPERS, all_cells, paper, protocol, protocols, table_cells
from fedloom.papers.load import check

# numbers that each paper prints, by table; counted in the papers
PRINTED = {
    "fedbabu": {"table1": 36, "table2": 30, "table3": 27, "table4": 111, "table5": 28, "table6": 36},
    "feddrplus": {
        "table2": 84,
        "table3": 164,
        "table4": 10,
        "table5": 78,
        "table12": 72,
        "table13": 84,
        "table14": 36,
    },
    "fedfn": {
        "table2": 63,
        "table3": 24,
        "tableA2": 240,
        "tableA3": 180,
        "tableA4": 180,
        "tableA5": 192,
        "tableA6": 72,
        "tableA7": 36,
        "tableA8": 135,
        "tableA9": 42,
        "tableA10": 60,
        "tableA11": 9,
        "tableA12": 67,
        "tableA13": 16,
        "tableA14": 11,
    },
    "fednn": {
        "table1": 30,
        "table2": 41,
        "table3": 70,
        "table4": 56,
        "table5": 20,
        "table6": 6,
        "table7": 10,
        "table8": 20,
        "table9": 18,
        "table10": 16,
        "table11": 24,
        "table12": 24,
    },
    "fnrfl": {"table2": 66, "table7": 36},
}


def test_every_printed_number_is_a_cell() -> None:
    counted = {key: {name: len(table_cells(key, name)) for name in paper(key).tables} for key in PAPERS}
    assert counted == PRINTED
    assert len(all_cells()) == sum(sum(tables.values()) for tables in PRINTED.values()) == 2560
    assert len({cell.key for cell in all_cells()}) == 2560


def test_a_cell_has_a_valid_recipe_or_a_reason_why_it_has_none() -> None:
    reasons = Counter()
    for cell in all_cells():
        if cell.not_runnable:
            reasons[cell.place] += 1
            with pytest.raises(FedloomError, match="cannot be run"):
                cell.recipe()
            continue
        recipe = cell.recipe()
        assert check_spec(recipe.split) and spelled_model(recipe.model)
        assert method(recipe.method).spelled()
        if cell.variant:
            assert cell.as_published().recipe() != recipe or cell.as_published().measure != cell.measure
    assert reasons == {
        "fedfn/table3": 12,
        "fedfn/tableA5": 192,
        "fedfn/tableA12": 67,
        "fednn/table2": 7,
        "fednn/table3": 10,
        "fednn/table4": 8,
        "fnrfl/table2": 22,
        "feddrplus/table5": 6,
        "feddrplus/table12": 72,
        "feddrplus/table14": 6,
    }


@pytest.mark.parametrize(
    ("place", "labels", "value", "fields"),
    [
        (
            "fedbabu/table4",
            {"s": "10", "f": "0.1", "tau": "4", "method": "FedRep"},
            (45.91, 7.68),
            {"method": "fedrep(head_epochs=4)", "rounds": 80, "epochs": 1, "momentum": 0.5, "split": "shards:10"},
        ),
        (
            "fedbabu/table4",
            {"s": "50", "method": "Local-only"},
            (28.02, 4.01),
            {"method": "local", "rounds": 160, "epochs": 1, "batch": 10, "fraction": 1.0, "split": "shards:50"},
        ),
        (
            "fedbabu/table2",
            {"server": "p=0.10 (B)", "s": "10", "metric": "initial"},
            (18.35, 6.75),
            {"method": "server-data(share=0.1, update=body)", "rounds": 32, "epochs": 10, "fraction": 0.1},
        ),
        (
            "fedfn/table2",
            {"method": "Scaffold +FN", "s": "100"},
            (52.1, None),
            {"method": "scaffold + fn", "lr": 0.5, "epochs": 5, "augment": "flip", "model": "mobilenet"},
        ),
        (
            "fedfn/tableA2",
            {"eta": "0.05", "s": "2", "E": "10", "method": "FedBABU"},
            (71.52, None),
            {"method": "babu", "lr": 0.05, "epochs": 10, "model": "vgg11", "split": "shards:2", "bn": "running"},
        ),
        (
            "feddrplus/table2",
            {"method": "FedBABU +KD", "s": "10"},
            (46.37, None),
            {"method": "babu + kd(beta=0.999)", "lr": 0.1, "weight_decay": 1e-5, "weighting": "uniform", "epochs": 3},
        ),
        (
            "feddrplus/table3",
            {"method": "FedProx", "alpha": "0.1"},
            (42.35, 0.83),
            {"method": "prox(mu=0.001)", "steps": 30, "weighting": "samples", "eval_batch": 50, "lr": 0.1},
        ),
        (
            "fednn/table4",
            {"method": "FedDC+Ours", "data": "Digit"},
            (81.95, None),
            {
                "method": "feddc(alpha=0.01) + wn + agn",
                "split": "domains+take:371",
                "clients": 5,
                "clip": 10.0,
                "participation": "bernoulli",
                "fraction": 0.4,
                "momentum": 0.0,
                "schedule": "exp:0.998",
            },
        ),
        (
            "fednn/table10",
            {"method": "FedAvg", "alpha": "0.6", "clients": "500"},
            (66.94, None),
            {"method": "fedavg", "clients": 500, "fraction": 0.15, "split": "dirichlet-client:0.6", "model": "lenet"},
        ),
        (
            "fnrfl/table7",
            {"method": "MOON", "skew": "label, noise 0.1"},
            (63.6, None),
            {"method": "moon", "split": "dirichlet:0.5+noise:0.1", "rounds": 10, "epochs": 10, "batch": 64, "lr": 0.1},
        ),
    ],
)
def test_cells_are_what_the_papers_say(
    place: str, labels: dict[str, str], value: tuple[float, float | None], fields: dict[str, object]
) -> None:
    cells = [c for c in all_cells() if c.place == place and labels.items() <= dict(c.labels).items()]
    cell = cells[0]
    recipe = cell.recipe()
    assert str(method(recipe.method)) == str(method(str(fields.pop("method"))))
    assert {name: getattr(recipe, name) for name in fields} == fields
    assert (cell.value, cell.deviation) == value


def test_sharding_and_lda_are_tested_differently_where_the_code_does_so() -> None:
    kinds = {
        (cell.paper, axis): {
            c.measure.kind
            for c in all_cells()
            if c.paper == cell.paper and axis in c.labels and c.table in ("table2", "table3")
        }
        for cell in (table_cells("feddrplus", "table2")[0],)
        for axis in ("s", "alpha")
    }
    assert kinds == {("feddrplus", "s"): {"client"}, ("feddrplus", "alpha"): {"global"}}


def test_rounds_follow_from_epochs() -> None:
    rounds = {c.labels["tau"]: c.recipe().rounds for c in table_cells("fedbabu", "table6")}
    assert rounds == {"1": 320, "4": 80, "10": 32}


def test_what_a_paper_says_of_itself_is_at_its_cells() -> None:
    (typo,) = [c for c in table_cells("fedfn", "tableA3") if "typo" in c.note]
    assert typo.value == 76.61
    published = [c for c in all_cells() if c.paper == "fnrfl" and c.name == "FNR-FL"]
    assert len(published) == 12 and all("scored on the test samples" in c.note for c in published)
    assert all("as_published" in str(c.sum) and c.settings["data.validation"] == 0.1 for c in published)


def test_all_protocols_have_what_a_run_needs() -> None:
    for name, known in protocols().items():
        assert known.sizes is not None, name
        assert {"data.name", "model", "clients", "split", "fraction", "epochs", "batch", "lr"} <= set(known.recipe), (
            name
        )
    assert protocol("FedDr+").recipe["data.name"] == "cifar100"  # a paper's name is its first protocol


BROKEN = """
name: X
title: x
cite: x
about: x
protocols: {p: {about: x, recipe: {}}}
axes: {s: {each: {set: {split: "shards:{}"}}}}
tables:
  table1: {label: T, title: t, blocks: [{rows: {ROWS: [1]}, columns: {s: [2]}, values: "1 : 3"}]}
"""


def test_a_broken_file_is_refused_with_a_sentence() -> None:
    with pytest.raises(FedloomError, match=r"x.yaml is not valid YAML \(line 2\)"):
        check("name: X\n  title: [", "x.yaml")
    with pytest.raises(FedloomError, match=r"x.yaml: .*the axis q is not described"):
        check(BROKEN.replace("ROWS", "q"), "x.yaml")
    with pytest.raises(FedloomError, match=r"x.yaml: tables\.table1\.label: Field required"):
        check(BROKEN.replace("label: T, ", ""), "x.yaml")
    with pytest.raises(FedloomError, match="unknown field; did you mean cite"):
        check(BROKEN.replace("cite:", "cited:"), "x.yaml")


def test_the_released_codes_steps_are_a_variant() -> None:
    """FedDr+'s code trains FedProx and MOON for E x E steps under LDA, all others for (n / B) x E."""
    cells = {
        (c.name, c.labels["alpha"]): c
        for c in table_cells("feddrplus", "table3")
        if "alpha" in c.labels and c.block == 1
    }
    moon, avg = cells["MOON", "0.1"], cells["FedAvg", "0.1"]
    assert (moon.recipe().steps, moon.as_published().recipe().steps) == (30, 9)
    assert avg.as_published() == avg and moon.note.startswith("released code trains E*E")
