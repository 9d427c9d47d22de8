"""The same workloads on fedloom, pfl-research, Flower, fluke and a plain PyTorch loop, side by side on this machine.

    python benchmarks/peers.py --install      # once: a virtual environment for each peer
    python benchmarks/peers.py                # tables, and benchmarks/results/peers.json

Contenders take turns, so that a slow minute of the machine hits all of them. Each turn is a fresh process; its first
round is a warm-up and not counted. All settings of a peer (processes x threads, each also with its net and images in
channels-last layout, which none of them sets by itself) run in the first repetition, and the fastest of them in the later
ones. Start-up is what a process needs beyond its rounds.

Fair: every contender trains the same net (the number of parameters is compared) on the same images, with the same number
of clients, batches and steps of SGD, and `learned` shows that it did: the accuracy on 200 test images after these few
rounds. Peers get their images normalized once beforehand; fedloom normalizes in every round.

A table for every workload has all settings. The last table has the fastest setting of each contender: the README's.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Workload:
    title: str
    net: str
    shape: tuple[int, int, int]
    clients: int
    cohort: int
    samples: int  # of each client
    batch: int
    epochs: int = 1
    vmap: str = "off"  # fedloom's setting
    bare: int = 1  # rounds that count as one, where a round is over in milliseconds

    @property
    def line(self) -> str:
        """What it is, for the table of all workloads."""
        epochs = f", {self.epochs} epochs" if self.epochs > 1 else ""
        vmap = "" if self.vmap == "off" else f", `--vmap {self.vmap}`"
        return f"{self.title}, {self.cohort} clients x {self.samples} images{epochs}, batch {self.batch}{vmap}"

    @property
    def samples_a_round(self) -> int:
        return self.cohort * self.samples * self.epochs


WORKLOADS = {
    "lenet32": Workload("LeNet 32x32", "lenet", (32, 32, 3), clients=100, cohort=10, samples=500, batch=50),
    "cnn-small": Workload("small CNN 28x28", "cnn", (28, 28, 1), clients=1000, cohort=50, samples=50, batch=10),
    "mobilenet32": Workload("MobileNet 32x32", "mobilenet", (32, 32, 3), 100, cohort=10, samples=500, batch=50),
    # digits has 1,437 training images: 7 for each of 200 clients
    "mlp-digits": Workload(
        "MLP 8x8", "mlp", (8, 8, 1), clients=200, cohort=50, samples=7, batch=10, epochs=5, vmap="auto", bare=20
    ),
    "vgg11": Workload("VGG11 32x32", "vgg11", (32, 32, 3), clients=20, cohort=4, samples=250, batch=50),
    "resnet18": Workload("ResNet18 32x32", "resnet18", (32, 32, 3), clients=20, cohort=2, samples=100, batch=50),
}


@dataclass(frozen=True)
class Config:
    processes: int
    threads: int
    channels_last: bool = False

    def __str__(self) -> str:
        return f"{self.processes}x{self.threads}" + " channels-last" * self.channels_last


SPLIT, THREADED = Config(CORES, 1), Config(1, CORES)


@dataclass(frozen=True)
class Contender:
    script: str
    requires: tuple[str, ...] = ()  # besides the torch that fedloom uses; without any, fedloom's own interpreter
    configs: tuple[Config, ...] = (SPLIT, THREADED)
    precision: str = "fp32"


CONTENDERS = {
    "fedloom": Contender("run_fedloom.py", configs=(SPLIT,)),
    "fedloom-bf16": Contender("run_fedloom.py", configs=(SPLIT,), precision="bf16"),
    "pfl": Contender("run_pfl.py", ("pfl==0.6.*",)),
    "flower": Contender("run_flower.py", ("flwr[simulation]==1.41.*",)),
    "fluke": Contender("run_fluke.py", ("fluke-fl==0.8.*",), configs=(THREADED,)),
    "torch": Contender("run_torch.py", ("numpy",), configs=(THREADED,)),
}
TITLES = {"pfl": "pfl-research", "flower": "Flower", "torch": "plain PyTorch", "fedloom-bf16": "fedloom, bf16"}


@dataclass
class Worker:
    """One contender in one configuration: what it has shown so far."""

    name: str
    config: Config
    seconds: list[float] = field(default_factory=list)
    startup: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    failure: str = ""


def configs(name: str, load: Workload, channels_last: bool, wanted: list[str] | None) -> tuple[Config, ...]:
    """All settings of a contender, or the wanted ones of a peer. The layout of images concerns convolutional nets."""
    plain, peer = CONTENDERS[name].configs, bool(CONTENDERS[name].requires)
    laid_out = channels_last and peer and load.net != "mlp"
    every = plain + tuple(replace(config, channels_last=True) for config in plain) * laid_out
    return tuple(config for config in every if not peer or not wanted or str(config) in wanted)


def interpreter(name: str, envs: Path) -> Path:
    if not CONTENDERS[name].requires:
        return Path(sys.executable)
    return envs / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(names: list[str], envs: Path) -> None:
    torch = version("torch").split("+")[0]
    for name in names:
        if requires := CONTENDERS[name].requires:
            if not interpreter(name, envs).exists():
                venv.create(envs / name, with_pip=True, symlinks=os.name != "nt")
            pip = [str(interpreter(name, envs)), "-m", "pip", "install", "--quiet"]
            # torch first: what depends on it with an open range then keeps this version
            subprocess.run([*pip, f"torch=={torch}", "numpy"], check=True)
            subprocess.run([*pip, *requires], check=True)
            print(f"installed {', '.join(requires)} with torch {torch} in {envs / name}")


def dataset(load: Workload, folder: Path) -> Path:
    """One texture a class under noise: as costly as photographs, and learnable enough to show who really trains."""
    path = folder / f"{load.clients * load.samples}x{'x'.join(map(str, load.shape))}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(0)
        height, width, channels = load.shape
        tiles = draw.integers(0, 192, (10, 4, 4, channels), dtype=np.uint8)
        textures = np.tile(tiles, (1, height // 4, width // 4, 1))
        arrays: dict[str, np.ndarray] = {}
        for part, count in (("train", load.clients * load.samples), ("test", 200)):
            labels = draw.integers(0, 10, count)
            noise = draw.integers(0, 64, (count, *load.shape), dtype=np.uint8)
            arrays |= {f"{part}_x": noise + textures[labels], f"{part}_y": labels}
        unfinished = path.with_suffix(".tmp.npz")
        np.savez(unfinished, **arrays)  # type: ignore[arg-type]
        unfinished.replace(path)
    return path


def stop(process: subprocess.Popen[str]) -> None:
    """Politely at first, so that launchers end their workers. The session is the process's own: nothing else is hit."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=40)  # torchrun gives its workers 30
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(worker: Worker, load: Workload, rounds: int, envs: Path, timeout: float) -> None:
    """One turn: a fresh process, whose result or failure is noted in the worker."""
    contender, python = CONTENDERS[worker.name], interpreter(worker.name, envs)
    if not python.exists():
        worker.failure = "not installed: run with --install first"
        return
    scratch = tempfile.mkdtemp(prefix="peer-")
    job = {"net": load.net, "data": str(dataset(load, envs / "data")), "clients": load.clients, "cohort": load.cohort}
    job |= {"batch": load.batch, "epochs": load.epochs, "rounds": rounds * load.bare + 1}
    job |= {"precision": contender.precision, "vmap": load.vmap, "scratch": scratch}
    launcher: list[str] = []
    if worker.name == "pfl" and worker.config.processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={worker.config.processes}"]
    settings = {"PEER_JOB": json.dumps(job | asdict(worker.config)), "OMP_NUM_THREADS": str(worker.config.threads)}
    settings |= {"TMPDIR": scratch, "FLWR_HOME": scratch, "FLWR_TELEMETRY_ENABLED": "0"}
    settings["RAY_worker_niceness"] = "0"  # Ray's default of 15 would handicap Flower on a busy machine
    started = time.perf_counter()
    process = subprocess.Popen(
        [python, *launcher, HERE / "peers" / contender.script],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        wall = time.perf_counter() - started
        result = next((line for line in reversed(output.splitlines()) if line.startswith('{"seconds"')), None)
        if process.returncode or result is None:
            lines = [line.strip() for line in output.splitlines() if "Error" in line] or output.split("\n")[-2:]
            worker.failure = f"exit code {process.returncode}: {' '.join(lines[-1:])[:300]}"
            return
        worker.facts = json.loads(result)
        every = worker.facts.pop("seconds")[1:]
        timed = [sum(every[i : i + load.bare]) / load.bare for i in range(0, len(every), load.bare)]
        worker.seconds += timed
        worker.startup.append(wall - sum(every) - min(every))  # the warm-up does the work of one round, too
    except subprocess.TimeoutExpired:
        worker.failure = f"no result after {timeout:.0f} s"
    finally:
        stop(process)
        shutil.rmtree(scratch, ignore_errors=True)


def fastest(workers: list[Worker]) -> Worker | None:
    sound = [worker for worker in workers if worker.seconds and not worker.failure]
    return min(sound, key=lambda worker: median(worker.seconds), default=None)


def turns(names: list[str], repeats: int, workers: list[Worker]) -> Iterator[tuple[int, Worker]]:
    for repeat in range(repeats):
        for name in names:
            mine = [worker for worker in workers if worker.name == name]
            keep = mine if repeat == 0 else [fastest(mine)]
            yield from ((repeat, worker) for worker in keep if worker and not worker.failure)


def table(load: Workload, workers: list[Worker]) -> list[str]:
    ours = fastest([worker for worker in workers if worker.name == "fedloom"])
    columns = [
        "contender",
        "setting",
        "seconds a round",
        "min–max",
        "samples a second",
        "start-up",
        "times fedloom",
        "learned",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for worker in workers:
        if worker.failure:
            lines.append(f"| {worker.name} | {worker.config} | failed: {worker.failure} |" + " |" * 5)
            continue
        middle = median(worker.seconds)
        ratio = f"{middle / median(ours.seconds):.2f}" if ours else "–"
        spread = f"{min(worker.seconds):.3g}–{max(worker.seconds):.3g}"
        lines.append(
            f"| {worker.name} | {worker.config} | {middle:.3g} | {spread} | {load.samples_a_round / middle:,.0f} "
            f"| {median(worker.startup):.1f} s | {ratio} | {worker.facts['accuracy']:.0%} |"
        )
    peer = fastest([worker for worker in workers if not worker.name.startswith("fedloom")])
    if peer and ours:
        times = median(peer.seconds) / median(ours.seconds)
        lines += ["", f"The fastest peer, {peer.name} {peer.config}, takes {times:.2f} times as long as fedloom."]
    if len(sizes := {worker.facts["parameters"] for worker in workers if worker.facts}) > 1:
        lines += ["", f"Not the same net everywhere: {sorted(sizes)} parameters."]
    return lines


def summary(measured: dict[str, list[Worker]], names: list[str]) -> list[str]:
    """Seconds a round of every contender in its fastest setting, and how much longer the fastest peer takes."""
    titles = [TITLES.get(name, name) for name in names]
    lines = [
        "| " + " | ".join(["work", *titles, "fastest peer / fedloom"]) + " |",
        "|---" + "|--:" * (len(names) + 1) + "|",
    ]
    for key, workers in measured.items():
        best = {name: fastest([worker for worker in workers if worker.name == name]) for name in names}
        peer = fastest([worker for worker in workers if not worker.name.startswith("fedloom")])
        ours = best.get("fedloom")
        ratio = f"{median(peer.seconds) / median(ours.seconds):.2f}" if peer and ours else "–"
        cells = [f"{median(worker.seconds):.3g}" if worker else "–" for worker in best.values()]
        lines.append("| " + " | ".join([WORKLOADS[key].line, *cells, ratio]) + " |")
    return lines


def versions(measured: dict[str, list[Worker]]) -> str:
    known = [worker.facts["versions"] for workers in measured.values() for worker in workers if worker.facts]
    return ", ".join(
        f"{name} {version}" for name, version in {k: v for facts in known for k, v in facts.items()}.items()
    )


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    cpu = names[0].partition(": ")[2] if names else platform.processor()
    return {"cpu": cpu, "cores": CORES, "python": platform.python_version()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="make the peers' environments, then stop")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS)[:4], help="default: four")
    chosen = [name for name in CONTENDERS if name != "fedloom-bf16"]
    parser.add_argument("--contenders", "--only", nargs="+", choices=CONTENDERS, default=chosen)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16 adds fedloom in bfloat16")
    parser.add_argument(
        "--channels-last",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="peers also with nets and images in that layout, set by hand; the fastest setting counts",
    )
    parser.add_argument("--settings", nargs="+", help='of peers, such as "2x1 channels-last"; default: all')
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contender")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds in a turn")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that a turn may take")
    parser.add_argument("--envs", type=Path, default=Path.home() / ".cache" / "fedloom-peers")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "peers.json")
    options = parser.parse_args()
    if options.precision == "bf16" and "fedloom-bf16" not in options.contenders:
        options.contenders.insert(0, "fedloom-bf16")
    return options


def main() -> None:
    options = arguments()
    if options.install:
        install(options.contenders, options.envs)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as for Ctrl-C, the running turn is stopped on the way out
    results: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "workloads": {}}
    measured: dict[str, list[Worker]] = {}
    for key in options.workloads:
        load = WORKLOADS[key]
        settings = partial(configs, load=load, channels_last=options.channels_last, wanted=options.settings)
        workers = [Worker(name, c) for name in options.contenders for c in settings(name)]
        for repeat, worker in turns(options.contenders, options.repeats, workers):
            run(worker, load, options.rounds, options.envs, options.timeout)
            shown = worker.failure or " ".join(f"{s:.3g}" for s in worker.seconds[-options.rounds :])
            turn = f"{key} {repeat + 1}/{options.repeats} {worker.name} {worker.config}"
            print(f"{turn}: {shown}", file=sys.stderr, flush=True)
        print("\n".join(["", f"## {key}", "", *table(load, workers)]), flush=True)
        results["workloads"][key] = asdict(load) | {"contenders": [asdict(worker) for worker in workers]}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        measured[key] = workers
    print("\n".join(["", "## Seconds a round", "", *summary(measured, options.contenders)]))
    print(f"\n{machine()['cpu']}, {CORES} cores, float32; {versions(measured)}; by: python {' '.join(sys.argv)}")


if __name__ == "__main__":
    main()
