"""A worker keeps the memory that its steps free."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedloom.engine.backends.memory import HEAP, HUGE_PAGES

STEPS = """
import resource, torch
from fedloom.engine.backends.memory import keep_freed_memory
keep_freed_memory()

def step():
    return [torch.ones(2_000_000) for _ in range(10)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
entry, asked = "", 0
for line in open("/proc/self/smaps"):
    if "-" in line.split(" ")[0]:
        entry = line
    elif line.startswith("VmFlags:") and "[heap]" in entry and " hg" in line:
        begin, end = (int(address, 16) for address in entry.split(" ")[0].split("-"))
        asked += end - begin
print(asked)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_steps_use_the_memory_of_earlier_steps_again_in_huge_pages() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    faults, asked = map(int, done.stdout.split())
    assert faults < 1000  # 5 x 80 MB in pages of 4 kB are 97,000
    if "[madvise]" in HUGE_PAGES.read_text():
        assert asked >= HEAP
