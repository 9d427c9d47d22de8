"""LSTM (Hochreiter & Schmidhuber 1997) on tokens, or on sequences of features of shape C,T (channels, then steps).

Tokens are embedded first. Padding is moved behind the tokens, wherever it stood, and the features are the state of the
last token, or the mean over all tokens (`pool=mean`): a state does not depend on what comes after it, so padding has no
influence. Batches are cut to their longest sequence. Features of shape D are D steps of one number.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.data.spec import InputSpec, Shape
from fedloom.nets.layers.sequences import Embedded, channels_of, masked_mean, steps_of
from fedloom.nets.parameters import Count, Rate
from fedloom.nets.registry import BodyHead, model

Pool = Literal["last", "mean"]


class Tokens(nn.Module):
    def __init__(self, inputs: InputSpec, embedding: int, hidden: int, layers: int, dropout: float, pool: Pool) -> None:
        super().__init__()
        self.embed = Embedded(inputs, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout)
        self.padding, self.pool = inputs.padding, pool

    def forward(self, x: Tensor) -> Tensor:
        x = padding_last(x, self.padding)
        if not torch.compiler.is_compiling():  # an exported net has one length
            longest = int((x != self.padding).sum(1).max())
            x = x[:, : max(longest, 1)]
        embedded, real = self.embed(x)
        states = states_of(self.lstm, embedded)
        if self.pool == "mean":
            return masked_mean(states, real)
        last = (real.sum(1).long() - 1).clamp(min=0)
        index = last.view(-1, 1, 1).expand(-1, 1, states.shape[2])
        return states.gather(1, index).squeeze(1)


class Signals(nn.Module):
    def __init__(self, channels: int, hidden: int, layers: int, dropout: float, pool: Pool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, hidden, layers, batch_first=True, dropout=dropout)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        states = states_of(self.lstm, steps_of(x))
        return masked_mean(states, None) if self.pool == "mean" else states[:, -1]


def states_of(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """(B, T, hidden). Under bf16 a processor without bfloat16 kernels for recurrent layers computes them in float32."""
    bf16 = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    if bf16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        with torch.autocast("cpu", enabled=False):
            states: Tensor = lstm(x.float())[0]
    else:
        states = lstm(x)[0]
    return states


def padding_last(x: Tensor, padding: int) -> Tensor:
    """Sequences with the same tokens in the same order, and all padding behind them."""
    length = x.shape[1]
    real = x != padding
    place = torch.where(real, real.long().cumsum(1) - 1, length)  # padding goes to a column that is dropped
    return x.new_full((x.shape[0], length + 1), padding).scatter(1, place, x)[:, :length]


@model(
    "lstm",
    "recurrent: embedded tokens or a sequence of features, the last state (or the mean)",
    origin="Hochreiter & Schmidhuber 1997",
    kinds=("tokens", "features"),
)
def lstm(
    shape: Shape,
    classes: int,
    inputs: InputSpec,
    hidden: Count = 128,
    layers: Count = 1,
    embedding: Count = 64,
    pool: Pool = "last",
    dropout: Rate = 0.0,
) -> BodyHead:
    if inputs.kind == "tokens":
        body: nn.Module = Tokens(inputs, embedding, hidden, layers, dropout, pool)
    else:
        body = Signals(channels_of(shape), hidden, layers, dropout, pool)
    return body, nn.Linear(hidden, classes)
