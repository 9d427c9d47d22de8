"""The samples that a client, or the server, can train on: its own, held-back, public, or any by their indices."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from fedloom.data import LabeledSamples
from fedloom.engine.client.replica import Replica
from fedloom.engine.client.samples import Samples, held_back
from fedloom.engine.timing import Preparing
from fedloom.errors import FedloomError
from fedloom.methods.api.context import Data


class ClientData:
    """`client`: None for the server. `round`: whose partition applies. `pooled`: train on the samples of all clients."""

    def __init__(self, replica: Replica, client: int | None, round: int, pooled: bool) -> None:
        self.stage = replica.experiment.data.at(round)
        self._replica, self._client, self._round, self._pooled = replica, client, round, pooled
        self._samples: dict[str, Samples] = {}

    @property
    def own(self) -> Samples:
        return self["own"]

    @own.setter
    def own(self, samples: Samples) -> None:
        """The server has no samples of its own: those that it works on take their place."""
        self._samples["own"] = samples

    def __getitem__(self, data: Data) -> Samples:
        experiment, device = self._replica.experiment, self._replica.device
        alone = not self._replica.normalizers
        if isinstance(data, Tensor):
            return Samples(experiment, self.stage.by_index(data.numpy()), device, alone)
        if data not in self._samples:
            began, pipeline = perf_counter(), None
            if data == "own":
                labeled = self._own()
            elif data == "held":
                labeled = held_back(experiment)
                if not len(labeled):
                    raise FedloomError("method: it works on samples that are held back; set data.validation above 0")
            else:
                public = experiment.data.public
                labeled, pipeline = LabeledSamples(public.x, torch.arange(len(public.y)), public.y), public.pipeline
                if not len(labeled):
                    raise FedloomError("method: it works on public samples; set data.public above 0")
            self._samples[data] = Samples(experiment, labeled, device, alone, pipeline)
            Preparing.since(began)
        return self._samples[data]

    def _own(self) -> LabeledSamples:
        if self._client is None:
            raise FedloomError("method: the server has no samples of its own; name others")
        if self._pooled:
            return self.stage.by_index(self._replica.experiment.training(self._client, self._round))
        return self.stage.train(self._client)
