"""What arrives is checked, and sums are made in one order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedloom.engine.server.aggregation import CHUNK, flaw, weighted_sum
from fedloom.engine.tensor_layout import TensorLayout
from fedloom.rng import torch_generator

ASKED = {"w": torch.zeros(4), "counts": torch.zeros(2, 3, dtype=torch.int64), "part.control": torch.zeros(4)}


def message(**changes: Tensor | None) -> dict[str, Tensor]:
    """What was asked for, with changes; None leaves a tensor out."""
    return {name: tensor for name, tensor in {**ASKED, **changes}.items() if tensor is not None}


def test_what_was_asked_for_has_no_flaw() -> None:
    assert flaw(TensorLayout(ASKED), message()) is None
    assert flaw(TensorLayout({}), {}) is None


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (message(w=None), "w is missing"),
        (message(more=torch.zeros(1)), "more was not asked for"),
        (message(w=torch.zeros(5)), "w has shape (5,), not (4,)"),
        (message(w=torch.zeros(4, 1)), "w has shape (4, 1), not (4,)"),
        (message(w=torch.zeros(())), "w has shape (), not (4,)"),
        (message(counts=torch.zeros(3, 2, dtype=torch.int64)), "counts has shape (3, 2), not (2, 3)"),
        (message(w=torch.zeros(4, dtype=torch.float64)), "w is torch.float64, not torch.float32"),
        (message(counts=torch.zeros(2, 3)), "counts is torch.float32, not torch.int64"),
        (message(w=torch.tensor([0, 0, 0, torch.nan])), "w is not finite"),
        (message(w=torch.tensor([torch.inf, 0, 0, 0])), "w is not finite"),
        (message(w=torch.tensor([torch.inf, -torch.inf, 0, 0])), "w is not finite"),
        (message(**{"part.control": torch.tensor([0, -torch.inf, 0, 0])}), "part.control is not finite"),
    ],
)
def test_a_flaw_is_named(sent: dict[str, Tensor], said: str) -> None:
    assert flaw(TensorLayout(ASKED), sent) == said


def test_huge_values_are_no_flaw_even_if_their_sum_is_too_large() -> None:
    huge = torch.full((4,), torch.finfo(torch.float32).max)
    assert not huge.sum().isfinite()
    assert flaw(TensorLayout(ASKED), message(w=huge)) is None


def test_a_weighted_sum_is_exact_over_the_border_of_its_pieces() -> None:
    generator = torch_generator(0, "vectors")
    vectors = [torch.randn(CHUNK + 7, generator=generator) for _ in range(5)]
    shares = [0.1, 0.2, 0.3, 0.15, 0.25]
    expected = sum(share * vector.double() for share, vector in zip(shares, vectors, strict=True))
    assert isinstance(expected, Tensor)
    assert torch.allclose(weighted_sum(vectors, shares).double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(weighted_sum([v.view(-1, 1) for v in vectors], shares)[:, 0], weighted_sum(vectors, shares))


def test_a_weighted_sum_adds_in_the_order_given() -> None:
    small, large = torch.tensor([1.0]), torch.tensor([2.0**24])
    assert weighted_sum([large, small, -large], [1, 1, 1]).item() == 0
    assert weighted_sum([large, -large, small], [1, 1, 1]).item() == 1


def test_a_sum_in_given_memory_has_the_same_bits() -> None:
    vectors = list(torch.randn(3, CHUNK + 5, generator=torch_generator(0, "vectors")))
    home = torch.full((CHUNK + 5,), torch.nan)
    assert weighted_sum(vectors, [0.2, 0.3, 0.5], out=home) is home
    assert torch.equal(home, weighted_sum(vectors, [0.2, 0.3, 0.5]))
