"""FedNN's rows on five kinds of digits, one client a kind: python benchmarks/domains.py

    python benchmarks/domains.py --data $FEDLOOM_DATA/digits5.npz --out runs/domains --rounds 60
    python benchmarks/domains.py --rows fednn --seeds 3           # only rows whose method contains `fednn`
    python benchmarks/domains.py --print                          # the table of what is finished, nothing is run

LeNet, 371 training images a client, 5 local epochs, batch 50, SGD 0.1 * 0.998^round without momentum, weight decay
1e-3, gradients clipped at 10, 2 of 5 clients a round, all test images of all domains together: the setting of FedNN's
Tables 1, 2, 4 and 11, column Digit, except for the rounds (the paper: 200), the domains' images (ours are the file's)
and cohorts of exactly two (the published code draws each client with probability 0.4). Finished runs are kept,
interrupted ones carried on: the same command may be given again. Prints a Markdown table beside the published numbers.
"""

from __future__ import annotations

import argparse
import io
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

import fedloom as fl
from fedloom.io.files import write
from fedloom.papers import table_cells

TRAIN_IMAGES = 371  # a client, as in FedNN
GREY = [0.5, 0.5, 0.5]
SETTING: dict[str, Any] = {
    "model": "lenet",
    "fraction": 0.4,
    "epochs": 5,
    "batch": 50,
    "lr": 0.1,
    "schedule": "exp:0.998",
    "momentum": 0.0,
    "weight_decay": 1e-3,
    "clip": 10.0,
}


@dataclass(frozen=True)
class Row:
    name: str
    method: str
    table: int
    label: str  # of the paper's row

    @property
    def published(self) -> float:
        """Percent; FedNN, column Digit."""
        labels = {"method": self.label, "data": "Digit"}
        return next(c.value for c in table_cells("fednn", f"table{self.table}") if c.labels == labels) or 0.0


def _with(name: str, method: str, label: str) -> tuple[Row, ...]:
    return (
        Row(f"{name}, w/o", method, 1, f"{label}, no norm"),
        Row(f"{name}, GN", f"{method} + norm(kind=gn)", 4, f"{label}(GN)"),
        Row(f"{name} + FedNN", f"{method} + fednn", 4, f"{label}+Ours"),
    )


ROWS = (
    Row("w/o", "fedavg", 2, "FedAvg"),
    Row("WN", "wn", 2, "FedAvg+Ours(w/o AGN)"),
    Row("BN", "norm(kind=bn)", 2, "FedAvg(BN)"),
    Row("GN", "norm(kind=gn)", 2, "FedAvg(GN)"),
    Row("WN + BN", "wn + norm(kind=bn)", 2, "FedAvg(BN)+Ours(w/o AGN)"),
    Row("WN + GN", "wn + norm(kind=gn)", 2, "FedAvg(GN)+Ours(w/o AGN)"),
    Row("FedNN", "fednn", 2, "FedAvg+Ours"),
    *_with("FedProx", "prox(mu=0.001)", "FedProx"),
    *_with("SCAFFOLD", "scaffold", "Scaffold"),
    *_with("FedDyn", "feddyn(alpha=0.01)", "FedDyn"),
    *_with("FedDC", "feddc(alpha=0.01)", "FedDC"),
    Row("FRN", "norm(kind=frn)", 11, "FRN"),
    Row("RBN", "norm(kind=rbn)", 11, "RBN"),
    Row("SN", "norm(kind=sn)", 11, "SN"),
)


def main() -> None:
    arguments = _arguments()
    chosen = [row for row in ROWS if not arguments.rows or any(text in row.method for text in arguments.rows)]
    finished: dict[Row, list[fl.Run]] = {}
    for row in chosen:
        for seed in range(arguments.seeds):
            found = _run(row, seed, arguments)
            if found is not None:
                finished.setdefault(row, []).append(found)
    print(_table(finished))


def _run(row: Row, seed: int, arguments: argparse.Namespace) -> fl.Run | None:
    path = arguments.out / f"{row.method.replace(' ', '')}-{arguments.rounds}-{seed}"
    if (path / "summary.json").exists():
        return fl.Run(path)
    if arguments.print:
        return None
    if path.exists():
        return fl.run(resume=path)
    data = {"name": str(_digits(arguments)), "normalize": [GREY, GREY]}
    where = {"split": arguments.split, "clients": 5, "rounds": arguments.rounds, "eval_every": 10}
    return fl.run(data=data, method=row.method, seed=seed, out=str(path), **where, **SETTING)


def _digits(arguments: argparse.Namespace) -> Path:
    """A file with so many training images of each domain, and all test images."""
    path: Path = arguments.out / f"digits5-{TRAIN_IMAGES}.npz"
    if path.exists():
        return path
    with np.load(arguments.data, allow_pickle=False) as stored:
        x, y, domain, held = (stored[key] for key in ("x", "y", "domain", "is_test"))
        names = stored["domain_names"]
    draw, kept = np.random.default_rng(0), []
    for number in range(len(names)):
        training = np.flatnonzero((domain == number) & (held == 0))
        kept.append(np.sort(draw.choice(training, TRAIN_IMAGES, replace=False)))
    train, test = np.concatenate(kept), np.flatnonzero(held == 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{part}_{key}": value[index]
        for part, index in (("train", train), ("test", test))
        for key, value in (("x", x), ("y", y), ("domain", domain))
    }
    content = io.BytesIO()
    np.savez_compressed(content, domain_names=names, **arrays)
    write(path, content.getvalue())
    return path


def _table(finished: dict[Row, list[fl.Run]]) -> str:
    lines = [
        "| row | method | published (table) | pooled test | mean of domains | last rounds' choice, share of bn |",
        "|---|---|---|---|---|---|",
    ]
    for row, runs in finished.items():
        pooled = [100 * run.summary["test_accuracy"] for run in runs]
        each = [100 * run.summary["client_accuracy"]["mean"] for run in runs]
        selectors = runs[0].rounds[-1].get("selectors", {}).values() if "fednn" in row.method else ()
        choice = ", ".join(f"{shares[0]:.2f}" for shares in selectors)
        lines.append(
            f"| {row.name} | `{row.method}` | {row.published:.2f} ({row.table}) "
            f"| {_spread(pooled)} | {_spread(each)} | {choice} |"
        )
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {pstdev(values):.2f}" if len(values) > 1 else "")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="FedNN's Tables 1, 2, 4 and 11 on five kinds of digits")
    home = Path(os.environ.get("FEDLOOM_DATA", ".")) / "digits5.npz"
    parser.add_argument("--data", type=Path, default=home, help="npz with x, y, domain, is_test, domain_names")
    parser.add_argument("--out", type=Path, default=Path("runs/domains"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", nargs="*", default=[], help="only rows whose method contains one of these texts")
    parser.add_argument("--split", default="domains")
    parser.add_argument("--print", action="store_true", help="run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
