"""Every method on CIFAR-10: accuracy, megabytes and seconds a round.

    python benchmarks/methods.py accuracy --out runs/methods     # LeNet, 20 clients x 500 images, two splits; resumable
    python benchmarks/methods.py seconds                         # a few rounds of each, in turns, relative to FedAvg
    python benchmarks/methods.py digits                          # all of them on the bundled digits
    python benchmarks/methods.py personal                        # own models on the digits, processor time and bytes

Accuracy is that of the last round on the 10,000 test images. Rates are not tuned: without momentum, ten times those that
FedDr+ lists for each family of losses on CIFAR-10 with momentum 0.9, so that the effective step is the same; for
cross-entropy that is the 0.1 which FedDC and FedNN use for LeNet. Dot-regression with distillation diverges in its first
round at ten times 0.35; it has the best of 0.35, 1 and 3 on images held back for validation (`rates`). Timings are ratios
within one turn, since machines are noisy. `--share 0/2` and `--share 1/2` divide the work
between two processes; a last call without it prints the whole table.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedloom as fl
from fedloom.runs.run import resume

CIFAR: dict[str, Any] = {
    "data": {"name": "cifar10", "images": 10_000},
    "clients": 20,
    "model": "lenet",
    "rounds": 30,
    "fraction": 0.2,
    "batch": 50,
    "momentum": 0.0,
    "schedule": "cosine",
    "eval_every": 0,
    "deploy": {"min_cohort": 0},  # a method that collapses keeps its last weights
}
DIGITS: dict[str, Any] = {"split": "shards:2", "clients": 20, "model": "mlp", "rounds": 30, "eval_every": 0}
SPLITS = ("shards:2", "dirichlet:0.3")


@dataclass(frozen=True)
class Row:
    """A method with what it needs beside the common recipe."""

    method: str
    family: str = "ce"  # whose rate it takes
    fields: dict[str, Any] = field(default_factory=dict)


PUBLIC = {"data": {"name": "cifar10", "images": 10_000, "public": 0.02}}  # 1,000 images that nobody holds
HELD = {"data": {"name": "cifar10", "images": 10_000, "validation": 0.02}}
ROWS = [
    Row("fedavg"),
    Row("local"),
    Row("prox(mu=0.01)"),
    Row("scaffold"),
    Row("nova"),
    Row("exp"),
    Row("feddyn"),
    Row("feddc"),
    Row("moon"),
    Row("moon(projection=256)"),
    Row("ntd"),
    Row("kd"),
    Row("ld"),
    Row("fr"),
    Row("fedsol"),
    Row("fedsol(rho=0.1)"),
    Row("babu"),
    Row("fn", "fn"),
    Row("sphere", "sphere"),
    Row("sphere(loss=mse, calibrate=true)", "mse"),
    Row("etf", "etf"),
    Row("gela"),
    Row("dr", "dr"),
    Row("dr + fd", "dr"),
    Row("feddf(steps=20)", fields=PUBLIC),
    Row("fedgen(alpha=1, beta=1)"),
    Row("fedftg(iterations=1)"),
    Row("server-data(share=0.05)"),
    Row("fnr(epochs=1, bounded=false)"),
    Row("fnr(epochs=1, mode=as_published)", fields=HELD),
    Row("wn + agn"),
    Row("median"),
    Row("trimmed"),
    Row("clipped(largest=1.0)"),
    Row("dp(clip=1.0, noise=0.1)"),
    Row("fedrs"),
    Row("fedlc"),
    Row("decorr"),
    Row("feduv"),
    Row("fedrcl"),
    Row("ccvr"),
    Row("fedproto"),
    Row("sam"),
    Row("fedlesam"),
    Row("fedcm"),
    Row("mofedsam"),
    Row("fedspeed"),
    Row("fedacg"),
    Row("disco"),
    Row("krum"),
    Row("multikrum"),
    Row("rfa"),
    Row("cclip"),
    Row("scaffold + fn", "fn"),
    Row("feddyn + babu"),
    Row("sphere + kd", "sphere"),
    Row("exp + wn + agn"),
    Row("central"),
]
PERSONAL = {  # methods whose aim is each client's own model, with their rates on the digits
    **dict.fromkeys(("fedavg", "ditto", "fedper", "pfedme"), 0.1),
    "pfedme(lam=1)": 0.5,
    **dict.fromkeys(("apfl", "fedrod", "fedpac", "fedala", "fedas", "feddbe(kappa=1)"), 0.1),
    "pfedfda": 0.01,
}
# Ten times FedDr+'s for CIFAR-10 (dr: once); on digits FedAvg's 0.1 suits cross-entropy, and the others keep their ratio to it.
RATES = {"ce": 0.1, "fn": 0.3, "sphere": 3.0, "mse": 5.5, "etf": 0.5, "dr": 0.35}
DIGIT_RATES = {"ce": 0.1, "fn": 0.3, "sphere": 1.0, "mse": 1.0, "etf": 0.3, "dr": 1.0}
GRID = {
    "ce": ("fedavg", (0.01, 0.03, 0.1)),
    "fn": ("fn", (0.03, 0.1, 0.3)),
    "sphere": ("sphere", (0.3, 1.0, 3.0)),
    "mse": ("sphere(loss=mse)", (0.55, 1.65, 5.0)),
    "etf": ("etf", (0.05, 0.15, 0.5)),
    "dr": ("dr + fd", (0.35, 1.0, 3.0)),
}


def go(out: Path, **recipe: Any) -> fl.Run:
    """Run, carry on, or read."""
    return resume(out) if (out / "recipe.yaml").exists() else fl.run(**recipe, out=str(out))


def name(row: Row, split: str) -> str:
    return f"{row.method} {split}".replace(" ", "")


def accuracy(root: Path, rows: list[Row], rounds: int, workers: int | str) -> None:
    table: dict[str, list[str]] = {}
    for row in rows:
        for split in SPLITS:
            recipe = {**CIFAR, **row.fields, "split": split, "method": row.method, "lr": RATES[row.family]}
            try:
                run = go(root / name(row, split), **{**recipe, "rounds": rounds, "workers": workers})
            except fl.FedloomError as error:
                print(f"{row.method}, {split}: {error}", flush=True)
                table.setdefault(row.method, []).append("–")
                continue
            s = run.summary
            mine = s.get("personal_accuracy", s["client_accuracy"])["mean"]
            traffic = (s["bytes_down"] + s["bytes_up"]) / s["rounds"] / 1e6
            cells = table.setdefault(row.method, [f"{RATES[row.family]:g}", f"{traffic:.2f}"])
            cells += [f"{100 * s['test_accuracy']:.1f}", f"{100 * mine:.1f}"]
            print(row.method, split, *cells, flush=True)
    print(f"\n| method | lr | MB a round | {' | '.join(f'{s} | its clients' for s in SPLITS)} |")
    print("|---|" + "--:|" * (2 + 2 * len(SPLITS)))
    for method, cells in table.items():
        print(f"| `{method}` | {' | '.join(cells)} |")


def digits(root: Path, rows: list[Row]) -> None:
    print("| method | untrained | trained |\n|---|--:|--:|")
    for row in rows:
        data = {**row.fields.get("data", {}), "name": "digits"}
        data.pop("images", None)
        if "public" in data:
            data["public"] = 0.1
        if "validation" in data:
            data["validation"] = 0.1
        recipe = {**DIGITS, "data": data, "method": row.method, "lr": DIGIT_RATES[row.family]}
        if "wn" in row.method:
            recipe |= {"model": "cnn", "lr": 0.03}  # there must be convolutions
        first = go(root / f"digits-{name(row, 'first')}", **{**recipe, "rounds": 1, "lr": 1e-9})
        run = go(root / f"digits-{name(row, 'shards')}", **recipe)
        print(f"| `{row.method}` | {_percent(first)} | {_percent(run)} |", flush=True)


def _percent(run: fl.Run) -> str:
    return f"{100 * run.summary['test_accuracy']:.1f}"


def seconds(rows: list[Row], turns: int, rounds: int) -> None:
    """Every method a few rounds, all of them in each turn; the fastest round of each, over FedAvg's of the turn."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            base = 0.0
            for row in rows:
                recipe = {**CIFAR, **row.fields, "split": "shards:2", "method": row.method, "lr": RATES[row.family]}
                run = fl.run(**{**recipe, "rounds": rounds, "schedule": "constant", "out": f"{folder}/{turn}"})
                spent = min(line["seconds"] for line in run.rounds)
                shutil.rmtree(run.path)
                base = base or spent
                found.setdefault(row.method, []).append(spent / base)
                print(f"turn {turn + 1}: {row.method} {spent:.2f} s", flush=True)
    print("\n| method | seconds relative to FedAvg |\n|---|--:|")
    for method, ratios in found.items():
        print(f"| `{method}` | {statistics.median(ratios):.2f} |")


def personal() -> None:
    """Own and global models, and the processor time of a round: that of 30 rounds less that of one, of all processes."""
    rows: dict[str, tuple[float, float, float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        fl.run(**{**DIGITS, "rounds": 1, "workers": 1, "out": f"{folder}/first"})  # what is slow only once
        for place, (method, lr) in enumerate(PERSONAL.items()):
            used = []
            for rounds in (1, DIGITS["rounds"]):
                recipe = {**DIGITS, "method": method, "lr": lr, "rounds": rounds, "workers": 1}
                before = _processor_seconds()
                run = fl.run(**{**recipe, "out": f"{folder}/{place}-{rounds}"})
                used.append(_processor_seconds() - before)
            s = run.summary
            own = s.get("personal_accuracy", s["client_accuracy"])["mean"]
            rows[method] = own, s["test_accuracy"], used[1] - used[0], s["bytes_down"] + s["bytes_up"]
    print("| method | lr | own model | global model | CPU time | bytes |\n|---|--:|--:|--:|--:|--:|")
    base = rows["fedavg"]
    for method, (own, common, spent, sent) in rows.items():
        cells = f"{100 * own:.1f} | {100 * common:.1f} | {spent / base[2]:.1f} | {sent / base[3]:.2f}"
        print(f"| `{method}` | {PERSONAL[method]:g} | {cells} |")


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def rates(root: Path) -> None:
    for family, (method, choices) in GRID.items():
        for lr in choices:
            data = {"name": "cifar10", "images": 10_000, "validation": 0.02}
            recipe = {**CIFAR, "data": data, "split": "shards:2", "method": method, "lr": lr, "rounds": 15}
            run = go(root / f"rate-{family}-{lr:g}", **recipe)
            print(family, lr, run.summary["best_by_validation"]["validation_accuracy"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "seconds", "digits", "personal", "rates"))
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--only", help="methods to take, with semicolons between; all by default")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--share", default="0/1", help="K/N: every N-th method, beginning with the K-th")
    parser.add_argument("--workers", default="auto", type=lambda text: int(text) if text.isdigit() else text)
    given = parser.parse_args()
    first, _, step = given.share.partition("/")
    only = [text.strip() for text in given.only.split(";")] if given.only else []
    rows = [row for row in ROWS if not only or row.method in only][int(first) :: int(step)]
    if given.what == "accuracy":
        accuracy(given.out, rows, given.rounds or CIFAR["rounds"], given.workers)
    elif given.what == "digits":
        digits(given.out, rows)
    elif given.what == "personal":
        personal()
    elif given.what == "rates":
        rates(given.out)
    else:
        seconds(rows, given.turns, given.rounds or 2)


if __name__ == "__main__":
    main()
