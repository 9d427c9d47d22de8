"""Looking at models on the lanes: a model lies on the board, a lane passes test images through it and reports by class.

Only small numbers travel back. A client's model is compared with what the client began the round with: what was
broadcast, with its personal regions (as they were then) over it. Where nothing is personal that is one model for all, and
its features are kept by a lane until the next round is looked at.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.batches import cut
from fedloom.engine.board import Board
from fedloom.engine.lanes import KINDS, Job, Report
from fedloom.engine.regions import TOUCHES, Touched
from fedloom.engine.rounds import Federation
from fedloom.engine.server import Upload
from fedloom.engine.setup import Experiment
from fedloom.engine.worker import Worker
from fedloom.keys import seeded
from fedloom.measure.byclass import ByClass, Said, sums
from fedloom.measure.collapse import spectrum
from fedloom.measure.factors import factors
from fedloom.measure.images import chosen
from fedloom.nets import Net

_tickets = itertools.count()
_kept: dict[str, Said] = {}  # on a lane: what the last start said


@dataclass(frozen=True)
class Looked:
    """What was found out about one model."""

    own: ByClass
    start: ByClass | None  # of the model that the client began with
    factors: Mapping[str, float]  # empty if it was looked at briefly
    matrices: Mapping[str, Any] | None
    spectrum: Sequence[float] | None


def hear(worker: Worker, index: Tensor, borrowed: bool) -> Said:
    """What the net, as it is loaded now, says of these test images. `borrowed`: it has no statistics of its own."""
    experiment, net = worker.experiment, worker.net
    images = experiment.images
    worker.evaluating(borrowed)
    features, met, hits = [], [], []
    own_rows, meets = rows(net), getattr(net.head, "meets", None)
    with torch.no_grad(), seeded(experiment.recipe.seed, "analysis"):
        for stretch in cut(len(index), experiment.recipe.eval_batch, alone=not worker.normalisers):
            x = experiment.pipeline(images.test_x[index[stretch]], None).to(worker.device)
            with worker.autocast():
                f = net.features(x)
                right = net.head(f).argmax(1).cpu() == images.test_y[index[stretch]]
            features.append(f.float().cpu())
            hits.append(right)
            if own_rows is not None and callable(meets):
                met.append(meets(f.float()).float().cpu())
    made = torch.cat(features)
    return Said(made, torch.cat(met) if met else made, own_rows, torch.cat(hits))


def rows(net: Net) -> Tensor | None:
    """V, (C, d'), if the head has one row a class that features (or what it makes of them) are compared with."""
    weight = getattr(net.head, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or len(weight) != net.classes:
        return None
    if weight.shape[1] != net.dim and not hasattr(net.head, "meets"):
        return None
    return weight.detach().float().cpu().clone()


def load_client(worker: Worker, board: Board, row: int) -> None:
    """The model that lies in a client's row, with its own regions, over what was broadcast."""
    views = board.views(row)
    worker.receive({**board.down, "w": views.up["w"], "statistics": views.up["statistics"]}, views.memory)


def _look(worker: Worker, board: Board, lane: int, a: dict[str, Any]) -> Report:
    """On a lane: a model by classes, and a client's against its start."""
    experiment, client = worker.experiment, a["client"]
    index = chosen(experiment, a["images"])
    y, classes = experiment.images.test_y[index], experiment.images.classes
    report: Report = {"images": torch.bincount(y, minlength=classes).tolist()}
    start = None
    if client is not None:
        start = _kept.get(a["ticket"])
        if start is None:
            worker.receive(board.down, board.before(lane))
            start = hear(worker, index, borrowed=False)
            _kept.clear()
            if not is_personal(experiment):
                _kept[a["ticket"]] = start
        if not a["brief"]:
            report["start"] = _told(start, y, classes)
        load_client(worker, board, a["row"])
    else:
        worker.receive(board.down, None)
    said = hear(worker, index, borrowed=client is None)
    report["own"] = _told(said, y, classes, start)
    if a["brief"]:
        return report
    found = factors(said.features, y, said.rows, classes, None if said.met is said.features else said.met)
    report["factors"] = found.scalars()
    if a["matrices"]:
        report["matrices"] = {name: matrix.tolist() for name, matrix in found.matrices().items()}
    if a["spectrum"]:
        report["spectrum"] = spectrum(said.features).tolist()
    return report


KINDS["look"] = _look


def _touches(a: Mapping[str, Any], rows: Sequence[int], lane: int) -> Touched:
    own = [("up", a["row"]), ("memory", a["row"])] if "row" in a else []
    return Touched([*own, ("before", lane)])


TOUCHES["look"] = _touches


def _told(said: Said, y: Tensor, classes: int, start: Said | None = None) -> dict[str, Any]:
    norms = torch.full((classes,), torch.nan) if said.rows is None else said.rows.double().norm(dim=1)
    found = {name: values.tolist() for name, values in sums(said, y, classes, start).items()}
    return {"sums": found, "weight_norm": norms.tolist()}


class Looker:
    """Has models looked at by the lanes, on all test images or on at most so many."""

    def __init__(self, federation: Federation, images: int | None) -> None:
        self.federation, self.images = federation, images

    def at_server(self, served: Mapping[str, Tensor], matrices: bool = False, spectrum: bool = False) -> Looked | None:
        """A model of the server's, as it would be broadcast; None if its lane died every time."""
        self.federation.board.broadcast(served)
        job = Job("look", self._arguments(client=None, matrices=matrices, spectrum=spectrum))
        return self._run([job])[0]

    def at_clients(
        self, sent: Mapping[str, Tensor], uploads: Sequence[Upload], spectrum: bool = False, brief: bool = False
    ) -> list[Looked | None]:
        """Models that lie in clients' rows, against what was `sent` to them before; `brief`: without their factors."""
        self.federation.board.broadcast(sent)
        ticket = f"{os.getpid()}.{next(_tickets)}"
        jobs = []
        for upload in uploads:
            asked = self._arguments(client=upload.client, row=upload.row, ticket=ticket, spectrum=spectrum, brief=brief)
            jobs.append(Job("look", asked, 1, self._before(upload.client)))
        return self._run(jobs)

    def _arguments(self, **asked: Any) -> dict[str, Any]:
        return {"images": self.images, "matrices": False, "spectrum": False, "brief": False, **asked}

    def _run(self, jobs: Sequence[Job]) -> list[Looked | None]:
        return [None if report is None else _read(report) for report in self.federation.lanes.run(jobs)]

    def _before(self, client: int) -> Callable[[int], None]:
        def prepare(lane: int) -> None:
            if self.federation.experiment.messages.memory.nbytes:
                self.federation.board.before_rows[lane].copy_(self.federation.memory.get(client))

        return prepare


def is_personal(experiment: Experiment) -> bool:
    return bool(experiment.layout.personal or experiment.layout.personal_statistics)


def _read(report: Report) -> Looked:
    images = np.asarray(report["images"], dtype=np.float64)

    def table(told: dict[str, Any] | None) -> ByClass | None:
        if told is None:
            return None
        found = {name: np.asarray(values, dtype=np.float64) for name, values in told["sums"].items()}
        return ByClass(images, found, np.asarray(told["weight_norm"], dtype=np.float64))

    own = table(report["own"])
    assert own is not None
    return Looked(
        own, table(report.get("start")), report.get("factors", {}), report.get("matrices"), report.get("spectrum")
    )
