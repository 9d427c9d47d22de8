"""One resident net that takes one client after the other: receive, work, send. Lives in a lane, or in this process."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedloom.data import Pictures
from fedloom.engine.arena import Packing, scoped
from fedloom.engine.batches import cut
from fedloom.engine.clock import JobClock
from fedloom.engine.local import ClientJob, Which
from fedloom.engine.scope import Views
from fedloom.engine.setup import Experiment
from fedloom.engine.work import LocalWork, phases
from fedloom.keys import seeded, torch_generator
from fedloom.methods.method import Method
from fedloom.methods.part import Part
from fedloom.methods.seen import Phase, Slots
from fedloom.nets import Net, batch_normalisers, use_test_batch
from fedloom.weights import Weights


class Worker:
    """A net with its scratch vectors, and what it can be asked to do with a client."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.net, self.weights = experiment.net, experiment.weights
        recipe, self.layout = experiment.recipe, experiment.layout
        self.device = recipe.device
        self.start = torch.empty_like(self.weights.storage)
        self.velocity = torch.zeros_like(self.weights.vector)
        self.initial = experiment.initial.to(self.device)
        self.normalisers = batch_normalisers(self.net)
        self.round = 0  # that the net's weights belong to
        self.teachers: dict[tuple[str, str], tuple[Net, Weights]] = {}
        method = experiment.method
        self.timed = method.hooked("at_round")
        self.objective, self.gradient = method.the("objective"), method.the("gradient")
        self.reader = method.the("own_logits")
        self.penalties, self.corrections = method.hooked("penalty"), method.hooked("correct")
        self.phases = phases(method, recipe.epochs)
        self.work = LocalWork(experiment)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.experiment.recipe.precision == "fp32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16)

    def teacher(self, key: tuple[str, str]) -> tuple[Net, Weights]:
        """A frozen copy of the net, in the mode that evaluation uses; made when a part first asks for it."""
        if key not in self.teachers:
            self.teachers[key] = _copy(self.net, self.weights, self.device)
        return self.teachers[key]

    # weights in and out

    def tell_round(self, net: Net) -> None:
        for part in self.timed:
            part.at_round(net, self.round, self.experiment.task)

    def receive(
        self, down: Mapping[str, Tensor], memory: Mapping[str, Tensor] | None, round: int | None = None
    ) -> None:
        """Broadcast fills the vector; the client's personal regions lie over it; the rest is as drawn.

        `round`: the one that begins; for tests and fine-tuning, where none does, the one that the weights come from.
        """
        layout, weights = self.layout, self.weights
        self.round = int(down["round"]) if round is None else round
        self.tell_round(self.net)
        weights.load(self.initial)
        weights.vector[: layout.exchanged].copy_(down["w"])
        weights.statistics[: layout.shared_statistics].copy_(down["statistics"])
        for name in self.experiment.messages.fixed:
            layout.entries[name].view(weights.storage).copy_(down[f"fixed.{name}"])
        if memory is None:
            return
        if "personal" in memory:
            weights.vector[layout.exchanged : layout.trained].copy_(memory["personal"])
        if "statistics" in memory:
            self._own_statistics().copy_(memory["statistics"])

    def send(self, views: Views) -> None:
        layout, weights = self.layout, self.weights
        views.up["w"].copy_(weights.vector[: layout.exchanged])
        views.up["statistics"].copy_(weights.statistics[: layout.shared_statistics])
        if "personal" in views.memory:
            views.memory["personal"].copy_(weights.vector[layout.exchanged : layout.trained])
        if "statistics" in views.memory:
            views.memory["statistics"].copy_(self._own_statistics())

    def _own_statistics(self) -> Tensor:
        begin = self.layout.shared_statistics
        return self.weights.statistics[begin : begin + self.layout.personal_statistics]

    # what a lane is asked to do

    def train(self, client: int, round: int, views: Views) -> dict[str, Any]:
        """The local part of a round."""
        clock = JobClock()
        self.receive(views.down, views.memory, round)
        clock.received()
        job = ClientJob(self, client, round, views)
        with seeded(self.experiment.recipe.seed, "forward", round, client):
            job.run(self.phases)
            for part in self.experiment.method.hooked("finish"):
                part.finish(job.scopes[part.name])
        clock.worked()
        self.send(views)
        return {"loss": job.mean_loss(), "steps": job.exchanged_steps, **clock.report()}

    def act(self, client: int, round: int, views: Views, part: str, message: Mapping[str, Tensor]) -> dict[str, Any]:
        """A second act: the client goes on from the weights it uploaded.

        What other parts compute at the end of training is then computed again, from what the client uploads now.
        """
        clock = JobClock()
        self.receive(views.down, views.memory, round)
        job = ClientJob(self, client, round, views, purpose="act")
        before = self.work.training(client, round).least
        job.segments = [before]
        self.receive({**views.down, "w": views.up["w"], "statistics": views.up["statistics"]}, views.memory, round)
        clock.received()
        chosen = self._part(part)
        with seeded(self.experiment.recipe.seed, "forward-act", round, client):
            chosen.act(job.scopes[part], scoped(message, part))
            for other in finishing_again(self.experiment.method, part):
                for name, first in scoped(self.experiment.messages.uploads, other.name).items():
                    job.scopes[other.name].upload[name] = first
                other.finish(job.scopes[other.name])
        clock.worked()
        self.send(views)
        return {"loss": job.mean_loss(), "steps": job.exchanged_steps - before, **clock.report()}

    def refine(
        self, round: int, views: Views, part: str, peers: Sequence[tuple[Mapping[str, Tensor], int, float]]
    ) -> dict[str, Any]:
        """The server's own training, from the weights that were just combined; its memory is the server's."""
        clock = JobClock()
        self.receive(views.down, None, round)
        clock.received()
        job = ClientJob(self, None, round, views, purpose=f"refine-{part}", peers=peers)
        chosen = self._part(part)
        with seeded(self.experiment.recipe.seed, f"forward-refine-{part}", round):
            chosen.refine(job.scopes[part])
        clock.worked()
        self.send(replace(views, memory={}))
        return {"loss": job.mean_loss(), **clock.report()}

    def tell(self, client: int, round: int, views: Views, part: str, findings: Mapping[str, Tensor]) -> dict[str, Any]:
        """A client's side of a survey: nothing is trained."""
        clock = JobClock()
        self.receive(views.down, views.memory, round)
        clock.received()
        job = ClientJob(self, client, round, views, purpose="tell")
        with seeded(self.experiment.recipe.seed, f"forward-tell-{part}", round, client):
            self._part(part).tell(job.scopes[part], Slots(scoped(findings, part), f"{part}: findings"))
        clock.worked()
        return clock.report()

    def _part(self, name: str) -> Part:
        return next(part for part in self.experiment.method.parts if part.name == name)

    def own(self, client: int, views: Views, round: int = 0) -> ClientJob:
        """The client's own model: its personal regions over the served weights, then what parts do to personalise it."""
        self.receive(views.down, views.memory)
        job = ClientJob(self, client, 0, views, purpose="tune", stage=round)
        if len(job.own):
            with seeded(self.experiment.recipe.seed, "forward-own", client):
                for part in self.experiment.method.hooked("personalise"):
                    part.personalise(job.scopes[part.name])
        return job

    def tune(
        self,
        client: int,
        views: Views,
        regions: Sequence[str],
        epochs: int,
        lr: float,
        loss: Which = "method",
        unseen: int = 0,
        first: bool = True,
    ) -> dict[str, Any]:
        """Fine-tune the client's own model; its test images that come out right after every epoch, and `first` before.

        `unseen`: also, at the beginning and the end, of at most so many test images of classes that it never saw.
        """
        job = self.own(client, views)
        names = self.tunable(regions)
        mine = job.holding.test(client)
        others = self.unseen(job, unseen)
        correct, forgotten = [], []

        def test(edge: bool) -> None:
            correct.append(int(self.correct(mine, counts=job.own.counts).sum()))
            if edge and len(others):
                forgotten.append(int(self.correct(others, counts=job.own.counts).sum()))

        if first:
            test(True)
        with seeded(self.experiment.recipe.seed, "forward-tune", client):
            for epoch in range(epochs):
                job.run([Phase(1)], lr=lr, names=names, plain=True, loss=loss)
                test(epoch == epochs - 1)
        return {"correct": correct, "total": len(mine), "unseen": forgotten, "unseen_total": len(others)}

    def tunable(self, regions: Sequence[str]) -> list[str]:
        """The parameters of these regions that may be fine-tuned: all but those that are fixed for good."""
        known = self.layout.regions
        return [n for n in known.select(*regions) if n not in known.statistics and n not in known.constant]

    def unseen(self, job: ClientJob, most: int) -> Pictures:
        """Pooled test images, at most so many, of the classes that the client has no training image of."""
        pooled = job.holding.pooled(0, len(self.experiment.images.test_y) if most else 0)
        absent = job.own.counts.cpu() == 0
        found = torch.nonzero(absent[pooled.y]).flatten()
        if len(found) > most:
            generator = torch_generator(self.experiment.recipe.seed, "unseen", str(job.client))
            found = found[torch.randperm(len(found), generator=generator)[:most].sort().values]
        return pooled[found]

    def test_client(self, client: int, round: int, views: Views, personal: bool) -> dict[str, Any]:
        """The client's own test images after a round, under the global weights or under its own."""
        mine = self.experiment.at(round).test(client)
        if personal:
            hits = self.correct(mine, counts=self.own(client, views, round).own.counts)
        else:
            self.receive(views.down, None)
            hits = self.correct(mine, borrowed=True)
        return {"correct": int(hits.sum()), "total": len(mine)}

    def evaluating(self, borrowed: bool) -> None:
        """The mode that evaluation uses. `borrowed`: the net has no statistics of its own."""
        self.net.eval()
        if borrowed and self.experiment.recipe.bn == "local":
            use_test_batch(self.normalisers)

    def correct(self, pictures: Pictures, borrowed: bool = False, counts: Tensor | None = None) -> Tensor:
        """Which of these images the net now gets right. `borrowed`: it has no statistics of its own. `counts`: it is the own
        model of a client that holds so many of each class."""
        self.evaluating(borrowed)
        hits = []
        size = self.experiment.recipe.eval_batch
        first = int(pictures.rows[0]) if len(pictures) else 0  # layers that draw in evaluation: the same for any lanes
        validation = int(pictures.x is self.experiment.images.train_x)
        key = (self.experiment.recipe.seed, "test", self.round, validation, first, len(pictures))
        with torch.no_grad(), self.autocast(), seeded(*key):
            for stretch in cut(len(pictures), size, alone=not self.normalisers):
                batch = self.experiment.pipeline(pictures.x[pictures.rows[stretch]], None).to(self.device)
                logits = self.net(batch)
                if self.reader is not None and counts is not None:
                    logits = self.reader.own_logits(logits, counts)
                hits.append(logits.argmax(1).cpu() == pictures.y[stretch])
        return torch.cat(hits) if hits else torch.empty(0, dtype=torch.bool)


def finishing_again(method: Method, part: str) -> list[Part]:
    """The parts whose `finish` is applied once more after this part's second act."""
    return [other for other in method.hooked("finish") if other.name != part]


def memory_to_act_on(method: Method, packing: Packing, part: str, before: Tensor, after: Tensor) -> Tensor:
    """A client's memory for a second act: what parts remember that will finish again is as it was before the round, so
    that their corrections go on as in training; personal regions and all else are as training left them."""
    row = after.clone()
    old, new = packing.views(before), packing.views(row)
    for other in finishing_again(method, part):
        for name in new:
            if name.startswith(f"{other.name}."):
                new[name].copy_(old[name])
    return row


def _copy(net: Net, weights: Weights, device: str) -> tuple[Net, Weights]:
    gradients = [parameter.grad for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.grad = None
    twin: Net = copy.deepcopy(net)
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        parameter.grad = gradient
    twin.requires_grad_(False).eval()
    return twin, Weights(twin, weights.layout, device)
