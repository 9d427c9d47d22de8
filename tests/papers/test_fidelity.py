"""Ten published cells, two of each paper, with their whole recipe and measure written out by hand from paper and released code.

A field that is not written is the default of recipes. How often a run is tested is not the papers'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from fedloom.data import check_spec
from fedloom.methods import method
from fedloom.nets import spelled_model
from fedloom.papers import Measure, PublishedCell, nested, table_cells
from fedloom.recipe import Recipe, recipe

HUNDRED_CLIENTS = """
clients: 100
fraction: 0.1
batch: 50
schedule: step        # x 0.1 after half and three quarters of the rounds
"""


@dataclass(frozen=True)
class Printed:
    """A cell as the paper has it."""

    place: str
    labels: dict[str, str]
    value: float
    deviation: float | None
    measure: Measure
    fields: str

    def cell(self) -> PublishedCell:
        key, _, table = self.place.partition("/")
        (cell,) = [c for c in table_cells(key, table) if dict(c.labels) == self.labels and c.value == self.value]
        return cell


CELLS = [
    Printed(
        "fedbabu/table4",
        {"s": "10", "f": "0.1", "tau": "4", "method": "FedRep"},
        *(45.91, 7.68),
        Measure(kind="own"),
        HUNDRED_CLIENTS
        + """
        data.name: cifar100
        data.normalize: [[0.507, 0.487, 0.441], [0.267, 0.256, 0.276]]
        model: mobilenet
        split: shards:10
        rounds: 80            # rounds x tau = 320
        method: fedrep(head_epochs=4)
        epochs: 1             # of the body, after tau epochs of the head
        lr: 0.1
        momentum: 0.5
        weight_decay: 0.0
        weighting: uniform
        augment: crop+flip
        bn: batch
        eval_batch: 100
        """,
    ),
    Printed(
        "fedbabu/table6",
        {"method": "FedProx+BABU", "tau": "10", "s": "50", "metric": "personalized"},
        *(42.37, 6.1),
        Measure(kind="tuned", part="full", epochs=5, lr=0.001, loss="ce"),
        HUNDRED_CLIENTS
        + """
        data.name: cifar100
        data.normalize: [[0.507, 0.487, 0.441], [0.267, 0.256, 0.276]]
        model: mobilenet
        split: shards:50
        rounds: 32
        method: prox(mu=0.01) + babu
        epochs: 10
        lr: 0.1
        momentum: 0.9
        weight_decay: 0.0
        weighting: uniform
        augment: crop+flip
        bn: batch
        eval_batch: 100
        """,
    ),
    Printed(
        "feddrplus/table3",
        {"method": "MOON", "alpha": "0.05"},
        *(23.97, 1.15),
        Measure(kind="global"),
        HUNDRED_CLIENTS
        + """
        data.name: cifar100
        data.normalize: [[0.507, 0.487, 0.441], [0.267, 0.256, 0.276]]
        model: mobilenet
        split: dirichlet:0.05
        rounds: 320
        method: moon(weight=1, temperature=0.5)
        steps: 30             # (50000 / 100 / 50) x 3, the same for all clients
        lr: 0.1
        momentum: 0.9
        weight_decay: 0.00001
        weighting: samples
        augment: crop+flip
        bn: batch
        eval_batch: 50
        """,
    ),
    Printed(
        "feddrplus/table14",
        {"method": "FedDr+ FT (L_DR)", "s": "20"},
        *(75.73, 4.79),
        Measure(kind="tuned", part="full", loss="objective"),  # epochs and rate are not printed
        HUNDRED_CLIENTS
        + """
        data.name: cifar100
        data.normalize: [[0.507, 0.487, 0.441], [0.267, 0.256, 0.276]]
        model: mobilenet
        split: shards:20
        rounds: 320
        method: dr + fd(beta=0.9)
        epochs: 3
        lr: 5.0
        momentum: 0.9
        weight_decay: 0.00001
        weighting: uniform
        augment: crop+flip
        bn: batch
        eval_batch: 100
        """,
    ),
    Printed(
        "fedfn/table2",
        {"method": "Scaffold +FN", "s": "3"},
        *(79.24, None),
        Measure(kind="global"),
        HUNDRED_CLIENTS
        + """
        data.name: cifar10
        data.normalize: [[0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]]
        model: vgg11
        split: shards:3
        rounds: 320
        method: scaffold + fn
        epochs: 15
        lr: 0.03
        momentum: 0.9
        weight_decay: 0.00001
        weighting: samples
        augment: flip
        bn: running
        eval_batch: 50
        """,
    ),
    Printed(
        "fedfn/tableA9",
        {"method": "SphereFed-FT (MSE) (0.01 × η)", "s": "50"},
        *(56.45, 5.56),
        Measure(kind="tuned", part="full", epochs=5, lr_share=0.01),
        HUNDRED_CLIENTS
        + """
        data.name: cifar100
        data.normalize: [[0.507, 0.487, 0.441], [0.267, 0.256, 0.276]]
        model: mobilenet
        split: shards:50
        rounds: 320
        method: sphere(loss=mse)
        epochs: 5
        lr: 4.5
        momentum: 0.9
        weight_decay: 0.0
        weighting: uniform
        augment: flip
        bn: batch
        eval_batch: 100
        """,
    ),
    Printed(
        "fednn/table10",
        {"method": "FedDC+FedNN", "alpha": "0.6", "clients": "500"},
        *(76.18, None),
        Measure(kind="global"),
        """
        data.name: cifar10
        data.normalize: [[0.491, 0.482, 0.447], [0.247, 0.243, 0.262]]
        model: lenet
        clients: 500
        split: dirichlet-client:0.6
        fraction: 0.15
        participation: bernoulli
        rounds: 200
        method: feddc(alpha=0.01) + wn + agn(groups=2, tau=5)
        epochs: 5
        batch: 50
        lr: 0.1
        momentum: 0.0
        weight_decay: 0.001
        clip: 10.0
        schedule: exp:0.998
        weighting: samples
        augment: crop+flip
        bn: running
        """,
    ),
    Printed(
        "fednn/table6",
        {"method": "FedDyn", "data": "DomainNet"},
        *(1.08, None),
        Measure(kind="global"),
        """
        data.name: domainnet
        data.normalize: [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
        data.resize: 224
        model: resnet18(stem=7)
        clients: 6
        split: domains
        fraction: 0.4
        participation: bernoulli
        rounds: 100
        method: feddyn(alpha=0.01) + norm(kind=gn, groups=2)
        epochs: 5
        batch: 50
        lr: 0.1
        momentum: 0.0
        weight_decay: 0.001
        clip: 10.0
        schedule: exp:0.998
        weighting: samples
        augment: crop+flip
        bn: running
        """,
    ),
    Printed(
        "fnrfl/table7",
        {"method": "SCAFFOLD", "skew": "label, noise 0.5"},
        *(57.63, None),
        Measure(kind="global"),
        """
        data.name: cifar10
        data.normalize: none
        model: resnet18
        clients: 10
        split: dirichlet:0.5+noise:0.5
        fraction: 1.0
        rounds: 10
        method: scaffold
        epochs: 10
        batch: 64
        lr: 0.1
        momentum: 0.0
        weight_decay: 0.00001
        schedule: constant
        weighting: samples
        augment: crop:4:reflect+flip
        bn: running
        eval_batch: 32
        """,
    ),
    Printed(
        "fnrfl/table2",
        {"method": "FNR-FL", "skew": "quantity", "net": "VGG-11"},
        *(99.39, None),
        Measure(kind="global"),
        """
        data.name: cifar10
        data.normalize: none
        data.validation: 0.1  # in place of the test set, on which the released code trains
        model: vgg11(dropout=0.5)
        clients: 10
        split: quantity:0.5
        fraction: 1.0
        rounds: 10
        method: fnr(mode=as_published, share=0.5, epochs=5, strength=1)
        epochs: 10
        batch: 64
        lr: 0.1
        momentum: 0.0
        weight_decay: 0.00001
        schedule: constant
        weighting: samples
        augment: crop:4:reflect+flip
        bn: running
        eval_batch: 32
        """,
    ),
]


@pytest.mark.parametrize("printed", CELLS, ids=[f"{cell.place} {cell.labels['method']}" for cell in CELLS])
def test_a_cell_has_the_papers_recipe_field_by_field(printed: Printed) -> None:
    cell = printed.cell()
    written = "\n".join(line.strip() for line in printed.fields.splitlines())
    expected = _settled(recipe(nested(yaml.safe_load(written))))
    ours = _settled(cell.recipe({"eval_every": expected["eval_every"]}))
    assert {name: value for name, value in ours.items() if value != expected[name]} == {}
    assert (cell.value, cell.deviation, cell.measure) == (printed.value, printed.deviation, printed.measure)


def _settled(made: Recipe) -> dict[str, Any]:
    fields = made.model_dump()
    spelled = {"method": method(made.method).spelled(), "model": spelled_model(made.model)}
    return {**fields, **spelled, "split": check_spec(made.split)}
