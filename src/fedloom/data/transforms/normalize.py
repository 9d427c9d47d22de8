"""`data.normalize`: set (statistics of the training samples), none, or two lists: means and deviations per channel."""

from __future__ import annotations

from math import isfinite
from typing import Literal, TypeAlias

from fedloom.errors import FedloomError, shown

Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
ALLOWED = "allowed are set, none, or two lists of one number per channel: means, then deviations above 0"


def check_normalize(value: object) -> Literal["set", "none"] | Statistics:
    """What can be checked without the data."""
    if value == "set":
        return "set"
    if value == "none":
        return "none"
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise FedloomError(f"data.normalize is {shown(value)}; {ALLOWED}")
    mean, std = (_numbers(value, numbers) for numbers in value)
    if len(mean) != len(std) or not mean:
        raise FedloomError(f"data.normalize has {len(mean)} means and {len(std)} deviations; {ALLOWED}")
    if min(std) <= 0:
        raise FedloomError(f"data.normalize has the deviation {min(std):g}; {ALLOWED}")
    return mean, std


def normalization(value: object, own: Statistics, name: str) -> Statistics:
    """Mean and deviation per channel of x / scale. `own`: the statistics of the dataset with this name."""
    checked = check_normalize(value)
    channels = len(own[0])
    if checked == "set":
        return own
    if checked == "none":
        return (0.0,) * channels, (1.0,) * channels
    if len(checked[0]) != channels:
        raise FedloomError(f"data.normalize has {len(checked[0])} means and {name} has {channels} channels; {ALLOWED}")
    return checked


def _numbers(value: object, numbers: object) -> tuple[float, ...]:
    if not isinstance(numbers, (list, tuple)):
        raise FedloomError(f"data.normalize is {shown(value)}; {ALLOWED}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not isfinite(number):
            raise FedloomError(f"data.normalize holds {shown(number)}, which is not a number; {ALLOWED}")
    return tuple(float(number) for number in numbers)
