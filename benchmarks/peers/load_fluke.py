"""Makes fluke importable beside a torch for CPUs. fluke imports torchvision for nets and data sets that are not used here.

torchvision's wheel on PyPI is built for CUDA: its compiled operators do not load, and its import stops where it describes
them. Declaring the operators that it describes lets the rest be imported; nothing here calls them.
"""

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
