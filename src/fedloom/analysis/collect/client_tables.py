"""The CSV tables about clients: rows per model and class, client, pair of clients, singular value, layer.

They contain accuracy by class before and after a client's refinement (FNR-FL, figure 5). The stage `start` is the model
that the client started the round with, `local` its model after local training, `refined` its model after a query
trained it again. All are evaluated on the pooled test samples of each class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.analysis.by_class import OF_CHANGE, OF_MODEL, ByClass
from fedloom.analysis.collapse import effective_rank
from fedloom.analysis.collect.csv_files import write_csv
from fedloom.analysis.collect.probe import ModelReport
from fedloom.analysis.collect.recorder import Recorder
from fedloom.analysis.collect.round_means import train_counts
from fedloom.analysis.consistency import COLUMNS as LAYER_COLUMNS
from fedloom.analysis.factors import NAMES
from fedloom.analysis.numbers import mean

Row = dict[str, Any]
BY_CLASS = ("feature_norm", "weight_norm", "alignment", *OF_CHANGE)
CLASS_COLUMNS = ("stage", "client", "class", "seen", "train_images", "test_images", "accuracy", *BY_CLASS)
CLIENT_COLUMNS = (
    *("client", "train_images", "classes_seen", "steps", "refined"),
    *("accuracy_start", "accuracy_local", "accuracy_refined"),
    *(f"{name}_{part}" for name in BY_CLASS for part in ("seen", "unseen")),
    *NAMES,
    *("update_norm", "update_to_mean", "update_cosine_to_mean", "effective_rank"),
)


def write_client_tables(folder: Path, server: ModelReport, recorder: Recorder, quantities: Sequence[str]) -> None:
    """classes.csv and clients.csv with every column that was measured, and the tables of the other quantities."""
    write_csv(folder / "classes.csv", CLASS_COLUMNS, _class_rows(server, recorder))
    write_csv(folder / "clients.csv", CLIENT_COLUMNS, [_client_row(recorder, client) for client in recorder.clients])
    if "drift" in quantities:
        write_csv(folder / "pairs.csv", ("client_a", "client_b", "cosine", "distance"), _pair_rows(recorder))
    if "collapse" in quantities:
        columns = ("stage", "client", "index", "singular_value")
        write_csv(folder / "spectrum.csv", columns, _spectrum_rows(server, recorder))
    if "consistency" in quantities:
        write_csv(folder / "layers.csv", ("layer", "kind", *LAYER_COLUMNS), recorder.layers)


def refinement(server: ModelReport, recorder: Recorder) -> Row:
    """Accuracy by stage, as means over clients: by class, and over seen and unseen classes.

    The stage `asked` is `local` of the clients that were refined.
    """
    experiment = recorder.machinery.experiment
    stages: dict[str, dict[int, ByClass]] = {
        "start": {client: report.start for client, report in recorder.local.items() if report.start is not None},
        "local": {client: report.own for client, report in recorder.local.items()},
        "asked": {client: recorder.local[client].own for client in recorder.refined},
        "refined": {client: report.own for client, report in recorder.refined.items()},
    }
    section: Row = {"global": server.own.mean("accuracy")}
    for stage, tables in stages.items():
        columns = np.stack([table.mean("accuracy") for table in tables.values()]) if tables else None
        section[stage] = None if columns is None else [mean(column) for column in columns.T.tolist()]
        seen = {client: train_counts(experiment, client) > 0 for client in tables}
        section[f"{stage}_seen"] = mean(table.mean_over("accuracy", seen[k]) for k, table in tables.items())
        section[f"{stage}_unseen"] = mean(table.mean_over("accuracy", ~seen[k]) for k, table in tables.items())
    section["refined_clients"] = list(recorder.refined)
    return section


def _class_rows(server: ModelReport, recorder: Recorder) -> Iterator[Row]:
    yield from _model_rows("global", None, None, server.own)
    for client in recorder.clients:
        counts = train_counts(recorder.machinery.experiment, client)
        report = recorder.local[client]
        if report.start is not None:
            yield from _model_rows("start", client, counts, report.start)
        yield from _model_rows("local", client, counts, report.own)
        if client in recorder.refined:
            yield from _model_rows("refined", client, counts, recorder.refined[client].own)


def _model_rows(stage: str, client: int | None, counts: np.ndarray[Any, Any] | None, table: ByClass) -> Iterator[Row]:
    columns = {name: table.mean(name).tolist() for name in (*OF_MODEL, "weight_norm", *OF_CHANGE)}
    for label, images in enumerate(table.images.astype(int).tolist()):
        train_images = None if counts is None else int(counts[label])
        yield {
            "stage": stage,
            "client": client,
            "class": label,
            "seen": None if train_images is None else int(train_images > 0),
            "train_images": train_images,
            "test_images": images,
            **{name: column[label] for name, column in columns.items()},
        }


def _client_row(recorder: Recorder, client: int) -> Row:
    report, refined = recorder.local[client], recorder.refined.get(client)
    counts = train_counts(recorder.machinery.experiment, client)
    seen, place = counts > 0, recorder.drift_clients.index(client)
    row: Row = {
        "client": client,
        "train_images": int(counts.sum()),
        "classes_seen": int(seen.sum()),
        "steps": recorder.steps[client],
        "refined": int(refined is not None),
        "accuracy_start": report.start.mean_over("accuracy") if report.start else None,
        "accuracy_local": report.own.mean_over("accuracy"),
        "accuracy_refined": refined.own.mean_over("accuracy") if refined else None,
        "update_norm": recorder.drift.norm[place],
        "update_to_mean": recorder.drift.to_mean[place],
        "update_cosine_to_mean": recorder.drift.cosine_to_mean[place],
        **report.factors,
    }
    for name in BY_CLASS:
        row[f"{name}_seen"] = report.own.mean_over(name, seen)
        row[f"{name}_unseen"] = report.own.mean_over(name, ~seen)
    if report.spectrum is not None:
        row["effective_rank"] = effective_rank(torch.tensor(report.spectrum, dtype=torch.float64))
    return row


def _pair_rows(recorder: Recorder) -> Iterator[Row]:
    for i, a in enumerate(recorder.drift_clients):
        for j, b in enumerate(recorder.drift_clients[i + 1 :], i + 1):
            yield {
                "client_a": a,
                "client_b": b,
                "cosine": recorder.drift.cosine[i, j],
                "distance": recorder.drift.distance[i, j],
            }


def _spectrum_rows(server: ModelReport, recorder: Recorder) -> Iterator[Row]:
    local = [("local", client, report) for client, report in recorder.local.items()]
    for stage, client, report in [("global", None, server), *local]:
        for index, value in enumerate(report.spectrum or (), 1):
            yield {"stage": stage, "client": client, "index": index, "singular_value": value}
