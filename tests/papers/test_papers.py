"""The papers' files: complete, consistent, and refused with a sentence where they are not."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import pytest

from fedloom.data import check_spec
from fedloom.errors import FedloomError
from fedloom.methods import method
from fedloom.nets import spelled_model
from fedloom.papers import PAPERS, PublishedCell, all_cells, paper, protocol, protocols, table_cells
from fedloom.papers.load import check

# numbers that each paper prints, by table, and a digest of their labels, values and deviations; each of them was compared
# with the texts of the papers
PRINTED = {
    "fedbabu": {
        "table1": (36, "d454f69d2f55"),
        "table2": (30, "f9ac9c3d0463"),
        "table3": (27, "ce7e26180ded"),
        "table4": (111, "4ef8af01aed7"),
        "table5": (28, "0a7b536f75ca"),
        "table6": (36, "242897678bf2"),
    },
    "feddrplus": {
        "table2": (84, "af9aa25141ff"),
        "table3": (164, "8c84d600aff3"),
        "table4": (10, "9066e4b7be28"),
        "table5": (78, "febe51b58931"),
        "table12": (72, "d7d11af0c965"),
        "table13": (84, "7784641f3c57"),
        "table14": (36, "fe9c41a8f458"),
    },
    "fedfn": {
        "table2": (63, "e2c32a34c122"),
        "table3": (24, "341294e0140e"),
        "tableA2": (240, "3c5d88b904e9"),
        "tableA3": (180, "2ff8626becd5"),
        "tableA4": (180, "1bfe8dfdcf35"),
        "tableA5": (192, "78b56cd2764a"),
        "tableA6": (72, "84995af8c238"),
        "tableA7": (36, "444935740e4d"),
        "tableA8": (135, "07332c49795e"),
        "tableA9": (42, "b38d0eb5c0fd"),
        "tableA10": (60, "18b87a08fd6a"),
        "tableA11": (9, "7a5fb3950b07"),
        "tableA12": (67, "6a3a592977db"),
        "tableA13": (16, "9f3cb174684f"),
        "tableA14": (11, "b5d8c75db722"),
    },
    "fednn": {
        "table1": (30, "21bf9241d40f"),
        "table2": (41, "3e1ac21311ff"),
        "table3": (70, "96492fb62f6c"),
        "table4": (56, "c6b00c563442"),
        "table5": (20, "7b10b38ec30e"),
        "table6": (6, "968e6b101762"),
        "table7": (10, "45a3b847708c"),
        "table8": (20, "6bf9a2b5db5e"),
        "table9": (18, "4ecd0f1a238e"),
        "table10": (16, "da84f454109b"),
        "table11": (24, "bcc6c12bdaa4"),
        "table12": (24, "01ffeb7de949"),
    },
    "fnrfl": {
        "table2": (66, "3f68bf25c775"),
        "table7": (36, "4f6f0f19d215"),
    },
}


def test_every_printed_number_is_a_cell_with_its_value_and_deviation() -> None:
    printed = {key: {name: _digest(table_cells(key, name)) for name in paper(key).tables} for key in PAPERS}
    assert printed == PRINTED
    assert len({cell.key for cell in all_cells()}) == len(all_cells()) == 2560


def _digest(cells: Sequence[PublishedCell]) -> tuple[int, str]:
    lines = sorted(f"{cell.block} {cell.id} {cell.value} {cell.deviation}" for cell in cells)
    return len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


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
        "fedfn/tableA12": 67,
        "fednn/table2": 7,
        "fednn/table3": 10,
        "fednn/table4": 8,
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


@pytest.mark.parametrize(
    ("place", "words", "count"),
    [
        ("fedfn/tableA3", "typo for 7.66", 1),
        ("fedfn/tableA3", "the same at rates 0.1 and 0.3", 12),
        ("feddrplus/table3", "identical to the sharding", 3),
        ("feddrplus/table3", "released code trains E*E", 10),
        ("feddrplus/table3", "server step can only shrink", 16),
        ("feddrplus/table3", "FedETF's projection and normalized features", 8),
        ("feddrplus/table4", "is inferred", 4),
        ("fedbabu/table4", "keeps no client heads", 18),
        ("fedbabu/table4", "adapts on test samples of another client", 18),
        ("fednn/table1", "proximal term was almost inert", 6),
        ("fednn/table3", "does not agree with the average", 2),
        ("fednn/table12", "implied value 77.77", 1),
        ("fnrfl/table2", "plus a constant in all six columns", 30),
        ("fnrfl/table2", "trains on the test set", 6),
        ("fnrfl/table7", "trains on the test set", 6),
        ("fnrfl/table7", "0.8393 in Table 2", 1),
    ],
)
def test_what_is_wrong_or_not_comparable_is_at_its_cells(place: str, words: str, count: int) -> None:
    key, _, table = place.partition("/")
    assert sum(words in cell.note for cell in table_cells(key, table)) == count


def test_notes_of_table_labels_parts_and_remarks_add_up() -> None:
    labels = {"method": "FNR-FL", "skew": "feature", "net": "VGG-11"}
    (cell,) = [c for c in table_cells("fnrfl", "table2") if dict(c.labels) == labels]
    notes = ["the noise of this column", "trains on the test set", "cannot run on VGG-11", "samples without noise"]
    assert [cell.note.count(note) for note in notes] == [1, 1, 1, 1]
    assert [cell.note.index(note) for note in notes] == sorted(cell.note.index(note) for note in notes)


def test_fnr_never_trains_on_test_samples() -> None:
    published = [c for c in all_cells() if c.paper == "fnrfl" and c.name == "FNR-FL"]
    assert len(published) == 12
    assert all("as_published" in str(c.sum) and c.settings["data.validation"] == 0.1 for c in published)


def test_hyper_parameters_of_the_released_code_are_a_variant() -> None:
    labels = {"method": "FedProx+Ours", "data": "Digit"}
    (cell,) = [c for c in table_cells("fednn", "table4") if dict(c.labels) == labels]
    assert cell.recipe().method == "prox(mu=0.001) + wn + agn"
    theirs = method(cell.as_published().recipe().method)
    code = "prox(mu=0.0002) + wn(ddof=1, eps=1e-5, outside=true) + agn(mix=var, eval_noise=true, freeze=true, momentum=0.003)"
    assert theirs.spelled() == method(code).spelled()


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
    claim = "claims: [{text: c, checks: [{table: table1, better: {s: 2}, than: {s: 3}}]}]"
    with pytest.raises(FedloomError, match="claims: table1: no block has s=3"):
        check(BROKEN.replace("ROWS", "s").replace("columns: {s: [2]}", "columns: {s: [2]}") + claim, "x.yaml")


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
