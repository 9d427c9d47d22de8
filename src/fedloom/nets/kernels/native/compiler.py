"""The system's C++ compiler, and how it is called.

Vector instructions are those that torch itself uses on this processor (AVX-512, AVX2 with FMA; elsewhere than on x86 the
baseline), so machines of one kind have the same library and the same bits. There are no options that let the compiler reorder
sums.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

SECONDS = 600.0  # a compiler that takes longer is stuck
NAMES = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"),
)
VECTORS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
ADVICE = "install g++ or clang++, or name a compiler in $CXX"


class Unavailable(Exception):
    """Why there are no compiled kernels here, as one clause."""


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]

    def __call__(self, sources: list[Path], library: Path) -> None:
        """Compile the sources, at the same time, and link them into one shared library; objects are put next to it."""
        objects = [library.with_name(f"{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source, made: self._run("-c", str(source), "-o", str(made)), sources, objects))
        self._run("-shared", *map(str, objects), "-o", str(library))

    def _run(self, *arguments: str) -> None:
        call = [*self.command, *self.flags, *arguments]
        try:
            done = subprocess.run(call, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"{self.command[0]} cannot be run ({error})") from error
        if done.returncode:
            lines = done.stderr.splitlines()
            line = next((text for text in lines if "error" in text), lines[0] if lines else "no message")
            raise Unavailable(f"{self.command[0]} failed to compile them ({line.strip()[:200]})")


def find_compiler() -> Compiler:
    """$CXX if it is set, else the first of c++, g++ and clang++."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in NAMES]:
        path = shutil.which(command[0])
        if path is None:
            continue
        call = (path, *command[1:])
        try:
            done = subprocess.run([*call, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0:
            return Compiler(call, done.stdout, (*FLAGS, *VECTORS.get(vectors(), ())))
    missing = f"$CXX, {named[0]}, is no compiler that can be run" if named else f"no C++ compiler was found; {ADVICE}"
    raise Unavailable(missing)


def vectors() -> str:
    """AVX512, AVX2 or OLDER on x86: the instructions that torch chose, which ATEN_CPU_CAPABILITY may limit. Else OTHER."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "OTHER"
    capability = torch.backends.cpu.get_cpu_capability()
    return capability if capability in VECTORS else "OLDER"


def unsuited() -> str | None:
    """Why kernels are not compiled for this processor, as one clause; None if they are."""
    if vectors() == "OLDER":
        return "PyTorch does not use AVX2 here, and without it compiled kernels are less exact than PyTorch's own"
    return None
