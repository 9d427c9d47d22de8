"""Runs that are killed at random moments and resumed must end with the bits of an undisturbed run:

    python benchmarks/kills.py --kills 200 --seed 0 --out runs/kills

A chain is one run folder. Its process gets SIGKILL at a moment drawn from the seed, up to three times, and is resumed
after each; then it is left to finish and compared with an undisturbed run: digest, bits of the served weights, every line
of rounds.jsonl and clients.jsonl but for times. What changes nothing about the bits is drawn as well: seconds between
checkpoints, memory kept in RAM, workers of a resumed run, and whether the main process dies alone or with its workers.

Runs are processes of their own that execute the command line `fedloom run ...`: forked from this one, which has imported
fedloom and done nothing else, so that many starts are affordable. The first `--fresh` chains start a new interpreter
for each process instead. The methods differ from those of tests/runs/test_kill.py. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedloom.cli.main import main as fedloom

BASE = {"clients": "10", "fraction": "0.5", "rounds": "8", "lr": "0.05", "eval-every": "3"}
PUBLIC = {"set": ["data.public=0.1", "data.validation=0.1"]}
CASES: dict[str, dict[str, Any]] = {  # what is special about it -> flags
    "client state: feddc": {"method": "feddc"},
    "client and server state: feddyn": {"method": "feddyn"},
    "a model kept by each client: moon": {"method": "moon"},
    "effective steps: nova": {"method": "nova"},
    "served weights differ from trained ones: exp": {"method": "exp"},
    "query that trains: fnr": {"method": "fnr"},
    "query that trains, client state: fnr + feddc": {"method": "fnr + feddc"},
    "personal body: lg": {"method": "lg"},
    "personal head: fedper + prox": {"method": "fedper + prox"},
    "own model beside the global one: ditto": {"method": "ditto"},
    "second-order steps: perfedavg": {"method": "perfedavg"},
    "never averaged: local": {"method": "local"},
    "personal normalizers: norm(kind=bn) + fedbn": {"method": "norm(kind=bn) + fedbn", "model": "cnn"},
    "layers that choose by round: fednn": {"method": "fednn", "model": "cnn", "rounds": "5"},
    "server training on public images: feddf": {"method": "feddf(steps=20)", **PUBLIC},
    "server training of a generator: fedgen": {"method": "fedgen"},
    "server training on held-back images: server-data": {"method": "server-data", **PUBLIC},
    "noise on the server: babu + dp": {"method": "babu + dp(clip=0.5, noise=0.01)"},
    "a query after the last round: sphere": {"method": "sphere"},
    "order statistics: median": {"method": "median"},
    "a split that changes, teachers: ntd": {"method": "ntd", "split": "iid; 4: shards:2"},
    "vmapped, client state: feddc": {"method": "feddc", "vmap": "4"},
    "vmapped, own models: ditto + fn": {"method": "ditto + fn", "vmap": "3"},
    "vmapped, personal heads: fedrep + kd": {"method": "fedrep + kd", "vmap": "5"},
}
_NO_REAP = os.WEXITED | os.WNOHANG | os.WNOWAIT
PATIENCE = 300.0  # seconds; a run that takes longer hangs


@dataclass
class Process:
    """A run in a process group of its own, and the seconds since it began."""

    words: list[str]
    log: Path
    fresh: bool = False
    pid: int = 0
    began: float = field(default_factory=time.monotonic)
    code: int | None = None  # the exit code, or minus the signal that ended it

    def __post_init__(self) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            self._work()

    def _work(self) -> None:
        code = 70
        try:
            os.setsid()
            said = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(said, 1)
            os.dup2(said, 2)
            if self.fresh:
                os.execv(sys.executable, [sys.executable, "-m", "fedloom", *self.words])
            fedloom(self.words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        finally:
            os._exit(code)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def over(self) -> bool:
        """It has ended, but its exit code is still to be asked for."""
        return self.code is not None or os.waitid(os.P_PID, self.pid, _NO_REAP) is not None

    def wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


@dataclass(frozen=True)
class Pace:
    """When an undisturbed run logged its first and last round and ended, in seconds."""

    first: float
    last: float
    end: float
    rounds: int

    @property
    def round(self) -> float:
        return (self.last - self.first) / max(self.rounds - 1, 1)


def command(flags: Mapping[str, Any], path: Path) -> list[str]:
    words = ["run", "--quiet", "--out", str(path)]
    for name, value in flags.items():
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{name}", one]
    return words


def logged(path: Path) -> int:
    log = path / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def lines(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith("seconds")} for line in found]


def left_behind(path: Path) -> dict[str, Any]:
    """All of a finished run that must not depend on what happened to it."""
    return {
        "digest": json.loads((path / "summary.json").read_text(encoding="utf-8"))["digest"],
        # safetensors writes its own metadata in any order, so it is the tensors that are compared
        "weights": {name: value.numpy().tobytes() for name, value in load_file(path / "final.safetensors").items()},
        "rounds": lines(path / "rounds.jsonl"),
        "clients": lines(path / "clients.jsonl"),
    }


def undisturbed(flags: Mapping[str, Any], path: Path) -> Pace:
    process = Process(command(flags, path), path.with_suffix(".log"))
    rounds, first, last = int(flags["rounds"]), 0.0, 0.0
    while not process.over():
        done = logged(path)
        first = first or (process.seconds if done else 0.0)
        last = last or (process.seconds if done >= rounds else 0.0)
        time.sleep(0.002)
    end = process.seconds
    if process.wait() != 0:
        sys.exit(path.with_suffix(".log").read_text(encoding="utf-8"))
    return Pace(first, last or end, end, rounds)


def moment(draw: random.Random, pace: Pace, done: int) -> tuple[str, int, float]:
    """When to kill: in which stretch of the run, after how many logged rounds, and how many seconds later."""
    kind = draw.choices(["start", "rounds", "end"], [1, 6, 1])[0]
    if kind == "start":
        return kind, 0, draw.uniform(0, pace.first)
    if kind == "end":
        return kind, pace.rounds, draw.uniform(0, pace.end - pace.last)
    return kind, draw.randint(min(done, pace.rounds - 1), pace.rounds - 1), draw.uniform(0, 1.5 * pace.round)


def kill(process: Process, path: Path, after: int, wait: float, whole_group: bool) -> bool:
    """SIGKILL at that moment; False if the process was over before."""
    wait_for(lambda: logged(path) >= after or process.over())
    time.sleep(wait)
    if process.over():
        return False
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def group(leader: int) -> list[int]:
    """Living processes of a group: workers whose main process is dead."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, belongs = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(belongs) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.001)
    return met


def chain(name: str, flags: dict[str, Any], like: Path, pace: Pace, path: Path, seed: str, fresh: bool) -> Counter[str]:
    """Kill a run one to three times, let it finish, compare; what happened, counted."""
    draw, counts, log = random.Random(seed), Counter[str](), path.with_suffix(".log")
    aside = [f"checkpoint_seconds={draw.choice([0, 0, 0.2, 15])}", f"memory_mb={draw.choice([0.05, 2048])}"]
    begin = command({**flags, "set": [*flags.get("set", []), *aside]}, path)
    planned = draw.randint(1, 3)
    while True:
        resumed = path.exists()
        words = ["run", "--quiet", "--resume", str(path), "--workers", draw.choice("12")] if resumed else begin
        process = Process(words, log, fresh)
        if counts["kills"] < planned and not counts["too late"]:
            kind, after, wait = moment(draw, pace, logged(path))
            whole_group = draw.random() < 0.5
            if kill(process, path, after, wait, whole_group):
                counts += Counter({"kills": 1, kind: 1, "resumes": resumed, "fresh": fresh})
                counts["left over"] += not wait_for(lambda leader=process.pid: not group(leader), 30)
                continue
            counts["too late"] += 1
        counts["resumes"] += resumed
        counts["chains"] += 1
        if (code := process.wait()) != 0:
            counts["refused"] += 1
            print(f"REFUSED {name}, {path}, exit code {code}: {log.read_text(encoding='utf-8')[-500:]}", flush=True)
        else:
            wanted, found = left_behind(like), left_behind(path)
            if other := [what for what in wanted if wanted[what] != found[what]]:
                counts["mismatches"] += 1
                print(f"MISMATCH {name}, {path}: {', '.join(other)}", flush=True)
        return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=0, help="chains that start a new interpreter for every process")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("runs/kills"), help="a folder that does not exist yet")
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    cases = {name: {**BASE, **flags} for name, flags in CASES.items() if not given.only or given.only in name}
    if not cases:
        parser.error(f"--only {given.only!r} fits none of: {'; '.join(CASES)}")
    total: dict[str, Counter[str]] = {name: Counter() for name in cases}
    paces: dict[str, Pace] = {}
    began, number = time.monotonic(), 0

    def done() -> int:
        return sum(counts["kills"] for counts in total.values())

    while done() < given.kills:
        name = list(cases)[number % len(cases)]
        like = given.out / f"undisturbed-{number % len(cases)}"
        flags = {**cases[name], "workers": "2"}
        if name not in paces:
            paces[name] = undisturbed(flags, like)
        path = given.out / f"chain-{number}"
        seed = f"{given.seed} {number}"
        total[name] += chain(name, flags, like, paces[name], path, seed, number < given.fresh)
        number += 1
        print(
            f"{time.monotonic() - began:5.0f} s  {done()} kills  {name}: {dict(total[name])}",
            file=sys.stderr,
            flush=True,
        )
    columns = ["chains", "kills", "start", "rounds", "end", "resumes", "mismatches", "refused", "left over"]
    print(f"| case | {' | '.join(columns)} |\n|---{'|--:' * len(columns)}|")
    for name, counts in [*total.items(), ("all", sum(total.values(), Counter[str]()))]:
        print(f"| {name} | {' | '.join(str(counts[column]) for column in columns)} |")
    everything = sum(total.values(), Counter[str]())
    late, fresh = everything["too late"], everything["fresh"]
    print(
        f"\n{time.monotonic() - began:.0f} s; {late} runs ended before their moment; {fresh} kills in fresh interpreters"
    )
    print(f"seed {given.seed}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    sys.exit(bool(everything["mismatches"] + everything["refused"] + everything["left over"]))


if __name__ == "__main__":
    main()
