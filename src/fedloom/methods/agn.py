"""Adaptive group normalization of FedNN (Kang et al., 2024): each layer learns to choose between bn and gn.

    s_r = softmax_r((pi_r + g_r) / tau),  r = 0 for bn, 1 for gn,  g_r Gumbel noise              (9)
    mu = s_0 mu_bn + s_1 mu_gn,   sigma = s_0 sigma_bn + s_1 sigma_gn                            (10)
    tau_t = tau (R + 0.001 - t) / R in round t = 0, 1, ..., R - 1 of R

The claim: neither bn nor gn is better on all data; tau shrinks until the soft choice is a decision. The layer
replaces the net's normalizers, or follows every convolution of a net that has none. pi are raw logits, one pair per
layer, equal at initialization. They belong to the norm region: averaged with it, or kept by each client under fedbn.
Every line of rounds.jsonl has the choice of each layer: `selectors`, the shares of (bn, gn) that evaluation uses.

Where paper and code differ, the default is the paper's and the code's is an option. mix = var mixes variances, not
deviations. eval_noise = true adds noise in evaluation too; the default is softmax(pi / tau). freeze = true keeps a
layer's first sample that is one-hot in float32. momentum = 0.003 is the code's, 0.1 torch's.

Departures from the code: running variances start at 1, not 0; r = 0 is bn, as in the paper. The one-hots of frozen
layers are averaged like statistics, and a layer stays frozen while all averaged clients had frozen it (the code
averages an integer flag, which sometimes truncates). Variances are biased as in the paper; those of running averages
are unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from fedloom.methods.api.context import ServerContext, TaskInfo
from fedloom.methods.api.hyperparameters import Count, Positive
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.norm import fitting
from fedloom.nets import Net
from fedloom.nets.layers.adaptive import ALL, AdaptiveGroupNorm, Mix
from fedloom.nets.layers.surgery import fill, places


class AGN(Part):
    """Layers learn to choose between batch and group normalization."""

    paper = "Kang et al. 2024, FedNN"
    work = "normalization of activations"
    sums = "shares"  # `log` reads the average
    replaces: ClassVar[frozenset[str]] = frozenset({"norm"})
    groups: Count = 2
    """number of groups of the group normalization"""
    tau: Positive = 5.0
    """temperature of the choice in the first round; it shrinks to nearly 0"""
    mix: Mix = "std"
    """what is mixed: deviations (std, the paper) or variances (var, the code)"""
    eval_noise: bool = False
    """Gumbel noise in evaluation too"""
    freeze: bool = False
    """keep a layer's first choice that is one-hot"""
    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1
    """share of the newest batch in running averages"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        for place in places(net, task.inputs):
            groups = fitting(self.groups, place)
            norm = AdaptiveGroupNorm(
                place.channels,
                groups,
                self.tau,
                mix=self.mix,
                eval_noise=self.eval_noise,
                freeze=self.freeze,
                momentum=self.momentum,
            )
            fill(net, place, norm)
        return net

    def temperature(self, round: int, rounds: int) -> float:
        """Of round 1, 2, ..., rounds."""
        done = min(max(round, 1), rounds) - 1
        return self.tau * (rounds + 0.001 - done) / rounds

    def at_round(self, net: Net, round: int, task: TaskInfo) -> None:
        for module in net.modules():
            if isinstance(module, AdaptiveGroupNorm):
                module.tau = self.temperature(round, task.rounds)

    def log(self, server: ServerContext) -> Mapping[str, Any]:
        """Shares of (bn, gn) of every layer; nothing if clients keep their selectors."""
        tensors, tau = server.tensors(), self.temperature(server.round, server.task.rounds)
        selectors: dict[str, list[float]] = {}
        for name, value in tensors.items():
            layer, _, leaf = name.rpartition(".")
            if leaf == "selector":
                shares, frozen = torch.softmax(value / tau, 0), tensors.get(f"{layer}.frozen")
                used = frozen if frozen is not None and bool(frozen.sum() > ALL) else shares
                selectors[layer] = [round(share, 6) for share in used.tolist()]
        return {"selectors": selectors} if selectors else {}


alias("fednn", "wn + agn", "weight normalization and adaptive group normalization", "Kang et al. 2024, FedNN")
