"""FedFN (Kim et al., 2023): normalize features before the classifier.

    z = V f / ||f||_2,   V trainable, no bias

The claim: local training inflates feature norms of the classes that a client sees; without norms there is nothing to
inflate. Norms are guarded by 1e-12. The bias is dropped because only then does normalization not change the argmax. V
has the net's initial values. Needs a larger learning rate than FedAvg (the paper: 0.03 for 0.01, 0.5 for 0.1).
"""

from __future__ import annotations

from typing import ClassVar

from fedloom.methods.api.context import TaskInfo
from fedloom.methods.api.part import Part
from fedloom.methods.api.registry import alias
from fedloom.methods.api.search import RateScale
from fedloom.nets import Net
from fedloom.nets.layers.heads import FeatureNormHead


class FN(Part):
    """Features are normalized before a bias-free head."""

    paper = "Kim et al. 2023, FedFN"
    rate_scale: ClassVar[RateScale | None] = RateScale(
        1, 5, source="Kim et al. 2023: 0.03 and 0.5 where FedAvg takes 0.01 and 0.1"
    )
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})

    def build(self, net: Net, task: TaskInfo) -> Net:
        net.head = FeatureNormHead.from_linear(net.head)
        return net


alias("fedfn", "fn")
