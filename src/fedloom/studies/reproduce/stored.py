"""A reproduction as a file: `reproduction.json` in its folder, which `fl.load` reads. The last one into a folder is kept."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.io.files import read_json, write_json
from fedloom.papers import all_cells
from fedloom.studies.reproduce.outcome import CellOutcome
from fedloom.studies.reproduce.reproduction import Plan, Reproduction

FILE = "reproduction.json"


def write_reproduction(reproduction: Reproduction) -> Path:
    plan = reproduction.plan
    known = {cell.key: cell for cell in all_cells()}
    content = {
        "target": plan.target,
        "seeds": list(plan.seeds),
        "scale": plan.scale,
        "changed": dict(plan.changed),
        "tuned_clients": plan.tuned_clients,
        "outcomes": [
            {
                "cell": list(item.cell.key),
                "as_published": item.cell != known.get(item.cell.key),
                **{field.name: getattr(item, field.name) for field in fields(item) if field.name != "cell"},
            }
            for item in reproduction.outcomes
        ],
    }
    write_json(plan.out / FILE, content)
    return plan.out / FILE


def read_reproduction(out: Path) -> Reproduction:
    content = read_json(out / FILE)
    known = {cell.key: cell for cell in all_cells()}
    try:
        outcomes = tuple(_outcome(item, known) for item in content["outcomes"])
        plan = Plan(
            content["target"],
            tuple(item.cell for item in outcomes),
            (),
            frozenset(),
            tuple(content["seeds"]),
            content["scale"],
            content["changed"],
            out,
            {},
            {},
            content["tuned_clients"],
        )
    except (KeyError, TypeError, AttributeError):
        raise FedloomError(
            f"{out / FILE} is damaged; the call that wrote it reads the runs and writes it again"
        ) from None
    return Reproduction(plan, outcomes)


def _outcome(item: dict[str, Any], known: dict[Any, Any]) -> CellOutcome:
    cell = known[tuple(item["cell"])]
    rest: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in item.items()}
    rest.pop("cell")
    return CellOutcome(cell.as_published() if rest.pop("as_published") else cell, **rest)
