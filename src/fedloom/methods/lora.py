"""Low-rank adaptation (LoRA, Hu et al. 2021): a pretrained body is frozen, and small matrices beside its layers are trained.

    h = W x + (alpha / rank) B A x,   A (rank x in), B (out x rank), W frozen                           (3)

The claim: the change of weights in adaptation has a low rank, so a fraction of a percent of the parameters is enough; and
since B = 0 at initialization, training starts from the pretrained model. In a federation only what is trained travels:
the adapters and the head. The base (weights, and statistics of normalizers) is never sent, never changes, and is in no
correction, control, distance or server step. Where a run starts from a pretrained net, give its weights with `init`.

Adapters are peft's, and so is their initialization: A as in nn.Linear, U(-1/sqrt(in), 1/sqrt(in)), where the paper draws
from a Gaussian; for an embedding A = 0 and B is normal. A convolution's A is a convolution of the same kernel to `rank`
channels, its B a 1x1 convolution. They are the region "adapter": fedper, lg, fedrep and fine-tuning treat them as the
trained part of the body. Draws depend on the seed alone, so they are the same in every sum.

`targets`: `auto` adapts all linear layers and convolutions of the body (the paper: attention projections only); a text is a
regular expression for a layer's name in the net or for its end after a dot (`q_proj`, `body.0`), a list is several of
them. `train_head` (true): the head is new for the task, so it is trained and sent; false leaves it as it is until
fine-tuning. `train_norm` (false): normalizers keep scale, shift and statistics of the base, in training too; true trains and
sends them. Other parts build before the adapters are put in, so `lora + fn` and `fn + lora` are the same net; a convolution
that a part has made normalize cannot be adapted (wn, and norm in a net without normalizers).

Defaults: peft's rank 8, alpha 8, no dropout. Departure: averaging A and B separately, as FedAvg does with any two tensors,
is not averaging B A; the difference is of second order in the distance between clients.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedloom.methods.api.context import TaskInfo
from fedloom.methods.api.hyperparameters import Count, Positive
from fedloom.methods.api.part import Part
from fedloom.nets import Net
from fedloom.nets.layers.adapters import LowRank, inject, library
from fedloom.rng import seeded
from fedloom.weights import Regions


class LoRA(Part):
    """Low-rank adapters and the head are trained and sent; the body is frozen and never sent."""

    paper = "Hu et al. 2021, LoRA"
    builds_last: ClassVar[bool] = True  # adapters join the body that the other parts make
    rank: Count = 8
    """rank of the adapters"""
    alpha: Positive = 8.0
    """adapters are scaled by alpha / rank"""
    targets: str | tuple[str, ...] = "auto"
    """layers with adapters: auto (all of the body) | a regular expression | a list"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """dropout before the adapters"""
    train_head: bool = True
    """train and send the head"""
    train_norm: bool = False
    """train and send normalizers"""

    @property
    def low_rank(self) -> LowRank:
        return LowRank(self.rank, self.alpha, self.targets, self.dropout)

    def build(self, net: Net, task: TaskInfo) -> Net:
        library()  # imported before the seed is set, whatever its import draws
        with seeded(task.seed, "lora"):
            inject(net, self.low_rank, task.inputs, self.train_norm)
        return net

    def regions(self, regions: Regions) -> Regions:
        return regions if self.train_head else regions.freeze("head")
