"""Measuring models on workers: a worker evaluates the model in the shared buffers on test samples and reports by class.

Only small numbers travel back. A client's model is compared with the one that the client started the round with: the
broadcast weights with its personal regions, as they were then, over them. Where nothing is personal, all clients start
from one model, and a worker keeps that model's outputs until the next round is measured.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedloom.analysis.by_class import ByClass, ModelOutputs, sums_by_class
from fedloom.analysis.collapse import spectrum
from fedloom.analysis.collect.images import select_images
from fedloom.analysis.factors import factors
from fedloom.engine.buffers import Region, SharedBuffers
from fedloom.engine.client.batches import cut
from fedloom.engine.client.replica import Replica
from fedloom.engine.experiment import Experiment
from fedloom.engine.server.aggregation import Upload
from fedloom.engine.server.callback import Machinery
from fedloom.engine.tasks import Assignment, Report, Task
from fedloom.nets import Net
from fedloom.rng import seeded

_start_numbers = itertools.count()
_start_outputs: dict[str, ModelOutputs] = {}  # on a worker: at most one entry, of the latest start


@dataclass(frozen=True)
class ModelReport:
    """What was measured of one model."""

    own: ByClass
    start: ByClass | None  # of the model that the client started with
    factors: Mapping[str, float]  # empty in a brief report
    matrices: Mapping[str, Any] | None
    spectrum: Sequence[float] | None


def model_outputs(replica: Replica, index: Tensor, borrowed: bool) -> ModelOutputs:
    """Outputs of the net that is loaded now on these test samples. `borrowed`: it has no running statistics of its own."""
    experiment, net = replica.experiment, replica.net
    images = experiment.data.dataset
    replica.evaluating(borrowed)
    features, projected, correct = [], [], []
    rows, project = head_rows(net), getattr(net.head, "meets", None)
    with torch.no_grad(), seeded(experiment.recipe.seed, "analysis"):
        for batch in cut(len(index), experiment.recipe.eval_batch, alone=not replica.normalizers):
            x = experiment.data.pipeline(images.test_x[index[batch]], None).to(replica.device)
            with replica.autocast():
                f = net.features(x)
                hits = net.head(f).argmax(1).cpu() == images.test_y[index[batch]]
            features.append(f.float().cpu())
            correct.append(hits)
            if rows is not None and callable(project):
                projected.append(project(f.float()).float().cpu())
    all_features = torch.cat(features)
    head_inputs = torch.cat(projected) if projected else all_features
    return ModelOutputs(all_features, head_inputs, rows, torch.cat(correct))


def head_rows(net: Net) -> Tensor | None:
    """V, (C, d'), if the head has one row per class that is compared with the features or a projection of them."""
    weight = getattr(net.head, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or len(weight) != net.classes:
        return None
    if weight.shape[1] != net.dim and not hasattr(net.head, "meets"):
        return None
    return weight.detach().float().cpu().clone()


def load_client(replica: Replica, buffers: SharedBuffers, row: int) -> None:
    """Load the client model of a buffer row: its upload and personal regions over the broadcast."""
    views = buffers.views(row)
    replica.receive({**buffers.down, "w": views.up["w"], "statistics": views.up["statistics"]}, views.state)


@dataclass(frozen=True)
class Probe(Task):
    """Measure one model by class; a client's model also against the one that the client started with.

    `start_id`: equal for clients that started from the same model, whose outputs a worker then reuses.
    """

    kind: ClassVar[str] = "probe"
    max_images: int | None
    client: int | None = None
    row: int = 0
    start_id: str = ""
    matrices: bool = False
    spectrum: bool = False
    brief: bool = False

    def reads(self, worker: int) -> list[Region]:
        own = [] if self.client is None else [Region("upload", (self.row,)), Region("state", (self.row,))]
        return [*own, Region("prior", (worker,))]

    def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
        experiment = replica.experiment
        index = select_images(experiment, self.max_images)
        y, classes = experiment.data.dataset.test_y[index], experiment.data.dataset.classes
        report: Report = {"images": torch.bincount(y, minlength=classes).tolist()}
        start = None
        if self.client is not None:
            start = _start_outputs.get(self.start_id)
            if start is None:
                replica.receive(buffers.down, buffers.prior_state(worker))
                start = model_outputs(replica, index, borrowed=False)
                _start_outputs.clear()
                if not has_personal_weights(experiment):
                    _start_outputs[self.start_id] = start
            if not self.brief:
                report["start"] = _class_report(start, y, classes)
            load_client(replica, buffers, self.row)
        else:
            replica.receive(buffers.down, None)
        outputs = model_outputs(replica, index, borrowed=self.client is None)
        report["own"] = _class_report(outputs, y, classes, start)
        if self.brief:
            return report
        projected = None if outputs.head_inputs is outputs.features else outputs.head_inputs
        measured = factors(outputs.features, y, outputs.head_rows, classes, projected)
        report["factors"] = measured.means()
        if self.matrices:
            report["matrices"] = {name: matrix.tolist() for name, matrix in measured.matrices().items()}
        if self.spectrum:
            report["spectrum"] = spectrum(outputs.features).tolist()
        return report


class Prober:
    """Has workers measure models, on all test samples or on at most `max_images`."""

    def __init__(self, machinery: Machinery, max_images: int | None) -> None:
        self.machinery, self.max_images = machinery, max_images

    def server_model(
        self, served: Mapping[str, Tensor], matrices: bool = False, spectrum: bool = False
    ) -> ModelReport | None:
        """A model of the server, given as a broadcast; None if its worker died at every attempt."""
        self.machinery.buffers.broadcast(served)
        return self._run([Assignment(Probe(self.max_images, matrices=matrices, spectrum=spectrum))])[0]

    def client_models(
        self, sent: Mapping[str, Tensor], uploads: Sequence[Upload], spectrum: bool = False, brief: bool = False
    ) -> list[ModelReport | None]:
        """The uploaded models, against what was `sent` to the clients. `brief`: without start tables and factors."""
        self.machinery.buffers.broadcast(sent)
        start_id = f"{os.getpid()}.{next(_start_numbers)}"
        assignments = []
        for upload in uploads:
            task = Probe(self.max_images, upload.client, upload.row, start_id, spectrum=spectrum, brief=brief)
            assignments.append(Assignment(task, 1, self._load_prior_state(upload.client)))
        return self._run(assignments)

    def _run(self, assignments: Sequence[Assignment]) -> list[ModelReport | None]:
        return [None if report is None else _model_report(report) for report in self.machinery.backend.run(assignments)]

    def _load_prior_state(self, client: int) -> Callable[[int], None]:
        def prepare(worker: int) -> None:
            if self.machinery.experiment.program.messages.state.nbytes:
                self.machinery.buffers.prior_rows[worker].copy_(self.machinery.client_state.get(client))

        return prepare


def has_personal_weights(experiment: Experiment) -> bool:
    return bool(experiment.program.layout.personal or experiment.program.layout.personal_statistics)


def _class_report(outputs: ModelOutputs, y: Tensor, classes: int, start: ModelOutputs | None = None) -> dict[str, Any]:
    rows = outputs.head_rows
    norms = torch.full((classes,), torch.nan) if rows is None else rows.double().norm(dim=1)
    sums = {name: values.tolist() for name, values in sums_by_class(outputs, y, classes, start).items()}
    return {"sums": sums, "weight_norm": norms.tolist()}


def _model_report(report: Report) -> ModelReport:
    images = np.asarray(report["images"], dtype=np.float64)

    def by_class(table: dict[str, Any]) -> ByClass:
        sums = {name: np.asarray(values, dtype=np.float64) for name, values in table["sums"].items()}
        return ByClass(images, sums, np.asarray(table["weight_norm"], dtype=np.float64))

    return ModelReport(
        own=by_class(report["own"]),
        start=by_class(report["start"]) if "start" in report else None,
        factors=report.get("factors", {}),
        matrices=report.get("matrices"),
        spectrum=report.get("spectrum"),
    )
