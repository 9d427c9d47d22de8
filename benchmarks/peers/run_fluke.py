"""FedAvg in fluke: its own clients, server and round loop, one client after the other in this process."""

import time
from itertools import pairwise

import load_fluke  # noqa: F401  (first)
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from job import LR, MOMENTUM, Assignment, report
from torch import nn


class Clock(FederationObserver):
    def __init__(self) -> None:
        self.marks = [time.perf_counter()]

    def end_round(self, round: int) -> None:
        self.marks.append(time.perf_counter())


def main() -> None:
    job = Assignment.read()
    net = job.build()
    FlukeENV().set_seed(0)
    FlukeENV().set_eval_cfg(server=False)  # clients are not evaluated by default
    images, labels = job.train
    clients = [
        Client(
            index=which,
            train_set=FastDataLoader(x, y, num_labels=10, batch_size=job.batch, shuffle=True, skip_singleton=False),
            test_set=None,
            optimizer_cfg=OptimizerConfigurator(DDict(name="SGD", lr=LR, momentum=MOMENTUM)),
            loss_fn=nn.CrossEntropyLoss(),
            local_epochs=job.epochs,
            persistency=False,  # momentum starts at zero in every round
        )
        for which, (x, y) in enumerate(zip(images, labels, strict=True))
    ]
    server = Server(model=net, test_set=None, clients=clients, weighted=True)
    algorithm = FedAVG(job.clients, None, DDict(), clients=clients, server=server)
    clock = Clock()
    algorithm.set_callbacks([clock])
    algorithm.run(job.rounds, job.cohort / job.clients)
    report("fluke-fl", [b - a for a, b in pairwise(clock.marks)], net, job.accuracy(server.model))


if __name__ == "__main__":
    main()
