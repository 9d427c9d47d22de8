"""Start-up: fresh processes of the command line, compared with one that only imports torch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median

from fedloom.bench.figure import Effort, Figure

TORCH = ("-c", "import torch")
RUN = ("-m", "fedloom", "run", "-q", "--rounds", "1", "--out")
COMPARE = (
    *("-m", "fedloom", "compare", "--methods", "fedavg; fn; scaffold; dr + fd", "--seeds", "3"),
    *("--rounds", "2", "--out"),
)


def start(effort: Effort, _: Callable[[str], None]) -> Iterator[Figure]:
    turns = 2 if effort.quick else 5
    seconds: dict[str, list[float]] = {"torch": [], "run": [], "compare": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns + 1):  # the first one fills caches of files
            seconds["torch"].append(_seconds(TORCH))
            seconds["run"].append(_seconds((*RUN, f"{folder}/run-{turn}")))
            if turn < turns:
                seconds["compare"].append(_seconds((*COMPARE, f"{folder}/compare-{turn}")))
    torch, run = (median(seconds[name][1:]) for name in ("torch", "run"))
    title = "fedloom run of one round on digits, beyond importing torch"
    yield Figure("start", title, max(run - torch, 0.001), "s", "lower", {"import torch": f"{torch:.2f} s"})
    title = "fedloom compare: 4 methods x 3 seeds on digits, 2 rounds each, every client fine-tuned"
    yield Figure("compare", title, median(seconds["compare"]), "s", "lower")


def _seconds(command: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - began
