"""FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022): sharpness-aware minimization on clients.

    e = rho g / ||g||,   g = gradient of the loss at w;   step with the gradient at w + e, on the same batch

g is the gradient of the whole local loss, regularizers included; its norm is over the shared weights and guarded by 1e-12.
`adaptive` (ASAM): e = rho T^2 g / ||T g||, T = |w| + eta for tensors that are called weight, 1 for the others; Caldarola et
al. take rho = 0.7, eta = 0.2. Weight decay, momentum, clipping and the corrections of other parts act on the second gradient,
at w. `mix` = a steps with (1 - a) g + a times the gradient at w + e; 1 in FedSAM.

Personal regions (`sam + fedper`) are not perturbed, and step with their gradient at w + e. Running statistics are updated by
the first pass alone; published codes update them in both, once at perturbed weights. The reported loss is the mean of both
passes. rho = 0 is FedAvg. Default rho = 0.1 (FL-Simulator; Caldarola et al. for CIFAR-10). A step costs twice the work.

    mofedsam = sam + fedcm                    Qu et al. 2022
    fedspeed = sam + feddyn(alpha=0.1)        Sun et al., ICLR 2023, as in the authors' code

FedSpeed's clients minimize with the gradient at w + e plus lambda (w - w_g + h_i), h_i <- h_i + w_i - w_g, and its server adds
the mean of h over all clients: with gradient_i = -lambda h_i these are FedDyn's equations. In the paper (as we recall it; its
text was not at hand) clients send w_i + h_i and the server averages that over the cohort, which is the same where all clients
take part with equal weights, and gradients are mixed by `mix`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.methods.api.context import Batch, ClientContext
from fedloom.methods.api.hyperparameters import NonNegative, Share
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import Range, Span


class SAM(Part):
    """The gradient at weights perturbed along the gradient, towards flat minima."""

    paper = "Qu et al. 2022, FedSAM"
    work = "a second forward and backward pass per step"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "rho": Span(0.01, 0.5, log=True, source="published codes take 0.01 to 0.1, and around"),
    }
    variants: ClassVar[frozenset[str]] = frozenset({"adaptive"})
    rho: NonNegative = 0.1
    """length of the perturbation; 0 is FedAvg"""
    mix: Share = 1.0
    """share of the second gradient in the step"""
    adaptive: bool = False
    """scale the perturbation by the weights (ASAM)"""
    eta: NonNegative = 0.2
    """ASAM: added to the weights' magnitude"""

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        gradient = client.gradient_of(batch=batch)
        if self.rho == 0:
            return gradient
        sizes = self._sizes(client)
        scaled = gradient if sizes is None else gradient * sizes
        step = scaled * (self.rho / (torch.linalg.vector_norm(scaled) + 1e-12))
        ahead = client.gradient_of(at=client.weights + (step if sizes is None else step * sizes), batch=batch)
        return ahead if self.mix == 1 else torch.lerp(gradient, ahead, self.mix)

    def _sizes(self, client: ClientContext) -> Tensor | None:
        """T of ASAM, or None."""
        if not self.adaptive:
            return None
        sizes = torch.ones_like(client.weights)
        weights = client.named(client.weights)
        for name, piece in client.named(sizes).items():
            if "weight" in name.rpartition(".")[2]:
                piece.copy_(weights[name].abs() + self.eta)
        return sizes


alias("fedsam", "sam")
alias(
    "fedspeed", "sam + feddyn(alpha=0.1)", "FedSAM with FedDyn's correction by past drift", "Sun et al. 2023, FedSpeed"
)
