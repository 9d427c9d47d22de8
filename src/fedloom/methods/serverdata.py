"""Data on the server (FedBABU, Oh et al. 2022, Table 2): after every average the server trains on a share of all data.

    w <- average of the uploads;  then one epoch of SGD on a fixed random share p of all clients' training images

with the round's rate and the method's own objective, of the whole net or of the body alone (the head keeps the averaged
values). FedBABU's Table 2 (CIFAR-100, MobileNet, f = 0.1, 10 epochs) has p = 0.05 and 0.10 for s = 100, 50 and 10. Training
the whole net raises the accuracy before fine-tuning in five of the six cells (s = 10: 14.40 to 18.22 and 19.24), but lowers
that after fine-tuning where clients differ most (s = 10: 62.67 to 54.68 and 49.62). Training the body alone is better than
the whole net after fine-tuning in all six cells (s = 10: 60.19 and 60.94); before fine-tuning it is better in three of six,
and worse for s = 10 (14.78 and 18.35). The clients keep the images that the server has. Normalizer parameters go with the
body.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedloom.methods.part import Count, Part
from fedloom.methods.seen import Client


class ServerData(Part):
    """The server trains on a share of all data after every average."""

    name: ClassVar[str] = "server-data"
    paper = "Oh et al. 2022, FedBABU (Table 2)"
    gathers: ClassVar[bool] = True
    sums = "shares"  # the server trains the average
    variants: ClassVar[frozenset[str]] = frozenset({"update"})
    share: float = Field(0.05, gt=0, le=1)
    epochs: Count = 1
    update: Literal["full", "body"] = "full"

    def refine(self, client: Client) -> None:
        regions = () if self.update == "full" else ("body", "norm")
        data = client.share(self.share)
        client.train(self.epochs, regions=regions, data=data, objective=lambda batch: batch.objective())
