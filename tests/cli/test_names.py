"""The names that are read from the sources are those of the registries."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.cli import names
from fedloom.data.scheme import SCHEMES
from fedloom.data.sources import FORMATS, NAMES
from fedloom.evaluation.metrics import METRICS
from fedloom.methods.api.registry import ALIASES, PARTS
from fedloom.nets.registry import all_models, all_sources
from fedloom.papers import PAPERS, paper, protocols


def ours(registry: dict[str, type]) -> set[str]:
    """Without what other tests register."""
    return {name for name, item in registry.items() if item.__module__.startswith("fedloom.")}


def test_every_part_and_alias_is_read() -> None:
    assert set(names.methods()) == ours(PARTS) | set(ALIASES), "name parts and aliases by literals, in methods/*.py"


def test_every_net_term_metric_data_set_and_protocol_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    assert set(names.models()) == set(all_models())
    assert set(names.model_sources()) == {f"{prefix}:" for prefix in all_sources()}
    assert set(names.splits()) == ours(SCHEMES)
    assert set(names.metrics()) == ours({name: type(metric) for name, metric in METRICS.items()})
    assert set(names.data()) >= {name for name, known in NAMES.items() if known.open.__module__.startswith("fedloom.")}
    assert set(names.data_forms()) >= {
        known.form for known in FORMATS.values() if known.open.__module__.startswith("fedloom.")
    }
    assert set(names.papers()) == set(PAPERS)
    assert set(names.protocols()) == set(protocols())
    assert set(names.tables()) == {f"{key}/{table}" for key in PAPERS for table in paper(key).tables}


def test_parts_of_a_users_file_are_read_without_importing_it() -> None:
    Path("mine.py").write_text(
        "import fedloom as fl\nraise SystemExit\n"
        "class Base(fl.Part, abstract=True):\n    ...\n"
        "class Pull(Base):\n    'Pulls.'\n"
        "class Push(fl.Part):\n    name = 'push-away'\n"
        "class Kappa(fl.Metric):\n    'Agreement.'\n    name = 'kappa'\n"
    )
    assert set(names.methods(["mine.py"])) - set(names.methods()) == {"pull", "push-away"}
    assert names.methods(["mine.py"])["pull"] == "Pulls."
    assert "kappa" in names.metrics(["mine.py"])
    assert names.methods(["nowhere.py", "no.such.module"]) == names.methods()
