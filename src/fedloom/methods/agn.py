"""Adaptive group normalisation of FedNN (Kang et al., 2024): each layer learns to choose between bn and gn.

    s_r = softmax_r((pi_r + g_r) / tau),  r = 0 for bn, 1 for gn,  g_r Gumbel noise              (9)
    mu = s_0 mu_bn + s_1 mu_gn,   sigma = s_0 sigma_bn + s_1 sigma_gn                            (10)
    tau_t = tau (R + 0.001 - t) / R in round t = 0, 1, ..., R - 1 of R

The claim: neither is better on all data, and tau shrinks until the soft choice is a decision. It stands in the place
of the net's normalisers, or behind every convolution of a net that has none. pi are raw logits, one pair a layer,
which start equal; they belong to the norm region, so they are averaged with it, or stay with their client under fedbn.
Which layer chose what is in every line of rounds.jsonl: `selectors`, shares of (bn, gn) as evaluation uses them.

Where paper and code part, the default is the paper's, and the code's is an option: mix = var mixes variances in place
of deviations; eval_noise = true draws new noise in every test batch as well, where the default is softmax(pi / tau); freeze =
true keeps a layer's first draw that is one-hot in float32. momentum = 0.003 is the code's, 0.1 torch's.

Departures from the code: running variances start at 1, not 0, and r = 0 is bn as in the paper. A frozen layer's one-hots
are averaged like statistics, and it stays frozen while all that were averaged had frozen it (the code averages an
integer flag, which sometimes truncates). Variances are biased as in the paper, those of running averages unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from fedloom.methods.method import alias
from fedloom.methods.norm import fitting
from fedloom.methods.part import Count, Part, Positive
from fedloom.methods.seen import Server, Task
from fedloom.nets import Net
from fedloom.nets.adaptive import ALL, AdaptiveGroupNorm, Mix
from fedloom.nets.surgery import fill, places


class AGN(Part):
    """Layers learn to choose between batch and group normalisation."""

    paper = "Kang et al. 2024, FedNN"
    sums = "shares"  # `log` looks at the average
    replaces: ClassVar[frozenset[str]] = frozenset({"norm"})
    groups: Count = 2
    tau: Positive = 5.0
    mix: Mix = "std"
    eval_noise: bool = False
    freeze: bool = False
    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1  # share of the new in running averages

    def build(self, net: Net, task: Task) -> Net:
        for place in places(net, task.shape):
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

    def at_round(self, net: Net, round: int, task: Task) -> None:
        for module in net.modules():
            if isinstance(module, AdaptiveGroupNorm):
                module.tau = self.temperature(round, task.rounds)

    def log(self, server: Server) -> Mapping[str, Any]:
        """Shares of (bn, gn) of every layer. Nothing where selectors stay with the clients."""
        tensors, tau = server.tensors(), self.temperature(server.round, server.task.rounds)
        told: dict[str, list[float]] = {}
        for name, value in tensors.items():
            layer, _, leaf = name.rpartition(".")
            if leaf == "selector":
                shares, frozen = torch.softmax(value / tau, 0), tensors.get(f"{layer}.frozen")
                used = frozen if frozen is not None and bool(frozen.sum() > ALL) else shares
                told[layer] = [round(share, 6) for share in used.tolist()]
        return {"selectors": told} if told else {}


alias("fednn", "wn + agn", "weight normalisation and adaptive group normalisation", "Kang et al. 2024, FedNN")
