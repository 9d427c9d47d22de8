"""Data on the server."""

from __future__ import annotations

import pytest
from reference import BODY, HEAD, ORDER
from reference_server import server_data
from tiny import MODEL_BYTES, agree, problem, traffic, train


@pytest.mark.parametrize(("update", "names"), [("full", ORDER), ("body", BODY)])
def test_the_server_trains_on_a_share_of_all_images(update: str, names: tuple[str, ...]) -> None:
    run = train(f"server-data(share=0.1, epochs=2, update={update})", batch=64, rounds=2)
    agree(run, server_data(problem(run), 0.1, 2, names), atol=5e-5)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_with_the_body_alone_the_head_is_the_average() -> None:
    plain, body = (train(method, rounds=1).weights for method in ("fedavg", "server-data(update=body)"))
    assert all(bool((plain[name] == body[name]).all()) for name in HEAD)
    assert not any(bool((plain[name] == body[name]).all()) for name in BODY)
