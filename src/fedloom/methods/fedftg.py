"""FedFTG (Zhang et al., CVPR 2022): the server fine-tunes the average on generated images that are hard for it.

After the average w, `iterations` times: sample labels y in proportion to the cohort's pooled class counts, and noise
e. For every client i in turn, one Adam step of the generator G minimizes

    mean_y a_i(y) [ CE(z_i, y) - |z - z_i|_1 / C ]  +  exp(-mean_jk |e_j - e_k|^2 |G_j - G_k|) / |S|

where z and z_i are logits of w and of the upload w_i on G(e, y), and a_i(y) = n_i^y / sum_j n_j^y comes from uploaded
class counts: images that the teacher knows, on which the global model differs from it, and that are diverse. Then
`student_steps` steps of plain SGD on w minimize the cross-entropy to the class-wise ensemble on those images:

    -1/C mean_y sum_c p_c log softmax(z)_c,    p = sum_i a_i(y) softmax(z_i)

The factors 1/C are those of the authors' code, which averages over classes too; its learning rates were tuned with
them. The fine-tuned w is broadcast next. The generator is server state.

Defaults of the authors' code: 10 iterations, 1 generator step for each client, 5 student steps, learning rates 0.01
(Adam, new in every round) and 0.1 (SGD), both multiplied by 0.998 per round, noise 100 (256 for CIFAR-100), width 64,
batch 50; the student's weight decay is the recipe's. The generator's normalizers use batch statistics while it learns
and running statistics when it teaches. Its images have mean 0 and deviation 1 in every channel, as real ones under
`data.normalize: set`.

Departures: the code multiplies the batch's mean cross-entropy by a_i(y), here each sample is weighted; in the code
the first distance reaches the generator through z only, here through z_i as well, as in the equation; labels are
sampled in proportion, the code uses exact numbers; running statistics of the net's own normalizers (the authors' nets
have none) stay the clients'. Every round costs iterations * |S| passes through generator, w and w_i: with the
defaults far more than the clients' training.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.api.context import Batch, ClientContext, Peer, Phase, TaskInfo, Tensors, TrainSchedule, TrainSpec
from fedloom.methods.api.hyperparameters import Count, NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.common.generator import Flat, class_shares, draw_labels, similarity
from fedloom.nets.layers.generators import ImageGenerator

DECAY = 0.998


class FedFTG(Part):
    """The server fine-tunes the average on generated images that are hard for it."""

    paper = "Zhang et al. 2022, FedFTG"
    work = "training on the server, on one worker"
    iterations: Annotated[int, Field(ge=0)] = 10
    """times that generator and model are trained per round"""
    student_steps: Count = 5
    """steps of the model per iteration"""
    batch: Annotated[int, Field(ge=2)] = 50
    """generated images per step"""
    generator_lr: Positive = 0.01
    """learning rate of the generator"""
    lr: NonNegative = 0.1
    """learning rate of the model on the server; 0: it is not trained"""
    hard: NonNegative = 1.0
    """weight of the disagreement between model and teachers"""
    diversity: NonNegative = 1.0
    """weight of the diversity of images"""
    noise: Count = 100
    """dimension of the generator's noise"""
    width: Count = 64
    """channels of the generator"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        weights, statistics = self._generator(task).first(task.seed, "fedftg")
        return {"weights": weights, "statistics": statistics}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"counts": torch.zeros(task.classes)}

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        client.upload["counts"] = client.counts.cpu()

    def server_training(self, client: ClientContext) -> None:
        generate, memory, peers = self._generator(client.task), client.state, client.peers
        weights, statistics = memory["weights"].clone(), memory["statistics"].clone()
        shares, pooled = class_shares(peers)
        decay = DECAY ** (client.round - 1)
        schedule = TrainSchedule(self.iterations * len(peers), "adam")
        optimizer = client.optimizer(weights, schedule, self.generator_lr * decay)
        learn = TrainSchedule(self.student_steps, momentum=0.0, statistics=False)
        for _ in range(self.iterations):
            y = draw_labels(pooled, self.batch, client.generator)
            noise = torch.randn(self.batch, self.noise, generator=client.generator)

            def loss(peer: Peer, share: Tensor, y: Tensor = y, noise: Tensor = noise) -> Tensor:
                x = generate(weights, statistics, noise, y, learning=True)
                z, z_i = client.logits(x), peer.logits(x)
                known, hard = F.cross_entropy(z_i, y, reduction="none"), (z - z_i).abs().mean(1)
                wanted = (share[y] * (known - self.hard * hard)).mean()
                return wanted + self.diversity / len(peers) * similarity(noise, x)

            for peer, share in zip(peers, shares, strict=True):
                optimizer.step(partial(loss, peer, share))
            with torch.no_grad():
                x = generate(weights, statistics, noise, y)
                probabilities = torch.stack([peer.logits(x) for peer in peers]).softmax(2)  # (clients, B, C)
            ensemble = (shares[:, y, None] * probabilities).sum(0)

            def images(_: torch.Generator, made: tuple[Tensor, Tensor] = (x, y)) -> tuple[Tensor, Tensor]:
                return made

            def distance(batch: Batch, _: ClientContext, ensemble: Tensor = ensemble) -> Tensor:
                return -(ensemble * F.log_softmax(batch.logits, 1)).mean()

            client.train(TrainSpec((Phase(1),), lr=self.lr * decay, data=images, loss=distance, schedule=learn))
        memory["weights"], memory["statistics"] = weights, statistics

    def _generator(self, task: TaskInfo) -> Flat:
        if task.inputs.kind != "image":
            raise FedloomError(
                f"method: fedftg generates images, and the data are {task.inputs}; leave it out, or take fedgen, which "
                "generates features"
            )
        return _flat(self.noise, task.classes, self.width, task.shape)


@lru_cache(maxsize=4)
def _flat(noise: int, classes: int, width: int, shape: tuple[int, int, int]) -> Flat:
    return Flat(lambda: ImageGenerator(noise, classes, width, shape))
