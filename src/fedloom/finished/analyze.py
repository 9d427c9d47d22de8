"""All measurements of a finished run, stored as small tables in its folder.

Quantities of the global model are those of the served weights (final.safetensors). Local models are trained again, see
analysis/collect/replay.py. Test samples are used for measuring only. docs/analysis.md lists the tables and their columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.analysis.collapse import effective_rank, rank99
from fedloom.analysis.collect.client_tables import refinement, write_client_tables
from fedloom.analysis.collect.csv_files import read_csv, write_csv, write_npz
from fedloom.analysis.collect.probe import ModelReport, Prober
from fedloom.analysis.collect.recorder import Recorder
from fedloom.analysis.collect.replay import replay_round
from fedloom.analysis.collect.round_means import alignment, norms, train_counts
from fedloom.analysis.cost import check_targets, cost
from fedloom.analysis.factors import NAMES
from fedloom.analysis.numbers import mean, to_json
from fedloom.analysis.what import WHAT
from fedloom.engine.server.round import Federation
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.metrics import find_metric
from fedloom.io.files import read_lines, write_json
from fedloom.runs.folder import RunFolder

FROM_CLIENTS = {"norms", "alignment", "drift", "collapse", "consistency", "refinement", "embedding"}
MOST_CLIENTS = 10  # of the last cohort, where none are named
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Analysis:
    """The tables of an analysis, read from their folder.

    >>> analysis = fl.analyze(run, what="norms")
    >>> sorted(path.suffix for path in analysis.path.iterdir())[0]
    '.csv'
    """

    path: Path
    what: tuple[str, ...] = WHAT  # what was asked for

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        return summary

    @property
    def factors(self) -> dict[str, np.ndarray[Any, Any]]:
        """The four matrices of the global model."""
        with np.load(self.path / "factors.npz", allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """What `analyze_every` measured during the run."""
        return read_lines(self.path / "rounds.jsonl")

    def table(self, name: str) -> list[dict[str, Any]]:
        """Rows of NAME.csv: classes, clients, pairs, spectrum, layers, embedding, cost."""
        path = self.path / f"{name}.csv"
        if not path.is_file():
            raise FedloomError(f"analysis: there is no table {path}; `fedloom analyze` makes it")
        return read_csv(path)


@dataclass(frozen=True)
class AnalysisRequest:
    """What to measure, validated."""

    what: tuple[str, ...]
    clients: tuple[int, ...] | Literal["all"] | None
    images: int | None
    targets: tuple[float, ...] | None  # of the headline metric; None: those that suit it

    @staticmethod
    def of(
        what: str | Sequence[str],
        clients: str | Sequence[int] | None,
        images: int | None,
        target: str | float | Sequence[float] | None,
    ) -> AnalysisRequest:
        """From lists, or from text separated by commas."""
        names = [name.strip() for name in what.split(",")] if isinstance(what, str) else list(what)
        for name in names:
            if name and name not in WHAT:
                raise FedloomError(f"what: {shown(name)} is unknown; allowed are {', '.join(WHAT)}")
        if images is not None and images < 1:
            raise FedloomError(f"images: must be at least 1 (got {images})")
        numbers: tuple[int, ...] | Literal["all"] | None
        if clients is None or clients == "all":
            numbers = "all" if clients == "all" else None
        else:
            numbers = tuple(sorted({_whole(number) for number in _items(clients)}))
            if not numbers:
                raise FedloomError("clients: at least one is needed")
        targets = None if target is None else tuple(_target(number) for number in _items(target))
        return AnalysisRequest(tuple(name for name in WHAT if name in names) or WHAT, numbers, images, targets)

    def rows(self, clients: int) -> int:
        """Room needed for local models."""
        return clients if self.clients == "all" else len(self.clients or ())

    def local_clients(self, fed: Federation) -> list[int]:
        """Those named, all, or the first of the last cohort that had any client."""
        count = 1 if fed.experiment.program.pooled else fed.experiment.recipe.clients
        if self.clients is None:
            cohorts = (fed.cohort(round) for round in range(fed.state.round, 0, -1))
            return next((cohort for cohort in cohorts if cohort), [])[:MOST_CLIENTS]
        if self.clients == "all":
            return list(range(count))
        for client in self.clients:
            if not 0 <= client < count:
                valid = f"they are numbered from 0 to {count - 1}" if count > 1 else "there is only client 0"
                raise FedloomError(f"clients: there is no client {client}; {valid}")
        return list(self.clients)


def _items(given: str | float | Sequence[float]) -> Sequence[object]:
    if isinstance(given, str):
        return [item for item in given.split(",") if item.strip()]
    return [given] if isinstance(given, int | float) else given


def _whole(given: object) -> int:
    try:
        return int(str(given))
    except ValueError:
        raise FedloomError(f"clients: numbers such as 0,3,7 or all are expected (got {given})") from None


def _target(given: object) -> float:
    try:
        value = float(str(given))
    except ValueError:
        value = float("nan")
    if not math.isfinite(value):
        raise FedloomError(f"target: numbers such as 0.6,0.8 are expected (got {given})")
    return value


def run_analysis(fed: Federation, folder: RunFolder, request: AnalysisRequest, tell: Tell) -> Analysis:
    """Measure and store; the federation is at its last round and stays there."""
    what, clients, headline = request.what, request.local_clients(fed), fed.experiment.recipe.headline
    check_targets(request.targets or (), find_metric(headline))
    sections: dict[str, Any] = {}
    if set(what) != {"cost"}:
        sections |= _of_models(fed, folder, what, clients, request.images, tell)
    if "cost" in what:
        sections["cost"] = cost(read_lines(folder.rounds), request.targets, headline)
        columns = ("target", "round", "seconds", "megabytes")
        write_csv(folder.analysis / "cost.csv", columns, sections["cost"]["targets"])
    about: dict[str, Any] = {"round": fed.state.round, "classes": list(fed.experiment.data.dataset.class_names)}
    if FROM_CLIENTS.intersection(what):
        about |= {"clients": clients, "lr": fed.experiment.recipe.rate(fed.state.round)}
    _store(folder.analysis / "summary.json", about, sections)
    return Analysis(folder.analysis, what)


def _of_models(
    fed: Federation, folder: RunFolder, what: Sequence[str], clients: Sequence[int], images: int | None, tell: Tell
) -> dict[str, Any]:
    """All sections that need models; the federation is at its last round."""
    state, place = fed.state, folder.analysis
    tell("evaluating the global model on test samples")
    server = Prober(fed, images).server_model(state.served(), matrices=True, spectrum="collapse" in what)
    if server is None:
        raise FedloomError("the global model could not be evaluated: its worker died every time")
    count = int(server.own.images.sum())
    sections: dict[str, Any] = {}
    if "factors" in what:
        sections["factors"] = {"images": count, **server.factors}
        assert server.matrices is not None
        matrices = {name: np.asarray(server.matrices[name], dtype=np.float32) for name in NAMES}
        write_npz(place / "factors.npz", matrices)
    if not FROM_CLIENTS.intersection(what):
        return sections
    recorder = Recorder(fed, images, what, tell)
    tell(f"training {len(clients)} clients for one more round")
    replay_round(fed, clients, recorder)
    local_models = [(train_counts(fed.experiment, client) > 0, recorder.local[client]) for client in recorder.clients]
    whose = {"clients": recorder.clients, "images": count}
    if "norms" in what:
        sections["norms"] = {**whose, **norms(server, local_models)}
    if "alignment" in what:
        sections["alignment"] = {**whose, **alignment(server, local_models)}
    if "drift" in what:
        sections["drift"] = {"clients": recorder.drift_clients, **recorder.drift.means()}
    if "collapse" in what:
        sections["collapse"] = {**whose, **_collapse(server, [report for _, report in local_models])}
    if "refinement" in what:
        sections["refinement"] = {**whose, **refinement(server, recorder)}
    write_client_tables(place, server, recorder, what)
    if "consistency" in what:
        sections["consistency"] = recorder.consistency
    if "embedding" in what:
        tell("embedding features in two dimensions")
        sections["embedding"] = recorder.write_embedding(place)
    return sections


def _collapse(server: ModelReport, clients: Sequence[ModelReport]) -> dict[str, float]:
    def values(report: ModelReport) -> Tensor:
        return torch.tensor(report.spectrum, dtype=torch.float64)

    return {
        "dimensions": len(server.spectrum or ()),
        "effective_rank_global": effective_rank(values(server)),
        "effective_rank_local": mean(effective_rank(values(report)) for report in clients),
        "rank99_global": rank99(values(server)),
        "rank99_local": mean(rank99(values(report)) for report in clients),
    }


def _store(path: Path, about: dict[str, Any], sections: dict[str, Any]) -> None:
    """Lay new sections over those of earlier analyses."""
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    merged = {**before, **about, **sections}
    order = ("round", "clients", "lr", "classes", *WHAT)
    write_json(path, to_json({key: merged[key] for key in order if key in merged}))
