"""The frozen nets that a client's parts compare with: teachers, and at the server the uploaded models. Loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedloom.engine.client.feature_memo import TeacherKey
from fedloom.engine.client.local_batch import LocalBatch, TeacherOutputs
from fedloom.engine.client.replica import Replica
from fedloom.nets import Net


@dataclass(frozen=True)
class UploadedModel:
    """An accepted upload, for the server's own training."""

    tensors: Mapping[str, Tensor]
    samples: int
    share: float  # in the weighted mean


class Teachers:
    def __init__(
        self, replica: Replica, client_state: Mapping[str, Tensor], uploads: Sequence[UploadedModel] = ()
    ) -> None:
        self.uploads = uploads
        self._replica, self._client_state = replica, client_state
        self._loaded: set[TeacherKey] = set()

    def outputs(self, key: TeacherKey, batch: LocalBatch) -> TeacherOutputs:
        """What a teacher makes of a batch: computed, or looked up where an earlier epoch computed it."""
        net, memo = self.teacher(key), batch.memo
        if memo is None or not self._replica.samplewise:
            return TeacherOutputs(net, batch.x)
        known = memo.find(key, batch.index)
        outputs = TeacherOutputs(net, batch.x, known)
        if known is None:
            memo.keep(key, batch.index, outputs.features)
        return outputs

    def teacher(self, key: TeacherKey) -> Net:
        """The model that the round began with, or one that a part keeps in its client state."""
        net, weights = self._replica.teacher(key)
        if key not in self._loaded:
            weights.load(self._replica.start if key[1] == "global" else self._client_state[".".join(key)])
            self._replica.announce_round(net)
            self._loaded.add(key)
        return net

    def peer(self, number: int) -> Net:
        """The model that a client uploaded; what clients do not upload is as the server has it."""
        key = ("peer", str(number))
        net, weights = self._replica.teacher(key)
        if key not in self._loaded:
            weights.load(self._replica.start)
            uploaded, layout = self.uploads[number].tensors, self._replica.layout
            weights.vector[: layout.shared].copy_(uploaded["w"])
            weights.statistics[: layout.shared_statistics].copy_(uploaded["statistics"])
            self._loaded.add(key)
        return net
