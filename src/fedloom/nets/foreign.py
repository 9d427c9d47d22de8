"""Tensor names of other libraries for the same nets, so that their checkpoints can be read.

torchvision's ResNets (also timm's): conv1, bn1, layer1.0.conv1 … layer4.1.bn2, downsample.0 and .1, fc. Ours with `stem=7` have
the same shapes throughout; with the 3x3 stem the first convolution does not fit. A head of 1000 classes fits 1000 classes.
torchvision's MobileNetV2: features.0.0 … features.18.1, classifier.1.
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
    "conv3": "main.6",
    "bn3": "main.7",
    "downsample.0": "shortcut.0",
    "downsample.1": "shortcut.1",
}
_NAME = re.compile(r"layer([1-4])\.(\d{1,2})\.(conv[123]|bn[123]|downsample\.[01])\.(\w+)")


def our_names(names: Iterable[str]) -> dict[str, str]:
    """The names of a file -> ours. A file that is not known to be foreign keeps its names."""
    names = list(names)
    if any(name.startswith(("body.", "head.")) for name in names):
        return {name: name for name in names}
    if "layer1.0.conv1.weight" in names:
        depths = _depths(names)
        return {name: _resnet(name, depths) for name in names}
    if "features.1.conv.0.0.weight" in names and "classifier.1.weight" in names:
        return {name: _mobilenetv2(name) for name in names}
    return {name: name for name in names}


def _depths(names: Iterable[str]) -> list[int]:
    """The number of blocks of each stage."""
    depths = [0, 0, 0, 0]
    for name in names:
        if match := _NAME.fullmatch(name):
            stage = int(match[1]) - 1
            depths[stage] = max(depths[stage], int(match[2]) + 1)
    return depths


def _resnet(name: str, depths: list[int]) -> str:
    if match := _NAME.fullmatch(name):
        stage, block, module, leaf = match.groups()
        place = 3 + sum(depths[: int(stage) - 1]) + int(block)  # after convolution, normalizer and ReLU of the stem
        return f"body.{place}.{_BLOCK[module]}.{leaf}"
    module, _, leaf = name.rpartition(".")
    return f"{_STEM[module]}.{leaf}" if module in _STEM else name


def _mobilenetv2(name: str) -> str:
    return re.sub(r"^features\.", "body.", re.sub(r"^classifier\.1\.", "head.", name))
