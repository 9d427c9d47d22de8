"""From a recipe and a description of its data to a net, a method and the layout of every message. Needs no data.

A program is enough for a Flower server, and to adopt, export and plan. Errors in model and method are found here, before
anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.data import check_spec
from fedloom.engine.about import about
from fedloom.engine.compatibility import check_local_training
from fedloom.engine.initial_weights import read_initial_weights
from fedloom.engine.optimizer_state import kept_state
from fedloom.engine.tensor_layout import TensorLayout, prefixed, scoped
from fedloom.engine.threads import one_thread
from fedloom.errors import FedloomError
from fedloom.methods import Method, Query, RunPlan, TaskInfo, Tensors, method
from fedloom.nets import Net, build, fixed_tensors, region_of, set_batch_norm, spelled_model
from fedloom.nets.kernels.use import lacks_native, use_native
from fedloom.nets.layers.heads import set_head
from fedloom.recipe import Recipe
from fedloom.rng import seeded
from fedloom.weights import Layout, Regions, Status, Weights


@dataclass(frozen=True)
class Messages:
    """The initial values of all state, and the layout of everything that is sent or kept."""

    server_state: Mapping[str, Tensor]  # "part.name" -> initial value
    state_row: Tensor  # a client's state before it first takes part
    uploads: Mapping[str, Tensor]  # "part.name" -> what a client uploads if its part assigns nothing
    queries: Mapping[str, Query]  # "part.query"
    down: TensorLayout
    up: TensorLayout
    state: TensorLayout
    message: TensorLayout  # "part.query.name"
    reply: TensorLayout  # "part.query.name"
    server: TensorLayout  # the server's state, where the server trains
    fixed: Mapping[str, Tensor]  # initial values of untrained tensors that `finalize` replaces

    @property
    def download(self) -> int:
        """Bytes that a client downloads in a round, without the fixed tensors, which it has already."""
        return self.down.payload - self.down.payload_of("fixed")


@dataclass(frozen=True)
class Program:
    """Everything that a recipe names except its data, ready to run."""

    recipe: Recipe
    method: Method
    task: TaskInfo
    net: Net
    weights: Weights
    initial: Tensor  # the whole storage at initialization
    messages: Messages
    origin: Mapping[str, Any] | None = None  # where initial weights from a file (`init`) came from
    deployed: bool = False  # on real machines: privacy noise is secret, and clients know the seed

    @property
    def layout(self) -> Layout:
        return self.weights.layout

    @property
    def pooled(self) -> bool:
        """Whether one client, called 0, trains on all clients' data."""
        return is_pooled(self.method)

    def stored_recipe(self) -> Recipe:
        """The recipe as stored in a run folder: with every hyper-parameter of the method, those of the net that are not its
        defaults, and the digest of the file that `init` names."""
        origin = {"init_digest": self.origin["digest"]} if self.origin else {}
        model = spelled_model(self.recipe.model)
        return self.recipe.changed(
            model=model, method=self.method.spelled(), split=check_spec(self.recipe.split), **origin
        )

    def plan(self) -> RunPlan:
        layout = self.layout
        return RunPlan(
            task=self.task,
            shared=layout.shared,
            personal=layout.personal + layout.personal_statistics,
            statistics=layout.shared_statistics,
            stateful=self.messages.state.nbytes > 0,
            queried=self.messages.reply.nbytes > 0,
            known_cohorts=self.deployed,
            sampling=self.recipe.fraction if self.recipe.participation == "bernoulli" and not self.pooled else None,
            optimizer=self.recipe.optimizer.name,
        )


def build_program(recipe: Recipe, task: TaskInfo, initial: Mapping[str, Tensor] | None = None) -> Program:
    """`initial`: stored initial weights, used as they are."""
    sum_of_parts = method(recipe.method)
    check_local_training(sum_of_parts, recipe)
    if recipe.device != "cpu":
        _check_device(recipe.device)
    with one_thread(), about("model"), seeded(recipe.seed, "init"):
        net = build(recipe.model, task.inputs, task.classes, recipe.bn, recipe.kernels)
    with one_thread(), about("head_init"):
        set_head(net, recipe.head_init)
    given = read_initial_weights(recipe) if recipe.init and initial is None else None
    if given:
        given.fill(net)
    net, regions = assemble(net, sum_of_parts, task, recipe)
    if recipe.kernels == "native" and not lacks_native(net):  # a run that needs them is refused (kernels.py)
        use_native(net)
    net.staged = any(part.uses_stages for part in sum_of_parts.parts)
    layout = Layout(net, regions)
    if layout.trained == 0:
        raise FedloomError(f"method: {sum_of_parts} leaves nothing to train in {recipe.model}; choose another model")
    weights = Weights(net.to(recipe.device), layout, recipe.device)
    if initial is not None:
        layout.read(initial, weights.storage)
    origin = given.load(weights, recipe.model) if given else None
    shapes = {name: entry.shape for name, entry in layout.entries.items()}
    task = replace(task, initial=weights.storage.cpu().clone(), dim=net.dim, shapes=shapes)
    messages = _messages(sum_of_parts, weights, task, recipe)
    program = Program(recipe, sum_of_parts, task, net, weights, task.initial, messages, origin)
    for part in sum_of_parts.hooked("check"):
        with about(f"method: {part.name}"):
            part.check(program.plan())
    return program


def is_pooled(sum_of_parts: Method) -> bool:
    return any(part.central_data == "all" for part in sum_of_parts.parts)


def assemble(net: Net, sum_of_parts: Method, task: TaskInfo, recipe: Recipe) -> tuple[Net, Regions]:
    """Let every part rebuild the net, then assign each region's status."""
    constant: dict[str, str] = {}
    unchanging = {id(buffer) for name, buffer in net.named_buffers() if name in net.constants}
    with one_thread(), seeded(recipe.seed, "build"):
        for part in sorted(sum_of_parts.hooked("build"), key=lambda part: part.builds_last):
            with about(f"method: {part.name}"):
                net = part.build(net, task)
            for name in fixed_tensors(net):
                constant.setdefault(name, part.name)
    set_batch_norm(net, recipe.bn)  # also of normalizers that parts added
    for name, parameter in net.named_parameters():
        if parameter.dtype != torch.float32:
            raise FedloomError(f"model: {name} is {parameter.dtype}; fedloom trains float32 weights")
    for name in fixed_tensors(net):
        constant.setdefault(name, "the model")
    constant |= {name: "the model" for name, buffer in net.named_buffers() if id(buffer) in unchanging}
    regions = Regions.of(net, region_of(net), constant)
    if recipe.bn == "local":
        fixing = [constant[name] for name in regions.statistics if constant.get(name, "the model") != "the model"]
        if fixing:
            raise FedloomError(
                f"method: {fixing[0]} keeps the statistics of the base, and with bn local every client gathers its own; "
                "set bn to running or batch"
            )
        kept: dict[str, Status] = dict.fromkeys(regions.statistics - constant.keys(), "personal")
        regions = replace(regions, status={**regions.status, **kept})
    for part in sum_of_parts.hooked("regions"):
        regions = part.regions(replace(regions, speaker=part.name))
    return net, regions


def _messages(sum_of_parts: Method, weights: Weights, task: TaskInfo, recipe: Recipe) -> Messages:
    layout = weights.layout
    w = weights.vector[: layout.shared].cpu().clone()
    shared = {"w": w, "statistics": weights.storage.new_zeros(layout.shared_statistics, device="cpu")}
    personal = {
        "personal": weights.vector[layout.shared : layout.trained],
        "statistics": weights.statistics[layout.shared_statistics :][: layout.personal_statistics],
    }
    server: Tensors = {}
    client: Tensors = {name: value.cpu().clone() for name, value in personal.items() if value.numel()}
    client |= kept_state(recipe, layout)
    down, uploads, message, reply = dict(shared), Tensors(), Tensors(), Tensors()
    queries: dict[str, Query] = {}
    fixed: Tensors = {}
    tensors = layout.tensors(weights.storage.cpu())
    for part in sum_of_parts.parts:
        server.update(prefixed(part.server_state(w, task), part.name))
        client.update(prefixed(part.client_state(w, task), part.name))
        down.update(prefixed(part.broadcast(scoped(server, part.name)), part.name))
        uploads.update(prefixed(part.uploads(w, task), part.name))
        for name, query in part.queries(w, task).items():
            queries[f"{part.name}.{name}"] = query
            message.update(prefixed(query.message, f"{part.name}.{name}"))
            reply.update(prefixed(query.reply, f"{part.name}.{name}"))
        for name in part.final_tensors():
            if layout.regions.status[name] != "frozen" or not layout.shared:
                raise FedloomError(
                    f"method: {part.name} sets {name} at the end, so no other part may train it, and clients must share a body"
                )
            fixed[name] = tensors[name]
    down.update(prefixed(fixed, "fixed"))
    state, up = TensorLayout(client), TensorLayout({**shared, **uploads})
    return Messages(
        server_state=server,
        state_row=state.row(client),
        uploads=uploads,
        queries=queries,
        down=TensorLayout(down),
        up=up,
        state=state,
        message=TensorLayout(message),
        reply=TensorLayout(reply),
        server=TensorLayout(server if sum_of_parts.hooked("server_training") else {}),
        fixed=fixed,
    )


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FedloomError(f"device: {device} cannot be used here: {str(error).splitlines()[0]}") from None
