"""Masks: nothing to be seen of a vector under them, and nothing left of them in a sum."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes, public_key_to_bytes

from fedloom.deploy.secagg.masks import masked, stream, unmasked

NODES = (3, 2**64 - 1, 17, 2**63, 5)
LENGTH = 5000


@pytest.fixture(scope="module")
def keys() -> dict[int, tuple[bytes, bytes]]:
    pairs = {node: generate_key_pairs() for node in NODES}
    return {node: (private_key_to_bytes(one), public_key_to_bytes(two)) for node, (one, two) in pairs.items()}


def hidden(keys: dict[int, tuple[bytes, bytes]]) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Small numbers, as updates are, and the same under masks."""
    draw = np.random.default_rng(0)
    vectors = {node: draw.integers(-50, 50, LENGTH).astype(np.uint32) for node in NODES}
    publics = {node: {other: keys[other][1] for other in NODES if other != node} for node in NODES}
    return vectors, {
        node: masked(vectors[node], bytes([i] * 32), node, keys[node][0], publics[node]) for i, node in enumerate(NODES)
    }


def test_a_masked_vector_is_noise_alone_and_the_numbers_in_a_sum(keys: dict[int, tuple[bytes, bytes]]) -> None:
    vectors, sent = hidden(keys)
    for node in NODES:
        high = (sent[node] > 2**31).mean()
        assert abs(high - 0.5) < 0.05
        assert (sent[node] == vectors[node]).mean() < 0.01
        assert abs(np.corrcoef(sent[node].astype(float), vectors[node].view(np.int32).astype(float))[0, 1]) < 0.06
    total = np.stack(list(sent.values())).sum(0, dtype=np.uint32)
    summed = unmasked(total, [bytes([i] * 32) for i in range(len(NODES))], [])
    assert (summed == np.stack(list(vectors.values())).sum(0, dtype=np.uint32)).all()


def test_two_may_be_missing_from_the_sum(keys: dict[int, tuple[bytes, bytes]]) -> None:
    vectors, sent = hidden(keys)
    there, gone = NODES[:3], NODES[3:]
    total = np.stack([sent[node] for node in there]).sum(0, dtype=np.uint32)
    publics = {node: keys[node][1] for node in there}
    summed = unmasked(total, [bytes([i] * 32) for i in range(3)], [(node, keys[node][0], publics) for node in gone])
    assert (summed == np.stack([vectors[node] for node in there]).sum(0, dtype=np.uint32)).all()
    assert (unmasked(total, [bytes([i] * 32) for i in range(3)], []) != summed).mean() > 0.99


def test_a_stream_depends_on_the_whole_secret() -> None:
    """Secrets that are the same when folded to 32 bits: as few as that could all be tried."""
    one, other = bytes(32), bytes([7, 0, 0, 0] * 2 + [0] * 24)
    assert (stream(one, 1000) == stream(other, 1000)).mean() < 0.01
    assert (stream(one, 1000) == stream(one, 2000)[:1000]).all()
