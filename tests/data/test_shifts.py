"""What clients see: noise, corruption, rotation, color, other labels; kept once, the same for train and test."""

from __future__ import annotations

import os
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import made_set
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from fedloom.data import ClientViews, Dataset, stages
from fedloom.data.corruptions import KINDS
from fedloom.data.shifts.color import hue_matrix
from fedloom.data.shifts.rotate import rotated
from fedloom.rng import numpy_generator

Pixels = NDArray[np.float64]


def colorful(count: int = 20, side: int = 8, channels: int = 3, scale: float = 255.0) -> Dataset:
    return made_set([count, count], [count, count], shape=(side, side, channels), scale=scale)


def views_of(spec: str, images: Dataset, clients: int = 4, seed: int = 0) -> ClientViews:
    return stages(spec, images, clients, seed)[0]


def as_seen(stage: ClientViews, part: str, client: int) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    pictures = getattr(stage, part)(client)
    return pictures.x[pictures.rows].numpy(), pictures.y.numpy()


@pytest.mark.parametrize("scale", [255.0, 16.0])
@pytest.mark.parametrize("part", ["train", "test"])
def test_noise_is_the_documented_draw_of_seed_client_and_image(scale: float, part: str) -> None:
    images = colorful(scale=scale)
    stage = views_of("noise:0.5", images, 4, 9)
    for client in range(4):
        index = getattr(stage.partition, part)(client)
        expected = getattr(images, f"{part}_x").numpy()[index].astype(np.float64)
        for row, image in enumerate(index):
            draw = numpy_generator(9, "split", "noise", part, client, int(image)).standard_normal((8, 8, 3))
            expected[row] += scale * 0.5 * client / 3 * draw
        actual, _ = as_seen(stage, part, client)
        assert actual.dtype == np.float16
        assert np.abs(actual - expected).max() <= 0.26  # half precision at 256 to 512
        assert np.array_equal(actual, expected.astype(np.float16))


def test_noise_has_the_deviation_of_its_client_even_on_black_and_white() -> None:
    images = made_set([120], [120], shape=(16, 16, 1))
    images.train_x[:] = 0
    images.test_x[:] = 255
    stage = views_of("noise:0.4", images, 5)
    for client in range(5):
        for part, level in (("train", 0.0), ("test", 1.0)):
            x = as_seen(stage, part, client)[0].astype(np.float64) / 255
            assert x.std() == pytest.approx(0.1 * client, rel=0.03, abs=1e-12)
            assert x.mean() == pytest.approx(level, abs=0.02)
    noise = [as_seen(stage, "train", client)[0].astype(float).ravel() for client in (3, 4)]
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.05  # each client's is its own


@pytest.mark.parametrize("spec", ["noise:0.3", "corrupt:4", "rotate", "color", "rotate+color+corrupt:2+noise:0.1"])
def test_what_is_seen_is_kept_and_the_set_stays_as_it_is(spec: str) -> None:
    images = colorful()
    train, test = images.train_x.clone(), images.test_x.clone()
    stage = views_of(spec, images)
    first = [as_seen(stage, part, client) for part in ("train", "test") for client in range(4)]
    again = [as_seen(stage, part, client) for part in ("train", "test") for client in range(4)]
    fresh = views_of(spec, images)
    anew = [as_seen(fresh, part, client) for part in ("train", "test") for client in reversed(range(4))]
    anew = [*anew[3::-1], *anew[:3:-1]]
    for (x, y), (same, _), (other, labels) in zip(first, again, anew, strict=True):
        assert np.array_equal(x, same)
        assert np.array_equal(x, other)
        assert np.array_equal(y, labels)
    assert np.array_equal(images.train_x, train)
    assert np.array_equal(images.test_x, test)
    assert stage.dtype == (np.float16 if "noise" in spec else np.uint8)
    assert any(not np.array_equal(x, train.numpy()[stage.partition.train(k)]) for k, (x, _) in enumerate(first[:4]))


def test_a_worker_sees_what_another_process_has_computed() -> None:
    stage = views_of("noise:0.3", colorful())
    child = os.fork()
    if child == 0:
        stage.train(2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert stage._train is not None
    begin, end = stage.partition.train_offsets[2:4]
    assert stage._train._ready[begin:end].all()
    assert not stage._train._ready[:begin].any()
    index = stage.partition.train(2)
    assert np.array_equal(as_seen(stage, "train", 2)[0], stage.shifted(2, "train", index))


def test_shifts_of_a_sum_are_applied_in_one_order() -> None:
    images = colorful()
    stage = views_of("noise:0.2+rotate:90", images, 3)
    index = stage.partition.train(2)
    expected = np.rot90(images.train_x.numpy()[index], axes=(1, 2)).astype(np.float64)
    for row, image in enumerate(index):
        draw = numpy_generator(0, "split", "noise", "train", 2, int(image)).standard_normal((8, 8, 3))
        expected[row] += 255 * 0.2 * draw
    assert np.array_equal(as_seen(stage, "train", 2)[0], expected.astype(np.float16))


def test_rotation_turns_by_right_angles_exactly_and_as_scipy_in_between() -> None:
    images = colorful(side=9)
    stage = views_of("rotate", images, 4)
    for client in range(4):
        expected = np.rot90(images.test_x.numpy()[stage.partition.test(client)], client, axes=(1, 2))
        assert np.array_equal(as_seen(stage, "test", client)[0], expected)
    x = images.train_x.numpy()[:3] / 255
    inner = (slice(None), slice(2, 7), slice(2, 7))  # at the rim scipy mixes black in otherwise
    expected = ndimage.rotate(x, 25, axes=(1, 2), reshape=False, order=1, mode="constant")
    assert np.abs(rotated(x, 25) - expected)[inner].max() < 1e-9


def test_colors_turn_about_grey() -> None:
    assert np.allclose(hue_matrix(120) @ [1, 0, 0], [0, 1, 0])
    assert np.allclose(hue_matrix(70) @ [0.4, 0.4, 0.4], [0.4, 0.4, 0.4])
    assert np.allclose(hue_matrix(70) @ hue_matrix(50), hue_matrix(120))
    images = colorful()
    stage = views_of("color", images, 3)
    for client in range(3):
        original = images.train_x.numpy()[stage.partition.train(client)]
        assert np.array_equal(as_seen(stage, "train", client)[0], np.roll(original, client, axis=3))


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1), clients=st.integers(1, 12), classes=st.integers(2, 9), seed=st.integers(0, 1000))
def test_a_share_of_clients_calls_some_classes_by_other_names(
    share: float, clients: int, classes: int, seed: int
) -> None:
    images = made_set([clients * 3] * classes, [clients] * classes)
    stage = views_of(f"permute:{share}", images, clients, seed)
    moved = 0
    for client in range(clients):
        names = {}
        for part in ("train", "test"):
            x, y = as_seen(stage, part, client)
            index = getattr(stage.partition, part)(client)
            original = getattr(images, f"{part}_y").numpy()[index]
            assert np.array_equal(x, getattr(images, f"{part}_x").numpy()[index])
            for a, b in zip(original.tolist(), y.tolist(), strict=True):
                assert names.setdefault(a, b) == b  # one name a class, in training and test
        assert len(set(names.values())) == len(names)
        changed = sum(a != b for a, b in names.items())
        assert changed <= max(2, classes // 2)
        moved += changed > 0
    assert moved <= round(share * clients)


def test_as_many_clients_permute_as_the_share_says() -> None:
    images = made_set([400] * 6, [60] * 6)
    stage = views_of("permute:0.3:6", images, 10)
    own = [images.train_y.numpy()[stage.partition.train(k)] for k in range(10)]
    assert sum(not np.array_equal(as_seen(stage, "train", k)[1], own[k]) for k in range(10)) == 3


# corruptions


def ramp(channels: int = 3) -> Pixels:
    return numpy_generator(1, "ramp").random((16, 16, channels))


def test_each_client_sees_its_own_kind_at_the_level() -> None:
    assert len(KINDS) == 15
    for channels, kinds in ((3, 15), (1, 14)):
        images = made_set([40], [20], shape=(16, 16, channels))
        stage = views_of("corrupt:2", images, 18, 4)
        for client in range(18):
            name = list(KINDS)[client % kinds]
            assert stage.shifts[0].describe(stage.viewer(client, "train"), images) == name
            for part in ("train", "test"):
                for row, image in enumerate(getattr(stage.partition, part)(client)):
                    x = getattr(images, f"{part}_x").numpy()[image] / 255
                    draw = numpy_generator(4, "split", "corrupt", part, client, int(image))
                    expected = np.round(np.clip(KINDS[name](x, 1, draw), 0, 1) * 255)
                    assert np.array_equal(as_seen(stage, part, client)[0][row], expected)


@pytest.mark.parametrize(
    ("name", "channels"), [(name, c) for name in sorted(KINDS) for c in (1, 3) if (name, c) != ("saturate", 1)]
)
def test_a_corruption_grows_with_its_level_and_keeps_the_shape(name: str, channels: int) -> None:
    smooth = ndimage.gaussian_filter(ramp(channels), (2, 2, 0))
    x = (smooth - smooth.min()) / np.ptp(smooth)
    changes = []
    for level in range(5):
        out = np.clip(KINDS[name](x, level, numpy_generator(0, "level")), 0, 1)
        assert out.shape == x.shape
        changes.append(np.abs(out - x).mean())
    assert min(changes) > 0
    if name not in ("elastic_transform", "saturate"):  # whose first levels differ in kind
        assert changes[4] > changes[0]


def test_noises_have_their_published_deviations() -> None:
    x, draw = np.full((200, 200, 3), 0.5), numpy_generator(0, "x")
    assert (KINDS["gaussian_noise"](x, 2, draw) - x).std() == pytest.approx(0.08, rel=0.02)
    assert (KINDS["speckle_noise"](x, 4, draw) - x).std() == pytest.approx(0.1, rel=0.02)
    assert (KINDS["shot_noise"](x, 4, draw) - x).std() == pytest.approx((0.5 / 50) ** 0.5, rel=0.02)
    hit = KINDS["impulse_noise"](x, 4, draw)
    assert (hit == 0).mean() == pytest.approx(0.035, rel=0.05)
    assert (hit == 1).mean() == pytest.approx(0.035, rel=0.05)


def test_contrast_brightness_and_saturation_follow_their_formulas() -> None:
    import colorsys

    x, draw = ramp(), numpy_generator(0, "x")
    mean = x.mean((0, 1))
    assert np.allclose(KINDS["contrast"](x, 3, draw), mean + 0.3 * (x - mean))
    x[0, 0] = 0.25  # gray, and black
    x[0, 1] = 0.0
    for name, level, change in (
        ("brightness", 3, lambda h, s, v: (h, s, min(v + 0.2, 1))),
        ("saturate", 0, lambda h, s, v: (h, 0.3 * s, v)),
        ("saturate", 4, lambda h, s, v: (h, min(2.5 * s + 0.2, 1), v)),
    ):
        actual = KINDS[name](x, level, draw)
        for place in ((0, 0), (0, 1), (3, 4), (7, 7), (15, 2)):
            expected = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*x[place])))
            assert np.allclose(actual[place], expected), (name, place)


def test_jpeg_and_pixelate_are_pillows_own() -> None:
    x, draw = ramp(), numpy_generator(0, "x")
    picture = Image.fromarray(np.round(x * 255).astype(np.uint8))
    file = BytesIO()
    picture.save(file, "JPEG", quality=50)
    assert np.array_equal(KINDS["jpeg_compression"](x, 3, draw) * 255, np.asarray(Image.open(file)))
    box = Image.Resampling.BOX
    small = picture.resize((12, 12), box).resize((16, 16), box)
    assert np.array_equal(KINDS["pixelate"](x, 3, draw) * 255, np.asarray(small))


def test_glass_moves_pixels_as_the_published_loop_does() -> None:
    """The loop goes from the last pixel to the first, and each takes a value from above or from the left."""
    x = ramp()
    actual = KINDS["glass_blur"](x, 4, numpy_generator(3, "x"))
    draw = numpy_generator(3, "x")
    expected = ndimage.gaussian_filter(x, (0.4, 0.4, 0), mode="nearest")
    for _ in range(2):
        up, left = draw.integers(0, 2, (2, 16, 16))
        for h in range(15, 1, -1):
            for w in range(15, 1, -1):
                expected[h, w] = expected[h - up[h, w], w - left[h, w]]
    assert np.allclose(actual, ndimage.gaussian_filter(expected, (0.4, 0.4, 0), mode="nearest"))


def test_defocus_is_the_mean_over_a_disk() -> None:
    x = np.zeros((17, 17, 1))
    x[8, 8] = 1.0
    spot = KINDS["defocus_blur"](x, 4, numpy_generator(0, "x"))[:, :, 0]
    assert spot.sum() == pytest.approx(1)
    assert np.allclose(spot[7:10, 7:10], 1 / 9, atol=1e-6)  # radius 1.5, hardly smoothed


# the pooled test set


def test_every_test_image_is_pooled_once_as_a_holder_sees_it() -> None:
    images = made_set([60, 60], [30, 30], shape=(4, 4, 1))
    for spec, overlapping in (("iid+noise:0.5", False), ("dirichlet:1+noise:0.5", True)):
        stage = views_of(spec, images, 5)
        assert stage.one_view_per_sample == (not overlapping)
        pooled = stage.pooled(0, 60)
        x = pooled.x[pooled.rows].numpy()
        assert np.array_equal(pooled.y, images.test_y)
        assert np.array_equal(stage.clean(3, 9).x[stage.clean(3, 9).rows], images.test_x[3:9])
        holders: dict[int, list[int]] = {k: [] for k in range(60)}
        for client in range(5):
            for image in stage.partition.test(client).tolist():
                holders[image].append(client)
        assert overlapping == (max(map(len, holders.values())) > 1)
        for image, clients in holders.items():
            views = [stage.shifted(k, "test", np.array([image]))[0] for k in (clients or range(5))]
            assert any(np.array_equal(x[image], view) for view in views)


def test_without_shifts_nothing_is_copied() -> None:
    images = colorful()
    stage = views_of("iid", images)
    assert stage.train(0).x is images.train_x
    assert stage.pooled(0, 5).x is images.test_x
    assert views_of("permute:1", images).train(0).x is images.train_x
