"""lstm and transformer: on tokens, sequences of features and images; padding has no influence."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError
from fedloom.nets import Net, build
from fedloom.nets.models.lstm import padding_last
from fedloom.rng import seeded

torch.set_num_threads(1)

TOKENS = InputSpec("tokens", (12,), "int32", vocabulary=40, padding=3)


def made(model: str, inputs: InputSpec = TOKENS, classes: int = 4) -> Net:
    with seeded(0, "test"):
        return build(model, inputs, classes, "running").eval()


def sentences(count: int = 6) -> Tensor:
    x = TOKENS.random(count, generator=torch.Generator().manual_seed(1))
    return torch.where(x == TOKENS.padding, 4, x)


@pytest.mark.parametrize("model", ["lstm", "lstm(pool=mean, layers=2)", "transformer"])
def test_padding_has_no_influence(model: str) -> None:
    net, x = made(model), sentences()
    short = x[:, :5]
    padded = torch.cat([short, torch.full((6, 7), TOKENS.padding)], 1)
    with torch.no_grad():
        expected = torch.cat([net.features(one[None]) for one in padded])
        mixed = torch.cat([padded, x])
        torch.testing.assert_close(net.features(mixed)[:6], expected)
        table = net.body.get_submodule("embed.table").get_parameter("weight")
        table[TOKENS.padding] += 100
        torch.testing.assert_close(net.features(padded), expected)
        assert net(TOKENS.blank(2)).isfinite().all()


def test_padding_gets_no_gradient() -> None:
    for model in ("lstm", "transformer"):
        net, x = made(model), sentences()
        x[:, 7:] = TOKENS.padding
        F.cross_entropy(net(x), torch.arange(6) % 4).backward()
        gradient = net.body.get_submodule("embed.table").get_parameter("weight").grad
        assert gradient is not None and not gradient[TOKENS.padding].any() and gradient.any()


def test_an_lstm_agrees_with_packed_sequences() -> None:
    net, x = made("lstm(layers=2)"), sentences()
    lengths = torch.tensor([12, 5, 1, 7, 9, 3])
    x[torch.arange(12) >= lengths[:, None]] = TOKENS.padding
    lstm, table = net.body.get_submodule("lstm"), net.body.get_submodule("embed.table")
    assert isinstance(lstm, nn.LSTM)
    packed = nn.utils.rnn.pack_padded_sequence(table(x), lengths, batch_first=True, enforce_sorted=False)
    with torch.no_grad():
        _, (last, _) = lstm(packed)
        torch.testing.assert_close(net.features(x), last[-1])


def test_padding_on_the_left_or_in_between_is_moved_behind_the_tokens() -> None:
    x = torch.tensor([[3, 3, 5, 6], [5, 3, 6, 3], [3, 3, 3, 3], [5, 6, 7, 8]])
    assert padding_last(x, 3).tolist() == [[5, 6, 3, 3], [5, 6, 3, 3], [3, 3, 3, 3], [5, 6, 7, 8]]


def test_attention_agrees_with_torchs_own_encoder() -> None:
    net, x = made("transformer(layers=1, heads=2, width=16)"), sentences()
    x[:3, 6:] = TOKENS.padding
    theirs = nn.TransformerEncoderLayer(16, 2, 64, 0.0, F.gelu, batch_first=True, norm_first=True).eval()
    block = net.body.get_submodule("blocks.0")
    projections = [block.get_submodule(f"attention.{name}") for name in ("query", "key", "value")]
    with torch.no_grad():
        for leaf in ("weight", "bias"):
            joined = torch.cat([layer.get_parameter(leaf) for layer in projections])
            theirs.self_attn.get_parameter(f"in_proj_{leaf}").copy_(joined)
            pairs = {"self_attn.out_proj": "attention.output", "linear1": "up", "linear2": "down"}
            for their_name, our_name in {**pairs, "norm1": "norm1", "norm2": "norm2"}.items():
                home = theirs.get_submodule(their_name).get_parameter(leaf)
                home.copy_(block.get_submodule(our_name).get_parameter(leaf))
        embedded = net.body.get_submodule("embed.table")(x) + net.body.get_parameter("position")
        normalized = net.body.get_submodule("norm")(theirs(embedded, src_key_padding_mask=x == TOKENS.padding))
        expected = torch.stack([row[real].mean(0) for row, real in zip(normalized, x != TOKENS.padding, strict=True)])
        torch.testing.assert_close(net.features(x), expected)


@pytest.mark.parametrize("model", ["lstm", "transformer", "lstm(pool=mean)"])
@pytest.mark.parametrize("shape", [(3, 20), (9,)])
def test_features_are_channels_by_steps(model: str, shape: tuple[int, ...]) -> None:
    inputs = InputSpec("features", shape)
    net = made(model, inputs)
    x = inputs.random(5, generator=torch.Generator().manual_seed(0))
    assert net(x).shape == (5, 4)
    if model != "transformer" and len(shape) == 2:
        lstm = net.body.get_submodule("lstm")
        assert isinstance(lstm, nn.LSTM) and lstm.input_size == 3
        with torch.no_grad():
            states, _ = lstm(x.transpose(1, 2))
            expected = states.mean(1) if "mean" in model else states[:, -1]
            assert torch.equal(net.features(x), expected)


def test_features_of_three_axes_are_no_sequence() -> None:
    with pytest.raises(FedloomError, match="features of shape 2x3x4 are no sequence; a sequence has shape C,T"):
        build("lstm", InputSpec("features", (2, 3, 4)), 4, "running")


def test_a_transformer_takes_patches_of_images() -> None:
    net = build("transformer(patch=8, width=32)", (3, 32, 32), 10, "running")
    assert net.body.get_parameter("position").shape == (16, 32)
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("model", ["lstm(hidden=16)", "transformer(width=16, heads=2)"])
def test_a_small_task_is_learned(model: str) -> None:
    """Which of two tokens stands in the sequence."""
    net, generator = made(model, classes=2).train(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(120):
        x = torch.randint(6, 40, (32, 12), generator=generator)
        y = torch.randint(2, (32,), generator=generator)
        x[torch.arange(32), torch.randint(12, (32,), generator=generator)] = 4 + y
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
