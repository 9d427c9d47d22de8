"""Whether clients can be vmapped, and whether it is faster: decided by net, method and batch alone, before a run starts.

`vmap: auto` is a fixed rule, never a timing, so that the same recipe gives the same bits everywhere: AUTO clients train in
one computation if the net has no convolution, few trained weights, and short steps. Most of a step's time then goes into
starting operations, and a batched product starts one operation for all clients. Larger nets are slower under vmap: the
weights of one client fit into a core's cache, those of many do not. See docs/speed.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedloom.engine.client.local_work import local_work
from fedloom.engine.client.loop import Trained
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.vmap.context import FunctionalNet, VmapLoss
from fedloom.engine.experiment import Experiment
from fedloom.engine.tensor_layout import scoped
from fedloom.errors import FedloomError
from fedloom.methods.api.context import Phase, Slots, TaskInfo, TrainSpec

AUTO = 32  # clients in one computation
LARGEST = 16_384  # trained weights
LONGEST = 1_000_000  # weights times samples of a step


def choose_vmap(experiment: Experiment) -> tuple[int | str, str]:
    """What `vmap` means in this experiment, a number of clients or `off`, and why."""
    wanted = experiment.recipe.vmap
    if wanted == "off":
        return "off", "as set in the recipe"
    reason = slower(experiment) if wanted == "auto" else None
    if reason is None:
        reason = obstacle(experiment)
        if reason is None:
            return (AUTO, "a tiny net and short steps") if wanted == "auto" else (int(wanted), "as set in the recipe")
        if wanted != "auto":
            raise FedloomError(f"vmap: {reason}; set vmap to off")
    return "off", reason


def slower(experiment: Experiment) -> str | None:
    """The rule of `auto`: why vmap would be slower, or None."""
    if any(isinstance(module, _ConvNd) for module in experiment.program.net.modules()):
        return "the net has convolutions"
    trained, batch = experiment.program.layout.trained, experiment.recipe.batch
    samples = experiment.program.task.samples // experiment.program.task.clients if batch == "full" else batch
    if trained > LARGEST:
        return f"the net has {trained:,} weights to train, more than {LARGEST:,}"
    if trained * samples > LONGEST:
        return f"{trained:,} weights and batches of {samples} make steps long enough without vmap"
    return None


def obstacle(experiment: Experiment) -> str | None:
    """Why clients cannot be vmapped, or None."""
    part = experiment.program.method.the("gradient")
    if part is not None:
        return f"{part.name} computes gradients in its own way, one client at a time"
    for part in experiment.program.method.hooked("after_step"):
        return f"{part.name} works after every step, one client at a time"
    if experiment.program.layout.shared_statistics or experiment.program.layout.personal_statistics:
        return "the net keeps running statistics, which every client would have to update by itself"
    if any(isinstance(module, nn.RNNBase) for module in experiment.program.net.modules()):
        return "the net has a recurrent layer, which torch cannot vmap"
    replica = Replica(experiment)
    try:
        for rows in (2, 1):  # a client that steps alone is computed in another way
            _try(replica, (), 1, rows)
        if not _is_functional(replica):
            return "the net does not use the weights that it is called with; it keeps a copy elsewhere"
    except Exception as error:
        return f"the net cannot be vmapped ({_short(error)})"
    for name in [part.name for part in replica.loss.parts]:
        try:
            for round in {1, experiment.recipe.rounds}:  # a loss may start later than in the first round
                _try(replica, (name,), round)
        except FedloomError as error:
            return str(error).removeprefix("method: ").removesuffix("; set vmap to off")
        except Exception as error:
            return f"the loss of {name} cannot be vmapped ({_short(error)})"
    return None


@dataclass(frozen=True)
class TrialContext:
    """A `CommonContext` for the trial."""

    name: str
    task: TaskInfo
    round: int
    lr: float
    momentum: float
    work: Phase
    broadcast: Slots


def _try(replica: Replica, parts: tuple[str, ...], round: int, count: int = 2) -> None:
    """Compute the loss of some clients on a few images of noise, with these parts only."""
    experiment, layout, recipe = replica.experiment, replica.layout, replica.recipe
    messages, task = experiment.program.messages, experiment.program.task
    generator = torch.Generator().manual_seed(0)
    down = messages.down.views(torch.zeros(messages.down.nbytes, dtype=torch.uint8))
    contexts = {
        name: TrialContext(
            name,
            task,
            round,
            recipe.lr,
            recipe.momentum,
            local_work(recipe, 0, round),
            Slots(scoped(down, name), f"{name}: broadcast"),
        )
        for name in parts
    }
    losses = VmapLoss(replica, replica.loss.only(*parts), contexts)
    trained = Trained(layout.slices(layout.trainable()), True)
    rows = experiment.program.initial.to(replica.device).expand(count, -1).clone()
    x = task.inputs.random(count, 3, generator=generator).to(replica.device)
    y = torch.randint(task.classes, (count, 3), generator=generator).to(replica.device)
    first = messages.state.views(messages.state_row)
    state = {name: torch.stack([first[name]] * count) for name in losses.states}
    counts = torch.full((count, task.classes), 3.0)
    pieces = [rows[:, s].detach().requires_grad_() for s in trained.slices]
    index = torch.arange(3).expand(count, -1)
    replica.net.train()
    with replica.autocast():
        values: Tensor = losses(TrainSpec((Phase(1),)), trained, pieces, rows, rows, x, y, index, counts, state)
    torch.autograd.grad(values.sum(), pieces, materialize_grads=True)


def _is_functional(replica: Replica) -> bool:
    """Whether the net, called with other weights, gives the same outputs as when it holds them."""
    storage, generator = replica.weights.storage, torch.Generator().manual_seed(1)
    x = replica.experiment.program.task.inputs.random(2, generator=generator).to(replica.device)
    other = storage + 0.1 * torch.randn(len(storage), generator=generator).to(replica.device)
    lent, tensors = FunctionalNet(replica.net, list(replica.layout.entries)), list(replica.layout.views(other).values())
    with torch.no_grad():
        outputs = lent(tensors, "head", lent(tensors, "features", x))
        before = storage.clone()
        storage.copy_(other)
        own = replica.net(x)
        storage.copy_(before)
    return torch.allclose(outputs, own, rtol=1e-3, atol=1e-4)


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
