"""The tables about clients: a row a model and class, a row a client, a row a pair, a row a singular value, a row a layer.

Accuracy by class before and after a client's refinement (FNR-FL, figure 5) is read off here: `start` is what the client began
the round with, `local` its model after local training, `refined` after a second act; on the pooled test images of each class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.measure.byclass import OF_ONE, OF_TWO, ByClass
from fedloom.measure.collapse import effective_rank
from fedloom.measure.consistency import COLUMNS as LAYER_COLUMNS
from fedloom.measure.factors import NAMES
from fedloom.measure.looking import Looked
from fedloom.measure.numbers import mean
from fedloom.measure.rehearsal import Rehearsal
from fedloom.measure.scalars import train_counts
from fedloom.measure.tables import write_csv

Row = dict[str, Any]
BY_CLASS = ("feature_norm", "weight_norm", "alignment", *OF_TWO)
CLASS_COLUMNS = ("stage", "client", "class", "seen", "train_images", "test_images", "accuracy", *BY_CLASS)
CLIENT_COLUMNS = (
    *("client", "train_images", "classes_seen", "steps", "refined"),
    *("accuracy_start", "accuracy_local", "accuracy_refined"),
    *(f"{name}_{part}" for name in BY_CLASS for part in ("seen", "unseen")),
    *NAMES,
    *("update_norm", "update_to_mean", "update_cosine_to_mean", "effective_rank"),
)


def store(place: Path, server: Looked, seen: Rehearsal, what: Sequence[str]) -> None:
    """All tables that this analysis asked for; the two about clients hold whatever was found out on the way."""
    write_csv(place / "classes.csv", CLASS_COLUMNS, _class_rows(server, seen))
    write_csv(place / "clients.csv", CLIENT_COLUMNS, [_client_row(seen, client) for client in seen.clients])
    if "drift" in what:
        write_csv(place / "pairs.csv", ("client_a", "client_b", "cosine", "distance"), _pair_rows(seen))
    if "collapse" in what:
        write_csv(place / "spectrum.csv", ("stage", "client", "index", "singular_value"), _values(server, seen))
    if "consistency" in what:
        write_csv(place / "layers.csv", ("layer", "kind", *LAYER_COLUMNS), seen.layers)


def refinement(server: Looked, seen: Rehearsal) -> Row:
    """Means over clients, by class and over seen and unseen ones. `asked`: those who were refined, before it."""
    experiment = seen.fed.experiment
    stages: dict[str, dict[int, ByClass]] = {
        "start": {client: looked.start for client, looked in seen.local.items() if looked.start is not None},
        "local": {client: looked.own for client, looked in seen.local.items()},
        "asked": {client: seen.local[client].own for client in seen.refined},
        "refined": {client: looked.own for client, looked in seen.refined.items()},
    }
    found: Row = {"global": server.own.mean("accuracy")}
    for stage, tables in stages.items():
        columns = np.stack([table.mean("accuracy") for table in tables.values()]) if tables else None
        found[stage] = None if columns is None else [mean(column) for column in columns.T.tolist()]
        masks = {client: train_counts(experiment, client) > 0 for client in tables}
        found[f"{stage}_seen"] = mean(table.over("accuracy", masks[client]) for client, table in tables.items())
        found[f"{stage}_unseen"] = mean(table.over("accuracy", ~masks[client]) for client, table in tables.items())
    found["refined_clients"] = list(seen.refined)
    return found


def _class_rows(server: Looked, seen: Rehearsal) -> Iterator[Row]:
    yield from _by_class("global", None, None, server.own)
    for client in seen.clients:
        counts = train_counts(seen.fed.experiment, client)
        looked = seen.local[client]
        if looked.start is not None:
            yield from _by_class("start", client, counts, looked.start)
        yield from _by_class("local", client, counts, looked.own)
        if client in seen.refined:
            yield from _by_class("refined", client, counts, seen.refined[client].own)


def _by_class(stage: str, client: int | None, counts: np.ndarray[Any, Any] | None, table: ByClass) -> Iterator[Row]:
    columns = {name: table.mean(name).tolist() for name in (*OF_ONE, "weight_norm", *OF_TWO)}
    for label, images in enumerate(table.images.astype(int).tolist()):
        own = None if counts is None else int(counts[label])
        yield {
            "stage": stage,
            "client": client,
            "class": label,
            "seen": None if own is None else int(own > 0),
            "train_images": own,
            "test_images": images,
            **{name: column[label] for name, column in columns.items()},
        }


def _client_row(seen: Rehearsal, client: int) -> Row:
    looked, refined = seen.local[client], seen.refined.get(client)
    counts = train_counts(seen.fed.experiment, client)
    mask, place = counts > 0, seen.drifting.index(client)
    row: Row = {
        "client": client,
        "train_images": int(counts.sum()),
        "classes_seen": int(mask.sum()),
        "steps": seen.steps[client],
        "refined": int(refined is not None),
        "accuracy_start": looked.start.over("accuracy") if looked.start else None,
        "accuracy_local": looked.own.over("accuracy"),
        "accuracy_refined": refined.own.over("accuracy") if refined else None,
        "update_norm": seen.drift.norm[place],
        "update_to_mean": seen.drift.to_mean[place],
        "update_cosine_to_mean": seen.drift.cosine_to_mean[place],
        **looked.factors,
    }
    for name in BY_CLASS:
        row[f"{name}_seen"], row[f"{name}_unseen"] = looked.own.over(name, mask), looked.own.over(name, ~mask)
    if looked.spectrum is not None:
        row["effective_rank"] = effective_rank(torch.tensor(looked.spectrum, dtype=torch.float64))
    return row


def _pair_rows(seen: Rehearsal) -> Iterator[Row]:
    for i, a in enumerate(seen.drifting):
        for j, b in enumerate(seen.drifting[i + 1 :], i + 1):
            yield {
                "client_a": a,
                "client_b": b,
                "cosine": seen.drift.cosine[i, j],
                "distance": seen.drift.distance[i, j],
            }


def _values(server: Looked, seen: Rehearsal) -> Iterator[Row]:
    for stage, client, looked in [
        ("global", None, server),
        *(("local", client, found) for client, found in seen.local.items()),
    ]:
        for number, value in enumerate(looked.spectrum or (), 1):
            yield {"stage": stage, "client": client, "index": number, "singular_value": value}
