"""pFedFDA (McLaughlin & Su, NeurIPS 2024): class-conditional Gaussians of features, shared and mixed with each client's own.

The claim: a generative head adapts to a client with few samples. The head is a linear discriminant of Gaussians N(mu_c, Sigma):

    W_c = S^-1 mu_c,   b_c = -1/2 mu_c^T S^-1 mu_c + log pi_c,   S = (1 - e) Sigma + e tr(Sigma)/d I

with the client's class frequencies pi (plus 1e-4, renormalized) and e = 1e-4. A round at a client:

1. it trains the body for the recipe's epochs under the method's loss, with the head of the global mu and Sigma, fixed
2. it estimates its own mu (the global one for classes it lacks) and Sigma from the features of the trained body
3. it uploads the body, beta_mu mu + (1 - beta_mu) mu_global, and beta_S Sigma + (1 - beta_S) Sigma_global

The server averages all three, as the recipe weighs clients. beta_mu and beta_S minimize the cross-entropy of a two-fold
cross-validation on the client's samples: Gaussians of one fold, mixed with the global ones, classify the other. Folds take the
samples of each class in turn. The minimum comes from L-BFGS-B from (0.5, 0.5), at most 10 iterations, within [0, 1].

A client's own model has the served body and the mixed head, solved anew from its training samples, also where it never took
part; clients keep nothing. The global model has the head of the global Gaussians with equal frequencies; it is sent with
the body. mu starts uniform in [0, 1), Sigma as I, so the initial head's weight is mu.

Departures: features are those of the trained body, in evaluation mode; the code collects them during training, while the body
changes. Sigma is the scatter around class means over n - 1 plus `ridge` I, by default 1e-4; the code adds 1e-4 to every entry
and then I, which looks like a slip but matters: with `ridge = 1` the head's weights stay small. With less, features that
hardly vary make them large, and training with momentum may diverge. beta is bounded in the search, where the code clips it
afterwards. A query of another part that trains continues with the head of equal frequencies. `beta` fixes both shares: 1 is
the client's own discriminant, 0 the global one. The head must be linear with a bias, and no other part may decide about it.
Costs d^2 floats each way and some d^3 operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.methods.api.context import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.hyperparameters import Positive, Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.search import Range, Span
from fedloom.nets import Net
from fedloom.rng import torch_generator
from fedloom.weights import Regions

EPS = 1e-4
ITERATIONS = 10


@dataclass(frozen=True)
class Gaussians:
    """Class means (C, d) and a common covariance (d, d), in double precision."""

    means: Tensor
    covariance: Tensor

    def mixed(self, other: Gaussians, shares: Tensor) -> Gaussians:
        """`shares` of this in the means and in the covariance, the rest of the other."""
        means = shares[0] * self.means + (1 - shares[0]) * other.means
        return Gaussians(means, shares[1] * self.covariance + (1 - shares[1]) * other.covariance)

    def head(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of the discriminant."""
        weight = torch.linalg.solve(shrunk(self.covariance), self.means.T).T
        return weight, -0.5 * (self.means * weight).sum(1) + frequencies.log()


class PFedFDA(Part):
    """A discriminant head from Gaussians of the features, global ones mixed with the client's own."""

    paper = "McLaughlin & Su 2024, pFedFDA"
    work = "a pass or two over the data after training"
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})
    variants: ClassVar[frozenset[str]] = frozenset({"beta"})
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "ridge": Span(1e-4, 1.0, log=True, source="from the equation's to what the authors' code adds"),
    }
    sums = "shares"  # means of bodies and Gaussians
    beta: Share | None = None
    """share of the client's own Gaussians; null: by cross-validation"""
    ridge: Positive = EPS
    """added to the diagonal of a client's covariance (published code: 1)"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        if type(net.head) is not nn.Linear or net.head.bias is None:
            raise FedloomError(
                f"the discriminant is a linear head with a bias, and this head is a {type(net.head).__name__} "
                f"{'without one' if isinstance(net.head, nn.Linear) else ''}; choose a model with such a head"
            )
        common = _initial(task, net.dim)
        for parameter, value in zip((net.head.weight, net.head.bias), common.head(_equal(task)), strict=True):
            parameter.data.copy_(value)
        return net

    def regions(self, regions: Regions) -> Regions:
        return regions.freeze("head")

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        common = _initial(task, task.dim)
        return {"means": common.means.float(), "covariance": common.covariance.float()}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return dict(state)

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"means": torch.zeros(task.classes, task.dim), "covariance": torch.zeros(task.dim, task.dim)}

    def final_tensors(self) -> tuple[str, ...]:
        return ("head.weight", "head.bias")

    # on a client

    def before_training(self, client: ClientContext) -> None:
        _set_head(client, _given(client))

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        mixed = self._own(client)
        client.upload["means"], client.upload["covariance"] = mixed.means, mixed.covariance

    def personalize(self, client: ClientContext) -> None:
        _set_head(client, self._own(client))

    def _own(self, client: ClientContext) -> Gaussians:
        """The client's Gaussians under the current body, mixed with the global ones."""
        pieces = [(batch.features.detach().cpu().double(), batch.y.cpu()) for batch in client.iterate()]
        features, y = torch.cat([f for f, _ in pieces]), torch.cat([y for _, y in pieces])
        common = _given(client)
        if self.beta is None:
            shares = best_shares(features, y, common, _frequencies(client), self.ridge)
        else:
            shares = torch.full((2,), self.beta, dtype=torch.float64)
        return estimate(features, y, common, self.ridge).mixed(common, shares)

    # on the server

    def initialize(self, server: ServerContext) -> None:
        self._set_global_head(server)

    def after_aggregation(self, server: ServerContext) -> None:
        for name in ("means", "covariance"):
            server.state[name] = server.mean(server.extras(name))
        self._set_global_head(server)

    def _set_global_head(self, server: ServerContext) -> None:
        common = Gaussians(server.state["means"].double(), server.state["covariance"].double())
        for name, value in zip(self.final_tensors(), common.head(_equal(server.task)), strict=True):
            server.set_frozen(name, value)


def _initial(task: TaskInfo, dim: int) -> Gaussians:
    generator = torch_generator(task.seed, "pfedfda")
    means = torch.rand(task.classes, dim, generator=generator)
    return Gaussians(means.double(), torch.eye(dim, dtype=torch.float64))


def _equal(task: TaskInfo) -> Tensor:
    return torch.full((task.classes,), 1 / task.classes, dtype=torch.float64)


def shrunk(covariance: Tensor) -> Tensor:
    """S of Sigma; linear in Sigma."""
    d = len(covariance)
    return (1 - EPS) * covariance + EPS * covariance.trace() / d * torch.eye(d, dtype=covariance.dtype)


def estimate(features: Tensor, y: Tensor, common: Gaussians, ridge: float) -> Gaussians:
    """Class means and the scatter around them; what the samples do not tell is taken from the common Gaussians."""
    counts = torch.bincount(y, minlength=len(common.means)).double()
    sums = torch.zeros_like(common.means).index_add_(0, y, features)
    means = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], common.means)
    if len(y) < 2:
        return Gaussians(means, common.covariance)
    centered = features - means[y]
    return Gaussians(means, centered.T @ centered / (len(y) - 1) + ridge * torch.eye(features.shape[1]).double())


def best_shares(features: Tensor, y: Tensor, common: Gaussians, frequencies: Tensor, ridge: float) -> Tensor:
    """beta_mu and beta_S of the least cross-entropy in two-fold cross-validation."""
    from scipy.optimize import minimize  # slow to import

    fold = torch.empty_like(y)
    for c in range(len(common.means)):
        (of_class,) = torch.nonzero(y == c, as_tuple=True)
        fold[of_class] = torch.arange(len(of_class)) % 2
    halves = []
    for k in (0, 1):
        own = estimate(features[fold != k], y[fold != k], common, ridge)
        values, basis = _diagonal(own.covariance, common.covariance)
        halves.append((values, own.means @ basis, common.means @ basis, features[fold == k] @ basis, y[fold == k]))
    prior = frequencies.log()

    def loss(point: Any) -> tuple[float, Any]:
        shares = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        total = torch.zeros((), dtype=torch.float64)
        with torch.enable_grad():
            for values, own, given, held, labels in halves:
                means = shares[0] * own + (1 - shares[0]) * given
                weight = means / (shares[1] * values + 1 - shares[1])
                logits = held @ weight.T - 0.5 * (means * weight).sum(1) + prior
                total = total + F.cross_entropy(logits, labels, reduction="sum") / len(y)
            (gradient,) = torch.autograd.grad(total, [shares])
        return float(total.detach()), gradient.numpy()

    result: Any = minimize(
        loss, [0.5, 0.5], jac=True, bounds=[(0.0, 1.0)] * 2, method="L-BFGS-B", options={"maxiter": ITERATIONS}
    )
    return torch.from_numpy(result.x)


def _diagonal(own: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
    """Values v and a basis B with (b S_own + (1 - b) S_common)^-1 = B diag(1 / (b v + 1 - b)) B^T for every b, so that the
    search needs no inverse."""
    root = torch.linalg.cholesky(shrunk(common))
    half = torch.linalg.solve_triangular(root, shrunk(own), upper=False)
    values, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.T.contiguous(), upper=False))
    return values, torch.linalg.solve_triangular(root.T, vectors, upper=True)


def _given(client: ClientContext) -> Gaussians:
    return Gaussians(client.broadcast["means"].cpu().double(), client.broadcast["covariance"].cpu().double())


def _frequencies(client: ClientContext) -> Tensor:
    shares = client.counts.cpu().double() / client.samples + EPS
    return shares / shares.sum()


def _set_head(client: ClientContext, gaussians: Gaussians) -> None:
    tensors = client.named(client.storage)
    weight, bias = gaussians.head(_frequencies(client))
    tensors["head.weight"].copy_(weight)
    tensors["head.bias"].copy_(bias)
