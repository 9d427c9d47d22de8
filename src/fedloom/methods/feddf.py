"""FedDF (Lin et al., NeurIPS 2020): the server distills the clients' models into their average, on unlabeled samples.

    w <- average of the uploads;  then minimize  T^2 KL( softmax(zbar / T) || softmax(z / T) ),   zbar = mean_i z_i

over batches of public samples, with Adam and a cosine learning-rate schedule. Logits are averaged before the softmax,
with equal weights; teachers are in evaluation mode. With validation samples (`data.validation`), accuracy is measured
every 100 steps, training stops after `patience` steps without improvement, and the best weights are kept; otherwise
all steps are made.

Public samples are `data.public`, a share of the training samples that no client holds and whose labels are not used,
or those of another data set (`data.public_from`); never test samples.

Defaults from the paper and its code: T = 1, 10,000 steps of 128 samples, Adam at 1e-3, patience 1,000. On a small
machine use `steps` in the hundreds: every step is a forward and a backward pass of 128 samples.
Departures: teachers are not dropped by their validation accuracy (`drop_worst` of the code); the factor T^2, 1 by
default, keeps gradients comparable between temperatures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.api.context import Batch, ClientContext, Phase, RunPlan, TrainSchedule, TrainSpec
from fedloom.methods.api.hyperparameters import Count, Positive
from fedloom.methods.api.part import Part


class FedDF(Part):
    """The server distills the uploads into their average on unlabeled public data."""

    paper = "Lin et al. 2020, FedDF"
    work = "training on the server, on one worker"
    steps: Count = 10_000
    """distillation steps per round, at most"""
    batch: Count = 128
    """public samples per step"""
    lr: Positive = 1e-3
    """learning rate of Adam"""
    temperature: Positive = 1.0
    """temperature of the distillation"""
    patience: Count = 1_000
    """steps without improvement on validation samples before it stops"""

    def check(self, plan: RunPlan) -> None:
        if not plan.task.public:
            raise FedloomError(
                "it distills on public samples, which no client holds; set data.public to a share of the training samples, "
                "or data.public_from to another set"
            )

    def server_training(self, client: ClientContext) -> None:
        pieces = []
        with torch.no_grad():
            for images in client.iterate("public"):
                pieces.append(torch.stack([peer.logits(images.x) for peer in client.peers]).mean(0))
        targets = F.softmax(torch.cat(pieces) / self.temperature, dim=1)  # (N, C)

        def distance(batch: Batch, _: ClientContext) -> Tensor:
            log_probabilities = F.log_softmax(batch.logits / self.temperature, dim=1)
            return self.temperature**2 * F.kl_div(log_probabilities, targets[batch.index], reduction="batchmean")

        schedule = TrainSchedule(
            self.steps,
            "adam",
            batch=self.batch,
            weight_decay=0.0,
            cosine=True,
            patience=self.patience if client.task.held else 0,
        )
        client.train(TrainSpec((Phase(1),), lr=self.lr, data="public", loss=distance, schedule=schedule))
