"""Memory and seconds a round do not grow with the number of clients that are not asked: python benchmarks/idle_clients.py

100 and 100,000 clients of two tiny images each, the same cohort of 10, each in a process of its own; once without memory
on clients (fedavg) and once with it (scaffold: only clients that took part have any).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CHILD = """
import json, resource, statistics, sys
import fedloom as fl
data, clients, method, out = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = fl.run(data=data, split="iid", clients=int(clients), fraction=10 / int(clients), model="mlp", method=method,
             batch=2, rounds=20, eval_every=0, out=out)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([grown / 1024, 1000 * statistics.median(line["seconds"] for line in run.rounds[5:])]))
"""


def main() -> None:
    draw = np.random.default_rng(0)
    print(f"{'method':10} {'clients':>8} {'MB grown':>9} {'ms/round':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for method in ("fedavg", "scaffold"):
            for clients in (100, 100_000):
                count = 2 * clients + 10
                x, y = draw.integers(0, 256, (count, 4, 4, 1), dtype=np.uint8), draw.integers(0, 10, count)
                data = Path(folder) / f"{clients}.npz"
                np.savez(data, train_x=x[10:], train_y=y[10:], test_x=x[:10], test_y=y[:10])
                command = [sys.executable, "-c", CHILD, str(data), str(clients), method, f"{folder}/{method}{clients}"]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                grown, milliseconds = json.loads(said)
                print(f"{method:10} {clients:8,} {grown:9.1f} {milliseconds:9.2f}")


if __name__ == "__main__":
    main()
