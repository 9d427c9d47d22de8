"""From a recipe to its data: the data set, the clients' views in every stage of the split, validation and public samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedloom.data import ClientViews, Dataset, Partition, Pipeline, hold_out, load, stages
from fedloom.engine.about import about
from fedloom.errors import FedloomError
from fedloom.methods import Method, TaskInfo
from fedloom.recipe import Recipe
from fedloom.rng import numpy_generator


@dataclass(frozen=True)
class Public:
    """Samples that belong to no client."""

    x: Tensor  # as stored
    y: Tensor  # int64 N; -1 where labels are not known
    pipeline: Pipeline

    @property
    def labeled(self) -> bool:
        return len(self.y) > 0 and int(self.y[0]) >= 0


@dataclass(frozen=True)
class FederatedData:
    dataset: Dataset
    stages: tuple[ClientViews, ...]  # the clients' views of the data; several if the split changes during the run
    validation: Tensor  # indices of training samples that no client holds
    public: Public
    pipeline: Pipeline
    # each client's own validation samples, by stage, as it sees them; empty unless `data.validation_from` is clients
    validation_stages: tuple[ClientViews, ...] = ()

    def at(self, round: int) -> ClientViews:
        """The clients' views of the data in a round and in its evaluation."""
        return _at(self.stages, round)

    def validation_at(self, round: int) -> ClientViews | None:
        """The clients' own validation samples in a round; None where they are drawn from the pool."""
        return _at(self.validation_stages, round) if self.validation_stages else None

    @property
    def tested(self) -> np.ndarray:
        """Indices of the test samples in use."""
        return self.stages[0].tested

    @property
    def partition(self) -> Partition:
        """The partition of the last stage."""
        return self.stages[-1].partition

    def task(self, recipe: Recipe, method: Method, samples: int | None = None) -> TaskInfo:
        """What parts may know of the data. `samples`: of all clients, if their data are on nodes."""
        return TaskInfo(
            inputs=self.dataset.inputs,
            classes=self.dataset.classes,
            clients=recipe.clients,
            samples=len(self.stages[0].partition.train_index) if samples is None else samples,
            rounds=recipe.rounds,
            seed=recipe.seed,
            held=0 if self.validation_stages else len(self.validation),  # what clients hold out stays with them
            public=len(self.public.y),
            labeled=self.public.labeled,
            cohort=1 if any(part.central_data == "all" for part in method.parts) else recipe.cohort_size,
        )


def load_data(
    recipe: Recipe,
    partition: Sequence[Partition] | Partition = (),
    dataset: Dataset | None = None,
    public: Public | None = None,
    validation: Sequence[Partition] = (),
) -> FederatedData:
    """`partition`, `validation`: stored partitions of training and of validation samples, one per stage. `images`, `public`:
    images to use in place of the recipe's."""
    with about("data"):
        dataset = dataset or load(recipe.data.name, recipe.data.resize, recipe.data.test_every)
        pipeline = dataset.pipeline(recipe.data.normalize, recipe.augment)
    pool, held, index = hold_back(dataset, recipe)
    public = public or _public(dataset, pipeline, recipe, index)
    with about("split"):
        known = (partition,) if isinstance(partition, Partition) else partition
        further = index if recipe.data.public_to_clients else None
        views = stages(
            recipe.split, dataset, recipe.clients, recipe.seed, pool, known, further, tested_samples(dataset, recipe)
        )
        if views[-1].begin > recipe.rounds:
            raise FedloomError(f"split changes in round {views[-1].begin}, but there are {recipe.rounds} rounds")
    own: tuple[ClientViews, ...] = ()
    if recipe.data.validation and recipe.data.validation_from == "clients":
        if not known:
            views, own = hold_out(views, recipe.data.validation, index)
        elif validation:
            own = tuple(view.of(part) for view, part in zip(views, validation, strict=True))
        held = np.unique(np.concatenate([held, *(view.partition.train_index for view in own)]))
    return FederatedData(dataset, views, torch.from_numpy(held), public, pipeline, own)


def all_clients(partition: Partition) -> np.ndarray:
    """The training samples of all clients, each once, in the order of the partition."""
    _, first = np.unique(partition.train_index, return_index=True)
    return partition.train_index[np.sort(first)]


def hold_back(dataset: Dataset, recipe: Recipe) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Indices of training samples: those for the clients (None: all), for validation (if drawn from the pool), and public."""
    total = len(dataset.train_y)
    from_pool = recipe.data.validation if recipe.data.validation_from == "pool" else 0.0
    held, public = round(from_pool * total), round(recipe.data.public * total)
    limit = total - held - public if recipe.data.images is None else recipe.data.images
    if held + public == 0 and limit == total:
        return None, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    if limit < 1 or held + public + limit > total:
        raise FedloomError(
            f"data.images: {dataset.name} has {total} training samples, {held} of them for validation and {public} public; "
            f"that leaves {total - held - public} for the clients (wanted: {max(limit, 1)})"
        )
    order = numpy_generator(recipe.seed, "validation").permutation(total)
    for_clients = order[held + public : held + public + limit]
    return np.sort(for_clients), np.sort(order[:held]), np.sort(order[held : held + public])


def tested_samples(dataset: Dataset, recipe: Recipe) -> np.ndarray | None:
    """Indices of the test samples in use (None: all): of each class, and of each domain, its share of `data.test_images`."""
    total, limit = len(dataset.test_y), recipe.data.test_images
    if limit is None or limit == total or total == 0:  # 0: only sites have test samples
        return None
    if limit > total:
        raise FedloomError(f"data.test_images: {dataset.name} has {total} test samples (wanted: {limit})")
    domains = 0 if dataset.test_domain is None else dataset.test_domain.numpy()
    groups = dataset.test_y.numpy() + dataset.classes * domains
    order = numpy_generator(recipe.seed, "test samples").permutation(total)
    # how far each sample lies in its group, from 0 to 1: the first ones by that are spread over the groups in proportion
    share = np.empty(total)
    for group in np.unique(groups):
        own = order[groups[order] == group]
        share[own] = (np.arange(len(own)) + 0.5) / len(own)
    return np.sort(order[np.argsort(share[order], kind="stable")][:limit])


def _at(stages: tuple[ClientViews, ...], round: int) -> ClientViews:
    return next((stage for stage in reversed(stages) if stage.begin <= round), stages[0])


def _public(dataset: Dataset, pipeline: Pipeline, recipe: Recipe, index: np.ndarray) -> Public:
    other = recipe.data.public_from
    if other is None:
        if recipe.data.public_to_clients and not len(index):
            raise FedloomError("data.public_to_clients: there are no public samples; set data.public above 0")
        return Public(dataset.train_x[index], dataset.train_y[index], replace(pipeline, augment="none"))
    if len(index):
        raise FedloomError(
            "data.public_from: public samples come from this set or from another one; leave out data.public"
        )
    if recipe.data.public_to_clients:
        raise FedloomError("data.public_to_clients: samples of another set have no labels that clients could train on")
    with about("data.public_from"):
        public = load(other, _side(dataset, recipe))
        if (public.inputs.kind, public.shape) != (dataset.inputs.kind, dataset.shape):
            raise FedloomError(f"{other} has {public.inputs}, but {dataset.name} has {dataset.inputs}")
        if public.inputs.vocabulary > dataset.inputs.vocabulary:
            raise FedloomError(
                f"{other} has {public.inputs.vocabulary} tokens, but {dataset.name} has {dataset.inputs.vocabulary}"
            )
    unknown = torch.full_like(public.train_y, -1)
    return Public(public.train_x, unknown, replace(pipeline, scale=public.scale, augment="none"))


def _side(dataset: Dataset, recipe: Recipe) -> int | None:
    """The side to which public images are resized: the data set's own, if its images are square."""
    if dataset.inputs.kind != "image":
        return None
    _, height, width = dataset.shape
    return height if height == width else recipe.data.resize
