"""Two halves of SciPy's documentation for docs/adapters.md: one to pretrain on, one to adapt to.

    python benchmarks/adapters_data.py FOLDER

Writes FOLDER/pretrain.npz (the subpackages stats, signal, spatial and special) and FOLDER/adapt.npz (all others, whose
subpackages are natural clients). Both have the vocabulary and the classes of `scipy_docs`; the pretraining half takes part
in nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedloom.data import load

PRETRAINED = ("signal", "spatial", "special", "stats")


def main(folder: Path) -> None:
    dataset = load("scipy_docs")
    names = list(dataset.client_names)
    chosen = [names.index(name) for name in PRETRAINED]
    folder.mkdir(parents=True, exist_ok=True)
    for file, wanted in (("pretrain", True), ("adapt", False)):
        content: dict[str, np.ndarray] = {}
        for part in ("train", "test"):
            clients = getattr(dataset, f"{part}_client").numpy()
            rows = np.flatnonzero(np.isin(clients, chosen) == wanted)
            content[f"{part}_x"] = getattr(dataset, f"{part}_x").numpy()[rows]
            content[f"{part}_y"] = getattr(dataset, f"{part}_y").numpy()[rows]
            content[f"{part}_client"] = np.array(names)[clients[rows]]
        content["class_names"] = np.array(dataset.class_names)
        content["vocabulary"] = np.array(dataset.inputs.vocabulary)
        np.savez_compressed(folder / f"{file}.npz", **content)
        held = {str(name): int((content["train_client"] == name).sum()) for name in np.unique(content["train_client"])}
        print(f"{file}.npz: {len(content['train_y'])} training and {len(content['test_y'])} test sentences of {held}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
