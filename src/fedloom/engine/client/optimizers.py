"""Optimizers: SGD and Adam on slices of the flat vector, or on a part's own vector; and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedloom.methods.api.context import TrainSchedule, TrainSpec
from fedloom.recipe import Recipe
from fedloom.weights import Weights


def clip(pieces: Sequence[Tensor], largest: float) -> None:
    """Clip the norm of a gradient that consists of these pieces, in place; of each row by itself, if there are rows."""
    norms = torch.stack([torch.linalg.vector_norm(piece, dim=-1) for piece in pieces], -1)
    factor = (largest / (torch.linalg.vector_norm(norms, dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0)
    for piece in pieces:
        piece.mul_(factor)


def sgd(w: Tensor, gradient: Tensor, velocity: Tensor, decay: float, momentum: float, rate: float) -> None:
    """torch's SGD step on one vector or on rows: weight decay joins the gradient, then momentum. All three change in place."""
    if decay:
        gradient.add_(w, alpha=decay)
    if momentum:
        gradient = torch.add(gradient, velocity, alpha=momentum, out=velocity)
    w.add_(gradient, alpha=-rate)


def sgd_settings(recipe: Recipe, schedule: TrainSchedule | None) -> tuple[float, float]:
    """Weight decay and momentum: the schedule's, or the recipe's."""
    decay, momentum = recipe.weight_decay, recipe.momentum
    if schedule is not None:
        decay = decay if schedule.weight_decay is None else schedule.weight_decay
        momentum = momentum if schedule.momentum is None else schedule.momentum
    return decay, momentum


class FlatOptimizer:
    """Updates slices of the net's flat vector from the flat gradient."""

    def __init__(
        self, weights: Weights, velocity: Tensor, slices: list[slice], spec: TrainSpec, recipe: Recipe
    ) -> None:
        self._weights, self._velocity, self._slices = weights, velocity, slices
        self._decay, self._momentum = sgd_settings(recipe, spec.schedule)
        self._adam: torch.optim.Adam | None = None
        if spec.schedule is not None and spec.schedule.optimizer == "adam":
            pieces = []
            for s in slices:
                piece = weights.vector[s].detach()
                piece.grad = weights.gradient[s]
                pieces.append(piece)
            self._adam = torch.optim.Adam(pieces, weight_decay=self._decay)

    def step(self, rate: float) -> None:
        if self._adam is not None:
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()
            return
        w, g = self._weights.vector, self._weights.gradient
        for s in self._slices:
            sgd(w[s], g[s], self._velocity[s], self._decay, self._momentum, rate)


class VectorOptimizer:
    """Updates a part's own vector, such as a generator's weights. `moments` keeps Adam's state beyond this object: first and
    second moments, then the number of steps.
    """

    def __init__(self, vector: Tensor, schedule: TrainSchedule, lr: float, moments: Tensor | None = None) -> None:
        self.vector, self.schedule, self.lr, self.done = vector, schedule, lr, 0
        decay = schedule.weight_decay or 0.0
        self._optimizer: torch.optim.Optimizer
        if schedule.optimizer == "adam":
            self._optimizer = torch.optim.Adam([vector], lr=lr, weight_decay=decay)
            if moments is not None:
                first, second = moments[:-1].view(2, -1)
                self._optimizer.state[vector] = {"step": moments[-1], "exp_avg": first, "exp_avg_sq": second}
        else:
            self._optimizer = torch.optim.SGD([vector], lr=lr, weight_decay=decay, momentum=schedule.momentum or 0.0)

    def step(self, loss: Callable[[], Tensor]) -> None:
        if self.schedule.cosine:
            rate = self.lr * 0.5 * (1 + math.cos(math.pi * self.done / self.schedule.steps))
            self._optimizer.param_groups[0]["lr"] = rate
        with torch.enable_grad():
            self.vector.requires_grad_(True)
            (self.vector.grad,) = torch.autograd.grad(loss(), [self.vector])
        self.vector.requires_grad_(False)
        self._optimizer.step()
        self.done += 1


class Patience:
    """Early stopping: watches accuracy on the validation samples, and keeps the best weights."""

    def __init__(self, weights: Weights, schedule: TrainSchedule | None, accuracy: Callable[[], float]) -> None:
        self._weights, self._accuracy = weights, accuracy
        self._schedule = schedule if schedule is not None and schedule.patience else None
        self._best, self._best_step = -1.0, 0
        self._best_weights: Tensor | None = None

    def exhausted(self, step: int) -> bool:
        """Whether to stop after this step."""
        schedule = self._schedule
        if schedule is None or step % schedule.check:
            return False
        accuracy = self._accuracy()
        if accuracy > self._best:
            self._best, self._best_step, self._best_weights = accuracy, step, self._weights.storage.clone()
        return step - self._best_step >= schedule.patience

    def restore(self) -> None:
        if self._best_weights is not None:
            self._weights.storage.copy_(self._best_weights)
