"""FedAvg as one would write it by hand in PyTorch."""

import time

import torch
from job import Assignment, report


def main() -> None:
    job = Assignment.read()
    net = job.build()
    weights = {name: w.clone() for name, w in net.state_dict().items()}
    sizes = [len(y) for y in job.train[1]]
    seconds = []
    for _ in range(job.rounds):
        start = time.perf_counter()
        cohort = torch.randperm(job.clients)[: job.cohort].tolist()
        total = sum(sizes[k] for k in cohort)
        mean = {name: torch.zeros_like(w) for name, w in weights.items()}
        for k in cohort:
            net.load_state_dict(weights)
            job.train_client(net, k)
            for name, w in net.state_dict().items():
                mean[name].add_(w, alpha=sizes[k] / total)
        weights = mean
        seconds.append(time.perf_counter() - start)
    net.load_state_dict(weights)
    report("torch", seconds, net, job.accuracy(net))


if __name__ == "__main__":
    main()
