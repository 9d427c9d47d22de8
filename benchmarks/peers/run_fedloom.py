"""FedAvg in fedloom."""

from job import LR, MOMENTUM, Assignment, print_result

import fedloom as fl


def main() -> None:
    job = Assignment.read()
    run = fl.run(
        data=job.data,
        split="iid",
        clients=job.clients,
        model=job.net,
        method="fedavg",
        rounds=job.rounds,
        fraction=job.cohort / job.clients,
        epochs=job.epochs,
        batch=job.batch,
        lr=LR,
        momentum=MOMENTUM,
        eval_every=0,
        bn="batch",
        workers="auto",
        precision=job.precision,
        vmap=job.vmap,
        out=f"{job.scratch}/run",
    )
    seconds = [entry["seconds"] for entry in run.rounds]
    print_result("fedloom", seconds, sum(w.numel() for w in run.weights.values()), run.summary["test_accuracy"])


if __name__ == "__main__":
    main()
