"""Train a net of your own on arrays of your own, divided among clients by yourself.

    python examples/own_data_and_net.py

The data are synthetic: motion signals of 3 channels and 64 steps from five devices, each with an offset of its own. One
device is a client.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import fedloom as fl

DEVICES = 5
ACTIVITIES = ("walk", "run", "climb")


def signals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signals (count, 3, 64), the activity of each, and the device that recorded it."""
    draw = np.random.default_rng(seed)
    label, device = draw.integers(3, size=count), draw.integers(DEVICES, size=count)
    time = np.linspace(0, 2 * np.pi, 64)
    waves = np.stack([np.sin((label[:, None] + 1 + axis) * time) for axis in range(3)], axis=1)
    x = waves + 0.3 * device[:, None, None] + draw.normal(0, 1.5, size=(count, 3, 64))
    return x.astype(np.float32), np.array(ACTIVITIES)[label], device


class SignalNet(nn.Module):
    """Its last linear layer is the head; methods such as `babu` and `fn` find it by themselves."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, 16, 7, stride=2), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2), nn.ReLU()
        )
        self.classifier = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x).amax(-1))


def main() -> None:
    x, y, device = signals(1000, seed=0)
    test_x, test_y, test_device = signals(300, seed=1)
    data = fl.Dataset.from_arrays(x, y, test_x, test_y, name="motion")
    split = {
        "train": [np.flatnonzero(device == number) for number in range(DEVICES)],
        "test": [np.flatnonzero(test_device == number) for number in range(DEVICES)],
    }
    torch.manual_seed(0)  # the net's weights are the initial ones of all runs
    net = SignalNet(channels=3, classes=data.classes)
    for method in ("fedavg", "scaffold", "fedper"):
        run = fl.run(
            data=data,
            split=split,
            model=net,
            method=method,
            rounds=15,
            epochs=2,
            fraction=0.6,
            lr=0.05,
            name=f"motion-{method}",
        )
        own = run.metric(of="personal") or run.metric(of="client") or 0.0
        print(f"{method:10} global {100 * (run.metric() or 0):.1f} %, on each device's own data {100 * own:.1f} %")


if __name__ == "__main__":
    main()
