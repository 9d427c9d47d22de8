"""FedPAC (Xu et al., ICLR 2023): features are aligned across clients, and each client gets its own combination of all heads.

The claim: with features that mean the same everywhere, clients can share heads too, each as far as the others' data help it.

A round at client i, with class frequencies pi_y and n samples:

1. with the received body: class means f_y, h_y = pi_y f_y and v = (sum_y pi_y E|f|^2_y - sum_y pi_y^2 |f_y|^2) / n
2. its head for `head_epochs` at the rate `head_lr`, then the body with this head for the recipe's epochs under
       L = CE + lam * mean over batch and features of (f - c_y)^2
   c_y: the global prototype, or its own f_y where there is none; without the second term in round 1
3. it uploads body, head, h, v, and sums of features of the trained body by class with their counts

At the server bodies are averaged, c_y is the mean feature of class y over all samples of the cohort, and head_i <- sum_j a_j
head_j is sent to client i, with a from a quadratic program over the cohort:

    min_a a^T (diag(v) + D) a,   D_jk = sum_y <h_i,y - h_j,y, h_i,y - h_k,y>,   a >= 0, sum a = 1

Shares below 0.001 are set to zero and the rest divided by its sum, as in the code. The matrix is a Gram matrix plus v >= 0, so
the code's repair of negative eigenvalues is not needed. Clients that are absent keep their head; one that never took part has
the initial one. A client's own model is the global body with its combined head. A head that keeps a share of 1 is not sent.

Departures: features are taken in evaluation mode. Ports average prototypes without counts, use one rate for both phases, or
align to local prototypes in round 1. Defaults: lam = 1, one head epoch at rate 0.1, the code's, in every round whatever the
schedule; head_lr = null takes the round's rate. lam = 0 with `collaborate = false` is fedrep(head_epochs=1). Equal h and v give
equal shares; v = 0 with different h gives a client its own head. The server sees class counts and prototypes in the clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, Phase, Query, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Count, NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span
from fedloom.weights import BEFORE_HEAD, Regions

SMALLEST = 1e-3  # share of a head that is used


class FedPAC(Part):
    """Features aligned by prototypes; each client gets its own combination of the cohort's heads."""

    paper = "Xu et al. 2023, FedPAC"
    work = "a pass over the data before and after training"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "lam": Span(0.1, 10.0, log=True, source="ours, around the code's 1"),
        "head_lr": Span(0.01, 1.0, log=True, source="ours, around the code's 0.1"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"collaborate"})
    settled: ClassVar[frozenset[str]] = frozenset({"prototypes", "variance"})
    lam: NonNegative = 1.0
    """weight of the alignment with prototypes"""
    head_epochs: Count = 1
    """epochs of the head before the body"""
    head_lr: Positive | None = 0.1
    """learning rate of the head; null: the round's"""
    collaborate: bool = True
    """combine the cohort's heads for every client; false: each keeps its own"""

    def regions(self, regions: Regions) -> Regions:
        return regions.keep("head")

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"prototypes": torch.zeros(task.classes, task.dim), "known": torch.zeros(task.classes)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return dict(state)

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"prototypes": torch.zeros(task.classes, task.dim), "variance": torch.zeros(1)}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        by_class = torch.zeros(task.classes, task.dim)
        statistics = {"h": by_class, "variance": torch.zeros(1), "sums": by_class, "counts": torch.zeros(task.classes)}
        return {**statistics, "head": _blank_head(task)} if self.collaborate else statistics

    def queries(self, weights: Tensor, task: TaskInfo) -> Mapping[str, Query]:
        return {"combine": Query(message={"head": _blank_head(task)}, delivers=True)} if self.collaborate else {}

    # on a client

    def before_training(self, client: ClientContext) -> None:
        sums, squares = _by_class(client)
        n, counts = client.samples, client.counts
        means = sums / counts.clamp(min=1)[:, None]
        explained = (counts / n).square() @ means.square().sum(1)
        client.state["prototypes"], client.state["variance"] = means, ((squares / n - explained) / n).reshape(1)

    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(self.head_epochs, ("head",), lr=self.head_lr), Phase(epochs, BEFORE_HEAD)]

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        if client.round <= 1:
            return batch.features.new_zeros(())
        given, device = client.broadcast, batch.features.device
        known, shared = (given[name].to(device)[batch.y] for name in ("known", "prototypes"))
        own = client.state["prototypes"].to(device)[batch.y]
        return self.lam * F.mse_loss(batch.features, torch.where(known[:, None] > 0, shared, own))

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        frequencies = (client.counts / client.samples).to(client.state["prototypes"].device)
        client.upload["h"] = frequencies[:, None] * client.state["prototypes"]
        client.upload["variance"] = client.state["variance"]
        client.upload["sums"], client.upload["counts"] = _by_class(client)[0], client.counts
        if self.collaborate:
            client.upload["head"] = torch.cat([tensor.flatten() for tensor in _head(client)])

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        tensors = _head(client)
        pieces = torch.split(message["head"], [tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view(tensor.shape))

    # on the server

    def after_aggregation(self, server: ServerContext) -> None:
        counts = torch.stack(list(server.extras("counts"))).sum(0)
        sums = torch.stack(list(server.extras("sums"))).sum(0)
        server.state["prototypes"], server.state["known"] = sums / counts.clamp(min=1)[:, None], (counts > 0).float()
        if not self.collaborate:
            return
        heads = torch.stack(list(server.extras("head")))
        h = torch.stack(list(server.extras("h"))).flatten(1).double()
        v = torch.cat(list(server.extras("variance"))).double()
        for i, client in enumerate(server.cohort):
            gaps = h[i] - h
            shares = simplex_minimum((torch.diag(v) + gaps @ gaps.T).numpy())
            shares = np.where(shares > SMALLEST, shares, 0.0)
            if shares[i] < shares.sum():
                combined = torch.from_numpy(shares / shares.sum()) @ heads.double()
                server.ask("combine", {"head": combined.float()}, [client])


def simplex_minimum(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """min a^T P a over a >= 0 with sum 1, for a positive semidefinite P."""
    from scipy.optimize import minimize  # slow to import

    count, scale = len(matrix), float(np.abs(matrix).max())
    equal = np.full(count, 1 / count)
    if scale == 0 or count == 1:
        return equal
    p = matrix / scale
    result: Any = minimize(
        lambda a: float(a @ p @ a),
        equal,
        jac=lambda a: 2 * p @ a,
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 100 + 10 * count},
    )
    shares: npt.NDArray[np.float64] = np.clip(result.x, 0, None)
    return _exact(p, shares / shares.sum())


def _exact(p: npt.NDArray[np.float64], shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The minimum on the face that the iterations ended in: P a = constant there, in place of their tolerance."""
    face = shares > 1e-6
    try:
        solved = np.linalg.solve(p[np.ix_(face, face)], np.ones(int(face.sum())))
    except np.linalg.LinAlgError:
        return shares
    exact = np.zeros_like(shares)
    exact[face] = solved / solved.sum()
    better = bool(np.isfinite(exact).all() and (exact >= 0).all() and exact @ p @ exact <= shares @ p @ shares)
    return exact if better else shares


def _by_class(client: ClientContext) -> tuple[Tensor, Tensor]:
    """Sums of the features of each class (C, d), and of the squared norms of all features, in evaluation mode."""
    sums = torch.zeros(client.task.classes, client.task.dim, device=client.storage.device)
    squares = torch.zeros((), device=sums.device)
    for batch in client.iterate():
        features = batch.features.detach().float()
        sums.index_add_(0, batch.y, features)
        squares += features.square().sum()
    return sums, squares


def _head(client: ClientContext) -> Sequence[Tensor]:
    return [tensor for name, tensor in client.named(client.storage).items() if name.startswith("head.")]


def _blank_head(task: TaskInfo) -> Tensor:
    return torch.zeros(
        sum(torch.Size(shape).numel() for name, shape in task.shapes.items() if name.startswith("head."))
    )
