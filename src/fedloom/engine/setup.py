"""From a recipe to all that a run needs: images, split, net, method, and the shape of every message.

Everything that can be wrong with a recipe is found here, before anything is written.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data import Holding, ImageSet, Partition, Pipeline, check_spec, load, stages
from fedloom.engine.arena import Packing, prefixed, scoped
from fedloom.engine.precision import resolved
from fedloom.engine.start import read_start
from fedloom.errors import FedloomError
from fedloom.keys import numpy_generator, seeded
from fedloom.methods import Memory, Method, Plan, Task, method
from fedloom.nets import Net, build, region_of, set_batch_norm
from fedloom.nets.heads import set_head
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
    server: Packing  # the server's memory, where the server trains
    findings: Packing  # what a client tells in a survey
    fixed: Mapping[str, Tensor]  # tensors that nobody trains and that the end of a run replaces, as drawn

    @property
    def download(self) -> int:
        """Bytes that a client gets in a round: what is fixed it has already."""
        return self.down.payload - self.down.payload_of("fixed")


@dataclass(frozen=True)
class Public:
    """Images that belong to no client."""

    x: Tensor  # uint8 N,H,W,C
    y: Tensor  # int64 N; -1 where labels are not known
    pipeline: Pipeline

    @property
    def labelled(self) -> bool:
        return len(self.y) > 0 and int(self.y[0]) >= 0


@dataclass(frozen=True)
class Experiment:
    """A recipe with everything it names, ready to run. Weights are the initial ones."""

    recipe: Recipe
    images: ImageSet
    holdings: tuple[Holding, ...]  # who holds and sees what; more than one if the split changes on the way
    validation: Tensor  # indices of training images that no client holds
    public: Public
    pipeline: Pipeline
    task: Task
    method: Method
    net: Net
    weights: Weights
    initial: Tensor  # the whole storage as drawn
    messages: Messages

    origin: Mapping[str, Any] | None = None  # what the first weights were read from, where it was a file
    stacked_because: str = ""  # or not: how `stack: auto` came to its choice
    deployed: bool = False  # on real machines: noise that hides something is secret, and clients know the seed

    @property
    def layout(self) -> Layout:
        return self.weights.layout

    def at(self, round: int) -> Holding:
        """Who holds and sees what in a round, and in the tests after it."""
        return next((stage for stage in reversed(self.holdings) if stage.begin <= round), self.holdings[0])

    @property
    def partition(self) -> Partition:
        """Who holds what in the end."""
        return self.holdings[-1].partition

    def task_at(self, round: int) -> Task:
        if len(self.holdings) == 1:
            return self.task
        return replace(self.task, samples=len(self.at(round).partition.train_index))

    @property
    def pooled(self) -> bool:
        """Whether one worker, called 0, trains on all clients' images."""
        return is_pooled(self.method)

    def training(self, worker: int, round: int) -> np.ndarray:
        """The images that one of a round's cohort trains on: the client's own, or everybody's."""
        partition = self.at(round).partition
        return everybody(partition) if self.pooled else partition.train(worker)

    def told(self) -> Recipe:
        """The recipe as a run folder holds it: with every hyper-parameter, and what `init` was when it was read."""
        origin = {"init_digest": self.origin["digest"]} if self.origin else {}
        return self.recipe.changed(method=self.method.spelled(), split=check_spec(self.recipe.split), **origin)

    def plan(self) -> Plan:
        layout = self.layout
        return Plan(
            task=self.task,
            exchanged=layout.exchanged,
            personal=layout.personal + layout.personal_statistics,
            statistics=layout.shared_statistics,
            remembers=self.messages.memory.nbytes > 0,
            surveys=self.messages.findings.nbytes > 0,
            known_cohorts=self.deployed,
        )


def is_pooled(chosen: Method) -> bool:
    return any(part.pooled for part in chosen.parts)


def everybody(partition: Partition) -> np.ndarray:
    """All training images that clients hold, each once, in the order of the partition."""
    _, first = np.unique(partition.train_index, return_index=True)
    return partition.train_index[np.sort(first)]


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
    recipe: Recipe,
    partition: Sequence[Partition] | Partition = (),
    initial: Mapping[str, Tensor] | None = None,
    *,
    images: ImageSet | None = None,
    task: Task | None = None,
    samples: int | None = None,
    public: Public | None = None,
) -> Experiment:
    """Load, split and build what the recipe names; stored partitions, one a stage, and stored first weights are used
    as they are.

    `images` and `task`: those of somebody who was not in the federation, and what the federation's task was. Or `images` stand
    in for the recipe's own where those lie at sites, `samples` being how many all sites hold, `public` for public images.
    """
    import_parts(recipe.parts)
    chosen = method(recipe.method)
    with about("data"):
        images = images or load(recipe.data.name, recipe.data.resize)
        pipeline = Pipeline.of(images, recipe.data.normalize, recipe.augment)
    pool, validation, index = hold_back(images, recipe)
    public = public or _public(images, pipeline, recipe, index)
    with about("split"):
        known = (partition,) if isinstance(partition, Partition) else partition
        further = index if recipe.data.public_to_clients else None
        holdings = stages(recipe.split, images, recipe.clients, recipe.seed, pool, known, further)
        if holdings[-1].begin > recipe.rounds:
            raise FedloomError(f"split changes in round {holdings[-1].begin}, but there are {recipe.rounds} rounds")
    task = task or Task(
        shape=images.shape,
        classes=images.classes,
        clients=recipe.clients,
        samples=len(holdings[0].partition.train_index) if samples is None else samples,
        rounds=recipe.rounds,
        seed=recipe.seed,
        held=len(validation),
        public=len(public.y),
        labelled=public.labelled,
        cohort=1 if is_pooled(chosen) else recipe.cohort_size,
    )
    if recipe.device != "cpu":
        _check_device(recipe.device)
    with one_thread(), about("model"), seeded(recipe.seed, "init"):
        net = build(recipe.model, images.shape, images.classes, recipe.bn, recipe.kernels)
    with one_thread(), about("head_init"):
        set_head(net, recipe.head_init)
    given = read_start(recipe) if recipe.init and initial is None else None
    if given:
        given.fill(net)
    net, regions = assemble(net, chosen, task, recipe)
    with one_thread():
        recipe = resolved(recipe, net, images.shape)
    layout = Layout(net, regions)
    if layout.trained == 0:
        raise FedloomError(f"method: {chosen} leaves nothing to train in {recipe.model}; choose another model")
    weights = Weights(net.to(recipe.device), layout, recipe.device)
    if initial is not None:
        layout.read(initial, weights.storage)
    origin = given.load(weights, recipe.model) if given else None
    task = replace(task, initial=weights.storage.cpu().clone(), dim=net.dim)
    experiment = Experiment(
        recipe=recipe,
        images=images,
        holdings=holdings,
        validation=torch.from_numpy(validation),
        public=public,
        pipeline=pipeline,
        task=task,
        method=chosen,
        net=net,
        weights=weights,
        initial=task.initial,
        messages=_messages(chosen, net, weights, task),
        origin=origin,
    )
    for part in chosen.hooked("check"):
        with about(f"method: {part.name}"):
            part.check(experiment.plan())
    if recipe.stack == "off":
        return experiment
    from fedloom.engine.stackable import chosen as chosen_stack  # brings vmap, which takes a while to import

    stack, why = chosen_stack(experiment)
    return replace(experiment, recipe=recipe.changed(stack=stack), stacked_because=why)


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


def _messages(chosen: Method, net: Net, weights: Weights, task: Task) -> Messages:
    layout = weights.layout
    w = weights.vector[: layout.exchanged].cpu().clone()
    shared = {"w": w, "statistics": weights.storage.new_zeros(layout.shared_statistics, device="cpu")}
    personal = {
        "personal": weights.vector[layout.exchanged : layout.trained],
        "statistics": weights.statistics[layout.shared_statistics :][: layout.personal_statistics],
    }
    server: Memory = {}
    client: Memory = {name: value.cpu().clone() for name, value in personal.items() if value.numel()}
    down, uploads, message, findings = dict(shared), Memory(), Memory(), Memory()
    fixed: Memory = {}
    tensors = layout.tensors(weights.storage.cpu())
    for part in chosen.parts:
        server.update(prefixed(part.server_memory(w, task), part.name))
        client.update(prefixed(part.client_memory(w, task), part.name))
        down.update(prefixed(part.broadcast(scoped(server, part.name)), part.name))
        uploads.update(prefixed(part.uploads(w, task), part.name))
        message.update(prefixed(part.messages(w, task), part.name))
        findings.update(prefixed(part.findings(net, task), part.name))
        for name in part.fixes():
            if layout.regions.status[name] != "frozen" or not layout.exchanged:
                raise FedloomError(
                    f"method: {part.name} sets {name} at the end, so nobody else may train it, and clients must share a body"
                )
            fixed[name] = tensors[name]
    down.update(prefixed(fixed, "fixed"))
    memory, up = Packing(client), Packing({**shared, **uploads})
    return Messages(
        server_memory=server,
        memory_row=memory.row(client),
        uploads=uploads,
        down=Packing(down),
        up=up,
        memory=memory,
        message=Packing(message),
        server=Packing(server if chosen.hooked("refine") else {}),
        findings=Packing(findings),
        fixed=fixed,
    )


def hold_back(images: ImageSet, recipe: Recipe) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Indices of training images: those to deal out (None: all), those for validation, the public ones."""
    total = len(images.train_y)
    held, public = round(recipe.data.validation * total), round(recipe.data.public * total)
    limit = total - held - public if recipe.data.images is None else recipe.data.images
    if held + public == 0 and limit == total:
        return None, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    if limit < 1 or held + public + limit > total:
        raise FedloomError(
            f"data.images: {images.name} has {total} training images, {held} of them for validation and {public} public; "
            f"that leaves {total - held - public} for the clients (wanted: {max(limit, 1)})"
        )
    order = numpy_generator(recipe.seed, "validation").permutation(total)
    dealt = order[held + public : held + public + limit]
    return np.sort(dealt), np.sort(order[:held]), np.sort(order[held : held + public])


def _public(images: ImageSet, pipeline: Pipeline, recipe: Recipe, index: np.ndarray) -> Public:
    other = recipe.data.public_from
    if other is None:
        if recipe.data.public_to_clients and not len(index):
            raise FedloomError("data.public_to_clients: there are no public images; set data.public above 0")
        return Public(images.train_x[index], images.train_y[index], replace(pipeline, augment="none"))
    if len(index):
        raise FedloomError(
            "data.public_from: public images come from this set or from another one; leave out data.public"
        )
    if recipe.data.public_to_clients:
        raise FedloomError("data.public_to_clients: images of another set have no labels that clients could train on")
    with about("data.public_from"):
        found = load(other, images.shape[1] if images.shape[1] == images.shape[2] else recipe.data.resize)
        if found.shape != images.shape:
            raise FedloomError(
                f"{other} has images of {found.shape}, but {images.name} of {images.shape} (channels, height, width)"
            )
    unknown = torch.full_like(found.train_y, -1)
    return Public(found.train_x, unknown, replace(pipeline, scale=found.scale, augment="none"))


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
