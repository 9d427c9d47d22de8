"""A run that is analyzed on the way, killed and resumed: the same weights and the same analysis."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import check_whole, untimed
from processes import Child, die_at

import fedloom as fl

FIELDS: dict[str, Any] = {"clients": 5, "fraction": 0.4, "rounds": 3, "workers": 1, "eval_every": 0, "method": "fedper"}


def analyzed(run: fl.Run) -> list[dict[str, Any]]:
    return untimed(fl.Analysis(run.path / "analysis").rounds)


@pytest.mark.slow
def test_an_analyzed_run_killed_at_any_step_resumes_to_the_same_weights_and_lines(
    straight: Callable[..., fl.Run],
) -> None:
    fields = {**FIELDS, "checkpoint_seconds": 0, "analyze_every": 1}
    plain, like = straight(**FIELDS), fl.run(fields, out="like")
    assert [line["round"] for line in analyzed(like)] == [1, 2, 3]
    step = 8
    while True:
        path = Path(f"killed-{step}")

        def work(path: Path = path, step: int = step) -> None:
            die_at(step)
            fl.run(fields, out=str(path))

        if Child(work).wait() != -signal.SIGKILL:
            break
        run = fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path))
        check_whole(run, plain)
        assert analyzed(run) == analyzed(like)
        step += 9
    assert step > 25  # else next to nothing was tried
