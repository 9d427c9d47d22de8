"""Where a method's learning rate is searched by default: by optimizer, and by the scale that its parts declare."""

from __future__ import annotations

from functools import reduce

from fedloom.methods.api.part import Method
from fedloom.methods.api.search import PLAIN, RateScale, Span
from fedloom.recipe import Recipe

DIGITS = 3  # of tuned numbers
# Rates of SGD for cross-entropy, with and without momentum, which multiplies a step by up to 10; the papers here use 0.01 to
# 0.1 with momentum 0.9. Adam's steps do not depend on the size of the loss; Kingma and Ba propose 0.001.
SGD_MOMENTUM = Span(0.003, 1.0, log=True, source="0.01 to 0.1 in the papers, with room on both sides")
SGD_PLAIN = Span(0.01, 3.0, log=True, source="three times the range with momentum")
ADAM = Span(1e-4, 0.03, log=True, source="Kingma and Ba 2015 propose 0.001")
ADAM_RATE = 0.001


def rate_range(method: Method, recipe: Recipe) -> Span:
    """The range of the learning rate, by optimizer and by the scale that the parts declare."""
    if recipe.optimizer.name != "sgd":
        return ADAM
    base, scale = SGD_MOMENTUM if recipe.momentum >= 0.5 else SGD_PLAIN, rate_scale(method)
    sources = [part.rate_scale.source for part in method.parts if part.rate_scale]
    return Span(
        rounded_number(base.low * scale.least),
        rounded_number(base.high * scale.most),
        True,
        "; ".join([base.source, *sources]),
    )


def rate_scale(method: Method) -> RateScale:
    """That of a sum is the product of its parts'."""
    scales = [part.rate_scale for part in method.parts if part.rate_scale]
    return reduce(lambda a, b: RateScale(a.least * b.least, a.most * b.most), scales, PLAIN)


def rounded_number(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
