"""A small transformer encoder: pre-norm blocks, learned positions, the mean over all positions that are not padding.

    x <- x + Attention(LN(x));  x <- x + W2 GELU(W1 LN(x));  features = mean of LN(x)   (Vaswani et al. 2017; Xiong et al. 2020)

A position is a token, a step of a sequence of features, or a patch of an image:
- tokens: an embedding; padding is neither attended to nor averaged, so it has no influence.
- features of shape C,T: T steps of C channels, as signals are stored; of shape D: D steps of one number.
- images: patches of `patch` x `patch` pixels, as in a vision transformer (Dosovitskiy et al. 2021).

Embeddings and positions are drawn from N(0, 0.02^2), as in BERT. Query, key and value are linear layers of their own, so that
adapters can be put on each of them. Without dropout (the default) clients can be vmapped.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.data.spec import InputSpec, Shape
from fedloom.errors import FedloomError
from fedloom.nets.layers.sequences import Embedded, Steps, masked_mean
from fedloom.nets.parameters import Count, Rate
from fedloom.nets.registry import BodyHead, model

MASKED = -1e9  # finite: a sequence of nothing but padding must not become NaN


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(
        self, x: Tensor, mask: Tensor | None
    ) -> Tensor:  # (B, T, width); mask (B, 1, 1, T), added to the scores
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for layer in (self.query, self.key, self.value)
        )  # (B, heads, T, width / heads)
        dropout = self.dropout if self.training else 0.0
        mask = None if mask is None else mask.to(query.dtype)
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        out: Tensor = self.output(mixed.transpose(-2, -3).flatten(-2))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attended: Tensor = self.attention(self.norm1(x), mask)
        x = x + self.dropout(attended)
        inner: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        out: Tensor = x + self.dropout(inner)
        return out


class Patches(nn.Module):
    """Images (B, C, H, W) to (B, T, width), a linear map of each patch."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, patch, patch)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.project(x).flatten(2).transpose(1, 2), None


class Encoder(nn.Module):
    def __init__(self, embed: nn.Module, length: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed = embed
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        embedded, real = self.embed(x)  # (B, T, width), and (B, T) whether a position is not padding
        embedded = self.dropout(embedded + self.position)
        mask = None if real is None else ((1 - real) * MASKED).unsqueeze(-2).unsqueeze(-2)
        for block in self.blocks:
            embedded = block(embedded, mask)
        return masked_mean(self.norm(embedded), real)


@model(
    "transformer",
    "encoder of pre-norm blocks on tokens, steps of a sequence or patches of an image",
    origin="Vaswani et al. 2017; Dosovitskiy et al. 2021",
    kinds=("tokens", "features", "image"),
)
def transformer(
    shape: Shape,
    classes: int,
    inputs: InputSpec,
    width: Count = 64,
    layers: Count = 2,
    heads: Count = 4,
    patch: Count = 4,
    dropout: Rate = 0.0,
) -> BodyHead:
    if width % heads:
        raise FedloomError(f"transformer: width is {width} and heads {heads}; width must be a multiple of heads")
    if inputs.kind == "tokens":
        embed: nn.Module = Embedded(inputs, width)
        length = shape[0]
    elif inputs.kind == "features":
        embed, length = Steps(shape, width), shape[-1]
    else:
        channels, rows, columns = shape
        if rows % patch or columns % patch:
            raise FedloomError(
                f"transformer: patch is {patch}, and images of {rows}x{columns} cannot be cut into such patches; choose "
                f"a patch that divides both sides"
            )
        embed, length = Patches(channels, width, patch), (rows // patch) * (columns // patch)
    return Encoder(embed, length, width, layers, heads, dropout), nn.Linear(width, classes)
