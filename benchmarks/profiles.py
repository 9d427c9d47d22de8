"""Where a round's time goes, in one process: python benchmarks/profiles.py [--cases lenet mlp-small] [--out FILE.md]

Runs the engine's own rounds in one process and one thread, with a stopwatch around functions of the engine: each moment
counts for the innermost of them. The stopwatch is the thread's processor time, so other processes on the machine do not
distort shares. Images are random (digits for mlp-small); those of 32 x 32 are augmented by crop+flip.

    forward      the net on a batch            loss         loss and regularizers
    backward     autograd                      teachers     frozen nets on a batch (fd, kd, moon)
    corrections  parts' gradient corrections   step         the optimizer
    data         shuffling, gathering, normalizing          augment      crops, flips and the like
    copies       broadcast, weights in and out of the net, upload, clients' state
    aggregation  checking and aggregating      other        the rest: tasks, generators, records

"test image" is the time to evaluate one image, as a percentage of the time to train on one.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import getattr_static
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fedloom.data.transforms.augment import Augmentation
from fedloom.engine.backends.fork import ForkBackend
from fedloom.engine.backends.memory import keep_freed_memory
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.client import Client
from fedloom.engine.client.context import PartContext
from fedloom.engine.client.local_batch import LocalBatch, TeacherOutputs
from fedloom.engine.client.loop import LocalLoop
from fedloom.engine.client.losses import MethodLoss
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.samples import Samples
from fedloom.engine.experiment import prepare
from fedloom.engine.server.acceptance import Acceptance
from fedloom.engine.server.round import Federation
from fedloom.engine.store.client_state import ClientStateStore
from fedloom.evaluation.global_model import evaluate_global
from fedloom.recipe import Recipe, recipe
from fedloom.runs.folder import create
from fedloom.runs.run import federation

TESTED = 500  # images


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    method: str = "fedavg"
    shape: tuple[int, int, int] = (32, 32, 3)
    clients: int = 10
    cohort: int = 2
    samples: int = 0  # per client; 0: as many as the steps need
    batch: int = 50
    augment: str = "crop+flip"
    data: str | None = None

    def recipe(self, folder: Path, steps: int, kernels: str) -> Recipe:
        samples = self.samples or max(steps // self.cohort, 1) * self.batch
        data = self.data or str(_images(folder / f"{self.name}.npz", self.clients * samples, self.shape))
        fields = {"data": data, "split": "iid", "clients": self.clients, "fraction": self.cohort / self.clients}
        fields |= {"model": self.model, "method": self.method, "batch": self.batch, "augment": self.augment}
        return recipe({**fields, "rounds": 100, "lr": 0.001, "bn": "batch", "workers": 1, "kernels": kernels})


CASES = {
    case.name: case
    for case in (
        *(Case(model, model) for model in ("lenet", "conv4", "vgg11", "mobilenet", "resnet18")),
        Case("lenet, fd + kd", "lenet", "fd + kd"),
        Case("lenet, moon", "lenet", "moon"),
        Case("cnn-small", "cnn", "fedavg", (28, 28, 1), 1000, 50, 50, 10, "none"),
        Case("mlp-small", "mlp", "fedavg", (8, 8, 1), 200, 20, batch=32, augment="none", data="digits"),
    )
}


class Stopwatch:
    """Time by name; every moment belongs to the innermost name that is open."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.spent, self.calls = clock, defaultdict[str, float](float), defaultdict[str, int](int)
        self._name, self._since = "other", clock()

    def enter(self, name: str) -> str:
        now, outer = self.clock(), self._name
        self.spent[outer] += now - self._since
        self._name, self._since = name, now
        return outer

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            self.calls[name] += 1
            outer = self.enter(name)
            try:
                return function(*given, **named)
            finally:
                self.enter(outer)

        return timed


PLACES: tuple[tuple[Any, str, str], ...] = (
    (LocalBatch, "features", "forward"),
    (LocalBatch, "logits", "forward"),
    (LocalBatch, "head", "forward"),
    (torch.autograd, "backward", "backward"),
    (MethodLoss, "__call__", "loss"),
    (LocalLoop, "correct", "corrections"),
    (Client, "optimizer_step", "step"),
    (PartContext, "teacher", "teachers"),
    (TeacherOutputs, "logits", "teachers"),
    (Samples, "epoch", "data"),
    (Samples, "batch", "data"),
    (Augmentation, "before", "augment"),
    (Augmentation, "after", "augment"),
    (Replica, "receive", "copies"),
    (Replica, "send", "copies"),
    (SharedBuffers, "broadcast", "copies"),
    (ClientStateStore, "get", "copies"),
    (ClientStateStore, "put", "copies"),
    (Acceptance, "one", "aggregation"),
    (Acceptance, "plausible", "aggregation"),
    (Federation, "aggregate", "aggregation"),
)
SHARES = (*dict.fromkeys(name for *_, name in PLACES), "other")


@contextmanager
def watched(watch: Stopwatch) -> Iterator[None]:
    """The engine's functions with a stopwatch around them."""
    with ExitStack() as stack:
        for home, name, what in PLACES:
            function = getattr_static(home, name)
            read = isinstance(function, property)
            timed = watch.around(what, function.fget if read else function)
            stack.enter_context(patch.object(home, name, property(timed) if read else timed))
        yield


@dataclass(frozen=True)
class Profile:
    step: float  # seconds
    shares: dict[str, float]
    test: float  # of an image, over training on one


def measure(case: Case, steps: int, rounds: int, kernels: str) -> Profile:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        experiment = prepare(case.recipe(folder, steps, kernels))
        with federation(experiment, create(experiment, folder / "run")) as fed:
            assert isinstance(fed.backend, ForkBackend)
            fed.backend.inline = True  # no worker processes
            fed.round()
            evaluate_global(fed)
            watch = Stopwatch(time.thread_time)
            trained = 0
            with watched(watch):
                watch.enter("other")
                watch.spent.clear()
                for _ in range(rounds):
                    line = fed.round()
                    trained += sum(len(experiment.training(k, line["round"])) for k in line["cohort"])
                watch.enter("other")
            began = time.thread_time()
            for _ in range(rounds):
                evaluate_global(fed)
            tested = (time.thread_time() - began) / rounds / len(experiment.data.dataset.test_y)
    whole = sum(watch.spent.values())
    shares = {what: watch.spent[what] / whole for what in SHARES}
    return Profile(whole / max(watch.calls["step"], 1), shares, tested / (whole / trained))


def _images(path: Path, count: int, shape: tuple[int, int, int]) -> Path:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (count + TESTED, *shape), dtype=np.uint8)
    y = draw.integers(0, 10, count + TESTED)
    np.savez(path, train_x=x[TESTED:], train_y=y[TESTED:], test_x=x[:TESTED], test_y=y[:TESTED])
    return path


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--steps", type=int, default=8, help="per round, for cases without a fixed client size")
    parser.add_argument("--rounds", type=int, default=2, help="measured rounds, after one warm-up round")
    parser.add_argument("--kernels", choices=["torch", "portable", "native"], default="native")
    parser.add_argument("--out", type=Path, help="also write the table here, as Markdown")
    options = parser.parse_args()
    keep_freed_memory()
    lines = [row(["% of a round", "ms per step", *SHARES, "test image"]), row(["---"] * (len(SHARES) + 3))]
    for text in lines:
        print(text, flush=True)
    for name in options.cases:
        profile = measure(CASES[name], options.steps, options.rounds, options.kernels)
        cells = [f"{100 * profile.shares[what]:.1f}" for what in SHARES]
        lines.append(row([name, f"{1000 * profile.step:.2f}", *cells, f"{100 * profile.test:.0f}"]))
        print(lines[-1], flush=True)
    if options.out:
        command = f"python benchmarks/profiles.py --steps {options.steps} --rounds {options.rounds} --kernels {options.kernels}"
        origin = f"`{command}`, torch {torch.__version__}, {platform.machine()}, processor time of one thread"
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join([origin, "", *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
