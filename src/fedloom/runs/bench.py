"""Speed of this machine: samples per second for three workloads, and their share of the matrix-product limit.

The limit is the speed of matrix products in one single-threaded process per worker, all at once. A
workload's share of it is its floating-point operations (forward and backward, counted by torch) over its seconds.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedloom.engine.backends.fork import count, keep_freed_memory
from fedloom.engine.experiment import prepare
from fedloom.engine.resolve import resolve
from fedloom.errors import FedloomError, shown
from fedloom.nets import build
from fedloom.nets.kernels.use import use_native
from fedloom.recipe import Recipe, recipe
from fedloom.runs.federation import federation
from fedloom.runs.folder import create


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    model: str
    shape: tuple[int, int, int]  # H, W, C
    clients: int
    cohort: int
    samples: int  # per client
    batch: int


WORKLOADS = (
    Workload("lenet", "LeNet 32x32, 10 clients x 500, batch 50", "lenet", (32, 32, 3), 10, 10, 500, 50),
    Workload("cnn", "small CNN 28x28, 50 clients x 50, batch 10", "cnn", (28, 28, 1), 1000, 50, 50, 10),
    Workload("mobilenet", "MobileNet 32x32, 10 clients x 500, batch 50", "mobilenet", (32, 32, 3), 10, 10, 500, 50),
)

DAY = 86_400  # seconds, the longest that a workload may be measured
SIDE = 1024  # of the matrices whose product is the limit


def bench(seconds: float, only: str | None, precision: str, say: Callable[[str], None]) -> list[dict[str, str]]:
    """Measure all workloads, or one; one printable row each."""
    workloads = [w for w in WORKLOADS if only in (None, w.name)]
    if not workloads:
        raise FedloomError(f"only: {shown(only)} is unknown; allowed are {', '.join(w.name for w in WORKLOADS)}")
    if not 0 <= seconds <= DAY:
        raise FedloomError(f"seconds: must be 0 to {DAY} (got {seconds:g})")
    workers = count("auto", "cpu")
    rows = []
    for workload in workloads:
        say(f"measuring {workload.title} …")
        before = limit(workers)
        timed = measure(workload, seconds, precision)
        ceiling = max(before, limit(workers))
        samples = workload.cohort * workload.samples / timed.round
        speed = samples * operations(workload) / 1e9
        rows.append(
            {
                "workload": workload.name,
                "s/round": f"{timed.round:.3f}",
                "samples/s": f"{samples:,.0f}",
                "GFLOP/s": f"{speed:.0f}",
                "limit": f"{ceiling:.0f}",
                "share": f"{100 * speed / ceiling:.0f} %",
                "overhead": f"{100 * timed.overhead:.1f} %",
                "first round": f"{timed.ready:.1f} s",
            }
        )
    return rows


@dataclass(frozen=True)
class Timed:
    round: float  # median seconds
    overhead: float  # share of the workers' time that is not forward, backward and step
    ready: float  # seconds from the recipe to the end of the first round


def measure(workload: Workload, seconds: float, precision: str) -> Timed:
    """Rounds of plain FedAvg on random images until the time is up, at least three after the first."""
    with tempfile.TemporaryDirectory() as folder:
        given = _recipe(workload, Path(folder), precision)
        began = time.perf_counter()
        experiment, _ = resolve(prepare(given))
        with federation(experiment, create(experiment, Path(folder) / "run")) as fed:
            fed.round()
            ready = time.perf_counter() - began
            rounds: list[float] = []
            while len(rounds) < 3 or time.perf_counter() - began < seconds:
                rounds.append(float(fed.round()["seconds"]))
            middle = float(np.median(rounds))
            bare = _bare(workload, experiment.recipe, fed.backend.count)
    return Timed(middle, max(0.0, 1 - bare / middle), ready)


def _recipe(workload: Workload, folder: Path, precision: str) -> Recipe:
    draw = np.random.default_rng(0)
    count = workload.clients * workload.samples
    images = draw.integers(0, 256, (count + 10, *workload.shape), dtype=np.uint8)
    labels = draw.integers(0, 10, count + 10)
    path = folder / "random.npz"
    np.savez(path, train_x=images[10:], train_y=labels[10:], test_x=images[:10], test_y=labels[:10])
    return recipe(
        {
            "data": str(path),
            "split": "iid",
            "clients": workload.clients,
            "fraction": workload.cohort / workload.clients,
            "model": workload.model,
            "batch": workload.batch,
            "lr": 0.01,
            "bn": "batch",
            "rounds": 1_000_000,
            "precision": precision,
        }
    )


def _bare(workload: Workload, given: Recipe, workers: int) -> float:
    """Seconds that a round's forward and backward passes and SGD steps alone take, by a plain loop in as many workers."""
    steps = workload.cohort * workload.samples // workload.batch
    with multiprocessing.get_context("fork").Pool(workers, keep_freed_memory) as pool:
        task = workload, given.precision, given.kernels, max(steps // workers, 1)
        times = pool.map(_steps, [task] * workers, chunksize=1)
    return max(times)


def _steps(task: tuple[Workload, str, str, int]) -> float:
    workload, precision, kernels, steps = task
    torch.set_num_threads(1)
    net, x, y = _problem(workload)
    if kernels == "native":
        use_native(net)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    began = 0.0
    for step in range(steps + 2):
        if step == 2:
            began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
    return time.perf_counter() - began


def _problem(workload: Workload) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    height, width, channels = workload.shape
    net = build(workload.model, (channels, height, width), 10, "batch")
    x = torch.rand(workload.batch, channels, height, width).contiguous(memory_format=torch.channels_last)
    return net, x, torch.arange(workload.batch) % 10


def operations(workload: Workload) -> float:
    """Floating-point operations of forward and backward for one sample, of convolutions and linear layers.

    Backward repeats a layer's products for the gradients of weights and of inputs, the latter not in the first layer.
    (Counted here because torch's own counter takes grouped convolutions for dense ones on the way back.)
    """
    net, x, _ = _problem(workload)
    counts: list[int] = []

    def count_layer(layer: torch.nn.Module, _: object, out: torch.Tensor) -> None:
        counts.append(2 * out.numel() * layer.get_parameter("weight")[0].numel())

    for layer in net.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(count_layer)
    with torch.no_grad():
        net(x)
    return (3 * sum(counts) - counts[0]) / workload.batch


def limit(workers: int) -> float:
    """GFLOP/s of float32 matrix products in as many one-thread processes at once."""
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return float(sum(pool.map(_multiply, [1.0] * workers, chunksize=1)))


def _multiply(seconds: float) -> float:
    torch.set_num_threads(1)
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    c = a @ b
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        torch.mm(a, b, out=c)
        done += 1
    return 2 * SIDE**3 * done / (time.perf_counter() - began) / 1e9
