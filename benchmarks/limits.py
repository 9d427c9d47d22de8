"""The engine's cost limits, measured: python benchmarks/limits.py [WHAT ...]

    aggregation  checking and averaging uploads of 10 clients with 10 million parameters
    augment      crop+flip as a share of a training step, LeNet and MobileNet at batch 50
    evaluation   evaluation of 2,000 images against bare forward passes, in one process
    teachers     forward passes of frozen nets per batch over five epochs, and seconds per step relative to fedavg
    spill        SCAFFOLD, LeNet, 2,000 clients that all take part: memory of the main process and its workers
    clients      seconds per round and memory, 100 against 100,000 clients, cohort 10
    start        seconds until the first round, without those of importing torch

Comparisons alternate, so that a slow minute affects both sides; on a busy machine only their ratios are meaningful, and
"cpu" is processor time, which other processes distort less than the wall clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import torch
from profiles import CASES, measure

from fedloom.engine.backends.fork import ForkBackend
from fedloom.engine.backends.memory import keep_freed_memory
from fedloom.engine.client.local_batch import TeacherOutputs
from fedloom.engine.experiment import prepare
from fedloom.engine.server.aggregation import flaw, is_finite, weighted_sum
from fedloom.engine.server.round import Federation
from fedloom.engine.tensor_layout import TensorLayout
from fedloom.evaluation.global_model import evaluate_global
from fedloom.nets import Net
from fedloom.recipe import recipe
from fedloom.runs.folder import create
from fedloom.runs.run import federation

as_worker = cache(keep_freed_memory)  # for measurements of a worker's work in this process; not for those of memory


def aggregation() -> None:
    torch.set_num_threads(1)
    uploads = [torch.randn(10_000_000) for _ in range(10)]
    layout, w = TensorLayout({"w": uploads[0]}), torch.zeros(10_000_000)

    def check_and_average() -> None:
        assert all(flaw(layout, {"w": upload}) is None for upload in uploads)
        weighted_sum(uploads, [0.1] * 10, out=w)
        assert is_finite(w)

    wall, cpu = _turns({"": check_and_average}, 7)[""]
    say("aggregation", f"10 clients x 10 million parameters: {wall:.3f} s (cpu {cpu:.3f} s); goal 0.1 s")


def augment() -> None:
    as_worker()
    for name in ("lenet", "mobilenet"):
        shares = measure(CASES[name], 8, 2, "native").shares
        say("augment", f"{name}: crop+flip {100 * shares['augment']:.2f} % of a round; goal 3 %")


def evaluation() -> None:
    as_worker()
    for model in ("lenet", "mobilenet"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            data = _images(folder, 500, 2000, (32, 32, 3))
            given = recipe({"data": data, "split": "iid", "clients": 10, "model": model, "workers": 1})
            experiment = prepare(given)
            with federation(experiment, create(experiment, folder / "run")) as fed:
                assert isinstance(fed.backend, ForkBackend)
                fed.backend.inline = True
                x = torch.rand(100, 32, 32, 3).permute(0, 3, 1, 2)

                def bare(net: Net = experiment.program.net, x: torch.Tensor = x) -> None:
                    net.eval()
                    with torch.no_grad():
                        for _ in range(20):
                            net(x)

                found = _turns({"test": lambda fed=fed: evaluate_global(fed), "bare": bare}, 3)
        ratio = found["test"][1] / found["bare"][1]
        say("evaluation", f"{model}: {ratio:.3f} x its bare forward passes (cpu, interleaved)")


def teachers(epochs: int = 5) -> None:
    as_worker()
    methods = ("fedavg", "fd", "kd", "fd + kd", "moon", "fd + kd + moon")
    feds: dict[str, Federation] = {}
    counts: dict[str, float] = {}
    spent: dict[str, list[float]] = {method: [] for method in methods}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        data = _images(folder, 400, 10, (32, 32, 3))
        for method in methods:
            fields = {"data": data, "split": "iid", "clients": 2, "fraction": 1.0, "model": "lenet", "batch": 50}
            experiment = prepare(recipe({**fields, "method": method, "workers": 1, "lr": 0.001, "epochs": epochs}))
            place = create(experiment, folder / method.replace(" ", ""))
            feds[method] = stack.enter_context(federation(experiment, place))
            workers = feds[method].backend
            assert isinstance(workers, ForkBackend)
            workers.inline = True
            feds[method].round()
        for _ in range(3):
            for method, fed in feds.items():
                passes, made = 0, TeacherOutputs.__init__

                def counted(
                    self: TeacherOutputs,
                    net: Net,
                    x: torch.Tensor,
                    features: torch.Tensor | None = None,
                    made: Callable[..., None] = made,
                ) -> None:
                    nonlocal passes
                    passes += features is None
                    made(self, net, x, features)

                TeacherOutputs.__init__ = counted  # type: ignore[method-assign]
                began = time.process_time()
                fed.round()
                spent[method].append(time.process_time() - began)
                TeacherOutputs.__init__ = made  # type: ignore[method-assign]
                counts[method] = passes / (8 * epochs)
    for method in methods:
        ratio = median(spent[method]) / median(spent["fedavg"])
        say("teachers", f"{method}, {epochs} epochs: {counts[method]:.1f} passes per batch, {ratio:.2f} x fedavg (cpu)")


def spill(count: int = 2000, cohort: int = 20, budget: int = 1024) -> None:
    """Every client takes part once, one step each, so that each has a control of LeNet's size as its state."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fields = {"data": _images(folder, 2 * count, 10, (32, 32, 3)), "split": "iid", "clients": count, "batch": 2}
        fields |= {"fraction": cohort / count, "model": "lenet", "method": "scaffold", "lr": 0.001}
        experiment = prepare(recipe({**fields, "memory_mb": budget}))
        with federation(experiment, create(experiment, folder / "run")) as fed:
            peak, seconds = _Peak(), []
            for begin in range(0, count, cohort):
                seconds.append(fed.round(list(range(begin, begin + cohort)))["seconds"])
            most, row = peak.stop(), experiment.program.messages.state.nbytes / 1e6
            in_ram, known = fed.client_state.in_ram, len(fed.client_state)
    say(
        "spill",
        f"{known:,} clients have {row:.2f} MB of state each, {known * row / 1e3:.2f} GB in total, {in_ram:,} of them in RAM "
        f"(memory_mb={budget}); main process and workers {most / 1e3:.2f} GB at most, shared pages counted once; "
        f"{median(seconds):.2f} s per round of {cohort}; goal 2 GB",
    )


def clients() -> None:
    here = Path(__file__).with_name("idle_clients.py")
    for line in subprocess.run([sys.executable, here], check=True, capture_output=True, text=True).stdout.splitlines():
        say("clients", line)


def start() -> None:
    """Seconds until the first round, alternating with a process that only imports torch."""
    program = (
        "import sys, time; from fedloom.engine.server.round import Federation\n"
        "def first(self): print(time.time(), time.process_time()); sys.stdout.flush(); import os; os._exit(0)\n"
        "Federation.round = first\n"
        "from fedloom.cli.main import main; main(['run', '-q', '--out', sys.argv[1]])"
    )
    bare = "import time, torch; print(time.time(), time.process_time())"
    found: dict[str, list[tuple[float, float]]] = {"run": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(6):
            for name, text in (("torch", bare), ("run", program)):
                began = time.time()
                command = [sys.executable, "-c", text, f"{folder}/{turn}"]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                found[name].append((float(said[0]) - began, float(said[1])))
    wall, cpu = (median(v[i] for v in found["run"][1:]) - median(v[i] for v in found["torch"][1:]) for i in (0, 1))
    least = min(v[0] for v in found["run"]) - min(v[0] for v in found["torch"])
    say(
        "start",
        f"{wall:.2f} s beyond importing torch (cpu {cpu:.2f} s, difference of the fastest turns {least:.2f} s); goal 2 s",
    )


class _Peak:
    """The largest sum of this process's and its children's proportional memory, sampled ten times per second."""

    def __init__(self) -> None:
        self._most, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self._most = max(self._most, sum(map(_proportional, [os.getpid(), *_children()])))

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return self._most


def _children() -> list[int]:
    task = Path(f"/proc/{os.getpid()}/task")
    found = [(place / "children").read_text().split() for place in task.iterdir() if (place / "children").exists()]
    return [int(child) for children in found for child in children]


def _proportional(process: int) -> float:
    """MB; a page that two processes share counts half in each."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1000


def _turns(work: dict[str, Callable[[], object]], turns: int) -> dict[str, tuple[float, float]]:
    """Medians of wall and processor seconds, one turn each after the other; the first turn is not counted."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(turns + 1):
        for name, function in work.items():
            began = time.perf_counter(), time.process_time()
            function()
            found[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return {name: (median(v[0] for v in t[1:]), median(v[1] for v in t[1:])) for name, t in found.items()}


def _images(folder: Path, train: int, test: int, shape: tuple[int, int, int]) -> str:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (train + test, *shape), dtype=np.uint8), draw.integers(0, 10, train + test)
    path = folder / "random.npz"
    np.savez(path, train_x=x[test:], train_y=y[test:], test_x=x[:test], test_y=y[:test])
    return str(path)


def say(what: str, text: str) -> None:
    print(f"{what:12} {text}", flush=True)


LIMITS = {f.__name__: f for f in (spill, aggregation, augment, evaluation, teachers, clients, start)}  # memory first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default="all", choices=["all", *LIMITS], metavar="WHAT")
    what = parser.parse_args().what
    for name in LIMITS if "all" in what else what:
        LIMITS[name]()


if __name__ == "__main__":
    main()
