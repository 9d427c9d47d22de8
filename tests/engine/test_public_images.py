"""Public images: a share of the training samples that no client holds, or those of another set; never test samples."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.engine.experiment import Experiment
from fedloom.runs.folder import RunFolder

TINY: dict[str, Any] = {"clients": 4, "fraction": 1.0, "rounds": 1, "workers": 1, "split": "iid", "eval_every": 0}


def dealt(run: fl.Run) -> list[set[int]]:
    stored = np.load(run.path / "partition.npz")
    return [set(stored["train_index"][a:b].tolist()) for a, b in pairwise(stored["train_offsets"])]


def prepared(run: fl.Run) -> Experiment:
    return RunFolder(run.path).experiment()


def places(experiment: Experiment) -> set[int]:
    """Of the public samples among the training samples, by their pixels; digits has no two alike."""
    known = {image.numpy().tobytes(): i for i, image in enumerate(experiment.data.dataset.train_x)}
    assert len(known) == len(experiment.data.dataset.train_x)
    return {known[image.numpy().tobytes()] for image in experiment.data.public.x}


def test_public_images_belong_to_nobody_and_are_apart_from_those_for_validation() -> None:
    run = fl.run(**TINY, data={"public": 0.1, "validation": 0.2})
    experiment = prepared(run)
    total = len(experiment.data.dataset.train_y)
    public, held, clients = places(experiment), set(experiment.data.validation.tolist()), dealt(run)
    assert len(public) == round(0.1 * total) and len(held) == round(0.2 * total)
    assert not public & held
    assert set().union(*clients) == set(range(total)) - public - held
    assert sum(map(len, clients)) == total - len(public) - len(held)


def test_no_public_image_is_a_test_image() -> None:
    experiment = prepared(fl.run(**TINY, data={"public": 0.3}))
    tests = {image.numpy().tobytes() for image in experiment.data.dataset.test_x}
    assert not tests & {image.numpy().tobytes() for image in experiment.data.public.x}


def test_images_held_for_validation_are_the_same_with_and_without_public_ones() -> None:
    with_public = prepared(fl.run(**TINY, data={"public": 0.1, "validation": 0.2}))
    assert torch.equal(with_public.data.validation, prepared(fl.run(**TINY, data={"validation": 0.2})).data.validation)


def test_they_can_be_given_to_every_client() -> None:
    run = fl.run(**TINY, data={"public": 0.1, "public_to_clients": True})
    plain = fl.run(**TINY, data={"public": 0.1})
    public = places(prepared(run))
    for own, more in zip(dealt(plain), dealt(run), strict=True):
        assert more == own | public
        assert not own & public


def test_they_can_come_from_another_set_without_its_labels() -> None:
    draws = np.random.default_rng(0)
    arrays = {
        f"{part}_{name}": draws.integers(0, 200 if name == "x" else 10, shape).astype(np.uint8)
        for part, number in (("train", 30), ("test", 10))
        for name, shape in (("x", (number, 8, 8, 1)), ("y", (number,)))
    }
    np.savez("other.npz", **arrays)
    fields = {**TINY, "method": "feddf(steps=2)"}
    run = fl.run(**fields, data={"public_from": "other.npz"})
    experiment = prepared(run)
    assert np.array_equal(experiment.data.public.x.numpy(), arrays["train_x"])
    assert not experiment.data.public.labeled and set(experiment.data.public.y.tolist()) == {-1}
    assert sum(map(len, dealt(run))) == len(experiment.data.dataset.train_y)  # clients lose nothing


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"public": 0.6, "validation": 0.4}, r"data\.images: .*that leaves 0 for the clients"),
        ({"public_to_clients": True}, r"data\.public_to_clients: there are no public samples"),
        ({"public": 0.1, "public_from": "digits"}, r"data\.public_from: .*leave out data\.public"),
        ({"public_from": "digits", "public_to_clients": True}, r"data\.public_to_clients: .*no labels"),
        ({"public_from": "nowhere.npz"}, r"data\.public_from: "),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(data: dict[str, Any], said: str) -> None:
    with pytest.raises(fl.FedloomError, match=said):
        fl.run(**TINY, data=data, out="refused")
    assert not Path("refused").exists()
