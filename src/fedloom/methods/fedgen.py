"""FedGen (Zhu et al., ICML 2021): the server learns a generator of features, and clients train with generated features.

A generator G(e, y) makes features from noise and a label. After every round the server minimizes

    sum_i mean_y a_i(y) CE(h_i(G(e, y)), y)  +  diversity * exp(-mean_jk |e_j - e_k|^2 |G_j - G_k|)

with the uploaded heads h_i, a_i(y) = n_i^y / sum_j n_j^y from uploaded class counts, labels sampled uniformly from
those that the cohort holds, noise uniform on [0, 1). From the second round on a client's loss is

    L + alpha_t (B_gen / B) CE(h(G(e', y')), y') + beta_t KL( softmax h(G(e, y)) || softmax h(f(x)) )

with its own head h, y' sampled uniformly from the labels that any cohort has held so far, y those of the batch, no
gradient through the first argument of the divergence, alpha_t = max(alpha 0.98^(t-1), 1e-4), beta_t likewise. With a
frozen head the first term has no gradient. A weight of 0 leaves its term out.

Defaults of the authors' code: alpha = beta = 10 (beta 1 for EMNIST), B_gen 32, 50 steps of Adam with decay 1e-2 and a
learning rate of 3e-4 (EMNIST: 1e-4) multiplied by 0.98 per round, hidden 512 and noise 64 (its row for CIFAR; 256 and
32 for MNIST). One Adam lasts for the whole run, so its moments are server state. The generator's normalizer uses
batch statistics on the server and running statistics on clients, as in that code. Generated features are those that
the head takes.

Departures: the paper prints the loss of the mean of the heads' logits, and labels in proportion to their counts; both
follow the code here. Counts are those of a client's data, while the code counts the batches it saw. The code's rule
to stop after 20 local epochs, and its adversarial term, whose weight is 0, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext, TaskInfo, Tensors, TrainSchedule
from fedloom.methods.api.hyperparameters import Count, NonNegative, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.common.generator import Flat, class_shares, draw_labels, similarity
from fedloom.nets.layers.generators import FeatureGenerator

DECAY, FLOOR = 0.98, 1e-4


class FedGen(Part):
    """A generator of features, trained on the server, regularizes the clients."""

    paper = "Zhu et al. 2021, FedGen"
    work = "training on the server, on one worker"
    alpha: NonNegative = 10.0
    """weight of the loss on generated features"""
    beta: NonNegative = 10.0
    """weight of the agreement with generated features"""
    steps: Count = 50
    """steps of the generator per round"""
    batch: Annotated[int, Field(ge=2)] = 32
    """generated features per step"""
    lr: Positive = 3e-4
    """learning rate of the generator"""
    weight_decay: NonNegative = 1e-2
    """weight decay of the generator"""
    diversity: NonNegative = 1.0
    """weight of the diversity of features"""
    hidden: Count = 512
    """hidden units of the generator"""
    noise: Count = 64
    """dimension of the generator's noise"""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        weights, statistics = self._generator(task).first(task.seed, "fedgen")
        return {
            "weights": weights,
            "statistics": statistics,
            "labels": torch.zeros(task.classes),  # 1 for labels that a cohort has held
            "moments": torch.zeros(2 * len(weights) + 1),
        }

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"counts": torch.zeros(task.classes)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return {name: state[name] for name in ("weights", "statistics", "labels")}

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        loss = batch.logits.new_zeros(())
        if client.round <= 1:  # the generator has learned nothing yet
            return loss
        if self.alpha:
            y = draw_labels(client.broadcast["labels"], self.batch, client.generator).to(batch.y.device)
            ratio = self.batch / client.batch
            loss = loss + decayed(self.alpha, client.round) * ratio * F.cross_entropy(
                batch.head(self._made(y, client)), y
            )
        if self.beta:
            with torch.no_grad():
                target = F.softmax(batch.head(self._made(batch.y, client)), 1)
            log_probabilities = F.log_softmax(batch.logits, 1)
            loss = loss + decayed(self.beta, client.round) * F.kl_div(log_probabilities, target, reduction="batchmean")
        return loss

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        client.upload["counts"] = client.counts.cpu()

    def server_training(self, client: ClientContext) -> None:
        generate, memory = self._generator(client.task), client.state
        weights, statistics, moments = (memory[name].clone() for name in ("weights", "statistics", "moments"))
        shares, pooled = class_shares(client.peers)
        held = (pooled > 0).float()
        schedule = TrainSchedule(self.steps, "adam", weight_decay=self.weight_decay)
        optimizer = client.optimizer(weights, schedule, self.lr * DECAY ** (client.round - 1), moments)
        for _ in range(self.steps):
            y = draw_labels(held, self.batch, client.generator)
            noise = torch.rand(self.batch, self.noise, generator=client.generator)

            def loss(y: Tensor = y, noise: Tensor = noise) -> Tensor:
                made = generate(weights, statistics, noise, y, learning=True)
                total = self.diversity * similarity(noise, made)
                for peer, share in zip(client.peers, shares, strict=True):
                    total = total + (share[y] * F.cross_entropy(peer.head(made), y, reduction="none")).mean()
                return total

            optimizer.step(loss)
        memory["weights"], memory["statistics"], memory["moments"] = weights, statistics, moments
        memory["labels"] = torch.maximum(memory["labels"], held)

    def _made(self, y: Tensor, client: ClientContext) -> Tensor:
        """Features for these labels, from the generator that was broadcast; no gradient reaches it."""
        noise = torch.rand(len(y), self.noise, generator=client.generator).to(y.device)
        weights, statistics = (client.broadcast[name].to(y.device) for name in ("weights", "statistics"))
        with torch.no_grad():
            return self._generator(client.task)(weights, statistics, noise, y)

    def _generator(self, task: TaskInfo) -> Flat:
        return _flat(self.noise, task.classes, self.hidden, task.dim)


def decayed(weight: float, round: int) -> float:
    return max(weight * DECAY ** (round - 1), FLOOR)


@lru_cache(maxsize=4)
def _flat(noise: int, classes: int, hidden: int, dim: int) -> Flat:
    return Flat(lambda: FeatureGenerator(noise, classes, hidden, dim))
