"""ResNet18 for CIFAR: a 3x3 stem without pooling, four stages of two basic blocks, 64 to 512.

11,173,962 parameters at 3 channels with 10 classes. Where a block changes the size, its shortcut is a 1x1 convolution.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.data.spec import Shape
from fedloom.nets.registry import BodyHead, model


class Block(nn.Module):
    def __init__(self, inputs: int, out: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.Conv2d(inputs, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)),
            *(nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:  # (B, inputs, H, W) -> (B, out, H / stride, W / stride)
        total: Tensor = self.main(x) + self.shortcut(x)
        return total.relu_()


@model(
    "resnet18",
    "for 32x32: 3x3 stem, four stages of two basic blocks, 64 to 512, batch-normalized",
    origin="He et al. 2016; FedBABU, FedFN",
    smallest=8,
)
def resnet18(shape: Shape, classes: int) -> BodyHead:
    stem = (nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
    blocks: list[nn.Module] = []
    width = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(width, out, stride), Block(out, out, 1)]
        width = out
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(512, classes)
