"""The net that a worker keeps and uses for one client after another: receive weights, send weights, predict."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedloom.data import LabeledSamples
from fedloom.engine.client.batches import cut
from fedloom.engine.client.expected_steps import ExpectedSteps
from fedloom.engine.client.feature_memo import is_samplewise
from fedloom.engine.client.losses import MethodLoss
from fedloom.engine.client.moments import Moments
from fedloom.engine.client.optimizers import Rule
from fedloom.engine.client.purposes import FORWARD_EVALUATING
from fedloom.engine.experiment import Experiment
from fedloom.nets import Net, batch_normalizers, use_test_batch
from fedloom.rng import seeded
from fedloom.weights import Weights


@dataclass(frozen=True)
class MessageViews:
    """The tensors of one client's messages and state, as views into the buffers that hold them."""

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    reply: Mapping[str, Tensor] = field(default_factory=dict)


class Replica:
    """A net with its scratch vectors, and the hooks of its method that the local loop calls."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.recipe = experiment, experiment.recipe
        program, method = experiment.program, experiment.program.method
        self.net, self.weights, self.layout = program.net, program.weights, program.layout
        self.device = self.recipe.device
        self.start = torch.empty_like(self.weights.storage)  # the weights that the current client started with
        self.rule = Rule.of(self.recipe)
        self.moments = Moments(self.layout, self.weights.vector, self.rule.adaptive)
        self.initial = program.initial.to(self.device)
        self.normalizers = batch_normalizers(self.net)
        self.round = 0  # the round that the net's weights belong to
        self._teachers: dict[tuple[str, str], tuple[Net, Weights]] = {}
        self.loss, self.gradient = MethodLoss.of(method), method.the("gradient")
        self.corrections = tuple(method.hooked("correct_gradient"))
        self.followers = tuple(method.hooked("after_step"))
        self._at_round, self._own_logits = method.hooked("at_round"), method.the("own_logits")
        self.expected_steps = ExpectedSteps(experiment)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.precision == "fp32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16)

    def teacher(self, key: tuple[str, str]) -> tuple[Net, Weights]:
        """A frozen copy of the net, in evaluation mode; made on first use."""
        if key not in self._teachers:
            self._teachers[key] = _copy(self.net, self.weights, self.device)
        return self._teachers[key]

    @cached_property
    def samplewise(self) -> bool:
        """Whether a frozen net's outputs for a sample are the same in every batch, so that they can be kept."""
        if self._at_round or (self.normalizers and self.recipe.bn == "batch"):  # rounds or batches change the net
            return False
        twin, weights = _copy(self.net, self.weights, self.device)
        weights.load(self.initial)  # the same for every worker, whichever client comes first
        return is_samplewise(twin, self.experiment.program.task.inputs)

    def announce_round(self, net: Net) -> None:
        for part in self._at_round:
            part.at_round(net, self.round, self.experiment.program.task)

    # weights in and out

    def receive(self, down: Mapping[str, Tensor], state: Mapping[str, Tensor] | None, round: int | None = None) -> None:
        """Load the broadcast weights and the client's personal regions; everything else is reset to its initial value.

        `round`: the round that begins. For evaluation and fine-tuning (None) it is the round that the weights come from.
        """
        layout, weights = self.layout, self.weights
        self.round = int(down["round"]) if round is None else round
        self.announce_round(self.net)
        weights.load(self.initial, shared=False)
        weights.vector[: layout.shared].copy_(down["w"])
        weights.statistics[: layout.shared_statistics].copy_(down["statistics"])
        for name in self.experiment.program.messages.fixed:
            layout.entries[name].view(weights.storage).copy_(down[f"fixed.{name}"])
        if state is None:
            return
        if "personal" in state:
            weights.vector[layout.shared : layout.trained].copy_(state["personal"])
        if "statistics" in state:
            self._own_statistics().copy_(state["statistics"])

    def send(self, views: MessageViews) -> None:
        layout, weights = self.layout, self.weights
        views.up["w"].copy_(weights.vector[: layout.shared])
        views.up["statistics"].copy_(weights.statistics[: layout.shared_statistics])
        self.keep(views.state)

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Write the personal regions to the client's state."""
        if "personal" in state:
            state["personal"].copy_(self.weights.vector[self.layout.shared : self.layout.trained])
        if "statistics" in state:
            state["statistics"].copy_(self._own_statistics())

    def _own_statistics(self) -> Tensor:
        begin = self.layout.shared_statistics
        return self.weights.statistics[begin : begin + self.layout.personal_statistics]

    # predictions

    def evaluating(self, borrowed: bool) -> None:
        """Evaluation mode. `borrowed`: no statistics belong to these weights (`bn: local`), so the test batch's are used."""
        self.net.eval()
        if borrowed and self.recipe.bn == "local":
            use_test_batch(self.normalizers)

    def hits(self, labeled: LabeledSamples, borrowed: bool = False, counts: Tensor | None = None) -> Tensor:
        """Which of these samples the net classifies correctly. `borrowed`: as in `evaluating`. `counts`: the net is the
        own model of a client with these class counts."""
        hits = self._forward(
            labeled, lambda scores, stretch: scores.argmax(1).cpu() == labeled.y[stretch], borrowed, counts
        )
        return torch.cat(hits) if hits else torch.empty(0, dtype=torch.bool)

    def scores(self, labeled: LabeledSamples, borrowed: bool = False, counts: Tensor | None = None) -> Tensor:
        """(N, C) float32: what the net returns for these samples. Arguments as of `hits`."""
        scores = self._forward(labeled, lambda scores, _: scores.float().cpu(), borrowed, counts)
        return torch.cat(scores) if scores else torch.empty((0, self.experiment.program.task.classes))

    def _forward(
        self,
        labeled: LabeledSamples,
        keep: Callable[[Tensor, slice], Tensor],
        borrowed: bool,
        counts: Tensor | None,
    ) -> list[Tensor]:
        """Evaluate in batches; `keep` says what remains of the scores of a batch."""
        self.evaluating(borrowed)
        kept = []
        size = self.recipe.eval_batch
        # layers that draw in evaluation get the same draws for any number of workers
        first = int(labeled.rows[0]) if len(labeled) else 0
        validation = int(labeled.x is self.experiment.data.dataset.train_x)
        key = (self.recipe.seed, FORWARD_EVALUATING, self.round, validation, first, len(labeled))
        with torch.no_grad(), self.autocast(), seeded(*key):
            for stretch in cut(len(labeled), size, alone=not self.normalizers):
                batch = self.experiment.data.pipeline(labeled.x[labeled.rows[stretch]], None).to(self.device)
                logits = self.net(batch)
                if self._own_logits is not None and counts is not None:
                    logits = self._own_logits.own_logits(logits, counts)
                kept.append(keep(logits, stretch))
        return kept


def _copy(net: Net, weights: Weights, device: str) -> tuple[Net, Weights]:
    twin: Net = copy.deepcopy(net)
    twin.requires_grad_(False).eval()
    return twin, Weights(twin, weights.layout, device)
