"""Sequences as vectors: the first layer of nets on tokens and on sequences of features, and means without padding."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.data.spec import InputSpec, Shape
from fedloom.errors import FedloomError


class Embedded(nn.Module):
    """Tokens (B, T) to their vectors (B, T, width), and 1 where a position holds a token, 0 where it holds padding."""

    def __init__(self, inputs: InputSpec, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(inputs.vocabulary, width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.padding = inputs.padding

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(x), (x != self.padding).to(self.table.weight.dtype)


class Steps(nn.Module):
    """Features (B, C, T) to (B, T, width), a linear map of each step; (B, D) are D steps of one number."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels_of(shape), width)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.project(steps_of(x)), None


def channels_of(shape: Shape) -> int:
    """Channels of a sequence of shape C,T; a plain vector is a sequence of one channel."""
    if len(shape) > 2:
        raise FedloomError(
            f"features of shape {'x'.join(map(str, shape))} are no sequence; a sequence has shape C,T (channels, then "
            "steps) or D (D steps of one number)"
        )
    return shape[0] if len(shape) == 2 else 1


def steps_of(x: Tensor) -> Tensor:
    """Features (B, C, T) or (B, D) as (B, steps, channels)."""
    return x.transpose(1, 2) if x.dim() == 3 else x.unsqueeze(2)


def masked_mean(x: Tensor, real: Tensor | None) -> Tensor:
    """(B, T, width) -> (B, width): the mean over positions where `real` (B, T) is 1; zeros where there are none."""
    if real is None:
        return x.mean(1)
    total = (x * real.unsqueeze(-1)).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1)
