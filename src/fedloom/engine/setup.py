"""From a recipe to all that a run needs: images, split, net, method, and the shape of every message.

Everything that can be wrong with a recipe is found here, before anything is written.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedloom.data import ImageSet, Partition, Pipeline, load, split
from fedloom.engine.arena import Packing, prefixed, scoped
from fedloom.errors import FedloomError
from fedloom.keys import numpy_generator, seeded
from fedloom.methods import Memory, Method, Task, method
from fedloom.nets import Net, build, region_of, set_batch_norm
from fedloom.recipe import Recipe
from fedloom.weights import Layout, Regions, Status, Weights


@dataclass(frozen=True)
class Messages:
    """The first values of all memory, and the packing of all that travels or is kept."""

    server_memory: Mapping[str, Tensor]  # "part.name" -> first value
    memory_row: Tensor  # a client's memory before it first takes part
    uploads: Mapping[str, Tensor]  # "part.name" -> what a client sends if its part says nothing
    down: Packing
    up: Packing
    memory: Packing
    message: Packing  # of second acts


@dataclass(frozen=True)
class Experiment:
    """A recipe with everything it names, ready to run. Weights are the initial ones."""

    recipe: Recipe
    images: ImageSet
    partition: Partition
    validation: Tensor  # indices of training images that no client holds
    pipeline: Pipeline
    task: Task
    method: Method
    net: Net
    weights: Weights
    initial: Tensor  # the whole storage as drawn
    messages: Messages

    @property
    def layout(self) -> Layout:
        return self.weights.layout


@contextmanager
def about(field: str) -> Iterator[None]:
    """Name the recipe's field in every error of the block."""
    try:
        yield
    except FedloomError as error:
        text = str(error)
        raise type(error)(text if text.startswith((f"{field}:", f"{field} ")) else f"{field}: {text}") from None


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums over a vector come out the same on every machine size only if one thread makes them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepare(
    recipe: Recipe, partition: Partition | None = None, initial: Mapping[str, Tensor] | None = None
) -> Experiment:
    """Load, split and build what the recipe names; a stored partition and stored first weights are used as they are."""
    import_parts(recipe.parts)
    chosen = method(recipe.method)
    with about("data"):
        images = load(recipe.data.name, recipe.data.resize)
        pipeline = Pipeline.of(images, recipe.data.normalize, recipe.augment)
    pool, validation = _hold_back(images, recipe)
    if partition is None:
        with about("split"):
            partition = split(recipe.split, images, recipe.clients, recipe.seed, pool)
    task = Task(
        shape=images.shape,
        classes=images.classes,
        clients=recipe.clients,
        samples=len(partition.train_index),
        rounds=recipe.rounds,
        seed=recipe.seed,
        held=len(validation),
    )
    if recipe.device != "cpu":
        _check_device(recipe.device)
    with one_thread(), about("model"), seeded(recipe.seed, "init"):
        net = build(recipe.model, images.shape, images.classes, recipe.bn)
    net, regions = assemble(net, chosen, task, recipe)
    layout = Layout(net, regions)
    if layout.trained == 0:
        raise FedloomError(f"method: {chosen} leaves nothing to train in {recipe.model}; choose another model")
    weights = Weights(net.to(recipe.device), layout, recipe.device)
    if initial is not None:
        layout.read(initial, weights.storage)
    task = replace(task, initial=weights.storage.cpu().clone())
    return Experiment(
        recipe=recipe,
        images=images,
        partition=partition,
        validation=torch.from_numpy(validation),
        pipeline=pipeline,
        task=task,
        method=chosen,
        net=net,
        weights=weights,
        initial=task.initial,
        messages=_messages(chosen, weights, task),
    )


def assemble(net: Net, chosen: Method, task: Task, recipe: Recipe) -> tuple[Net, Regions]:
    """Let every part rebuild the net, then decide what happens to its regions."""
    constant: dict[str, str] = {}
    with one_thread(), seeded(recipe.seed, "build"):
        for part in chosen.hooked("build"):
            with about(f"method: {part.name}"):
                net = part.build(net, task)
            for name, parameter in net.named_parameters():
                if not parameter.requires_grad:
                    constant.setdefault(name, part.name)
    set_batch_norm(net, recipe.bn)  # of normalisers that parts brought, too
    for name, parameter in net.named_parameters():
        if parameter.dtype != torch.float32:
            raise FedloomError(f"model: {name} is {parameter.dtype}; fedloom trains float32 weights")
        if not parameter.requires_grad:
            constant.setdefault(name, "the model")
    regions = Regions.of(net, region_of(net), constant)
    if recipe.bn == "local":
        kept: dict[str, Status] = dict.fromkeys(regions.statistics, "personal")
        regions = replace(regions, status={**regions.status, **kept})
    for part in chosen.hooked("regions"):
        regions = part.regions(replace(regions, speaker=part.name))
    return net, regions


def _messages(chosen: Method, weights: Weights, task: Task) -> Messages:
    layout = weights.layout
    w = weights.vector[: layout.exchanged].cpu().clone()
    shared = {"w": w, "statistics": weights.storage.new_zeros(layout.shared_statistics, device="cpu")}
    personal = {
        "personal": weights.vector[layout.exchanged : layout.trained],
        "statistics": weights.statistics[layout.shared_statistics :][: layout.personal_statistics],
    }
    server: Memory = {}
    client: Memory = {name: value.cpu().clone() for name, value in personal.items() if value.numel()}
    down, uploads, message = dict(shared), Memory(), Memory()
    for part in chosen.parts:
        server.update(prefixed(part.server_memory(w, task), part.name))
        client.update(prefixed(part.client_memory(w, task), part.name))
        down.update(prefixed(part.broadcast(scoped(server, part.name)), part.name))
        uploads.update(prefixed(part.uploads(w, task), part.name))
        message.update(prefixed(part.messages(w, task), part.name))
    memory, up = Packing(client), Packing({**shared, **uploads})
    return Messages(server, memory.row(client), uploads, Packing(down), up, memory, Packing(message))


def _hold_back(images: ImageSet, recipe: Recipe) -> tuple[np.ndarray | None, np.ndarray]:
    count = round(recipe.data.validation * len(images.train_y))
    if count == 0:
        return None, np.empty(0, dtype=np.int64)
    order = numpy_generator(recipe.seed, "validation").permutation(len(images.train_y))
    return np.sort(order[count:]), np.sort(order[:count])


def import_parts(sources: tuple[str, ...]) -> None:
    """Import modules or .py files that bring parts of the user's own."""
    for source in sources:
        try:
            if source.endswith(".py"):
                _import_file(Path(source))
            else:
                importlib.import_module(source)
        except FedloomError:
            raise
        except Exception as error:
            raise FedloomError(f"parts: cannot import {source}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> None:
    name = f"fedloom_parts_{path.stem}_{abs(hash(str(path.resolve())))}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FedloomError(f"parts: there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FedloomError(f"device: {device} cannot be used here: {str(error).splitlines()[0]}") from None
