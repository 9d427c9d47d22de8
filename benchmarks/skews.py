"""FNR-FL's skews on CIFAR-10, three single and two mixed, for six methods: python benchmarks/skews.py

    python benchmarks/skews.py --out runs/skews                   # resumable: the same command may be given again
    python benchmarks/skews.py --share 0/2 --workers 1              # half of the methods in one process; 1/2 in another
    python benchmarks/skews.py --print                            # the table of what is finished, nothing is run

LeNet, 10 clients that all take part in each of 6 rounds, SGD 0.1 with gradients clipped at 10, batch 64: FNR-FL's setting,
but with 5,000 of the 50,000 training images, 2 local epochs in place of 10 (and 1 extra one for FNR's weakest half in
place of 5), 6 rounds in place of 10, and never a look at test images before the end. Cells: accuracy on all test images,
each as noisy as one of the clients who see it has it (in brackets: as it is, without noise), and the mean over clients
on their own test images. The last row is FNR without its regularizer: what the extra epochs do by themselves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import fedloom as fl

SETTING: dict[str, Any] = {
    "data": {"name": "cifar10", "images": 5_000},
    "model": "lenet",
    "clients": 10,
    "fraction": 1.0,
    "rounds": 6,
    "epochs": 2,
    "batch": 64,
    "lr": 0.1,
    "momentum": 0.0,
    "schedule": "constant",
    "weight_decay": 1e-5,
    "clip": 10.0,
    "eval_every": 0,
}
SPLITS = {
    "feature": "noise:0.5",
    "label": "dirichlet:0.5",
    "quantity": "quantity:0.5",
    "label and feature": "dirichlet:0.5+noise:0.1",
    "label and quantity": "shards:2+quantity:0.5",
}
METHODS = {
    "FedAvg": "fedavg",
    "FedProx": "prox(mu=0.01)",
    "SCAFFOLD": "scaffold",
    "MOON": "moon",
    "FedNova": "nova",
    "FNR": "fnr(epochs=1, bounded=false)",
    "FNR, strength 0": "fnr(epochs=1, strength=0)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/skews"))
    parser.add_argument("--share", default="0/1", help="K/N: every N-th method, beginning with the K-th")
    parser.add_argument("--workers", default="auto", type=lambda text: int(text) if text.isdigit() else text)
    parser.add_argument("--print", action="store_true", help="print what is finished, run nothing")
    given = parser.parse_args()
    first, _, step = given.share.partition("/")
    print(f"| method | {' | '.join(SPLITS)} |\n|---|{'---|' * len(SPLITS)}")
    print(f"| | {' | '.join(f'`{split}`' for split in SPLITS.values())} |")
    for name in list(METHODS)[int(first) :: int(step)]:
        cells = [_cell(_run(given, name, split)) for split in SPLITS.values()]
        print(f"| {name}, `{METHODS[name]}` | {' | '.join(cells)} |", flush=True)


def _run(given: argparse.Namespace, name: str, split: str) -> fl.Run | None:
    path = given.out / f"{METHODS[name]}-{split}".replace(" ", "")
    if (path / "summary.json").exists():
        return fl.Run(path)
    if given.print:
        return None
    if path.exists():
        return fl.run(resume=path)
    return fl.run(method=METHODS[name], split=split, workers=given.workers, out=str(path), **SETTING)


def _cell(run: fl.Run | None) -> str:
    if run is None:
        return ""
    told = run.summary
    clean = f" ({100 * told['clean_test_accuracy']:.1f})" if "clean_test_accuracy" in told else ""
    return f"{100 * told['test_accuracy']:.1f}{clean} / {100 * told['client_accuracy']['mean']:.1f}"


if __name__ == "__main__":
    main()
