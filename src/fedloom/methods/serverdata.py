"""Data on the server (FedBABU, Oh et al. 2022, Table 2): after every aggregation the server trains on a share of all data.

    w <- average of the uploads;  then one epoch of SGD on a fixed random share p of all clients' training samples

with the round's learning rate and the method's loss, on the whole net or on the body (the head keeps the averaged
values; normalizers train with the body). The clients keep the samples that the server has. FedBABU's Table 2
(CIFAR-100, MobileNet, f = 0.1, 10 epochs) has p = 0.05 and 0.10 for s = 100, 50 and 10. Training the whole net raises
the accuracy before fine-tuning in five of the six cells (s = 10: 14.40 to 18.22 and 19.24), but lowers it after
fine-tuning where clients differ most (s = 10: 62.67 to 54.68 and 49.62). Training the body is better than the whole
net after fine-tuning in all six cells (s = 10: 60.19 and 60.94); before fine-tuning it is better in three of six, and
worse for s = 10 (14.78 and 18.35).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedloom.methods.api.context import ClientContext, Phase, TrainSpec
from fedloom.methods.api.hyperparameters import Count
from fedloom.methods.api.part import Part
from fedloom.weights import BEFORE_HEAD


class ServerData(Part):
    """The server trains on a share of all data after every aggregation."""

    name: ClassVar[str] = "server-data"
    paper = "Oh et al. 2022, FedBABU (Table 2)"
    work = "training on the server, on one worker"
    central_data = "some"
    sums = "shares"  # it trains the average
    variants: ClassVar[frozenset[str]] = frozenset({"update"})
    share: float = Field(0.05, gt=0, le=1)
    """share of all training samples that the server has"""
    epochs: Count = 1
    """epochs on the server per round"""
    update: Literal["full", "body"] = "full"
    """what is trained: full | body"""

    def server_training(self, client: ClientContext) -> None:
        regions = () if self.update == "full" else BEFORE_HEAD
        data = client.pooled_sample(self.share)
        client.train(TrainSpec((Phase(self.epochs, regions),), data=data, loss=lambda batch, _: client.loss(batch)))
