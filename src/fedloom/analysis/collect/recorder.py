"""Records one round for an analysis: local models, refined models (after queries) and the aggregated model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.analysis import consistency, embedding
from fedloom.analysis.collect.csv_files import write_csv
from fedloom.analysis.collect.images import select_images
from fedloom.analysis.collect.probe import ModelReport, Prober, has_personal_weights, load_client, model_outputs
from fedloom.analysis.collect.replay import StopReplayError
from fedloom.analysis.collect.round_means import train_counts
from fedloom.analysis.drift import Drift, drift
from fedloom.analysis.numbers import mean
from fedloom.engine.server.aggregation import RoundServer, Upload
from fedloom.engine.server.callback import Machinery, RunCallback


class Recorder(RunCallback):
    """Observes one round and holds what was measured, by client.

    `quantities`: names of what is asked for; the round is stopped early if nothing after local training is needed.
    `notify`: called with a line of text for each step that takes a while.
    """

    def __init__(
        self, machinery: Machinery, max_images: int | None, quantities: Sequence[str], notify: Callable[[str], None]
    ) -> None:
        self.machinery, self.max_images, self.quantities, self.notify = machinery, max_images, quantities, notify
        self.clients: list[int] = []  # those whose models were measured
        self.local: dict[int, ModelReport] = {}
        self.refined: dict[int, ModelReport] = {}
        self.steps: dict[int, int] = {}
        self.drift: Drift
        self.drift_clients: list[int] = []  # the clients of `drift`, in its order
        self.consistency: dict[str, Any] = {}
        self.layers: list[dict[str, Any]] = []
        self._points: list[dict[str, Any]] = []  # of the embedding
        self._features: list[np.ndarray[Any, Any]] = []
        self._uploaded: dict[int, Tensor] = {}  # buffer rows after local training, by client

    def inspects(self, round: int) -> bool:
        return True

    def clients_trained(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """After local training, before queries."""
        self.notify("evaluating the local models on the test samples")
        prober = Prober(machinery, self.max_images)
        reports = prober.client_models(sent, uploads, spectrum="collapse" in self.quantities)
        self.local = {u.client: report for u, report in zip(uploads, reports, strict=True) if report is not None}
        self.clients = list(self.local)
        self.steps = {upload.client: upload.steps for upload in uploads}
        shares = RoundServer(machinery.state, uploads).shares
        self.drift = drift(sent["w"], [upload.tensors["w"] for upload in uploads], shares)
        self.drift_clients = [upload.client for upload in uploads]
        self._uploaded = {upload.client: machinery.buffers.up_rows[upload.row].clone() for upload in uploads}
        if "embedding" in self.quantities:
            self._collect_features(machinery, uploads)
        if not {"refinement", "consistency"}.intersection(self.quantities):
            raise StopReplayError

    def aggregated(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """After queries and aggregation."""
        rows = machinery.buffers.up_rows
        refined = [u for u in uploads if u.client in self.local and not rows[u.row].equal(self._uploaded[u.client])]
        if refined and "refinement" in self.quantities:
            self.notify("evaluating the refined models on the test samples")
            reports = Prober(machinery, self.max_images).client_models(sent, refined)
            self.refined = {u.client: report for u, report in zip(refined, reports, strict=True) if report is not None}
        if "consistency" in self.quantities and uploads:
            machinery.buffers.broadcast(sent)
            self._compare_layers(machinery, uploads[: consistency.CLIENTS])

    def _compare_layers(self, machinery: Machinery, uploads: Sequence[Upload]) -> None:
        """In this process: each client's model as it enters the average, and the model it has afterwards."""
        self.notify("comparing layers before and after aggregation")
        replica, buffers, state = machinery.backend.replica, machinery.buffers, machinery.state
        index = select_images(machinery.experiment, consistency.IMAGES)
        before: list[dict[str, consistency.Layer]] = []
        after: list[dict[str, consistency.Layer]] = []
        for upload in uploads:
            load_client(replica, buffers, upload.row)
            before.append(consistency.observe(replica, index, borrowed=False))
            if not after or has_personal_weights(machinery.experiment):
                replica.receive(state.broadcast(), buffers.views(upload.row).state)
                after.append(consistency.observe(replica, index, borrowed=False))
            else:
                after.append(after[0])
        kinds = {name: type(module).__name__ for name, module in consistency.layers(replica.net).items()}
        self.layers = [{**row, "kind": kinds[row["layer"]]} for row in consistency.compare(before, after)]
        self.consistency = {
            "clients": [upload.client for upload in uploads],
            "images": len(index),
            **{name: mean(row[name] for row in self.layers) for name in consistency.COLUMNS},
        }

    def _collect_features(self, machinery: Machinery, uploads: Sequence[Upload]) -> None:
        """In this process: features of a few images under the global model and a few clients' models."""
        experiment, buffers, replica = machinery.experiment, machinery.buffers, machinery.backend.replica
        selected = [upload for upload in uploads if upload.client in self.local][: embedding.CLIENTS]
        index = select_images(experiment, embedding.POINTS // (1 + len(selected)))
        holders = _holders(experiment.data.partition.test_index, experiment.data.partition.test_offsets)
        for upload in [None, *selected]:
            if upload is None:
                replica.receive(self.machinery.state.served(), None)
            else:
                load_client(replica, buffers, upload.row)
            self._features.append(model_outputs(replica, index, borrowed=upload is None).features.numpy())
            seen = None if upload is None else train_counts(experiment, upload.client) > 0
            for image, label in zip(index.tolist(), experiment.data.dataset.test_y[index].tolist(), strict=True):
                self._points.append(
                    {
                        "stage": "global" if upload is None else "local",
                        "client": None if upload is None else upload.client,
                        "image": image,
                        "class": label,
                        "seen": None if seen is None else int(seen[label]),
                        "holder": holders.get(image),
                    }
                )

    def write_embedding(self, folder: Path) -> dict[str, Any]:
        """Write the table of points; return the summary of the embedding."""
        coordinates, kind = embedding.embed(np.concatenate(self._features), self.machinery.experiment.recipe.seed)
        columns = ("kind", "stage", "client", "image", "class", "seen", "holder", "x", "y")
        rows = [
            {**point, "kind": kind, "x": x, "y": y}
            for point, (x, y) in zip(self._points, coordinates.tolist(), strict=True)
        ]
        write_csv(folder / "embedding.csv", columns, rows)
        clients = list(dict.fromkeys(point["client"] for point in self._points if point["client"] is not None))
        return {"points": len(rows), "kind": kind, "images": len(rows) // len(self._features), "clients": clients}


def _holders(index: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> dict[int, int]:
    """Test image -> the first client that holds it."""
    holders: dict[int, int] = {}
    clients = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for image, client in zip(index.tolist(), clients.tolist(), strict=True):
        holders.setdefault(image, client)
    return holders
