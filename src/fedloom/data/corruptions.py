"""Fifteen of the nineteen corruptions of CIFAR-10-C (Hendrycks and Dietterich 2019), with numpy, scipy and pillow.

Each takes one image H,W,C with values 0 to 1, a severity 0 to 4 and a generator, and returns an image of the same shape,
which the caller clips to [0, 1]. The constants are those of the published code for 32 x 32 images, at every size. Left out
are motion_blur and snow (ImageMagick's motion blur), frost (photographs of frost) and spatter (OpenCV's edges and
distances).

Departures: results are rounded to 8 bits once, at the end, where the original truncates (jpeg and pixelate always work on
8 bits); elastic_transform interpolates between pixels exactly, OpenCV in steps of 1/32.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Pixels = npt.NDArray[np.float64]
Kind = Callable[[Pixels, int, np.random.Generator], Pixels]


def gaussian_noise(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    return x + random.normal(0, (0.04, 0.06, 0.08, 0.09, 0.10)[level], x.shape)


def shot_noise(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """Photon counts: Poisson with mean c x."""
    c = (500, 250, 100, 75, 50)[level]
    return np.asarray(random.poisson(x * c) / c)


def impulse_noise(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """A share of all values becomes 0 or 1, with equal probability."""
    hit = random.random(x.shape) < (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    return np.where(hit, (random.random(x.shape) < 0.5).astype(float), x)


def speckle_noise(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    return x + x * random.normal(0, (0.06, 0.1, 0.12, 0.16, 0.2)[level], x.shape)


def gaussian_blur(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    return _blurred(x, (0.4, 0.6, 0.7, 0.8, 1.0)[level])


def defocus_blur(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """Correlation with a disk that is smoothed by a 3 x 3 Gaussian; the border is mirrored without its edge."""
    radius, smooth = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[level]
    side = np.arange(-3, 4)
    disk = (side[:, None] ** 2 + side**2 <= radius**2).astype(float)
    line = np.exp(-(np.arange(-1, 2) ** 2) / (2 * smooth**2))
    kernel = ndimage.correlate(disk / disk.sum(), np.outer(line, line) / line.sum() ** 2, mode="constant")
    return np.asarray(ndimage.correlate(x, kernel[:, :, None], mode="mirror"))


def glass_blur(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """Blur, replace each pixel by one up to a row above and a column to the left, blur again.

    The published code means to swap the two pixels, but overwrites one. It goes from the last pixel to the first, so it
    never reads an overwritten pixel, and all pixels can be replaced at once.
    """
    sigma, times = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    x = _blurred(x, sigma)
    height, width = x.shape[:2]
    row, column = np.indices((height, width))
    inner = (row >= 2) & (column >= 2)
    for _ in range(times):
        up, left = random.integers(0, 2, (2, height, width)) * inner
        x = x[row - up, column - left]
    return _blurred(x, sigma)


def zoom_blur(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """The mean of the image and of its center, enlarged in 6, 11, 16, 21 or 26 steps of one percent."""
    steps = (6, 11, 16, 21, 26)[level]
    return np.asarray((x + sum(_enlarged(x, 1 + step / 100) for step in range(steps))) / (steps + 1))


def fog(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    strength, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[level]
    most = x.max()
    height, width = x.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()
    cloud = _plasma(side, decay, random)[:height, :width, None]
    return np.asarray((x + strength * cloud) * most / (most + strength))


def brightness(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """The HSV value (largest channel) increases; hue and saturation stay the same."""
    value = x.max(axis=2, keepdims=True)
    raised = np.minimum(value + (0.05, 0.1, 0.15, 0.2, 0.3)[level], 1)
    return np.asarray(np.where(value > 0, x * raised / np.where(value > 0, value, 1), raised))


def contrast(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return np.asarray((x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[level] + mean)


def saturate(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """The HSV saturation s becomes a s + b. Gray pixels that gain saturation take hue 0, red."""
    a, b = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[level]
    value, least = x.max(axis=2, keepdims=True), x.min(axis=2, keepdims=True)
    spread = value - least
    saturation = spread / np.where(value > 0, value, 1)
    wanted = np.clip(saturation * a + b, 0, 1)
    below = (value - x) / np.where(spread > 0, spread, 1)  # 0 for the largest channel, 1 for the least
    below = np.where(spread > 0, below, np.array([0.0, 1.0, 1.0]))
    return np.asarray(value * (1 - wanted * below))


def jpeg_compression(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    file = BytesIO()
    _to_pillow(x).save(file, "JPEG", quality=(80, 65, 58, 50, 40)[level])
    return _from_pillow(import_module("PIL.Image").open(file), x)


def pixelate(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """Downscaled and upscaled with a box filter."""
    c = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    image, box = _to_pillow(x), import_module("PIL.Image").Resampling.BOX
    height, width = x.shape[:2]
    return _from_pillow(image.resize((int(width * c), int(height * c)), box).resize((width, height), box), x)


def elastic_transform(x: Pixels, level: int, random: np.random.Generator) -> Pixels:
    """A random affine map that moves three points, then a smooth random displacement field."""
    shift, smooth, affine = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))[
        level
    ]
    height, width = x.shape[:2]
    side = min(height, width)
    middle, reach = np.array([width // 2, height // 2]), side // 3
    before = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    after = before + random.uniform(-affine * side, affine * side, (3, 2))
    back = np.linalg.solve(np.c_[after, np.ones(3)], before)  # from a position in the result to one in the image
    column, row = np.meshgrid(np.arange(width, dtype=float), np.arange(height, dtype=float))
    source = np.stack([column, row, np.ones_like(row)], axis=-1) @ back
    x = _sampled(x, source[..., 1], source[..., 0], "mirror")
    fields = [random.uniform(-1, 1, (height, width)) for _ in range(2)]
    right, down = (
        ndimage.gaussian_filter(field, smooth * side, mode="reflect", truncate=3) * shift * side for field in fields
    )
    return _sampled(x, row + down, column + right, "reflect")


# in the order of CIFAR-10-C
KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        defocus_blur,
        glass_blur,
        zoom_blur,
        fog,
        brightness,
        contrast,
        elastic_transform,
        pixelate,
        jpeg_compression,
        speckle_noise,
        gaussian_blur,
        saturate,
    )
}
COLOR_ONLY = ("saturate",)  # has no effect on gray images


def _blurred(x: Pixels, sigma: float) -> Pixels:
    return np.asarray(ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4))


def _enlarged(x: Pixels, factor: float) -> Pixels:
    """The center of the image, enlarged and cropped to the original size."""
    height, width = x.shape[:2]
    high, wide = ceil(height / factor), ceil(width / factor)
    top, left = (height - high) // 2, (width - wide) // 2
    large = ndimage.zoom(x[top : top + high, left : left + wide], (factor, factor, 1), order=1)
    top, left = max(large.shape[0] - height, 0) // 2, max(large.shape[1] - width, 0) // 2
    large = large[top : top + height, left : left + width]
    missing = ((0, height - large.shape[0]), (0, width - large.shape[1]), (0, 0))
    return np.pad(large, missing, mode="edge")  # rounding may leave it a pixel short


def _plasma(side: int, decay: float, random: np.random.Generator) -> Pixels:
    """A plasma fractal (diamond-square algorithm on a torus) from 0 to 1; the side is a power of two."""
    cloud = np.zeros((side, side))
    step, wobble = side, 100.0

    def perturbed(total: Pixels) -> Pixels:
        return np.asarray(total / 4 + wobble * random.uniform(-wobble, wobble, total.shape))

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        total = corners + np.roll(corners, -1, axis=0)
        cloud[half::step, half::step] = perturbed(total + np.roll(total, -1, axis=1))
        middles = cloud[half::step, half::step]
        corners = cloud[::step, ::step]
        cloud[::step, half::step] = perturbed(
            middles + np.roll(middles, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        )
        cloud[half::step, ::step] = perturbed(
            middles + np.roll(middles, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        )
        step, wobble = half, wobble / decay
    cloud -= cloud.min()
    return cloud / (cloud.max() or 1)


def _sampled(x: Pixels, row: Pixels, column: Pixels, mode: str) -> Pixels:
    channels = [
        ndimage.map_coordinates(x[:, :, channel], (row, column), order=1, mode=mode) for channel in range(x.shape[2])
    ]
    return np.stack(channels, axis=2)


def _to_pillow(x: Pixels) -> Any:
    levels = np.round(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return import_module("PIL.Image").fromarray(levels[:, :, 0] if x.shape[2] == 1 else levels)


def _from_pillow(image: Any, like: Pixels) -> Pixels:
    return np.asarray(image, dtype=np.float64).reshape(like.shape) / 255
