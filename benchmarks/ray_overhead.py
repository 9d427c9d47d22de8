"""What a round costs on Ray beyond forked workers: python benchmarks/ray_overhead.py [--rounds N] [--turns N]

Starts a cluster of two nodes on loopback with one core each, and runs the same recipes on it and on two forked workers, in
turns. Each case is a net of another size: what Ray adds is a matter of tensors that travel and of messages per client.
Results of both have the same bits, which is checked.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fedloom as fl
from fedloom.engine.backends import select as where

IMAGES: dict[str, Any] = {"split": "iid", "clients": 10, "fraction": 1.0, "batch": 20, "lr": 0.01, "eval_every": 0}
CASES: dict[str, dict[str, Any]] = {
    "MLP on digits, 10 clients x 143 images": {**IMAGES, "data": "digits", "model": "mlp"},
    "LeNet 32x32, 10 clients x 100 images": {**IMAGES, "model": "lenet"},
    "LeNet, scaffold: a control travels both ways": {**IMAGES, "model": "lenet", "method": "scaffold"},
}


@contextmanager
def cluster() -> Iterator[None]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    os.environ["PYTHONPATH"] = str(Path(fl.__file__).parents[1])
    from ray.cluster_utils import Cluster  # reads how to authenticate when it is imported

    node = {"num_cpus": 1, "object_store_memory": 200 << 20, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args={**node, "node_ip_address": "127.0.0.2"})
    nodes.add_node(**node, node_ip_address="127.0.0.3")
    os.environ["RAY_ADDRESS"] = nodes.address
    try:
        with where.session():  # actors stay from run to run
            yield
    finally:
        nodes.shutdown()


def data(folder: Path) -> str:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (1010, 32, 32, 3), dtype=np.uint8), draw.integers(0, 10, 1010)
    np.savez(folder / "random.npz", train_x=x[10:], train_y=y[10:], test_x=x[:10], test_y=y[:10])
    return str(folder / "random.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds in a turn, after a first one")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print("| work | 2 forked workers | Ray, 2 nodes | added per round | added per client |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name, cluster():
        folder = Path(name)
        images = data(folder)
        for case, (title, fields) in enumerate(CASES.items()):
            seconds: dict[str | int, list[float]] = {2: [], "ray": []}
            digests = set()
            for turn in range(options.turns):
                for workers, measured in seconds.items():
                    out = folder / f"{case}-{turn}-{workers}"
                    given = {"data": images, **fields, "rounds": options.rounds + 1, "out": str(out)}
                    run = fl.run(given, workers=workers)
                    measured += [line["seconds"] for line in run.rounds[1:]]
                    digests.add(run.summary["digest"])
            assert len(digests) == 1, "Ray and forked workers differ"
            local, remote = (median(measured) for measured in seconds.values())
            added = remote - local
            print(
                f"| {title} | {local:.4f} s | {remote:.4f} s | {1000 * added:.1f} ms | {100 * added:.2f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
