"""Ways downhill: SGD as torch makes it, Adam on the flat vector, a part's own vector, an end when nothing is gained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.engine.samples import held_back
from fedloom.errors import FedloomError
from fedloom.methods.seen import Course
from fedloom.weights import Weights

if TYPE_CHECKING:
    from fedloom.engine.worker import Worker


def clip(pieces: Sequence[Tensor], largest: float) -> None:
    """Shorten a gradient that lies in these pieces, in place; of every row by itself, where there are rows."""
    norms = torch.stack([torch.linalg.vector_norm(piece, dim=-1) for piece in pieces], -1)
    factor = (largest / (torch.linalg.vector_norm(norms, dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0)
    for piece in pieces:
        piece.mul_(factor)


def sgd(w: Tensor, gradient: Tensor, velocity: Tensor, decay: float, momentum: float, rate: float) -> None:
    """A step of a vector, or of many that are rows: decay joins the gradient, then momentum. All three are moved in place."""
    if decay:
        gradient.add_(w, alpha=decay)
    if momentum:
        gradient = torch.add(gradient, velocity, alpha=momentum, out=velocity)
    w.add_(gradient, alpha=-rate)


def adam(
    weights: Weights, stretches: list[slice], lr: float, course: Course | None, decay: float
) -> torch.optim.Adam | None:
    """Torch's Adam over stretches of the vector, which it moves in place; None if the course is plain SGD."""
    if course is None or course.optimiser == "sgd":
        return None
    pieces = []
    for stretch in stretches:
        piece = weights.vector[stretch].detach()
        piece.grad = weights.gradient[stretch]
        pieces.append(piece)
    return torch.optim.Adam(pieces, lr=lr, weight_decay=decay if course.weight_decay is None else course.weight_decay)


class Downhill:
    """Moves a vector of a part's own, such as a generator's weights. What Adam remembers lasts as long as this object,
    or as long as the tensor that is given for it: first and second moments, then the number of steps.
    """

    def __init__(self, vector: Tensor, course: Course, lr: float, moments: Tensor | None = None) -> None:
        self.vector, self.course, self.lr, self.done = vector, course, lr, 0
        decay = course.weight_decay or 0.0
        self._optimiser: torch.optim.Optimizer
        if course.optimiser == "adam":
            self._optimiser = torch.optim.Adam([vector], lr=lr, weight_decay=decay)
            if moments is not None:
                first, second = moments[:-1].view(2, -1)
                self._optimiser.state[vector] = {"step": moments[-1], "exp_avg": first, "exp_avg_sq": second}
        else:
            self._optimiser = torch.optim.SGD([vector], lr=lr, weight_decay=decay, momentum=course.momentum or 0.0)

    def step(self, loss: Callable[[], Tensor]) -> None:
        if self.course.falling:
            rate = self.lr * 0.5 * (1 + math.cos(math.pi * self.done / self.course.steps))
            self._optimiser.param_groups[0]["lr"] = rate
        with torch.enable_grad():
            self.vector.requires_grad_(True)
            (self.vector.grad,) = torch.autograd.grad(loss(), [self.vector])
        self.vector.requires_grad_(False)
        self._optimiser.step()
        self.done += 1


class Patience:
    """Watches accuracy on the images held back for validation, and keeps the best weights seen."""

    def __init__(self, worker: Worker, course: Course | None) -> None:
        self._worker = worker
        self._course = course if course is not None and course.patience else None
        self._best, self._at = -1.0, 0
        self._kept: Tensor | None = None
        if self._course and not len(worker.experiment.validation):
            raise FedloomError("method: it stops when validation no longer gains; set data.validation above 0")

    def enough(self, step: int) -> bool:
        """Whether to stop after this step."""
        course = self._course
        if course is None or step % course.check:
            return False
        found = float(self._worker.correct(held_back(self._worker.experiment)).double().mean())
        self._worker.net.train()
        if found > self._best:
            self._best, self._at, self._kept = found, step, self._worker.weights.storage.clone()
        return step - self._at >= course.patience

    def restore(self) -> None:
        if self._kept is not None:
            self._worker.weights.storage.copy_(self._kept)
