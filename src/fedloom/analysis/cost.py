"""Cost: accuracy per second and per megabyte, and the cost of reaching an accuracy.

FNR-FL, table 4: kappa = accuracy * 10^4 / time, rho = accuracy * 10^4 / traffic. Accuracy is in [0, 1] after the last round,
time in seconds over all rounds (without evaluation and analysis), traffic in megabytes (10^6 bytes) down and up. The paper
does not state the units of time and traffic. A target is reached in the first round whose test accuracy is at least the
target; nothing is selected by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def cost(rounds: Sequence[Mapping[str, Any]], targets: Sequence[float] = TARGETS) -> dict[str, Any]:
    """From the lines of rounds.jsonl."""
    accuracy = next((line["test_accuracy"] for line in reversed(rounds) if "test_accuracy" in line), float("nan"))
    seconds = sum(line["seconds"] for line in rounds)
    down, up = (sum(line[name] for line in rounds) / 1e6 for name in ("bytes_down", "bytes_up"))
    return {
        "test_accuracy": accuracy,
        "seconds": seconds,
        "megabytes": down + up,
        "megabytes_down": down,
        "megabytes_up": up,
        "kappa": accuracy * 1e4 / seconds if seconds else None,
        "rho": accuracy * 1e4 / (down + up) if down + up else None,
        "targets": [_reached(rounds, target) for target in sorted(set(targets))],
    }


def _reached(rounds: Sequence[Mapping[str, Any]], target: float) -> dict[str, Any]:
    seconds = megabytes = 0.0
    for line in rounds:
        seconds += line["seconds"]
        megabytes += (line["bytes_down"] + line["bytes_up"]) / 1e6
        if line.get("test_accuracy", -1.0) >= target:
            return {"target": target, "round": line["round"], "seconds": seconds, "megabytes": megabytes}
    return {"target": target, "round": None, "seconds": None, "megabytes": None}
