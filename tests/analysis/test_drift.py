"""Client drift against the definitions, vector by vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom.analysis import drift as module
from fedloom.analysis.drift import drift


def test_drift_is_what_the_definitions_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)  # many pieces, the last one shorter
    draw = np.random.default_rng(0)
    start, ends = draw.normal(size=50), draw.normal(size=(4, 50))
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    found = drift(torch.from_numpy(start), list(torch.from_numpy(ends)), shares.tolist())
    updates = ends - start
    mean = shares @ updates
    norm = np.linalg.norm
    assert found.norm == pytest.approx(norm(updates, axis=1))
    assert found.mean_norm == pytest.approx(norm(mean))
    assert found.to_mean == pytest.approx(norm(updates - mean, axis=1))
    assert found.cosine_to_mean == pytest.approx([u @ mean / norm(u) / norm(mean) for u in updates])
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    cosines = [updates[i] @ updates[j] / norm(updates[i]) / norm(updates[j]) for i, j in pairs]
    assert [found.cosine[pair] for pair in pairs] == pytest.approx(cosines)
    assert [found.distance[i, j] for i, j in pairs] == pytest.approx([norm(ends[i] - ends[j]) for i, j in pairs])
    assert found.means()["cosine_pairwise"] == pytest.approx(np.mean(cosines))


def test_equal_updates_do_not_drift() -> None:
    start = torch.zeros(9)
    found = drift(start, [torch.arange(9.0)] * 3, [1 / 3] * 3).means()
    assert found["to_mean"] == pytest.approx(0, abs=1e-6)
    assert found["cosine_to_mean"] == pytest.approx(1)
    assert found["cosine_pairwise"] == pytest.approx(1)


def test_an_update_of_zero_has_no_direction_and_a_lone_client_no_pair() -> None:
    found = drift(torch.ones(4), [torch.ones(4), torch.zeros(4)], [0.5, 0.5])
    assert np.isnan(found.cosine_to_mean[0]) and found.cosine_to_mean[1] == pytest.approx(1)
    assert found.means()["cosine_to_mean"] == pytest.approx(1)
    assert np.isnan(drift(torch.ones(4), [torch.zeros(4)], [1.0]).means()["cosine_pairwise"])


def test_where_nothing_is_shared_nothing_is_known() -> None:
    found = drift(torch.empty(0), [torch.empty(0)] * 2, [0.5, 0.5])
    assert all(np.isnan(value) for value in found.means().values())


def test_a_round_that_lost_all_its_uploads_has_no_drift() -> None:
    assert all(np.isnan(value) for value in drift(torch.ones(3), [], []).means().values())
