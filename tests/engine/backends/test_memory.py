"""A worker keeps the memory that its steps free."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedloom.engine.backends.memory import HUGE_PAGES

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
entry, huge = "", 0
for line in open("/proc/self/smaps"):
    if "-" in line.split(" ")[0]:
        entry = line
    elif line.startswith("AnonHugePages:") and "[heap]" in entry:
        huge += int(line.split()[1])
print(huge)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_steps_use_the_memory_of_earlier_steps_again_in_huge_pages() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    faults, huge = map(int, done.stdout.split())
    assert faults < 1000  # 5 x 80 MB in pages of 4 kB are 97,000
    if "[madvise]" in HUGE_PAGES.read_text():
        assert huge > 40_000  # kB
