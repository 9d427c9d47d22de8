"""ResNet18 (He et al. 2016) in its usual form for 32x32 images: 3x3 stem, no pooling after it; `stem=7` is the original's.

11,173,962 parameters at 3 channels with 10 classes; 11,689,512 with `stem=7` and 1000 classes, as torchvision's. Where a block
changes the size, its shortcut is a 1x1 convolution. `norm=group`: group normalization in place of batch normalization.
"""

from __future__ import annotations

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.layers.residual import MakeNorm, Norm, Residual, Stem, normalizer, stages, stem_layers
from fedloom.nets.parameters import Count
from fedloom.nets.registry import BodyHead, model


def basic(inputs: int, width: int, stride: int, norm: MakeNorm) -> Residual:
    main = nn.Sequential(
        *(nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False), norm(width), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)),
    )
    return Residual(main, inputs, width, stride, norm)


@model(
    "resnet18",
    "for 32x32: 3x3 stem, four stages of two basic blocks, 64 to 512, batch-normalized",
    origin="He et al. 2016; FedBABU, FedFN",
    smallest=8,
)
def resnet18(shape: Shape, classes: int, stem: Stem = 3, norm: Norm = "batch", groups: Count = 32) -> BodyHead:
    make = normalizer(norm, groups)
    layers = [*stem_layers(shape[0], stem, make), *stages(basic, (2, 2, 2, 2), 1, make)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(512, classes)
