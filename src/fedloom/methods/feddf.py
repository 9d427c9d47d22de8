"""FedDF (Lin et al., NeurIPS 2020): the server distils the clients' models into their average, on unlabelled images.

    w <- average of the uploads;  then minimise  T^2 KL( softmax(zbar / T) || softmax(z / T) ),   zbar = mean_i z_i

over batches of images that belong to no client, with Adam and a rate that falls along a cosine. Logits are averaged before
the softmax, evenly over the clients; teachers are in the mode that evaluation uses. Where images are held back for
validation (`data.validation`), their accuracy is taken every 100 steps, training ends after `patience` steps without a gain
and the best weights are kept; else all steps are made.

The images are `data.public`, a share of the training images that is held back from the clients, whose labels are not looked
at, or those of another set (`data.public_from`); never test images.

Defaults from the paper and its code: T = 1, 10,000 steps of 128 images, Adam at 1e-3, patience 1,000. On a small machine
`steps` in the hundreds is what is bearable: every step is a forward and a backward pass of 128 images.
Departures: teachers are not dropped by their validation accuracy (`drop_worst` of the code); the factor T^2, which is 1
by default, keeps gradients alike between temperatures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.part import Count, Part, Positive
from fedloom.methods.seen import Batch, Client, Course, Task
from fedloom.nets import Net


class FedDF(Part):
    """The server distils the uploads into their average on unlabelled images."""

    paper = "Lin et al. 2020, FedDF"
    steps: Count = 10_000
    batch: Count = 128
    lr: Positive = 1e-3
    temperature: Positive = 1.0
    patience: Count = 1_000

    def build(self, net: Net, task: Task) -> Net:
        if not task.public:
            raise FedloomError(
                "it distils on images that belong to no client; set data.public to a share of the training images, "
                "or data.public_from to another set"
            )
        return net

    def refine(self, client: Client) -> None:
        pieces = []
        with torch.no_grad():
            for images in client.over("public"):
                pieces.append(torch.stack([peer.logits(images.x) for peer in client.peers]).mean(0))
        targets = F.softmax(torch.cat(pieces) / self.temperature, dim=1)  # (N, C)

        def distance(batch: Batch) -> Tensor:
            said = F.log_softmax(batch.logits / self.temperature, dim=1)
            return self.temperature**2 * F.kl_div(said, targets[batch.index], reduction="batchmean")

        course = Course(
            self.steps,
            "adam",
            batch=self.batch,
            weight_decay=0.0,
            falling=True,
            patience=self.patience if client.task.held else 0,
        )
        client.train(1, lr=self.lr, data="public", objective=distance, course=course)
