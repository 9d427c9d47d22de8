"""Memory and seconds a round do not grow with the number of clients that are not asked: python benchmarks/idle_clients.py

100 and 100,000 clients of two tiny images each, the same cohort of 10, each in a process of its own; once without memory
on clients (fedavg) and once with it (scaffold: only clients that took part have any). What a client costs beside its
images is told by the last lines: the same 200,000 images are dealt to 100 and to 100,000 clients, one step a client.
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
data, clients, method, batch, out = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = fl.run(data=data, split="iid", clients=int(clients), fraction=10 / int(clients), model="mlp", method=method,
             batch=batch, rounds=20, eval_every=0, out=out)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([grown / 1024, 1000 * statistics.median(line["seconds"] for line in run.rounds[5:])]))
"""


def measure(data: Path, clients: int, method: str, batch: str, out: str) -> tuple[float, float]:
    """MB that the process grew by, and milliseconds a round."""
    command = [sys.executable, "-c", CHILD, str(data), str(clients), method, batch, out]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grown, milliseconds = json.loads(said)
    return grown, milliseconds


def images(folder: str, count: int) -> Path:
    draw, path = np.random.default_rng(0), Path(folder) / f"{count}.npz"
    x, y = draw.integers(0, 256, (count + 10, 4, 4, 1), dtype=np.uint8), draw.integers(0, 10, count + 10)
    np.savez(path, train_x=x[10:], train_y=y[10:], test_x=x[:10], test_y=y[:10])
    return path


def main() -> None:
    print(f"{'method':10} {'clients':>8} {'MB grown':>9} {'ms/round':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for method in ("fedavg", "scaffold"):
            for clients in (100, 100_000):
                place = images(folder, 2 * clients)
                grown, milliseconds = measure(place, clients, method, "2", f"{folder}/{method}{clients}")
                print(f"{method:10} {clients:8,} {grown:9.1f} {milliseconds:9.2f}", flush=True)
        place = images(folder, 200_000)
        few, many = (measure(place, k, "fedavg", "full", f"{folder}/same{k}")[0] for k in (100, 100_000))
        print(f"the same images, 100 and 100,000 clients: {few:.1f} and {many:.1f} MB grown, ", end="")
        print(f"{(many - few) * 2**20 / 99_900:.0f} bytes an idle client")


if __name__ == "__main__":
    main()
