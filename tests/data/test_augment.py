"""Random changes of images beyond zero-padded crop and flip: reflection, resized crops, cutout; floats and many channels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import affine_transform
from torch import Tensor

from fedloom.data import InputSpec, pipeline_of
from fedloom.data.transforms.augment import _boxes, parse_augment
from fedloom.data.transforms.images import ImagePipeline
from fedloom.errors import FedloomError
from fedloom.rng import torch_generator


def batch(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch_generator(0, "batch"))


def plain(augment: str, channels: int, scale: float = 1.0) -> ImagePipeline:
    return ImagePipeline(scale, (0.0,) * channels, (1.0,) * channels, augment)


def test_a_reflected_crop_is_a_window_of_numpys_reflected_image() -> None:
    x = batch(40, 6, 7, 2)
    out = plain("crop:3:reflect", 2)(x, torch_generator(0, "a")).permute(0, 2, 3, 1)
    padded = np.pad(x.numpy(), [(0, 0), (3, 3), (3, 3), (0, 0)], "reflect").astype(np.float32)
    seen = set()
    for image, wide in zip(out.numpy(), padded, strict=True):
        matches = [(i, j) for i in range(7) for j in range(7) if np.array_equal(image, wide[i : i + 6, j : j + 7])]
        assert matches
        seen.add(matches[0])
    assert len(seen) > 15


def test_a_resized_crop_is_the_box_enlarged_bilinearly() -> None:
    x = batch(30, 9, 12, 3)
    out = plain("resizedcrop:0.2+flip", 3)(x, torch_generator(5, "a"))
    generator = torch_generator(5, "a")
    mirrored = torch.randint(2, (30,), generator=generator).tolist()
    tall, wide = (sizes.long().tolist() for sizes in _boxes(30, 9, 12, 0.2, generator))
    place = torch.rand(2, 30, dtype=torch.float64, generator=generator)
    for k in range(30):
        top, left = int(place[0, k] * (9 - tall[k] + 1)), int(place[1, k] * (12 - wide[k] + 1))
        box = x[k, top : top + tall[k], left : left + wide[k]].permute(2, 0, 1).float()[None]
        expected = F.interpolate(box, size=(9, 12), mode="bilinear", align_corners=False)[0]
        expected = expected.flip(2) if mirrored[k] else expected
        assert (out[k] - expected).abs().max() < 2e-3  # of values up to 255
    assert {0, 1} == set(mirrored)


def test_boxes_have_the_area_and_the_ratio_that_were_asked_for() -> None:
    tall, wide = _boxes(4000, 64, 64, 0.25, torch_generator(0, "a"))
    share, ratio = tall * wide / 64**2, wide / tall
    assert 0.24 < share.min() < 0.27
    assert share.max() == 1
    assert 0.70 < ratio.min() < 0.80
    assert 1.25 < ratio.max() < 1.42
    assert (ratio > 1).float().mean() == pytest.approx(0.5, abs=0.05)


def test_the_whole_area_leaves_square_images_as_they_are() -> None:
    x = batch(5, 8, 8, 1)
    tall, wide = _boxes(200, 8, 8, 1.0, torch_generator(0, "a"))
    assert set((tall * wide).tolist()) <= {64.0, 56.0, 63.0}  # rounded to whole pixels
    assert plain("resizedcrop:1", 1)(x, torch_generator(0, "a")).shape == (5, 1, 8, 8)


def test_cutout_sets_one_square_to_the_mean_color() -> None:
    x = batch(300, 8, 10, 3).clamp(min=1)
    pipeline = ImagePipeline(255.0, (0.25, 0.5, 0.75), (0.5, 0.5, 0.5), "cutout:3")
    out, whole = pipeline(x, torch_generator(0, "a")), pipeline(x, None)
    centers = set()
    for image, before in zip(out, whole, strict=True):
        cut = (image != before).any(0)
        rows, columns = cut.any(1).nonzero().flatten().tolist(), cut.any(0).nonzero().flatten().tolist()
        square = image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert (square == 0).all()
        assert len(rows) <= 3
        assert len(columns) <= 3
        centers.add((rows[0], columns[0]))
    assert len(centers) > 40
    corner = [(image != before).any(0).sum().item() for image, before in zip(out, whole, strict=True)]
    assert min(corner) == 4  # a center in a corner: the rest of the square is outside
    assert max(corner) == 9


def test_an_affine_map_is_that_of_scipy() -> None:
    x, (degrees, shift, zoom) = batch(12, 9, 14, 2), (40.0, 0.3, 0.25)
    out = plain(f"affine:{degrees}:{shift}:{zoom}+flip", 2)(x, torch_generator(3, "a")).permute(0, 2, 3, 1)
    generator = torch_generator(3, "a")
    turn, scale, down, right = (2 * torch.rand(4, 12, dtype=torch.float64, generator=generator) - 1).numpy()
    mirrored = torch.randint(2, (12,), generator=generator).tolist()
    center = np.array([4.0, 6.5])
    for k in range(12):
        angle, factor = np.radians(degrees) * turn[k], 1 + zoom * scale[k]
        forth = factor * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        back = np.linalg.inv(forth)  # scipy maps places of the result to places of the image
        moved = center + np.array([shift * 9 * down[k], shift * 14 * right[k]])
        for channel in range(2):
            expected = affine_transform(
                x[k, :, :, channel].double().numpy(), back, center - back @ moved, order=1, mode="grid-constant"
            )
            expected = expected[:, ::-1] if mirrored[k] else expected
            assert np.abs(out[k, :, :, channel].numpy() - expected).max() < 2e-3  # of values up to 255
    assert {0, 1} == set(mirrored)


def test_an_affine_map_by_nothing_leaves_images_as_they_are() -> None:
    x = batch(3, 5, 8, 3)
    assert (plain("affine:0:0:0", 3)(x, torch_generator(0, "a")) - plain("none", 3)(x, None)).abs().max() < 1e-3


@pytest.mark.parametrize(
    "augment", ["flip", "crop+flip", "crop:2:reflect+flip", "resizedcrop", "affine+crop", "cutout"]
)
def test_floats_of_any_number_of_channels_are_augmented_like_bytes(augment: str) -> None:
    x = batch(6, 8, 8, 5)
    of_bytes = plain(augment, 5)(x, torch_generator(0, "a"))
    of_floats = plain(augment, 5)(x.float(), torch_generator(0, "a"))
    assert torch.equal(of_bytes, of_floats)
    assert not torch.equal(of_bytes, plain(augment, 5)(x, None))


def test_terms_may_come_in_any_order() -> None:
    assert parse_augment("flip + crop:2") == parse_augment("crop:2+flip")
    assert parse_augment("none") is None


@pytest.mark.parametrize(
    ("augment", "sentence"),
    [
        ("mixup", "allowed are none, or a sum of flip"),
        ("flip:2", "allowed are none, or a sum of flip"),
        ("cutout:3:reflect", "allowed are none, or a sum of flip"),
        ("crop+crop:2", "crop is the second of its kind: keep one"),
        ("crop+resizedcrop", "resizedcrop is the second of its kind: keep one"),
        ("crop:2.5", "crop takes pixels from 1 to 4096"),
        ("crop:1.2.3", "has no number"),
        ("resizedcrop:0", r"must be in \(0, 1\]"),
        ("", "allowed are none, or a sum of flip"),
        ("affine+affine", "affine is the second of its kind: keep one"),
        ("affine:ten", "affine takes up to three numbers: affine:DEGREES:SHIFT:ZOOM"),
        ("affine:1:0:0:0", "affine takes up to three numbers"),
        ("affine:200", "takes degrees from 0 to 180"),
        ("affine:10:0.1:1", "a zoom from 0 to below 1"),
        ("affine:nan", "takes degrees from 0 to 180"),
    ],
)
def test_a_wrong_augmentation_is_refused_in_a_sentence(augment: str, sentence: str) -> None:
    with pytest.raises(FedloomError, match=sentence):
        parse_augment(augment)


def test_augmentation_refuses_other_kinds_and_reflection_beyond_the_image() -> None:
    own = ((0.0,), (1.0,))
    with pytest.raises(FedloomError, match="augment is 'flip'; it changes images, and vitals holds features"):
        pipeline_of(InputSpec("features", (1,)), own, "vitals", augment="flip")
    with pytest.raises(FedloomError, match="augment is 'affine'; it changes images, and vitals holds features"):
        pipeline_of(InputSpec("features", (1,)), own, "vitals", augment="affine")
    with pytest.raises(FedloomError, match="augment is 'crop'; it changes images, and notes holds tokens"):
        pipeline_of(InputSpec("tokens", (4,)), own, "notes", augment="crop")
    with pytest.raises(FedloomError, match="reflection pads by at most 3 pixels in images of 4x8"):
        pipeline_of(InputSpec.image((1, 4, 8)), own, "tiny", augment="crop:4:reflect")
