"""Another feature normalizer in place of the net's own; in a net without any, one after every convolution.

    y = gamma (x - mu) / sigma + beta, mu and sigma over
      bn   batch and pixels of each channel, running averages in evaluation   (Ioffe & Szegedy 2015)
      gn   pixels and channels of each of `groups` groups, per image          (Wu & He 2018)
      ln   pixels and all channels, per image: gn with one group              (Ba et al. 2016)
      in   pixels of each channel, per image                                  (Ulyanov et al. 2016)
      rbn  bn, calibrated before and after by each map's own mean             (Gao et al. 2021)
      sn   a learned mixture of in, ln and bn                                  (Luo et al. 2019)
      frn  pixels of each channel, per image: x / sqrt(mean x^2), then max(y, threshold)  (Singh & Krishnan 2020)
      none the normalizers are removed

Defaults: group normalization with 2 groups, as in FedDyn, FedDC and FedNN; eps 1e-5 and momentum 0.1 as in torch, eps
1e-6 for frn. An inserted normalizer comes directly after the convolution, as in FedNN's LeNet.

Departures. Scale and shift are per channel for every kind, also for ln. The threshold of frn replaces the ReLU that
follows the normalizer, directly or after max-pooling (the two commute). Where something else follows, such as the sum
of a residual block or a ReLU that is not a module, there is no threshold and nothing is replaced. Variances are
biased, those of running averages unbiased, as in torch; the published code of sn uses unbiased ones and starts
running variances at 0, here they start at 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import nn

from fedloom.errors import FedloomError
from fedloom.methods.api.context import ServerContext, TaskInfo
from fedloom.methods.api.hyperparameters import Count
from fedloom.methods.api.part import Part
from fedloom.nets import Net
from fedloom.nets.layers.norms import FilterResponseNorm, RepresentativeBatchNorm, SwitchableNorm, ThresholdedUnit
from fedloom.nets.layers.surgery import Place, exchange, fill, places

Kind = Literal["bn", "gn", "ln", "in", "frn", "rbn", "sn", "none"]
_BATCH = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


class Norm(Part):
    """Another feature normalizer: bn, gn, ln, in, frn, rbn, sn or none."""

    paper = "Kang et al. 2024, FedNN (comparison)"
    work = "normalization of activations"
    sums = "shares"  # `log` reads the average
    replaces: ClassVar[frozenset[str]] = frozenset({"norm"})
    variants: ClassVar[frozenset[str]] = frozenset({"kind"})
    kind: Kind = "gn"
    """bn | gn | ln | in | rbn | sn | frn | none"""
    groups: Count = 2
    """number of groups of gn"""
    threshold: bool = True
    """frn: a learned threshold replaces the ReLU that follows"""

    def build(self, net: Net, task: TaskInfo) -> Net:
        for place in places(net, task.inputs):
            if self.kind != "none":
                fill(net, place, self._make(place))
            elif not isinstance(place.module, nn.modules.conv._ConvNd):
                exchange(net, place.module, nn.Identity())
            if self.kind == "frn" and self.threshold and place.relu is not None:
                exchange(net, place.relu, ThresholdedUnit(place.channels))
        return net

    def _make(self, place: Place) -> nn.Module:
        channels, axes = place.channels, len(place.shape)
        if self.kind in ("in", "frn", "rbn", "sn") and axes == 2:
            raise FedloomError(
                f"{place.name} normalizes vectors, and {self.kind} needs maps; choose bn, gn or ln, or another model"
            )
        if self.kind == "in" and place.pixels == 1:
            raise FedloomError(
                f"{place.name} sees maps of one pixel, of which in leaves nothing; choose another kind, or larger images"
            )
        match self.kind:
            case "bn":
                return _BATCH[axes](channels)
            case "in":
                return _INSTANCE[axes](channels, affine=True)
            case "frn":
                return FilterResponseNorm(channels, learn_eps=place.pixels == 1)
            case "rbn":
                return RepresentativeBatchNorm(channels)
            case "sn":
                return SwitchableNorm(channels)
        return nn.GroupNorm(fitting(self.groups, place) if self.kind == "gn" else 1, channels)

    def log(self, server: ServerContext) -> Mapping[str, Any]:
        """Shares of (in, ln, bn) in the means and variances of every sn layer."""
        selectors: dict[str, dict[str, list[float]]] = {}
        for name, value in server.tensors().items() if self.kind == "sn" else ():
            layer, _, leaf = name.rpartition(".")
            if leaf in ("mean_selector", "var_selector"):
                shares = [round(share, 6) for share in value.softmax(0).tolist()]
                selectors.setdefault(layer, {})[leaf.removesuffix("_selector")] = shares
        return {"selectors": selectors} if selectors else {}


def fitting(groups: int, place: Place) -> int:
    if place.channels % groups:
        raise FedloomError(
            f"groups={groups} does not divide the {place.channels} channels at {place.name}; choose a number that does"
        )
    return groups
