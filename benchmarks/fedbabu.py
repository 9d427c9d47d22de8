"""FedBABU's question on its own ground: does a better global model make a better start for personal ones?

    FEDLOOM_DATA=folder/of/cifar100.npz python benchmarks/fedbabu.py --rounds 40

CIFAR-100, MobileNet, 100 clients, shards:10, a tenth of them a round, one local epoch, batch 50, rate 0.1 with steps, batch
normalization by the test batch: FedBABU's setting (Oh et al., ICLR 2022) but for the number of rounds, the same for both
methods. Then every client fine-tunes all weights for 0 to 10 epochs at rate 0.001. What is done already in --out is not done
again, so it may be stopped and started at any moment. A quick look: --rounds 1 --tune-clients 4 --tune-epochs 2.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import fedloom as fl
from fedloom.errors import FedloomError
from fedloom.papers import table_cells


def printed(table: str, **labels: str) -> tuple[float, float]:
    """Mean and deviation of a cell of the paper."""
    (cell,) = (cell for cell in table_cells("fedbabu", table) if cell.labels == labels)
    return cell.value or 0.0, cell.deviation or 0.0


METHODS = {"FedAvg": "fedavg", "FedBABU": "fedbabu"}
# Printed numbers, mean ± deviation over clients, s = 10 and f = 0.1. One local epoch (320 rounds), tables 1 and 4:
INITIAL = {"FedAvg": printed("table1", f="0.1", tau="1", s="10", metric="initial")}
PERSONAL = {  # after 5 epochs
    name: printed("table4", s="10", f="0.1", tau="1", method=label)
    for name, label in {"FedAvg": "FedAvg-FT", "FedBABU": "FedBABU"}.items()
}
# Table 5, ten local epochs (32 rounds), by epochs of fine-tuning:
SPEED = {
    name: {epochs: printed("table5", s="10", method=name, epochs=str(epochs))[0] for epochs in (0, 1, 2, 3, 4, 5, 10)}
    for name in METHODS
}


def train(method: str, rounds: int, out: Path, workers: str, seed: int) -> fl.Run:
    if (out / "recipe.yaml").exists():
        if fl.run(resume=out, workers=workers).recipe.rounds != rounds:
            raise FedloomError(f"{out} holds a run of another length; choose another --out")
        return fl.Run(out)
    return fl.run(
        data="cifar100",
        split="shards:10",
        clients=100,
        fraction=0.1,
        model="mobilenet",
        method=method,
        rounds=rounds,
        epochs=1,
        batch=50,
        lr=0.1,
        momentum=0.9,
        schedule="step",
        weighting="uniform",
        augment="crop+flip",
        bn="batch",
        eval_batch=100,
        eval_every=0,
        workers=workers,
        seed=seed,
        out=str(out),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="of each method; FedBABU has 320")
    parser.add_argument("--tune-epochs", type=int, default=10)
    parser.add_argument("--tune-clients", type=int, help="fine-tune only so many clients, the same for both methods")
    parser.add_argument("--lr", type=float, default=0.001, help="of fine-tuning")
    parser.add_argument("--part", default="full", choices=("full", "head", "body"))
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/fedbabu"))
    given = parser.parse_args()
    try:
        show(given)
    except FedloomError as error:
        parser.exit(2, f"error: {error}\n")


def show(given: argparse.Namespace) -> None:
    found = {}
    for name, method in METHODS.items():
        began = time.perf_counter()
        run = train(method, given.rounds, given.out / f"{method}-{given.rounds}", given.workers, given.seed)
        print(f"{name}: {given.rounds} rounds, {run.summary['seconds']:.0f} s; {run.path}", flush=True)
        tuning = fl.FineTuning(given.part, given.tune_epochs, given.lr)
        (found[name],) = fl.personalize_run(run, [tuning], sample=given.tune_clients)
        print(f"{name}: fine-tuned, {time.perf_counter() - began:.0f} s in all", flush=True)
    epochs = range(given.tune_epochs + 1)
    looked = found["FedAvg"].initial["clients"]
    print(
        f"\naccuracy in % on clients' own test sets by epochs of fine-tuning ({given.part}, lr {given.lr:g}, {looked} clients)"
    )
    print(f"{'':42}" + "".join(f"{epoch:>13}" for epoch in epochs))
    for name, outcome in found.items():
        cells = (f"{100 * row['mean']:.2f} ± {100 * row['std']:.2f}" for row in outcome.curve)
        print(f"{f'{name}, here, {given.rounds} rounds of 1 epoch':42}" + "".join(f"{cell:>13}" for cell in cells))
    for name, (mean, deviation) in PERSONAL.items():
        cells = {5: f"{mean:.2f} ± {deviation:.2f}"}
        if name in INITIAL:
            cells[0] = "{:.2f} ± {:.2f}".format(*INITIAL[name])
        print(f"{f'{name}, tables 1 and 4, 320 rounds of 1':42}" + "".join(f"{cells.get(e, '.'):>13}" for e in epochs))
    for name, row in SPEED.items():
        told = {epoch: f"{value:.2f}" for epoch, value in row.items()}
        print(f"{f'{name}, table 5, 32 rounds of 10':42}" + "".join(f"{told.get(e, '.'):>13}" for e in epochs))
    print("\nclasses that a client never saw, before and after fine-tuning:")
    for name, outcome in found.items():
        before, after = outcome.unseen
        print(f"{name:10} {100 * before['mean']:.2f} → {100 * after['mean']:.2f}")
    print("\nFedBABU's claims, here:")
    one, other = found["FedAvg"].curve, found["FedBABU"].curve
    last = len(one) - 1
    first = min(1, last)
    claims = {
        "fine-tuning gains far more than the global model is worth (FedAvg)": one[last]["mean"] > 2 * one[0]["mean"],
        "FedBABU's personal models are better than FedAvg's": other[last]["mean"] > one[last]["mean"],
        "FedBABU personalizes faster (after one epoch)": other[first]["mean"] > one[first]["mean"],
        "FedBABU's global model is better on clients' test sets": other[0]["mean"] > one[0]["mean"],
    }
    for claim, holds in claims.items():
        print(f"  {'holds' if holds else 'does not hold':14} {claim}")


if __name__ == "__main__":
    main()
