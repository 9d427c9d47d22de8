"""Singular values of the features' covariance, and the ranks made of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedloom.analysis.collapse import effective_rank, rank99, spectrum


def test_singular_values_are_those_of_numpys_covariance() -> None:
    f = np.random.default_rng(1).normal(size=(200, 6)) @ np.diag([3, 2, 1, 0.5, 0.1, 0]) + 5
    like = np.linalg.svd(np.cov(f.T, bias=True), compute_uv=False)
    found = spectrum(torch.from_numpy(f))
    assert found.tolist() == pytest.approx(like.tolist(), abs=1e-9)
    p = like / like.sum()
    assert effective_rank(found) == pytest.approx(math.exp(-sum(x * math.log(x) for x in p if x > 1e-15)))


def test_a_round_cloud_uses_all_dimensions_and_a_line_one() -> None:
    assert effective_rank(torch.ones(8, dtype=torch.float64)) == pytest.approx(8)
    line = spectrum(torch.arange(10.0)[:, None] * torch.tensor([1.0, 2.0, 0.0]))
    assert effective_rank(line) == pytest.approx(1)
    assert rank99(line) == 1
    assert rank99(torch.tensor([98.0, 0.9, 0.6, 0.5])) == 3


def test_features_without_variance_or_not_finite() -> None:
    assert effective_rank(spectrum(torch.ones(5, 3))) == 0
    assert rank99(spectrum(torch.zeros(5, 3))) == 0
    broken = spectrum(torch.full((5, 3), torch.inf))
    assert math.isnan(effective_rank(broken)) and math.isnan(rank99(broken))
