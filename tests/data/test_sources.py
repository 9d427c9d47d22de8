"""Image folders, and datasets of the Hugging Face datasets library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from fedloom.data import load
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator


def picture(seed: int, height: int = 6, width: int = 6, channels: int = 3) -> NDArray[np.uint8]:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return numpy_generator(seed, "picture").integers(0, 256, shape, dtype=np.uint8)


def place(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_folders_by_class_hold_out_every_fifth_picture_of_the_sorted_order(tmp_path: Path) -> None:
    names = [("bee", f"{i}.png") for i in range(4)] + [("ant", f"{i}.PNG") for i in range(3)]
    for seed, (kind, name) in enumerate(names):
        place(tmp_path / "set" / kind / name, picture(seed))
    (tmp_path / "set" / "bee" / "notes.txt").write_text("not a picture")
    (tmp_path / "set" / "empty").mkdir()
    images = load(f"folder:{tmp_path / 'set'}")
    order = sorted(range(7), key=lambda seed: names[seed])
    assert images.class_names == ("ant", "bee")
    assert images.test_y.tolist() == [0, 1]
    assert images.train_y.tolist() == [0, 0, 1, 1, 1]
    expected = np.stack([picture(seed) for seed in order])
    assert torch.equal(images.test_x, torch.from_numpy(expected[[0, 5]]))
    assert torch.equal(images.train_x, torch.from_numpy(expected[[1, 2, 3, 4, 6]]))


def test_folders_with_train_and_test_keep_them(tmp_path: Path) -> None:
    for seed, name in enumerate(("train/b/1", "train/a/1", "test/b/1", "train/b/2")):
        place(tmp_path / f"{name}.png", picture(seed, channels=1))
    images = load(f"folder:{tmp_path}")
    assert images.shape == (1, 6, 6)
    assert images.train_y.tolist() == [0, 1, 1]
    assert images.test_y.tolist() == [1]
    assert torch.equal(images.train_x[..., 0], torch.from_numpy(np.stack([picture(s, channels=1) for s in (1, 0, 3)])))


def test_gray_images_among_color_images_get_three_channels(tmp_path: Path) -> None:
    place(tmp_path / "a" / "0.png", picture(0, channels=1))
    place(tmp_path / "a" / "1.png", picture(1))
    place(tmp_path / "a" / "2.png", picture(2, channels=1))
    images = load(f"folder:{tmp_path}")
    assert torch.equal(images.test_x[0], torch.from_numpy(picture(0, channels=1))[..., None].expand(-1, -1, 3))
    assert torch.equal(images.train_x[0], torch.from_numpy(picture(1)))


def test_images_of_differing_sizes_need_resize(tmp_path: Path) -> None:
    place(tmp_path / "a" / "0.png", picture(0))
    place(tmp_path / "a" / "1.png", picture(1, 9, 7))
    with pytest.raises(FedloomError, match=r"1\.png is 9 x 7 pixels, .* 6 x 6; set data\.resize"):
        load(f"folder:{tmp_path}")
    images = load(f"folder:{tmp_path}", resize=4)
    expected = np.asarray(Image.fromarray(picture(1, 9, 7)).resize((4, 4), Image.Resampling.BILINEAR))
    assert torch.equal(images.train_x[0], torch.from_numpy(expected.copy()))


def test_a_changed_picture_is_read_anew(tmp_path: Path) -> None:
    for seed in range(3):
        place(tmp_path / "a" / f"{seed}.png", picture(seed))
    old = load(f"folder:{tmp_path}")
    place(tmp_path / "a" / "3.png", picture(3))
    new = load(f"folder:{tmp_path}")
    assert (len(old.train_y), len(new.train_y)) == (2, 3)


@pytest.mark.parametrize("test", ["test", "val"])
@pytest.mark.parametrize("form", ["{half}/{domain}/{kind}/{n}.png", "{domain}/{half}/{kind}/{n}.png"])
def test_domains_may_be_divided_before_or_after_their_name(form: str, test: str, tmp_path: Path) -> None:
    seed = 0
    for domain in ("sketch", "photo"):
        for half, count in (("train", 2), (test, 1)):
            for kind in ("dog", "cat"):
                for n in range(count):
                    place(tmp_path / form.format(half=half, domain=domain, kind=kind, n=n), picture(seed))
                    seed += 1
    images = load(f"folder:{tmp_path}")
    assert (images.class_names, images.domain_names) == (("cat", "dog"), ("photo", "sketch"))
    assert images.train_domain is not None and images.test_domain is not None
    assert images.train_domain.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert images.test_domain.tolist() == [0, 0, 1, 1]
    assert images.train_y.tolist() == [0, 0, 1, 1] * 2
    # written in the order sketch dog, dog, cat, cat, then its test images; photo after it
    assert torch.equal(images.test_x, torch.from_numpy(np.stack([picture(s) for s in (11, 10, 5, 4)])))


def test_a_tenth_of_every_domain_is_held_out_on_request(tmp_path: Path) -> None:
    for seed in range(40):
        place(tmp_path / ("a" if seed < 20 else "b") / "c" / f"{seed:02}.png", picture(seed))
    usual, tenth = load(f"folder:{tmp_path}"), load(f"folder:{tmp_path}", test_every=10)
    assert (len(usual.test_y), len(tenth.test_y)) == (8, 4)
    assert tenth.test_domain is not None and tenth.test_domain.tolist() == [0, 0, 1, 1]
    assert torch.equal(tenth.test_x, torch.from_numpy(np.stack([picture(s) for s in (0, 10, 20, 30)])))
    pytest.importorskip("pandas")
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{n / 7},{n % 2}\n" for n in range(30)))
    with pytest.raises(FedloomError, match=r"data\.test_every: rows is prepared by what its training rows hold"):
        load(f"table:{tmp_path / 'rows.csv'}?target=y", test_every=10)


def test_lists_name_the_test_images(tmp_path: Path) -> None:
    for seed, name in enumerate(("photo/b/1", "photo/a/1", "draw/b/1", "draw/b/2")):
        place(tmp_path / f"{name}.png", picture(seed))
    (tmp_path / "photo_test.txt").write_text("photo/b/1.png 1\n")
    (tmp_path / "draw_test.txt").write_text("draw/b/2.png 1\n")
    images = load(f"folder:{tmp_path}?test=*_test.txt")
    assert images.domain_names == ("draw", "photo")
    assert images.test_domain is not None and images.test_domain.tolist() == [0, 1]
    assert torch.equal(images.test_x, torch.from_numpy(np.stack([picture(3), picture(0)])))
    assert torch.equal(images.train_x, torch.from_numpy(np.stack([picture(2), picture(1)])))
    for pattern, said in (("*.lst", r"no file below .* matches test='\*\.lst'"), ("../x*", "no file below")):
        with pytest.raises(FedloomError, match=said):
            load(f"folder:{tmp_path}?test={pattern}")
    (tmp_path / "draw_test.txt").write_text("draw/b/3.png 1\n")
    with pytest.raises(FedloomError, match=r"names .*draw/b/3\.png, which is not among the images"):
        load(f"folder:{tmp_path}?test=*_test.txt")
    with pytest.raises(FedloomError, match="the option split=x is not understood; allowed are test"):
        load(f"folder:{tmp_path}?split=x")


def test_a_mixed_folder_and_one_that_is_too_deep_are_refused(tmp_path: Path) -> None:
    for name in ("photo/a/1", "draw/a/1"):
        place(tmp_path / "kfold" / f"{name}.png", picture(0))
    with pytest.raises(FedloomError, match=rf"one folder deeper: write folder:{tmp_path / 'kfold'}"):
        load(f"folder:{tmp_path}")
    place(tmp_path / "kfold" / "photo" / "stray.png", picture(1))
    with pytest.raises(FedloomError, match=r"kfold/draw has folders of images, but .*/photo holds images itself"):
        load(f"folder:{tmp_path / 'kfold'}")
    (tmp_path / "kfold" / "photo" / "stray.png").unlink()
    for half in ("train", "test"):
        place(tmp_path / "kfold" / "art" / half / "a" / "1.png", picture(0))
    with pytest.raises(FedloomError, match=r"kfold/draw has no train/ and test/, but .*/art has"):
        load(f"folder:{tmp_path / 'kfold'}")


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="'folder:/nowhere' is not a folder"):
        load("folder:/nowhere")
    with pytest.raises(FedloomError, match=r"holds no images by class; expected .*/CLASS/"):
        load(f"folder:{tmp_path}")
    place(tmp_path / "train" / "a" / "0.png", picture(0))
    with pytest.raises(FedloomError, match=r"has train/CLASS/ but no test/"):
        load(f"folder:{tmp_path}")
    place(tmp_path / "other" / "a" / "0.png", picture(0))
    (tmp_path / "other" / "a" / "1.png").write_bytes(b"not a picture")
    with pytest.raises(FedloomError, match=r"1\.png cannot be decoded as an image"):
        load(f"folder:{tmp_path / 'other'}")
    deep = tmp_path / "deep" / "a" / "0.png"
    deep.parent.mkdir(parents=True)
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(deep)
    with pytest.raises(FedloomError, match="mode I;16; expected an image with 8 bits"):
        load(f"folder:{tmp_path / 'deep'}")


def make_hub(path: Path, splits: dict[str, int], extra: bool = False) -> None:
    datasets = pytest.importorskip("datasets")
    features = {
        "img": datasets.Image(),
        "fine": datasets.ClassLabel(names=["ant", "bee"]),
        "who": datasets.Value("string"),
    }
    features |= {"coarse": datasets.ClassLabel(names=["x", "y", "z"])} if extra else {}
    made, seed = {}, 0
    for name, count in splits.items():
        rows = range(seed, seed + count)
        columns = {
            "img": [Image.fromarray(picture(row)) for row in rows],
            "fine": [row % 2 for row in rows],
            "who": [f"w{row % 3}" for row in rows],
        }
        columns |= {"coarse": [row % 3 for row in rows]} if extra else {}
        made[name] = datasets.Dataset.from_dict(columns, features=datasets.Features(features), split=name)
        seed += count
    (datasets.DatasetDict(made) if len(made) > 1 else next(iter(made.values()))).save_to_disk(str(path))


def test_a_saved_hub_set_is_read_by_its_feature_types(tmp_path: Path) -> None:
    make_hub(tmp_path / "set", {"train": 6, "test": 3, "validation": 2})
    images = load(f"hf:{tmp_path / 'set'}?writer=who")
    assert images.class_names == ("ant", "bee")
    assert images.train_y.tolist() == [0, 1, 0, 1, 0, 1]
    assert images.test_y.tolist() == [0, 1, 0]
    assert torch.equal(images.train_x, torch.from_numpy(np.stack([picture(seed) for seed in range(6)])))
    assert torch.equal(images.test_x, torch.from_numpy(np.stack([picture(seed) for seed in range(6, 9)])))
    assert images.train_client is not None
    assert images.train_client.tolist() == [0, 1, 2, 0, 1, 2]


def test_validation_is_test_only_when_there_is_no_test(tmp_path: Path) -> None:
    make_hub(tmp_path / "set", {"train": 6, "validation": 2})
    assert len(load(f"hf:{tmp_path / 'set'}").test_y) == 2


def test_a_hub_set_without_splits_holds_out_every_fifth(tmp_path: Path) -> None:
    make_hub(tmp_path / "set", {"train": 7})
    images = load(f"hf:{tmp_path / 'set'}", resize=3)
    assert (len(images.train_y), len(images.test_y), images.shape) == (5, 2, (3, 3, 3))


def test_a_label_that_is_not_unique_must_be_named(tmp_path: Path) -> None:
    make_hub(tmp_path / "set", {"train": 6, "test": 3}, extra=True)
    with pytest.raises(
        FedloomError, match=r"2 columns of type ClassLabel; name the one .*\?label=COLUMN; the columns are fine, coarse"
    ):
        load(f"hf:{tmp_path / 'set'}")
    assert load(f"hf:{tmp_path / 'set'}?label=coarse&image=img").class_names == ("x", "y", "z")
    with pytest.raises(FedloomError, match=r"no column 'shape'; its columns are img, fine, who, coarse"):
        load(f"hf:{tmp_path / 'set'}?label=shape")


def test_hub_texts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FedloomError, match="the option color=red is not understood; allowed are image, text, array, label"
    ):
        load("hf:owner/name?color=red")
    with pytest.raises(FedloomError, match="names no dataset"):
        load("hf:")
    with pytest.raises(FedloomError, match="absent does not exist"):
        load(f"hf:{tmp_path / 'absent'}")


@pytest.mark.parametrize(("module", "advice"), [("datasets", 'pip install -e "'), ("PIL.Image", "pip install pillow")])
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, advice: str) -> None:
    place(tmp_path / "set" / "a" / "0.png", picture(0))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FedloomError) as error:
        load("hf:owner/name" if module == "datasets" else f"folder:{tmp_path / 'set'}")
    assert advice in str(error.value)


def test_a_second_start_imports_none_of_the_readers(tmp_path: Path) -> None:
    place(tmp_path / "pictures" / "a" / "0.png", picture(0))
    place(tmp_path / "pictures" / "b" / "1.png", picture(1))
    make_hub(tmp_path / "hub", {"train": 6, "test": 3})
    np.savez(tmp_path / "one.npz", x=np.zeros((9, 4, 4), np.uint8), y=np.arange(9))
    sources = ["digits", str(tmp_path / "one.npz"), f"folder:{tmp_path / 'pictures'}", f"hf:{tmp_path / 'hub'}"]
    digests = [load(source).digest for source in sources]
    code = f"""
import sys
from fedloom.data import load
print([load(source).digest for source in {sources}])
print([name for name in ("sklearn", "datasets", "PIL", "scipy") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.splitlines() == [str(digests), "[]"], result.stderr
