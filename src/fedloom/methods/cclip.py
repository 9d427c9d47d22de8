"""Centered clipping (Karimireddy, He, Jaggi, ICML 2021): updates are clipped around the last aggregate.

    v <- v + mean over S of (D_i - v) min(1, radius / ||D_i - v||),   `passes` times;   w <- w_g + v,   D_i = w_i - w_g

v is the update of the last round, zero before the first. The authors clip workers' momentum; here, as in federated averaging,
what a client sends is its whole update, so `radius` is in units of an update. A client moves v by at most radius / n in a
pass. Clients are not weighted. A very large radius is the mean; `clipped` clips around zero, with weights. Default passes = 1
(authors: 1 or 3). The authors' radius, 100 or 10, belongs to momentum of gradients; ours is 1, about the length of an update
of a small net. v is the rule's own aggregate, whatever a server step (fedavgm) makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Count, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span


class CClip(Part):
    """Updates are clipped around the last round's aggregate."""

    paper = "Karimireddy et al. 2021, centered clipping"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "radius": Span(0.1, 10.0, log=True, source="a decade around the default of 1"),
    }
    unweighted: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    radius: Positive = 1.0
    """largest distance of an update from the last aggregate"""
    passes: Count = 1
    """number of times that the center is updated"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"center": torch.zeros_like(weights)}

    def aggregate(self, server: ServerContext) -> Tensor:
        center = server.state["center"]
        for _ in range(self.passes):
            step = torch.zeros_like(center)
            for w_i in server.uploads:
                away = w_i - server.weights - center
                norm = float(torch.linalg.vector_norm(away.double()))
                step.add_(away, alpha=min(1.0, self.radius / (norm + 1e-12)) / len(server.uploads))
            center.add_(step)
        return server.weights + center
