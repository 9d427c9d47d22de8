"""What every contender is told, the data it trains on, and what it reports back.

The driver puts a job into the environment, where replica processes of a framework find it too.
"""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import numpy as np
import torch
from nets import NETS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

LR, MOMENTUM = 0.05, 0.9


@dataclass(frozen=True)
class Assignment:
    net: str
    data: str  # an .npz with train_x, train_y, test_x, test_y
    clients: int
    cohort: int
    batch: int
    epochs: int
    rounds: int  # the first one is a warm-up
    processes: int
    threads: int  # of each process
    channels_last: bool
    precision: str
    vmap: str  # fedloom's setting
    scratch: str  # a folder that the driver removes

    @staticmethod
    def read() -> "Assignment":
        job = Assignment(**json.loads(os.environ["PEER_JOB"]))
        torch.set_num_threads(job.threads)
        torch.manual_seed(0)
        return job

    def build(self) -> nn.Module:
        return self.arrange(NETS[self.net]())

    def arrange(self, net: nn.Module) -> nn.Module:
        return net.to(memory_format=torch.channels_last) if self.channels_last else net  # type: ignore[call-overload]

    @cached_property
    def train(self) -> tuple[Tensor, Tensor]:
        """Images (client, sample, C, H, W) and labels (client, sample), normalized once: cheaper than in each batch."""
        with np.load(self.data) as file:
            owners = np.random.default_rng(0).permutation(len(file["train_y"]))
            x, y = self.normalize(file["train_x"][owners]), torch.from_numpy(file["train_y"][owners])
        return x.unflatten(0, (self.clients, -1)), y.unflatten(0, (self.clients, -1))

    def client(self, which: int) -> tuple[Tensor, Tensor]:
        """A client's samples in a new random order."""
        x, y = self.train
        order = torch.randperm(y.shape[1])
        return x[which][order], y[which][order]

    def normalize(self, images: np.ndarray) -> Tensor:
        x = torch.from_numpy(images).float().div_(255)
        x = x.sub_(x.mean((0, 1, 2))).div_(x.std((0, 1, 2))).permute(0, 3, 1, 2)
        return x if self.channels_last else x.contiguous()

    def train_client(self, net: nn.Module, which: int) -> None:
        """The local epochs, for the frameworks that leave the loop to their user."""
        optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
        for _ in range(self.epochs):
            for x, y in zip(*(part.split(self.batch) for part in self.client(which)), strict=True):
                optimizer.zero_grad()
                cross_entropy(net(x), y).backward()
                optimizer.step()

    @torch.no_grad()
    def accuracy(self, net: nn.Module) -> float:
        """On the few test images, only to show that training happened."""
        with np.load(self.data) as file:
            x, y = self.normalize(file["test_x"]), torch.from_numpy(file["test_y"])
        return float((net(x).argmax(1) == y).float().mean())


def report(package: str, seconds: list[float], net: nn.Module, accuracy: float) -> None:
    parameters = sum(p.numel() for p in net.parameters())
    print_result(package, seconds, parameters, accuracy)


def print_result(package: str, seconds: list[float], parameters: int, accuracy: float) -> None:
    versions = {name: version(name) for name in dict.fromkeys([package, "torch"])}
    result = {"seconds": seconds, "parameters": parameters, "accuracy": accuracy, "versions": versions}
    print("\n" + json.dumps(result), flush=True)
