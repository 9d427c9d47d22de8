"""Whether clients can be stacked, and whether it pays: decided by net, method and batch alone, before a run begins.

`stack: auto` is a fixed rule, never a timing, so that the same recipe gives the same bits everywhere: clients are stacked
AUTO at a time if the net has no convolution, its trained weights are few, and a step is short. Then the time of a step goes
into starting operations, and a batched product starts one for all. Larger nets are slower stacked: the weights of one
client fit into a core's cache, those of many do not. Figures: docs/speed.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from fedloom.errors import FedloomError
from fedloom.methods.seen import Slots, Task

if TYPE_CHECKING:
    from fedloom.engine.setup import Experiment
    from fedloom.engine.worker import Worker

AUTO = 32  # clients in a stack
LARGEST = 16_384  # trained weights
LONGEST = 1_000_000  # weights times samples of a step


def chosen(experiment: Experiment) -> tuple[int | str, str]:
    """What `stack` means in this experiment, a number of clients or `off`, and why."""
    wanted = experiment.recipe.stack
    if wanted == "off":
        return "off", "as it was given"
    reason = slower(experiment) if wanted == "auto" else None
    if reason is None:
        reason = obstacle(experiment)
        if reason is None:
            return (AUTO, "a tiny net, and short steps") if wanted == "auto" else (int(wanted), "as it was given")
        if wanted != "auto":
            raise FedloomError(f"stack: {reason}; set stack to off")
    return "off", reason


def slower(experiment: Experiment) -> str | None:
    """The rule of `auto`: why stacking would be slower, if it would."""
    if any(isinstance(module, _ConvNd) for module in experiment.net.modules()):
        return "the net has convolutions"
    trained, batch = experiment.layout.trained, experiment.recipe.batch
    samples = experiment.task.samples // experiment.task.clients if batch == "full" else batch
    if trained > LARGEST:
        return f"the net has {trained:,} weights to train, more than {LARGEST:,}"
    if trained * samples > LONGEST:
        return f"{trained:,} weights and batches of {samples} make steps long enough"
    return None


def obstacle(experiment: Experiment) -> str | None:
    """Why clients cannot be stacked, as a sentence without its end."""
    from fedloom.engine.worker import Worker

    method = experiment.method
    finder = method.the("gradient")
    if finder is not None:
        return f"{finder.name} finds gradients in its own way, one client at a time"
    if experiment.layout.statistics:
        return "the net keeps running statistics, which every client would have to move by itself"
    worker = Worker(experiment)
    speaking = [part.name for part in (*worker.penalties, *([worker.objective] if worker.objective else []))]
    try:
        for rows in (2, 1):  # a client that has to step alone is computed in another way
            _try(worker, [], 1, rows)
        if not _sees_its_weights(worker):
            return "the net does not use the weights that it is lent; it keeps others somewhere"
    except Exception as error:
        return f"the net cannot be stacked ({_short(error)})"
    for name in speaking:
        try:
            for round in {1, experiment.recipe.rounds}:  # a loss may begin later than in the first round
                _try(worker, [name], round)
        except FedloomError as error:
            return str(error).removeprefix("method: ").removesuffix("; set stack to off")
        except Exception as error:
            return f"the loss of {name} cannot be stacked ({_short(error)})"
    return None


@dataclass(frozen=True)
class _Somebody:
    """What losses may know of a client that are the same for all."""

    name: str
    task: Task
    round: int
    lr: float
    momentum: float
    epochs: int
    broadcast: Slots


def _try(worker: Worker, parts: list[str], round: int, count: int = 2) -> None:
    """The loss of some clients on a few images of noise, with the net and these parts only."""
    from fedloom.engine.arena import scoped
    from fedloom.engine.local import Drive
    from fedloom.engine.stacked import Losses

    experiment, layout = worker.experiment, worker.layout
    kept = worker.objective, worker.penalties
    generator = torch.Generator().manual_seed(0)
    down = experiment.messages.down.views(torch.zeros(experiment.messages.down.nbytes, dtype=torch.uint8))
    recipe = experiment.recipe
    scopes = {
        name: _Somebody(
            name,
            experiment.task,
            round,
            recipe.lr,
            recipe.momentum,
            recipe.epochs,
            Slots(scoped(down, name), f"{name}: broadcast"),
        )
        for name in parts
    }
    try:
        worker.objective = kept[0] if kept[0] is not None and kept[0].name in parts else None
        worker.penalties = [part for part in kept[1] if part.name in parts]
        losses = Losses(worker, scopes)
        stretches = layout.slices(layout.trainable())
        drive = Drive(stretches, recipe.lr, True, plain=False, penalty=None, by=None)
        rows = experiment.initial.to(worker.device).expand(count, -1).clone()
        x = torch.randn(count, 3, *experiment.task.shape, generator=generator).to(worker.device)
        y = torch.randint(experiment.task.classes, (count, 3), generator=generator).to(worker.device)
        memory = experiment.messages.memory.views(experiment.messages.memory_row)
        remembered: dict[str, Any] = {name: torch.stack([memory[name]] * count) for name in losses.remembered}
        counts = torch.full((count, experiment.task.classes), 3.0)
        pieces = [rows[:, s].detach().requires_grad_() for s in stretches]
        worker.net.train()
        with worker.autocast():
            values: Tensor = losses(
                drive, pieces, rows, rows, x, y, torch.arange(3).expand(count, -1), counts, remembered
            )
        torch.autograd.grad(values.sum(), pieces, materialize_grads=True)
    finally:
        worker.objective, worker.penalties = kept


def _sees_its_weights(worker: Worker) -> bool:
    """Whether the net, called with other weights, says what it says when it has them."""
    from fedloom.engine.stacked import Lent

    storage, generator = worker.weights.storage, torch.Generator().manual_seed(1)
    x = torch.randn(2, *worker.experiment.task.shape, generator=generator).to(worker.device)
    other = storage + 0.1 * torch.randn(len(storage), generator=generator).to(worker.device)
    lent, tensors = Lent(worker.net, list(worker.layout.entries)), list(worker.layout.views(other).values())
    with torch.no_grad():
        said = lent(tensors, "head", lent(tensors, "features", x))
        before = storage.clone()
        storage.copy_(other)
        own = worker.net(x)
        storage.copy_(before)
    return torch.allclose(said, own, rtol=1e-3, atol=1e-4)


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
