"""What an analysis notes down while the engine makes one more round: local models, second acts, the aggregated model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.engine.rounds import Federation
from fedloom.engine.server import Upload
from fedloom.engine.shares import client_shares
from fedloom.measure import consistency, embedding
from fedloom.measure.again import EnoughError
from fedloom.measure.drift import Drift, drift
from fedloom.measure.images import chosen
from fedloom.measure.looking import Looked, Looker, hear, is_personal, load_client
from fedloom.measure.numbers import mean
from fedloom.measure.scalars import train_counts
from fedloom.measure.tables import write_csv


class Rehearsal:
    """Watches one round; afterwards holds what was found, by client."""

    def __init__(self, fed: Federation, images: int | None, what: Sequence[str], tell: Callable[[str], None]) -> None:
        self.fed, self.images, self.what, self.tell = fed, images, what, tell
        self.clients: list[int] = []  # whose models could be looked at
        self.local: dict[int, Looked] = {}
        self.refined: dict[int, Looked] = {}
        self.samples: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.drift: Drift
        self.drifting: list[int] = []  # the clients of `drift`, in its order
        self.consistency: dict[str, Any] = {}
        self.layers: list[dict[str, Any]] = []
        self._points: list[dict[str, Any]] = []
        self._features: list[np.ndarray[Any, Any]] = []
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def due(self, number: int) -> bool:
        return True

    def trained(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """After local training, before anything else."""
        self.tell("passing the test images through the local models")
        looked = Looker(federation, self.images).at_clients(sent, uploads, spectrum="collapse" in self.what)
        self.local = {u.client: found for u, found in zip(uploads, looked, strict=True) if found is not None}
        self.clients = list(self.local)
        self.samples = {upload.client: upload.samples for upload in uploads}
        self.steps = {upload.client: upload.steps for upload in uploads}
        shares = client_shares([upload.samples for upload in uploads], federation.experiment.recipe)
        self.drift = drift(sent["w"], [upload.tensors["w"] for upload in uploads], shares)
        self.drifting = [upload.client for upload in uploads]
        board = federation.board
        self._rows = {u.client: (board.up_rows[u.row].clone(), board.memory_rows[u.row].clone()) for u in uploads}
        if "embedding" in self.what:
            self._hear_points(federation, uploads)
        if not {"refinement", "consistency"}.intersection(self.what):
            raise EnoughError

    def combined(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """After second acts and combining."""
        board = federation.board
        again = [
            u for u in uploads if not board.up_rows[u.row].equal(self._rows[u.client][0]) and u.client in self.local
        ]
        if again and "refinement" in self.what:
            self.tell("passing the test images through the refined models")
            found = Looker(federation, self.images).at_clients(sent, again)
            self.refined = {u.client: looked for u, looked in zip(again, found, strict=True) if looked is not None}
        if "consistency" in self.what and uploads:
            board.broadcast(sent)
            self._compare_layers(federation, uploads)

    def _compare_layers(self, federation: Federation, uploads: Sequence[Upload]) -> None:
        """In this process: what enters the average, and what each client holds after it."""
        self.tell("comparing layers before and after aggregation")
        worker, board, state = federation.lanes.worker, federation.board, federation.state
        index = chosen(federation.experiment, consistency.IMAGES)
        before: list[dict[str, consistency.Layer]] = []
        after: list[dict[str, consistency.Layer]] = []
        for upload in uploads[: consistency.CLIENTS]:
            load_client(worker, board, upload.row)
            before.append(consistency.observe(worker, index, borrowed=False))
            if not after or is_personal(federation.experiment):
                worker.receive(state.broadcast(), board.views(upload.row).memory)
                after.append(consistency.observe(worker, index, borrowed=False))
            else:
                after.append(after[0])
        kinds = {name: type(module).__name__ for name, module in consistency.layers(worker.net).items()}
        self.layers = [{**row, "kind": kinds[row["layer"]]} for row in consistency.compare(before, after)]
        self.consistency = {
            "clients": [upload.client for upload in uploads[: consistency.CLIENTS]],
            "images": len(index),
            **{name: mean(row[name] for row in self.layers) for name in consistency.COLUMNS},
        }

    def _hear_points(self, federation: Federation, uploads: Sequence[Upload]) -> None:
        """Features of a few images under the global model and a few clients' own, in this process."""
        experiment, board, worker = federation.experiment, federation.board, federation.lanes.worker
        few = [upload for upload in uploads if upload.client in self.local][: embedding.CLIENTS]
        index = chosen(experiment, embedding.POINTS // (1 + len(few)))
        holder = _holders(experiment.partition.test_index, experiment.partition.test_offsets)
        for upload in [None, *few]:
            if upload is None:
                worker.receive(self.fed.state.served(), None)
            else:
                load_client(worker, board, upload.row)
            self._features.append(hear(worker, index, borrowed=upload is None).features.numpy())
            seen = None if upload is None else train_counts(experiment, upload.client) > 0
            for image, label in zip(index.tolist(), experiment.images.test_y[index].tolist(), strict=True):
                self._points.append(
                    {
                        "stage": "global" if upload is None else "local",
                        "client": None if upload is None else upload.client,
                        "image": image,
                        "class": label,
                        "seen": None if seen is None else int(seen[label]),
                        "holder": holder.get(image),
                    }
                )

    def embed(self, place: Path) -> dict[str, Any]:
        """The table of points, and its section of the summary."""
        seed = self.fed.experiment.recipe.seed
        made, kind = embedding.embed(np.concatenate(self._features), seed)
        columns = ("kind", "stage", "client", "image", "class", "seen", "holder", "x", "y")
        rows = [
            {**point, "kind": kind, "x": x, "y": y} for point, (x, y) in zip(self._points, made.tolist(), strict=True)
        ]
        write_csv(place / "embedding.csv", columns, rows)
        clients = list(dict.fromkeys(point["client"] for point in self._points if point["client"] is not None))
        return {"points": len(rows), "kind": kind, "images": len(rows) // len(self._features), "clients": clients}


def _holders(index: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> dict[int, int]:
    """Test image -> the first client that holds it."""
    found: dict[int, int] = {}
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for image, owner in zip(index.tolist(), owners.tolist(), strict=True):
        found.setdefault(image, owner)
    return found
