"""MobileNetV2 (Sandler et al. 2018, Table 2): inverted residuals with linear bottlenecks.

3,504,872 parameters with 1000 classes, as torchvision's, whose names the layers have. `stride=2` is the paper's, for 224x224
images; by default the first convolution and the first stage of stride 2 keep the size, as is usual for 32x32.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model

# expansion t, channels c, repeats n, stride s of each stage
_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.conv = nn.Sequential(
            *([_normalized(inputs, width, 1)] if expansion > 1 else []),
            _normalized(width, width, 3, stride, groups=width),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.residual = stride == 1 and inputs == out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


@model(
    "mobilenetv2",
    "for 32x32: seventeen inverted residuals, 16 to 320, then 1280, batch-normalized",
    origin="Sandler et al. 2018",
    smallest=8,
)
def mobilenetv2(shape: Shape, classes: int, stride: Literal[1, 2] = 1) -> BodyHead:
    layers: list[nn.Module] = [_normalized(shape[0], 32, 3, stride)]
    inputs = 32
    for number, (expansion, out, repeats, first) in enumerate(_STAGES):
        for place in range(repeats):
            step = 1 if place else stride if number == 1 else first
            layers.append(InvertedResidual(inputs, out, step, expansion))
            inputs = out
    layers.append(_normalized(inputs, 1280, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(1280, classes)


def _normalized(inputs: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6(inplace=True))
