"""CCVR (Luo et al., NeurIPS 2021): after training, the head is retrained on virtual features drawn from class Gaussians.

    m_c = mean, S_c = unbiased covariance of the features of class c over all clients, under the final body in evaluation mode
    `samples` features of each class ~ N(m_c, S_c);  the head is trained on them with cross-entropy, from its current weights

The claim: on heterogeneous data the head is what averaging hurts most, and balanced features repair it. Training is that of
the rest of the sum; only the last round differs. Features are those that enter the head (after ReLU), not normalized.
Evaluation in earlier rounds is that of the uncalibrated model.

The pooled covariance is exact. The server asks all clients twice: for counts and sums of features, and, with the class means
in the message, for sums of (f - m_c)(f - m_c)^T. That is the paper's sum_k [(n_kc - 1) S_kc + n_kc m_kc m_kc^T] / (n_c - 1) -
n_c m_c m_c^T / (n_c - 1), without the difference of large numbers, and needs no care for clients with one sample. Ports put
covariances that were divided by n_kc into that formula, or leave dropout on. A class with one sample has S_c = 0, one without
samples has no virtual features. S_c has no full rank where n_c <= d: features are drawn through its eigenvalues, in double
precision, of which negative ones are rounding and count as zero.

A client sends C (1 + d) and then C (1 + d (d + 1) / 2) numbers, once. They are sums over its data by class and are not masked,
so secure aggregation and dp are refused by name; so are parts that freeze, fix or keep the head, personal regions (features
would come from several bodies), and parts that serve other weights than those that are trained.

Training: SGD with momentum 0.9, no decay, all draws from the seed. Defaults: 200 samples a class (FL-bench; others 100 to
2,000, the paper 100 to 1,000 as we recall), 10 epochs of batches of 64 at rate 0.01; the batch and the rate are ours. lr = 0
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.api.context import ClientContext, Query, RunPlan, ServerContext, TaskInfo
from fedloom.methods.api.hooks import HOOKS
from fedloom.methods.api.hyperparameters import Count, NonNegative
from fedloom.methods.api.part import Allows, Part
from fedloom.methods.api.search import Range, Span
from fedloom.rng import torch_generator
from fedloom.weights import Regions

MOMENTUM = 0.9


class CCVR(Part):
    """After the last round the head is retrained on virtual features, drawn from Gaussians of the classes."""

    paper = "Luo et al. 2021, CCVR"
    work = "once, two passes of all clients over their data"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "lr": Span(0.001, 0.1, log=True, source="a decade around the default of 0.01"),
    }
    allows: ClassVar[Allows | None] = Allows(
        frozenset(HOOKS) - {"served_weights"}, "whose head ccvr would not have retrained"
    )
    samples: Count = 200
    """virtual features per class"""
    epochs: Count = 10
    """epochs of retraining the head"""
    batch: Count = 64
    """batch size of the retraining"""
    lr: NonNegative = 0.01
    """learning rate of the retraining; 0 changes nothing"""

    def regions(self, regions: Regions) -> Regions:
        return regions.share("head")

    def check(self, plan: RunPlan) -> None:
        if plan.personal:
            raise FedloomError(
                "its class statistics are those of one body, and here clients keep a part of the net to themselves; keep one"
            )

    def queries(self, weights: Tensor, task: TaskInfo) -> Mapping[str, Query]:
        classes, d = task.classes, task.dim
        counts, means = torch.zeros(classes), torch.zeros(classes, d)
        return {
            "sums": Query(reply={"counts": counts, "sums": means}),
            "scatter": Query({"means": means}, {"counts": counts, "scatter": torch.zeros(classes, d * (d + 1) // 2)}),
        }

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # clients train nothing

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        totals = {name: torch.zeros_like(reply, dtype=torch.float64) for name, reply in client.reply.items()}
        rows, columns = torch.triu_indices(client.task.dim, client.task.dim)
        for batch in client.iterate():
            features, y = batch.features.double().cpu(), batch.y.cpu()
            for c in set(y.tolist()):
                own = features[y == c]
                totals["counts"][c] += len(own)
                if query == "sums":
                    totals["sums"][c] += own.sum(0)
                else:
                    away = own - message["means"][c].double().cpu()
                    totals["scatter"][c] += (away.T @ away)[rows, columns]
        for name, total in totals.items():
            client.reply[name] = total.float()

    def finalize(self, server: ServerContext) -> None:
        first = server.ask("sums")
        means = first["sums"] / first["counts"].clamp(min=1)[:, None]
        second = server.ask("scatter", {"means": means.float()})
        generator = torch_generator(server.task.seed, self.name)
        features, labels = [], []
        for c in torch.nonzero(first["counts"]).flatten().tolist():
            root = _root(second["scatter"][c] / (second["counts"][c] - 1).clamp(min=1), server.task.dim)
            noise = torch.randn(self.samples, server.task.dim, generator=generator, dtype=torch.float64)
            features.append(means[c].float().double() + noise @ root)
            labels.append(torch.full((self.samples,), c))
        head = {name: tensor.clone() for name, tensor in server.tensors().items() if name.startswith("head.")}
        self._train(head, torch.cat(features).float(), torch.cat(labels), generator, server)
        for name, tensor in head.items():
            server.set_shared(name, tensor)

    def _train(
        self, head: dict[str, Tensor], x: Tensor, y: Tensor, draws: torch.Generator, server: ServerContext
    ) -> None:
        """SGD on virtual features; changes the tensors of the head in place."""
        velocity = {name: torch.zeros_like(tensor) for name, tensor in head.items()}
        for _ in range(self.epochs):
            for chosen in torch.split(torch.randperm(len(y), generator=draws), self.batch):
                live = {name: tensor.requires_grad_() for name, tensor in head.items()}
                loss = F.cross_entropy(server.head(x[chosen], live), y[chosen])
                gradients = torch.autograd.grad(loss, list(live.values()))
                with torch.no_grad():
                    for name, gradient in zip(live, gradients, strict=True):
                        velocity[name].mul_(MOMENTUM).add_(gradient)
                        head[name].sub_(velocity[name], alpha=self.lr)
        for tensor in head.values():
            tensor.requires_grad_(False)


def _root(upper: Tensor, d: int) -> Tensor:
    """The symmetric root of S, which is unique, from the upper triangle of S, which may have no full rank."""
    covariance = torch.zeros(d, d, dtype=torch.float64)
    rows, columns = torch.triu_indices(d, d)
    covariance[rows, columns] = covariance[columns, rows] = upper
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors * values.clamp(min=0).sqrt() @ vectors.T
    return root
