"""ResNet50 (He et al. 2016): four stages of 3, 4, 6 and 3 bottleneck blocks; strides are in their 3x3 convolutions.

25,557,032 parameters with `stem=7` and 1000 classes, as torchvision's. The default stem is the one for 32x32 images, 3x3
without pooling. `norm=group`: group normalization in place of batch normalization.
"""

from __future__ import annotations

from torch import nn

from fedloom.data.spec import Shape
from fedloom.nets.layers.residual import MakeNorm, Norm, Residual, Stem, normalizer, stages, stem_layers
from fedloom.nets.parameters import Count
from fedloom.nets.registry import BodyHead, model


def bottleneck(inputs: int, width: int, stride: int, norm: MakeNorm) -> Residual:
    main = nn.Sequential(
        *(nn.Conv2d(inputs, width, 1, bias=False), norm(width), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, width, 3, stride, padding=1, bias=False), norm(width), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, 4 * width, 1, bias=False), norm(4 * width)),
    )
    return Residual(main, inputs, 4 * width, stride, norm)


@model(
    "resnet50",
    "for 32x32: 3x3 stem, four stages of 3, 4, 6 and 3 bottleneck blocks, 256 to 2048, batch-normalized",
    origin="He et al. 2016",
    smallest=8,
)
def resnet50(shape: Shape, classes: int, stem: Stem = 3, norm: Norm = "batch", groups: Count = 32) -> BodyHead:
    make = normalizer(norm, groups)
    layers = [*stem_layers(shape[0], stem, make), *stages(bottleneck, (3, 4, 6, 3), 4, make)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(2048, classes)
