"""Memory and seconds per round do not grow with the number of idle clients: python benchmarks/idle_clients.py

100 and 100,000 clients of two tiny images each, the same cohort of 10, each in a fresh process; once without client state
(fedavg) and once with it (scaffold). The last line is the cost of a client beside its images: the same 200,000 images are
split among 100 and among 100,000 clients, one step per client.
"""

from __future__ import annotations

import argparse
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
    """MB that the process grew by, and milliseconds per round."""
    command = [sys.executable, "-c", CHILD, str(data), str(clients), method, batch, out]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grown, milliseconds = json.loads(output)
    return grown, milliseconds


def images(folder: str, count: int) -> Path:
    draw, path = np.random.default_rng(0), Path(folder) / f"{count}.npz"
    x, y = draw.integers(0, 256, (count + 10, 4, 4, 1), dtype=np.uint8), draw.integers(0, 10, count + 10)
    np.savez(path, train_x=x[10:], train_y=y[10:], test_x=x[:10], test_y=y[:10])
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", type=int, default=100_000, help="the larger number of clients (default: 100,000)")
    many_clients = parser.parse_args().many
    print(f"{'method':10} {'clients':>8} {'MB grown':>9} {'ms/round':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for method in ("fedavg", "scaffold"):
            for clients in (100, many_clients):
                place = images(folder, 2 * clients)
                grown, milliseconds = measure(place, clients, method, "2", f"{folder}/{method}{clients}")
                print(f"{method:10} {clients:8,} {grown:9.1f} {milliseconds:9.2f}", flush=True)
        place = images(folder, 2 * many_clients)
        few, many = (measure(place, k, "fedavg", "full", f"{folder}/same{k}")[0] for k in (100, many_clients))
        print(f"the same images, 100 and {many_clients:,} clients: {few:.1f} and {many:.1f} MB grown, ", end="")
        print(f"{(many - few) * 2**20 / (many_clients - 100):.0f} bytes per idle client")


if __name__ == "__main__":
    main()
