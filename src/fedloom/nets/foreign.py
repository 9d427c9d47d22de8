"""Tensor names of other libraries for the same nets, so that their checkpoints can be read.

torchvision's ResNet18 (also timm's): conv1, bn1, layer1.0.conv1 … layer4.1.bn2, downsample.0 and .1, fc. A stem for 224x224
images is 7x7 where ours is 3x3, and its head has 1000 classes: those two do not fit, all others do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_STEM = {"conv1": "body.0", "bn1": "body.1", "fc": "head"}
_BLOCK = {
    "conv1": "main.0",
    "bn1": "main.1",
    "conv2": "main.3",
    "bn2": "main.4",
    "downsample.0": "shortcut.0",
    "downsample.1": "shortcut.1",
}
_NAME = re.compile(r"layer([1-4])\.([01])\.(conv[12]|bn[12]|downsample\.[01])\.(\w+)")


def our_names(names: Iterable[str]) -> dict[str, str]:
    """The names of a file -> ours. A file that is not known to be foreign keeps its names."""
    names = list(names)
    if "layer1.0.conv1.weight" not in names or any(name.startswith(("body.", "head.")) for name in names):
        return {name: name for name in names}
    return {name: _resnet(name) for name in names}


def _resnet(name: str) -> str:
    if match := _NAME.fullmatch(name):
        stage, block, module, leaf = match.groups()
        place = 3 + 2 * (int(stage) - 1) + int(block)  # after convolution, normalizer and ReLU of the stem
        return f"body.{place}.{_BLOCK[module]}.{leaf}"
    module, _, leaf = name.rpartition(".")
    return f"{_STEM[module]}.{leaf}" if module in _STEM else name
