from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from fedloom.data import Dataset, list_sets, load
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator


def pictures(count: int, *shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return numpy_generator(seed, "pictures").integers(0, 256, (count, *shape), dtype=np.uint8)


def content(**changes: object) -> dict[str, object]:
    """A sound set of 8 training and 4 test images, with changes; None leaves a key out."""
    sound = {
        "train_x": pictures(8, 5, 6, 3),
        "train_y": np.arange(8, dtype=np.uint8) % 3,
        "test_x": pictures(4, 5, 6, 3, seed=1),
        "test_y": np.arange(4) % 3,
    }
    return {key: value for key, value in (sound | changes).items() if value is not None}


def saved(path: Path, arrays: dict[str, object]) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_digits_are_those_of_scikit_learn_with_every_fifth_as_test(digits: Dataset) -> None:
    original = load_digits()
    test = np.arange(1797) % 5 == 0
    assert digits.train_x.shape == (1437, 8, 8, 1)
    assert digits.test_x.shape == (360, 8, 8, 1)
    assert torch.equal(digits.train_x[..., 0], torch.from_numpy(original.images[~test]).to(torch.uint8))
    assert torch.equal(digits.test_x[..., 0], torch.from_numpy(original.images[test]).to(torch.uint8))
    assert digits.train_y.tolist() == original.target[~test].tolist()
    assert digits.test_y.tolist() == original.target[test].tolist()
    assert (digits.scale, digits.shape, digits.classes) == (16.0, (1, 8, 8), 10)
    assert digits.class_names == tuple("0123456789")


def test_types_are_uint8_images_and_int64_numbers(tmp_path: Path) -> None:
    images = load(
        saved(tmp_path / "a.npz", content(train_writer=np.arange(8, dtype=np.int16), test_writer=np.arange(4)))
    )
    assert images.train_x.dtype == images.test_x.dtype == torch.uint8
    assert images.train_client is not None
    assert images.train_client.dtype == images.train_y.dtype == images.test_y.dtype == torch.int64
    assert images.train_client.tolist() == list(range(8))
    assert images.train_domain is None
    assert images.domain_names == ()


def test_statistics_are_the_population_mean_and_deviation_by_channel(tmp_path: Path) -> None:
    x = pictures(8, 5, 6, 3)
    x[..., 1] = 77
    images = load(saved(tmp_path / "a.npz", content(train_x=x)))
    scaled = x.astype(np.float64) / 255
    assert np.allclose(images.mean, scaled.mean((0, 1, 2)), rtol=1e-14, atol=0)
    assert np.allclose(np.array(images.std)[[0, 2]], scaled.std((0, 1, 2))[[0, 2]], rtol=1e-14, atol=0)
    assert images.std[1] == 1.0


def test_images_are_mapped_from_the_cache_and_writing_to_them_leaves_the_cache_alone(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", content())
    first = load(path)
    before = first.train_x.clone()
    first.train_x.zero_()
    assert torch.equal(load(path).train_x, before)
    assert "a.npz" not in Path("/proc/self/maps").read_text()
    assert "train_x.npy" in Path("/proc/self/maps").read_text()


def test_a_name_is_looked_up_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    saved(tmp_path / "tiny.npz", content(class_names=np.array(["ant", "bee", "cow", "dog"])))
    images = load("tiny")
    assert (images.name, images.shape, images.classes) == ("tiny", (3, 5, 6), 4)
    assert images.class_names == ("ant", "bee", "cow", "dog")
    assert images.digest == load(str(tmp_path / "tiny.npz")).digest


def test_gray_images_without_a_channel_get_one(tmp_path: Path) -> None:
    x = pictures(8, 5, 6)
    images = load(saved(tmp_path / "a.npz", content(train_x=x, test_x=x[:4])))
    assert images.shape == (1, 5, 6)
    assert torch.equal(images.train_x[..., 0], torch.from_numpy(x))


def test_labels_beyond_the_names_are_named_by_their_number(tmp_path: Path) -> None:
    images = load(saved(tmp_path / "a.npz", content(class_names=np.array(["ant"]))))
    assert images.class_names == ("ant", "1", "2")


def test_x_and_y_are_divided_by_is_test(tmp_path: Path) -> None:
    x, y, flags = pictures(10, 4, 4, 3), np.arange(10), np.array([0, 1, 0, 0, 1, 0, 0, 0, 0, 1], np.uint8)
    arrays = {"x": x, "y": y, "is_test": flags, "domain": y // 5, "domain_names": np.array(["photo", "sketch"])}
    images = load(saved(tmp_path / "a.npz", arrays))
    assert images.test_y.tolist() == [1, 4, 9]
    assert images.train_y.tolist() == [0, 2, 3, 5, 6, 7, 8]
    assert torch.equal(images.test_x, torch.from_numpy(x[[1, 4, 9]]))
    assert images.test_domain is not None
    assert images.test_domain.tolist() == [0, 0, 1]
    assert images.domain_names == ("photo", "sketch")


def test_x_and_y_without_is_test_hold_out_every_fifth(tmp_path: Path) -> None:
    images = load(saved(tmp_path / "a.npz", {"x": pictures(11, 4, 4, 3), "y": np.arange(11), "writer": np.arange(11)}))
    assert images.test_y.tolist() == [0, 5, 10]
    assert images.train_client is not None
    assert images.train_client.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_y": None}, ["test_y is missing", "train_x"]),
        ({"train_x": pictures(8, 5, 6, 3) / 255}, ["train_x is float32", "test_x uint8", "one type"]),
        ({"train_x": pictures(8, 30)}, ["test_x is 5 x 6 x 3", "train_x 30"]),
        ({"train_x": pictures(8, 3, 6, 6)}, ["train_x", "channels first", "N,H,W,C"]),
        ({"test_x": pictures(0, 5, 6, 3), "test_y": np.arange(0)}, ["test_x is empty"]),
        ({"test_x": pictures(4, 6, 6, 3)}, ["test_x", "6 x 6 x 3", "5 x 6 x 3"]),
        ({"train_y": np.arange(7)}, ["train_y has 7", "8"]),
        ({"train_y": np.linspace(0, 1, 8)}, ["train_y", "float64", "integer"]),
        ({"train_y": np.arange(8) - 1}, ["train_y holds -1", "0, 1, 2"]),
        ({"train_y": np.full(8, 10**9)}, ["train_y holds 1000000000", "0, 1, 2"]),
        ({"train_y": np.eye(8, dtype=int)}, ["train_y", "(8, 8)"]),
        ({"train_y": np.array([None] * 8)}, ["train_y", "Python objects"]),
        ({"class_names": np.arange(3)}, ["class_names", "texts"]),
        ({"train_domain": np.arange(5)}, ["train_domain has 5", "8"]),
        ({"domain": np.arange(12)}, ["domain", "train_domain"]),
        ({"train_x": None, "x": pictures(5, 4, 4, 3)}, ["key y is missing"]),
        ({"train_x": None, "x": pictures(5, 4, 4, 3), "y": np.arange(4)}, ["y is", "(4,)", "5 samples"]),
        (
            {"train_x": None, "x": pictures(5, 4, 4, 3), "y": np.arange(5), "is_test": np.full(5, 2)},
            ["is_test", "0 or 1"],
        ),
    ],
)
def test_a_mismatch_is_one_sentence_with_file_and_key(
    tmp_path: Path, changes: dict[str, object], words: list[str]
) -> None:
    path = saved(tmp_path / "bad.npz", content(**changes))
    with pytest.raises(FedloomError) as error:
        load(path)
    for word in [path, *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["not a zip", "cut short", "a flipped byte", "a single array", "empty"])
def test_a_corrupt_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "bad.npz"
    saved(path, content())
    whole = path.read_bytes()
    if damage == "a single array":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    else:
        middle = bytes([whole[400] ^ 255])
        path.write_bytes(
            {
                "not a zip": b"hello",
                "cut short": whole[:-200],
                "a flipped byte": whole[:400] + middle + whole[401:],
                "empty": b"",
            }[damage]
        )
    with pytest.raises(FedloomError, match=r"bad\.npz.*expected an? (complete )?npz file"):
        load(str(path))


def test_unknown_sources_say_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedloomError, match=r"FEDLOOM_DATA is not set; did you mean digits\?"):
        load("digit")
    with pytest.raises(
        FedloomError, match=r"'scans' is not bundled and FEDLOOM_DATA is not set\. Set FEDLOOM_DATA to the folder"
    ):
        load("scans")
    saved(tmp_path / "mnist.npz", content())
    saved(tmp_path / "femnist.npz", content())
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    with pytest.raises(FedloomError, match=r"'minst'.*holds femnist, mnist; did you mean mnist\?"):
        load("minst")
    with pytest.raises(FedloomError, match=r"absent\.npz' does not exist"):
        load(str(tmp_path / "absent.npz"))
    with pytest.raises(
        FedloomError, match=r"'hub:x/y' is not understood; allowed: NAME .*, folder:PATH, .* or table:PATH"
    ):
        load("hub:x/y")


def test_a_second_start_does_not_read_the_file_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.npz"
    saved(path, content())
    first = load(str(path))
    state = path.stat()
    path.write_bytes(bytes(state.st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    again = load(str(path))
    assert torch.equal(first.train_x, again.train_x)
    assert (first.mean, first.std, first.digest) == (again.mean, again.std, again.digest)
    assert len(list(cache.iterdir())) == 1


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    old = load(saved(path, content()))
    new = load(saved(path, content(train_y=np.zeros(8, int), class_names=np.array(["a", "b", "c", "d"]))))
    assert new.train_y.tolist() == [0] * 8
    assert new.digest != old.digest


@pytest.mark.parametrize("damage", ["truncated", "missing", "labels", "meta", "no meta", "a file", "header"])
def test_a_damaged_cache_is_built_again(tmp_path: Path, cache: Path, damage: str) -> None:
    path = saved(tmp_path / "a.npz", content())
    sound = load(path)
    images, labels = sound.train_x.clone(), sound.train_y.clone()
    (entry,) = cache.iterdir()
    array = entry / "train_x.npy"
    if damage == "truncated":
        array.write_bytes(array.read_bytes()[:-1])
    elif damage == "missing":
        array.unlink()
    elif damage == "labels":
        np.save(entry / "train_y.npy", np.zeros(8, np.int64))
    elif damage == "meta":
        (entry / "meta.json").write_text("{")
    elif damage == "no meta":
        (entry / "meta.json").unlink()
    elif damage == "header":
        np.save(array, images.numpy().reshape(8, 6, 5, 3))
    else:
        for file in entry.iterdir():
            file.unlink()
        entry.rmdir()
        entry.write_text("in the way")
    again = load(path)
    assert torch.equal(again.train_x, images)
    assert torch.equal(again.train_y, labels)
    assert [path.name for path in cache.iterdir()] == [entry.name]
    assert json.loads((entry / "meta.json").read_text())["facts"]["digest"] == sound.digest


@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_start_at_once_share_one_entry(tmp_path: Path, cache: Path, damaged: bool) -> None:
    path = saved(tmp_path / "a.npz", content())
    if damaged:
        load(path)
        next(cache.iterdir()).joinpath("test_y.npy").unlink()
    fork = multiprocessing.get_context("fork")
    barrier, digests = fork.Barrier(6), fork.Queue()

    def start() -> None:
        barrier.wait()
        digests.put(load(path).digest)

    running = [fork.Process(target=start) for _ in range(6)]
    for process in running:
        process.start()
    results = [digests.get(timeout=60) for _ in running]
    for process in running:
        process.join(timeout=60)
    assert results == [load(path).digest] * 6
    assert len(list(cache.iterdir())) == 1


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path: Path, cache: Path) -> None:
    load(saved(tmp_path / "a.npz", content()))
    (entry,) = cache.iterdir()
    old, fresh, foreign = (
        cache / name for name in (f".{entry.name}.{'0' * 32}", f".{entry.name}.{'1' * 32}", ".my-own.x")
    )
    for folder in (old, fresh, foreign):
        folder.mkdir()
    for folder in (old, foreign):
        os.utime(folder, (0, 0))
    load(saved(tmp_path / "b.npz", content()))
    assert not old.exists()
    assert fresh.exists()
    assert foreign.exists()
    assert entry.exists()


def test_a_cache_that_cannot_be_written_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FedloomError, match=r"cannot be written.*set FEDLOOM_CACHE"):
        load(saved(tmp_path / "a.npz", content()))


def test_resize_is_bilinear_with_antialias_as_pillow_does_it(tmp_path: Path, cache: Path) -> None:
    x = pictures(8, 24, 20, 3)
    path = saved(tmp_path / "a.npz", content(train_x=x, test_x=x[:4]))
    small = load(path, resize=9)
    assert small.shape == (3, 9, 9)
    for mine, original in zip(small.train_x.numpy(), x, strict=True):
        theirs = np.asarray(Image.fromarray(original).resize((9, 9), Image.Resampling.BILINEAR))
        assert np.abs(mine.astype(int) - theirs.astype(int)).max() <= 1
    assert load(path).shape == (3, 24, 20)
    assert len(list(cache.iterdir())) == 2


def test_resized_digits_keep_their_scale() -> None:
    images = load("digits", resize=16)
    assert (images.shape, images.scale) == ((1, 16, 16), 16.0)
    assert images.train_x.max() <= 16


@pytest.mark.parametrize("side", [0, -3, 2.5, True, "32"])
def test_resize_must_be_a_side_in_pixels(side: object) -> None:
    with pytest.raises(FedloomError, match=r"data\.resize is .*allowed is a side in pixels"):
        load("digits", resize=side)  # type: ignore[arg-type]


def test_the_list_names_the_bundled_set_and_those_of_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "tiny.npz", content())
    (tmp_path / "broken.npz").write_text("no")
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    listed = {row["name"]: row for row in list_sets()}
    assert {"digits", "tiny", "broken", "folder:PATH", "hf:owner/name"} <= set(listed)
    assert listed["tiny"]["file"] == str(tmp_path / "tiny.npz")
    assert "8 training and 4 test samples, 5 x 6 x 3" in listed["tiny"]["summary"]
    assert "cannot be read" in listed["broken"]["summary"]


def labeled(path: Path, train: object, test: object, **more: object) -> Dataset:
    """A set with these labels and as many images as they need."""
    train, test = np.asarray(train), np.asarray(test)
    arrays = {"train_x": pictures(len(train), 4, 4, 1), "test_x": pictures(len(test), 4, 4, 1, seed=1)}
    return load(saved(path, {**arrays, "train_y": train, "test_y": test, **more}))


def test_labels_from_1_on_are_as_many_classes_as_there_are_labels(tmp_path: Path) -> None:
    images = labeled(tmp_path / "a.npz", [3, 1, 2, 1], [2, 3])
    assert (images.classes, images.class_names) == (3, ("1", "2", "3"))
    assert (images.train_y.tolist(), images.test_y.tolist()) == ([2, 0, 1, 0], [1, 2])
    assert images.train_y.dtype == torch.int64
    plain = labeled(tmp_path / "b.npz", [2, 0, 1, 0], [1, 2])
    assert images.digest == plain.digest  # the same images under the same numbers


def test_numbers_above_0_with_gaps_are_moved_together(tmp_path: Path) -> None:
    images = labeled(tmp_path / "a.npz", [30, 7, 30], [10])
    assert images.class_names == ("7", "10", "30")
    assert (images.train_y.tolist(), images.test_y.tolist()) == ([2, 0, 2], [1])


def test_numbers_that_begin_at_0_stay_and_a_gap_is_a_class_without_images(tmp_path: Path) -> None:
    images = labeled(tmp_path / "a.npz", [0, 2, 5], [2])
    assert (images.classes, images.train_y.tolist(), images.test_y.tolist()) == (6, [0, 2, 5], [2])
    assert images.class_names == tuple("012345")


def test_a_gap_beside_names_is_a_class_without_images(tmp_path: Path) -> None:
    images = labeled(tmp_path / "a.npz", [0, 2, 5], [2], class_names=np.array(list("abcdef")))
    assert (images.classes, images.train_y.tolist()) == (6, [0, 2, 5])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array([2.0, 1.0, 3.0]), ("1", "2", "3")),
        (np.array([[2], [1], [3]]), ("1", "2", "3")),
        (np.array([True, False, True]), ("False", "True")),
    ],
)
def test_whole_floats_columns_and_booleans_are_labels(tmp_path: Path, labels: np.ndarray, names: tuple[str]) -> None:
    images = labeled(tmp_path / "a.npz", labels, labels)
    assert (images.class_names, images.train_y.tolist()) == (names, [1, 0, len(names) - 1])


def test_numbers_beside_names_stay_as_they_are(tmp_path: Path) -> None:
    images = labeled(tmp_path / "a.npz", [1, 3], [1], class_names=np.array(["ant", "bee", "cow", "dog"]))
    assert (images.classes, images.train_y.tolist()) == (4, [1, 3])


def test_labels_that_are_one_more_than_the_names_allow_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"labels go from 1 to 3, but class_names has 3 names.*subtract 1"):
        labeled(tmp_path / "a.npz", [1, 2, 3], [1], class_names=np.array(["ant", "bee", "cow"]))


@pytest.mark.parametrize("kind", ["U", "S"])
def test_texts_become_classes_in_sorted_order(tmp_path: Path, kind: str) -> None:
    images = labeled(tmp_path / "a.npz", np.array(["dog", "ant", "dog"], kind), np.array(["bee"], kind))
    assert images.class_names == ("ant", "bee", "dog")
    assert (images.train_y.tolist(), images.test_y.tolist()) == ([2, 0, 2], [1])


def test_numerals_are_sorted_by_value(tmp_path: Path) -> None:
    assert labeled(tmp_path / "a.npz", np.array(["10", "9", "1"]), np.array(["9"])).class_names == ("1", "9", "10")


def test_texts_beside_names_are_found_among_them(tmp_path: Path) -> None:
    names = np.array(["dog", "cow", "ant"])
    images = labeled(tmp_path / "a.npz", np.array(["ant", "dog"]), np.array(["ant"]), class_names=names)
    assert (images.class_names, images.train_y.tolist()) == (("dog", "cow", "ant"), [2, 0])
    with pytest.raises(FedloomError, match="the label 'bee' is not in class_names, which are dog, cow, ant"):
        labeled(tmp_path / "b.npz", np.array(["ant", "bee"]), np.array(["ant"]), class_names=names)


def test_texts_and_numbers_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"train_y holds texts; train_y and test_y must be of the same kind"):
        labeled(tmp_path / "a.npz", np.array(["ant", "bee"]), [1])


def test_x_and_y_take_texts_too(tmp_path: Path) -> None:
    y = np.array(["b", "a", "c", "a", "b", "c"])
    images = load(saved(tmp_path / "a.npz", {"x": pictures(6, 4, 4, 1), "y": y}))
    assert (images.class_names, images.test_y.tolist()) == (("a", "b", "c"), [1, 2])
