"""Training speed: samples per second of several nets, and their share of the matrix-product limit.

The limit is the speed of matrix products in one single-threaded process per worker, all at once, or that of a large 3x3
convolution: PyTorch has two libraries for them, and some processors are served better by one than by the other. A workload's
share of the limit is its floating-point operations (forward and backward, counted by torch) over its seconds.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from fedloom.bench.figure import Effort, Figure
from fedloom.bench.rounds import Timed, random_data, random_images, timed_rounds
from fedloom.engine.backends.fork import count
from fedloom.engine.backends.memory import keep_freed_memory
from fedloom.nets import build
from fedloom.nets.kernels.use import use_native


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
    Workload("vgg11", "VGG11 32x32, 4 clients x 250, batch 50", "vgg11", (32, 32, 3), 4, 4, 250, 50),
    Workload("resnet18", "ResNet18 32x32, 2 clients x 100, batch 50", "resnet18", (32, 32, 3), 2, 2, 100, 50),
)

SIDE, CHANNELS = 1024, 256  # of the matrices and of the convolution that are the limit


def training(workload: Workload) -> Callable[[Effort, Callable[[str], None]], Iterator[Figure]]:
    """The measurement of a workload: rounds of plain FedAvg on random images."""

    def run(effort: Effort, _: Callable[[str], None]) -> Iterator[Figure]:
        workers, pause = count("auto", "cpu"), 0.3 if effort.quick else 1.0
        cohort = min(max(workload.cohort // 5, workers), workload.cohort) if effort.quick else workload.cohort
        before = limit(workers, pause)
        with tempfile.TemporaryDirectory() as folder:
            images = random_images(workload.clients * workload.samples + 10, workload.shape)
            fields = {
                "data": random_data(Path(folder), images, 10),
                "clients": workload.clients,
                "fraction": cohort / workload.clients,
                "model": workload.model,
                "batch": workload.batch,
                "precision": effort.precision,
            }
            timed = timed_rounds(fields, effort.seconds, 2 if effort.quick else 3)
        bare = _bare(workload, cohort, effort.precision, timed)
        ceiling = max(before, limit(workers, pause))
        samples = cohort * workload.samples / timed.round
        speed = samples * operations(workload) / 1e9
        columns = {
            "s/round": f"{timed.round:.3f}",
            "samples/s": f"{samples:,.0f}",
            "GFLOP/s": f"{speed:.0f}",
            "limit": f"{ceiling:.0f}",
            "share": f"{100 * speed / ceiling:.0f} %",
            # of the workers' time: what is not forward, backward and step
            "overhead": f"{100 * max(0.0, 1 - bare / timed.round):.1f} %",
            "first round": f"{timed.ready:.1f} s",
        }
        yield Figure(workload.name, workload.title, samples, "samples/s", columns=columns)

    return run


def _bare(workload: Workload, cohort: int, precision: str, timed: Timed) -> float:
    """Seconds that a round's forward and backward passes and SGD steps alone take, by a plain loop in as many workers."""
    steps = cohort * workload.samples // workload.batch
    task = workload, precision, timed.kernels, max(steps // timed.workers, 1)
    with multiprocessing.get_context("fork").Pool(timed.workers, keep_freed_memory) as pool:
        times = pool.map(_steps, [task] * timed.workers, chunksize=1)
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
            loss = F.cross_entropy(net(x), y)
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


def limit(workers: int, seconds: float = 1.0) -> float:
    """GFLOP/s of float32 matrix products in as many one-thread processes at once."""
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return float(sum(pool.map(_multiply, [seconds] * workers, chunksize=1)))


def _multiply(seconds: float) -> float:
    """By the faster of PyTorch's libraries."""
    torch.set_num_threads(1)
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    weight = torch.rand(CHANNELS, CHANNELS, 3, 3).contiguous(memory_format=torch.channels_last)
    images = torch.rand(4, CHANNELS, 16, 16).contiguous(memory_format=torch.channels_last)
    c = a @ b
    product = _speed(lambda: torch.mm(a, b, out=c), SIDE**3, seconds / 2)
    convolution = _speed(lambda: F.conv2d(images, weight, padding=1), images.numel() * CHANNELS * 9, seconds / 2)
    return max(product, convolution)


def _speed(compute: Callable[[], object], products: int, seconds: float) -> float:
    """GFLOP/s of a computation with this number of multiply-adds."""
    with torch.no_grad():
        compute()
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            compute()
            done += 1
    return 2 * products * done / (time.perf_counter() - began) / 1e9
