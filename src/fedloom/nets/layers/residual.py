"""Pieces of residual nets: stems for small and for large images, normalizers, and how blocks are stacked in stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets.stages import stage

Norm = Literal["batch", "group"]
Stem = Literal[3, 7]
MakeNorm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """relu(main(x) + shortcut(x)); the shortcut is the identity, or a 1x1 convolution where the block changes the size."""

    def __init__(self, main: nn.Sequential, inputs: int, out: int, stride: int, norm: MakeNorm) -> None:
        super().__init__()
        self.main = main
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), norm(out))
        self.total = nn.Identity()  # marks what enters the ReLU, where a stage ends

    def forward(self, x: Tensor) -> Tensor:  # (B, inputs, H, W) -> (B, out, H / stride, W / stride)
        total: Tensor = self.total(self.main(x) + self.shortcut(x))
        return total.relu_()


Block = Callable[[int, int, int, MakeNorm], Residual]  # channels in, width, stride, normalizer


def normalizer(norm: Norm, groups: int) -> MakeNorm:
    """Batch normalization, or group normalization (Wu & He 2018), which keeps no statistics."""
    if norm == "batch":
        return nn.BatchNorm2d
    if 64 % groups:
        raise FedloomError(f"groups is {groups}; it must divide 64, the smallest number of channels")
    return lambda channels: nn.GroupNorm(groups, channels)


def stem_layers(channels: int, stem: Stem, norm: MakeNorm) -> list[nn.Module]:
    """Three modules, so that blocks have the same names behind either: 3x3 for small images; 7x7 and pooling for 224x224."""
    if stem == 3:
        return [nn.Conv2d(channels, 64, 3, padding=1, bias=False), norm(64), stage(nn.ReLU(inplace=True))]
    conv = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
    # max-pooling and ReLU commute, and ReLU is four times cheaper after it
    return [conv, norm(64), nn.Sequential(nn.MaxPool2d(3, 2, padding=1), stage(nn.ReLU(inplace=True)))]


def stages(block: Block, depths: Sequence[int], expansion: int, norm: MakeNorm) -> list[nn.Module]:
    """Four stages of blocks, of widths 64 to 512 times the expansion; all but the first halve the maps."""
    blocks: list[nn.Module] = []
    inputs = 64
    for number, depth in enumerate(depths):
        width = 64 << number
        for place in range(depth):
            made = block(inputs, width, 2 if number and not place else 1, norm)
            if place == depth - 1:
                stage(made.total)
            blocks.append(made)
            inputs = width * expansion
    return blocks
