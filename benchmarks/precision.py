"""bfloat16 against float32 over seeds: python benchmarks/precision.py --out runs/precision

LeNet on CIFAR-10 ($FEDLOOM_DATA/cifar10.npz), the same seeds in both precisions: same clients, cohorts, batches and first
weights. The same command carries on after an interruption; finished runs are read. Prints accuracy after the last round,
mean and deviation over seeds, and the difference seed by seed with its standard error. Processors without bfloat16
instructions are some ten times slower with it, so the default is small: 10 clients of 500 images each.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

import fedloom as fl


def accuracy(place: Path, precision: str, seed: int, options: argparse.Namespace) -> float:
    folder = place / f"{options.model}-{precision}-seed{seed}"
    if (folder / "recipe.yaml").exists():
        run = fl.run(resume=folder)
    else:
        run = fl.run(
            data={"name": options.data, "images": options.images},
            split="iid",
            clients=options.clients,
            fraction=0.5,
            model=options.model,
            rounds=options.rounds,
            epochs=options.epochs,
            batch=50,
            lr=0.01,
            momentum=0.9,
            augment="crop+flip",
            precision=precision,
            seed=seed,
            eval_every=0,
            out=str(folder),
        )
    if (run.recipe.rounds, run.recipe.data.images) != (options.rounds, options.images):
        raise SystemExit(f"{folder} holds a run of other settings; choose another --out")
    found = float(run.summary["test_accuracy"])
    seconds = run.summary["seconds"] / run.summary["rounds"]
    print(f"{precision} seed {seed}: {100 * found:.2f} %, {seconds:.2f} s a round", flush=True)
    return found


def told(values: list[float]) -> str:
    return f"{100 * fmean(values):.2f} ± {100 * (stdev(values) if len(values) > 1 else 0):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/precision"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=5000, help="training images that are dealt out")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for seed in range(options.seeds):
        for precision, values in found.items():
            values.append(accuracy(options.out, precision, seed, options))
    differences = [b - a for a, b in zip(found["fp32"], found["bf16"], strict=True)]
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
    print(f"{'':12} accuracy in %, {options.seeds} seeds")
    for precision, values in found.items():
        print(f"{precision:12} {told(values)}")
    print(f"{'bf16 - fp32':12} {100 * fmean(differences):+.2f}, standard error {100 * error:.2f}")


if __name__ == "__main__":
    main()
