"""CIFAR-10-C as one npz with domains, in FedNN's scheme: every client sees one corruption, 9,500 images to train, 500 to test.

    python scripts/cifar10c.py FOLDER_OF_CIFAR-10-C $FEDLOOM_DATA/cifar10c.npz     # the archive's .npy files, all 19 kinds
    python scripts/cifar10c.py cifar10.npz cifar10c.npz                            # 15 kinds, made anew from its test images

The archive (Zenodo record 2535967) holds labels.npy and one .npy per kind: five severities of the 10,000 test images, one
after the other. Severity 4 is used. Which 500 images are held out is drawn once for each kind, by seed 0; FedNN does not say.
The kinds that are left out of the second form need photographs or other libraries: frost, motion_blur, snow, spatter.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from fedloom.data.corruptions import KINDS

SEVERITY, IMAGES, HELD = 4, 10_000, 500
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def from_archive(folder: Path) -> tuple[list[str], list[np.ndarray], np.ndarray]:
    """Kinds, images of each, and the labels of the images."""
    labels = np.load(folder / "labels.npy", allow_pickle=False)[:IMAGES]
    files = sorted(path for path in folder.glob("*.npy") if path.stem != "labels")
    begin = (SEVERITY - 1) * IMAGES
    images = [np.load(path, mmap_mode="r", allow_pickle=False)[begin : begin + IMAGES] for path in files]
    return [path.stem for path in files], images, labels


def from_cifar10(path: Path, count: int) -> tuple[list[str], list[np.ndarray], np.ndarray]:
    """The kinds that fedloom makes, of the test images of this file."""
    with np.load(path, allow_pickle=False) as stored:
        x, y = stored["test_x"][:count], stored["test_y"][:count]
    images = []
    for number, kind in enumerate(KINDS.values()):
        draw = np.random.default_rng((0, number))
        corrupted = [np.clip(kind(image / 255.0, SEVERITY - 1, draw), 0, 1) for image in x]
        images.append(np.round(255 * np.stack(corrupted)).astype(np.uint8))
    return list(KINDS), images, y


def write(target: Path, kinds: list[str], images: list[np.ndarray], labels: np.ndarray, held: int) -> None:
    draw, count = np.random.default_rng(0), len(labels)
    test = np.zeros((len(kinds), count), dtype=np.uint8)
    for row in test:
        row[draw.choice(count, held, replace=False)] = 1
    np.savez(
        target,
        x=np.concatenate(images),
        y=np.tile(labels, len(kinds)),
        domain=np.repeat(np.arange(len(kinds)), count),
        is_test=test.reshape(-1),
        domain_names=np.array(kinds),
        class_names=np.array(NAMES),
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", type=Path, help="folder of CIFAR-10-C, or cifar10.npz")
    parser.add_argument("target", type=Path, help="file to write")
    parser.add_argument("--images", type=int, default=IMAGES, help="test images of cifar10.npz that are used")
    given = parser.parse_args(arguments)
    if given.source.is_dir() and not (given.source / "labels.npy").is_file():
        parser.error(f"{given.source} has no labels.npy; it is not the folder of CIFAR-10-C")
    if not given.source.exists():
        parser.error(f"there is no {given.source}")
    made = from_archive(given.source) if given.source.is_dir() else from_cifar10(given.source, given.images)
    kinds, _, labels = made
    write(given.target, *made, held=len(labels) * HELD // IMAGES)
    print(f"{given.target}: {len(kinds)} kinds of {len(labels)} images: {', '.join(kinds)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
