"""Nets that make something to learn from out of noise and a label: features for a head, or whole images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.data.spec import Shape


class FeatureGenerator(nn.Module):
    """FedGen's: (noise, onehot(y)) -> Linear -> BatchNorm -> ReLU -> Linear -> features."""

    def __init__(self, noise: int, classes: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.classes = classes
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:  # (B, noise), (B,) -> (B, dim)
        f: Tensor = self.layers(torch.cat([noise, F.one_hot(y, self.classes).to(noise.dtype)], 1))
        return f


class ImageGenerator(nn.Module):
    """FedFTG's: noise and label fill a quarter of the image's side each by a linear map of its own; twice as large, a
    convolution; twice as large again, two more. Tanh and a batch normalization without parameters come last, so that
    images have, channel by channel, mean 0 and deviation 1 over the batch, as those that `data.normalize: set` makes.

    Any image size will do: the last enlargement is to the size that is wanted. Convolutions before a normalizer have no
    bias, which it would cancel.
    """

    def __init__(self, noise: int, classes: int, width: int, shape: Shape) -> None:
        super().__init__()
        channels, *self.size = shape
        self.classes, self.quarter = classes, [-(-side // 4) for side in self.size]
        area = self.quarter[0] * self.quarter[1]
        self.from_noise, self.from_label = nn.Linear(noise, width * area), nn.Linear(classes, width * area)
        self.begin = nn.BatchNorm2d(2 * width)
        self.middle = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2)
        )
        self.end = nn.Sequential(
            *(nn.Conv2d(2 * width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(width, channels, 3, padding=1), nn.Tanh(), nn.BatchNorm2d(channels, affine=False)),
        )

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:  # (B, noise), (B,) -> (B, C, H, W)
        label = F.one_hot(y, self.classes).to(noise.dtype)
        x = torch.cat([self.from_noise(noise), self.from_label(label)], 1)
        x = x.view(len(y), -1, *self.quarter).contiguous(memory_format=torch.channels_last)
        x = self.middle(F.interpolate(self.begin(x), size=[2 * side for side in self.quarter]))
        made: Tensor = self.end(F.interpolate(x, size=self.size))
        return made
