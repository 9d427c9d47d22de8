"""FedFN (Kim et al., 2023): normalise features before the classifier.

    z = V f / ||f||_2,   V trainable, no bias

The claim: local training inflates feature norms of the classes a client sees; without norms there is nothing to
inflate. Norms are guarded by 1e-12. The bias is dropped because only then does normalising not change the argmax. The
rows of V are as the net drew them. Needs a larger rate than FedAvg (the paper: 0.03 for 0.01, 0.5 for 0.1).
"""

from __future__ import annotations

from typing import ClassVar

from fedloom.methods.method import alias
from fedloom.methods.part import Part
from fedloom.methods.seen import Task
from fedloom.nets import Net
from fedloom.nets.heads import FeatureNormHead


class FN(Part):
    """Features are normalised before a bias-free head."""

    paper = "Kim et al. 2023, FedFN"
    replaces: ClassVar[frozenset[str]] = frozenset({"head"})

    def build(self, net: Net, task: Task) -> Net:
        net.head = FeatureNormHead.from_linear(net.head)
        return net


alias("fedfn", "fn", "FedAvg with normalised features", "Kim et al. 2023, FedFN")
