from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedloom.data import Dataset, check_normalize, normalization
from fedloom.data.transforms.images import ImagePipeline
from fedloom.errors import FedloomError
from fedloom.rng import torch_generator

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def batch(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch_generator(seed, "batch"))


def normalized(image: Tensor, scale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """One H,W,C image as C,H,W, by the definition, in double precision."""
    channels = [(image[..., c].double() / scale - mean[c]) / std[c] for c in range(image.shape[2])]
    return torch.stack(channels)


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 5),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.sampled_from([1, 3]),
    scale=st.sampled_from([255.0, 16.0]),
)
def test_evaluation_is_the_definition_to_a_millionth(
    size: int, height: int, width: int, channels: int, scale: float
) -> None:
    x = batch(size, height, width, channels)
    x = x.clamp(max=int(scale))
    mean, std = MEAN[:channels], STD[:channels]
    for augment in ("none", "flip", "crop+flip"):
        out = ImagePipeline(scale, mean, std, augment)(x, None)
        expected = torch.stack([normalized(image, scale, mean, std) for image in x])
        assert out.dtype == torch.float32
        assert (out - expected).abs().max() < 1e-6


@pytest.mark.parametrize(
    "augment", ["none", "flip", "crop+flip", "crop:2:reflect", "resizedcrop+flip", "cutout:3", "crop:2+flip+cutout"]
)
@pytest.mark.parametrize("shape", [(5, 32, 32, 3), (5, 28, 28, 1), (1, 8, 8, 1), (4, 6, 9, 3)])
def test_the_memory_is_channels_last_so_that_convolutions_copy_nothing(shape: tuple[int, ...], augment: str) -> None:
    pipeline = ImagePipeline(255.0, (0.5,) * shape[3], (0.5,) * shape[3], augment)
    out = pipeline(batch(*shape), torch_generator(0, "augment"))
    size, height, width, channels = shape
    assert out.shape == (size, channels, height, width)
    assert out.stride() == (height * width * channels, 1, width * channels, channels)
    assert out.contiguous(memory_format=torch.channels_last).data_ptr() == out.data_ptr()
    if channels == 1:
        assert out.contiguous().data_ptr() == out.data_ptr()


def crops(image: Tensor, padding: int) -> dict[tuple[int, int, int], Tensor]:
    """Every outcome for one image, by (mirrored, top, left), computed pixel by pixel."""
    height, width = image.shape[:2]
    outcomes = {}
    for mirrored in (0, 1):
        for top in range(2 * padding + 1):
            for left in range(2 * padding + 1):
                out = torch.zeros_like(image)
                for i in range(height):
                    for j in range(width):
                        row, column = i + top - padding, j + left - padding
                        if 0 <= row < height and 0 <= column < width:
                            out[i, j] = image[row, width - 1 - column if mirrored else column]
                outcomes[mirrored, top, left] = out
    return outcomes


@pytest.mark.parametrize(("augment", "padding"), [("flip", 0), ("crop+flip", 4)])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_is_one_of_its_crops_and_mirror_images(augment: str, padding: int, channels: int) -> None:
    images = batch(3, 5, 6, channels)
    outcomes = [crops(image, padding) for image in images]
    pipeline = ImagePipeline(255.0, (0.0,) * channels, (1.0,) * channels, augment)
    generator = torch_generator(0, "augment")
    seen: list[tuple[int, int, int]] = []
    for _ in range(20):
        out = (pipeline(images, generator) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        for image, possible in zip(out, outcomes, strict=True):
            matches = [key for key, value in possible.items() if torch.equal(image, value)]
            assert matches
            seen.append(matches[0])
    assert {mirrored for mirrored, _, _ in seen} == {0, 1}
    assert {top for _, top, _ in seen} == {left for _, _, left in seen} == set(range(2 * padding + 1))


def test_draws_are_those_of_an_image_by_image_reference() -> None:
    x = batch(6, 7, 5, 3)
    out = ImagePipeline(255.0, MEAN, STD, "crop+flip")(x, torch_generator(3, "augment"))
    generator = torch_generator(3, "augment")
    mirrored = torch.randint(2, (6,), generator=generator).tolist()
    tops, lefts = torch.randint(9, (2, 6), generator=generator).tolist()
    for k in range(6):
        image = crops(x[k], 4)[mirrored[k], tops[k], lefts[k]]
        assert (out[k] - normalized(image, 255.0, MEAN, STD)).abs().max() < 1e-6


def test_mirroring_and_offsets_are_fair_and_differ_between_images() -> None:
    ramp = torch.arange(64, dtype=torch.uint8).view(1, 8, 8, 1).expand(2000, 8, 8, 1)
    out = ImagePipeline(1.0, (0.0,), (1.0,), "crop+flip")(ramp, torch_generator(0, "augment"))
    assert 0.45 < (out.diff(dim=3) == -1).any((1, 2, 3)).float().mean() < 0.55
    assert len({tuple(image.flatten().tolist()) for image in out}) == 2 * 9 * 9


def test_the_same_generator_state_gives_the_same_batch_and_the_input_is_untouched() -> None:
    x = batch(8, 8, 8, 3)
    before = x.clone()
    pipeline = ImagePipeline(255.0, MEAN, STD, "crop+flip")
    state = torch.random.get_rng_state()
    first, second = pipeline(x, torch_generator(0, "a")), pipeline(x, torch_generator(0, "a"))
    assert torch.equal(first, second)
    assert not torch.equal(first, pipeline(x, torch_generator(1, "a")))
    assert torch.equal(x, before)
    assert torch.equal(state, torch.random.get_rng_state())


def test_no_augmentation_draws_nothing() -> None:
    generator = torch_generator(0, "a")
    x = batch(2, 4, 4, 1)
    pipeline = ImagePipeline(255.0, (0.5,), (0.5,), "none")
    assert torch.equal(pipeline(x, generator), pipeline(x, None))
    assert torch.equal(generator.get_state(), torch_generator(0, "a").get_state())


def test_digits_normalized_by_their_own_statistics_have_mean_0_and_deviation_1(digits: Dataset) -> None:
    out = digits.pipeline()(digits.train_x, None).double()
    assert abs(out.mean().item()) < 1e-6
    assert abs(out.std(correction=0).item() - 1) < 1e-6


def test_an_unknown_augmentation_is_refused() -> None:
    with pytest.raises(FedloomError, match=r"augment is 'mixup'; allowed are none, or a sum of flip, crop"):
        ImagePipeline(255.0, (0.5,), (0.5,), "mixup")


def test_normalize_is_set_none_or_two_lists(digits: Dataset) -> None:
    assert normalization("set", (digits.mean, digits.std), digits.name) == (digits.mean, digits.std)
    assert normalization("none", (digits.mean, digits.std), digits.name) == ((0.0,), (1.0,))
    assert normalization([[0.3], [2]], (digits.mean, digits.std), digits.name) == ((0.3,), (2.0,))
    assert check_normalize([[0.1, 0.2], [1, 1]]) == ((0.1, 0.2), (1.0, 1.0))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("all", "'all'"),
        (None, "None"),
        ([0.5, 0.5], "[0.5, 0.5]"),
        ([[0.5], [0.5], [0.5]], "[[0.5], [0.5], [0.5]]"),
        ([[0.5, 0.5], [0.5]], "2 means and 1 deviations"),
        ([[], []], "0 means and 0 deviations"),
        ([[0.5], [0]], "the deviation 0"),
        ([[0.5], [-1.0]], "the deviation -1"),
        ([[0.5], ["x"]], "'x', which is not a number"),
        ([[float("nan")], [1.0]], "nan, which is not a number"),
        ([[0.5] * 3, [0.5] * 3], "3 means and digits has 1 channels"),
    ],
)
def test_a_normalize_that_does_not_fit_is_refused(digits: Dataset, value: object, words: str) -> None:
    with pytest.raises(FedloomError) as error:
        normalization(value, (digits.mean, digits.std), digits.name)
    assert "data.normalize" in str(error.value)
    assert words in str(error.value)
    assert "allowed are set, none, or two lists" in str(error.value)
