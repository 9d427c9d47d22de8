"""The layout of a folder of images: which files are images of which class and domain, and which are for testing.

A class is a folder that holds an image. Other files, and names that begin with a dot, are ignored. `sources/folder.py` has the
form of all layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.errors import FedloomError, brief

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
TRAIN = "train"
TEST = ("test", "val", "validation", "valid")  # the first that exists


@dataclass(frozen=True)
class ImageTree:
    """Images in folders of their class: all in one piece, or those for training and those for testing."""

    parts: list[list[Path]]
    domains: list[str] | None = None  # of each image, part after part

    def divided(self, root: Path, lists: Sequence[Path]) -> ImageTree:
        """The images that these text files name are for testing, all others for training."""
        if len(self.parts) == 2:
            raise FedloomError(f"data: {root} has folders of test images already; leave test= out")
        try:
            lines = [line.split(maxsplit=1) for file in lists for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise FedloomError(f"data: a list of test images below {root} is no text ({brief(str(error))})") from error
        named, (images,) = {root / words[0] for words in lines if words}, self.parts
        if missing := sorted(named.difference(images)):
            raise FedloomError(f"data: {lists[0]} names {missing[0]}, which is not among the images by class")
        if not 0 < len(named) < len(images):
            raise FedloomError(f"data: {lists[0]} names {len(named)} of {len(images)} images; expected some of them")
        order = sorted(range(len(images)), key=lambda place: images[place] in named)  # stable: training images first
        moved = [images[place] for place in order]
        domains = None if self.domains is None else [self.domains[place] for place in order]
        return ImageTree([moved[: -len(named)], moved[-len(named) :]], domains)


def image_tree(root: Path) -> ImageTree:
    """The images below a folder, by the first layout that fits."""
    if (halves := _train_and_test(root)) is not None:
        parts = [_by_class(half) for half in halves]
        if any(parts):
            _check_any(halves, parts)
            return ImageTree(parts)
        parts = [_by_domain(half) for half in halves]
        _check_any(halves, parts)
        return ImageTree(parts, _domains(parts))
    if (root / TRAIN).is_dir() and _by_class(root / TRAIN):
        raise FedloomError(f"{root} has train/CLASS/ but no test/ or val/; expected both, or PATH/CLASS/ alone")
    if images := _by_class(root):
        _check_level(root, images)
        return ImageTree([images])
    by_domain = {folder: halves for folder in _folders(root) if (halves := _train_and_test(folder)) is not None}
    if by_domain:
        return _divided_domains(root, by_domain)
    images = _by_domain(root)
    _check_any([root], [images])
    return ImageTree([images], _domains([images]))


def _divided_domains(root: Path, halves: dict[Path, tuple[Path, Path]]) -> ImageTree:
    """DOMAIN/train/CLASS and DOMAIN/test/CLASS."""
    for folder in _folders(root):
        if folder not in halves and _by_class(folder):
            raise FedloomError(f"{folder} has no train/ and test/, but {next(iter(halves))} has; expected both in all")
    parts: list[list[Path]] = [[], []]
    domains: list[list[str]] = [[], []]
    for domain, folders in halves.items():
        by_half = [_by_class(half) for half in folders]
        _check_any(folders, by_half)
        for place, images in enumerate(by_half):
            parts[place] += images
            domains[place] += [domain.name] * len(images)
    return ImageTree(parts, domains[0] + domains[1])


def _train_and_test(folder: Path) -> tuple[Path, Path] | None:
    """Its halves; None if it has none, or if train is itself a class."""
    train, test = folder / TRAIN, next((folder / name for name in TEST if (folder / name).is_dir()), None)
    return (train, test) if test is not None and train.is_dir() and not _in_folder(train) else None


def _folders(part: Path) -> list[Path]:
    return sorted(path for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))


def _in_folder(folder: Path) -> list[Path]:
    paths = [path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and not path.name.startswith(".")]
    return sorted(path for path in paths if path.is_file())


def _by_class(part: Path) -> list[Path]:
    return [path for folder in _folders(part) for path in _in_folder(folder)]


def _by_domain(part: Path) -> list[Path]:
    return [path for domain in _folders(part) for path in _by_class(domain)]


def _domains(parts: Sequence[Sequence[Path]]) -> list[str]:
    return [path.parent.parent.name for part in parts for path in part]


def _check_any(parts: Sequence[Path], images: Sequence[Sequence[Path]]) -> None:
    for part, inside in zip(parts, images, strict=True):
        if inside:
            continue
        only = folders[0] if len(folders := _folders(part)) == 1 else None
        deeper = f"; they are one folder deeper: write folder:{only}" if only is not None and _by_domain(only) else ""
        raise FedloomError(
            f"{part} holds no images by class; expected {part}/CLASS/*.png (or jpg, bmp, …), or {part}/DOMAIN/CLASS/*.png"
            + deeper
        )


def _check_level(root: Path, images: Sequence[Path]) -> None:
    """A stray image in one domain would make a class of it, and lose the other domains."""
    classes = {path.parent for path in images}
    for folder in _folders(root):
        if folder not in classes and _by_class(folder):
            raise FedloomError(
                f"{folder} has folders of images, but {images[0].parent} holds images itself; expected {root}/CLASS/ or "
                f"{root}/DOMAIN/CLASS/ throughout"
            )
