"""Optimizers: SGD, Adam and AdamW on slices of the flat vector, or on a part's own vector; and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.engine.client.moments import Moments
from fedloom.methods.api.context import TrainSchedule
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


def adam(
    w: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: float | Tensor, rule: Rule, rate: float
) -> None:
    """torch's Adam step on one vector or on rows; all but `step` change in place. `step`: its number, from 1 on; for rows a
    column of numbers. Weight decay joins the gradient (adam), or shrinks the weights by itself (adamw).
    """
    if rule.decay and rule.name == "adamw":
        w.mul_(1 - rate * rule.decay)
    elif rule.decay:
        gradient.add_(w, alpha=rule.decay)
    first.lerp_(gradient, 1 - rule.beta1)
    second.mul_(rule.beta2).addcmul_(gradient, gradient, value=1 - rule.beta2)
    if isinstance(step, Tensor):
        bias, root = 1 - rule.beta1 ** step.double(), (1 - rule.beta2 ** step.double()).sqrt()
        w.sub_(first / (second.sqrt() / root.to(w)).add_(rule.eps) * (rate / bias).to(w))
        return
    root = (1 - rule.beta2**step) ** 0.5
    w.addcdiv_(first, (second.sqrt() / root).add_(rule.eps), value=-rate / (1 - rule.beta1**step))


@dataclass(frozen=True)
class Rule:
    """An optimizer with its settings."""

    name: Literal["sgd", "adam", "adamw"]
    decay: float
    momentum: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @staticmethod
    def of(recipe: Recipe, schedule: TrainSchedule | None = None) -> Rule:
        """The recipe's, or that of a schedule with its own values where it has some."""
        decay, momentum, local = recipe.weight_decay, recipe.momentum, recipe.optimizer
        if schedule is None:
            return Rule(local.name, decay, momentum, local.beta1, local.beta2, local.eps)
        decay = decay if schedule.weight_decay is None else schedule.weight_decay
        momentum = momentum if schedule.momentum is None else schedule.momentum
        return Rule(schedule.optimizer, decay, momentum)

    @property
    def adaptive(self) -> bool:
        return self.name != "sgd"


class FlatOptimizer:
    """Updates slices of the net's flat vector from the flat gradient: the tensors of these names."""

    def __init__(
        self, weights: Weights, moments: Moments, names: Sequence[str], slices: list[slice], rule: Rule
    ) -> None:
        self._weights, self._moments, self._slices, self._rule = weights, moments, slices, rule
        moments.used |= rule.adaptive or rule.momentum > 0
        self._groups = moments.groups(names) if rule.adaptive else []
        self._steps = [float(group.done) for group in self._groups]

    def step(self, rate: float) -> None:
        w, g, rule, first = self._weights.vector, self._weights.gradient, self._rule, self._moments.first
        if not rule.adaptive:
            for s in self._slices:
                sgd(w[s], g[s], first[s], rule.decay, rule.momentum, rate)
            return
        second = self._moments.second
        assert second is not None
        for place, group in enumerate(self._groups):
            self._steps[place] += 1
            for s in group.slices:
                adam(w[s], g[s], first[s], second[s], self._steps[place], rule, rate)

    def end(self) -> None:
        """Remember the numbers of steps."""
        for group, steps in zip(self._groups, self._steps, strict=True):
            group.done.fill_(int(steps))
        self._moments.count(self._groups)


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
