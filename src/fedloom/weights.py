"""A model's state as one flat vector with named regions.

Every float tensor of a net is a view into one contiguous float32 storage: first all parameters (`vector`), then all
float buffers (`buffers`). Parameters are ordered by what happens to them, so that what a paper's equation speaks of
is a prefix and never a gather:

    vector  = [ exchanged: trained and shared | personal: trained, kept by the client | frozen: neither ]
    buffers = [ shared | personal ]

and inside each stretch by region: body, norm, head. 4-d weights keep channels-last strides inside the vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError

Status = Literal["exchanged", "personal", "frozen"]
REGIONS = ("body", "norm", "head")
STATUSES: tuple[Status, ...] = ("exchanged", "personal", "frozen")


@dataclass(frozen=True)
class Regions:
    """What happens to each tensor of a net, as decided by the parts of a method; an immutable value."""

    region: Mapping[str, str]  # tensor name -> body | norm | head
    statistics: frozenset[str]  # names of buffers: they are shared or personal with their region, never trained
    constant: Mapping[str, str]  # tensors made untrainable for good (a fixed head) -> the part that did so
    status: Mapping[str, Status] = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)  # tensor name -> the part that decided
    speaker: str = "the recipe"

    @staticmethod
    def of(net: nn.Module, region: Mapping[str, str], constant: Mapping[str, str]) -> Regions:
        parameters = dict(net.named_parameters())
        statistics = frozenset(name for name in region if name not in parameters)
        status: dict[str, Status] = {name: "frozen" if name in constant else "exchanged" for name in region}
        return Regions(dict(region), statistics, dict(constant), status)

    def freeze(self, *which: str) -> Regions:
        """Neither trained nor shared: everyone keeps the values as drawn."""
        return self._decide("frozen", which)

    def keep(self, *which: str) -> Regions:
        """Trained by each client and kept by it: never uploaded, never averaged."""
        return self._decide("personal", which)

    def select(self, *which: str) -> list[str]:
        """Names of the tensors in these regions (`body` is without `norm`), or under these module names (`body.conv1`)."""
        return [
            name
            for name, region in self.region.items()
            if any(region == w if w in REGIONS else name == w or name.startswith(w + ".") for w in which)
        ]

    def _decide(self, status: Status, which: tuple[str, ...]) -> Regions:
        names = self.select(*which)
        if not names:
            raise FedloomError(
                f"method: {self.speaker} decides about {' and '.join(which)}, but this net has no such tensors"
            )
        fixed = [name for name in names if name in self.constant]
        if fixed and len(fixed) == len(names):
            by = self.constant[fixed[0]]
            said = f"method: {by} fixes {fixed[0]} for good, so {self.speaker} has nothing "
            if status == "frozen":
                raise FedloomError(f"{said}left to freeze: {by} alone does it; leave {self.speaker} out")
            raise FedloomError(f"{said}to decide about it; keep one")
        names = [name for name in names if name not in self.constant]
        for name in names:
            if name in self.decided and self.decided[name] != self.speaker:
                raise FedloomError(
                    f"method: {self.decided[name]} and {self.speaker} both decide what happens to the "
                    f"{self.region[name]}; keep one"
                )
        chosen = dict.fromkeys(names, status)
        return replace(
            self, status={**self.status, **chosen}, decided={**self.decided, **dict.fromkeys(names, self.speaker)}
        )


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in the storage."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    channels_last: bool

    def view(self, storage: Tensor) -> Tensor:
        return self.shaped(storage.narrow(0, self.offset, self.size))

    def shaped(self, flat: Tensor) -> Tensor:
        if self.channels_last:
            n, c, h, w = self.shape
            return flat.view(n, h, w, c).permute(0, 3, 1, 2)
        return flat.view(self.shape)


class Layout:
    """The order of a net's tensors in the flat storage, and the lengths of its stretches."""

    def __init__(self, net: nn.Module, regions: Regions) -> None:
        tensors: dict[str, Tensor] = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self.regions = regions
        self.entries: dict[str, Entry] = {}
        self.lengths: dict[tuple[str, Status], int] = {}
        offset = 0
        for kind in ("parameter", "statistic"):
            for status in STATUSES:
                begin = offset
                for region in REGIONS:
                    for name, its in regions.region.items():
                        is_statistic = name in regions.statistics
                        if its != region or is_statistic != (kind == "statistic") or regions.status[name] != status:
                            continue
                        shape = tuple(tensors[name].shape)
                        channels_last = len(shape) == 4 and shape[1] > 1 and shape[2] * shape[3] > 1
                        entry = Entry(name, shape, offset, tensors[name].numel(), channels_last)
                        self.entries[name] = entry
                        offset += entry.size
                self.lengths[kind, status] = offset - begin
        self.total = offset
        self.exchanged = self.lengths["parameter", "exchanged"]
        self.personal = self.lengths["parameter", "personal"]
        self.trained = self.exchanged + self.personal
        self.parameters = self.trained + self.lengths["parameter", "frozen"]
        self.statistics = self.total - self.parameters
        self.shared_statistics = self.lengths["statistic", "exchanged"]
        self.personal_statistics = self.lengths["statistic", "personal"]

    def slices(self, names: Iterable[str]) -> list[slice]:
        """The stretches of the parameter vector that hold these tensors, neighbours merged."""
        wanted = set(names)
        found: list[slice] = []
        for entry in self.entries.values():
            if entry.name not in wanted or entry.offset >= self.parameters or entry.size == 0:
                continue
            if found and found[-1].stop == entry.offset:
                found[-1] = slice(found[-1].start, entry.offset + entry.size)
            else:
                found.append(slice(entry.offset, entry.offset + entry.size))
        return found

    def trainable(self, *regions: str) -> list[str]:
        """Names of the trained parameters, in these regions only when any are given."""
        for region in regions:
            if region not in REGIONS and not self.regions.select(region):
                raise FedloomError(f"method: a phase trains {region!r}, which this net does not have")
        chosen = self.regions.select(*regions) if regions else list(self.entries)
        return [n for n in chosen if n not in self.regions.statistics and self.regions.status[n] != "frozen"]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The tensors that lie in a vector which begins as the parameters do, as views into it."""
        found = [entry for entry in self.entries.values() if entry.offset + entry.size <= len(vector)]
        return {entry.name: entry.view(vector) for entry in found}

    def views(self, flat: Tensor, begin: int = 0) -> dict[str, Tensor]:
        """The tensors that lie in a stretch of the storage, by one split: its gradient is one concatenation."""
        entries = [e for e in self.entries.values() if begin <= e.offset and e.offset + e.size <= begin + len(flat)]
        pieces = torch.split(flat, [entry.size for entry in entries])
        return {entry.name: entry.shaped(piece) for entry, piece in zip(entries, pieces, strict=True)}

    def tensors(self, storage: Tensor) -> dict[str, Tensor]:
        """Named, contiguous copies, as they are written to files."""
        return {
            name: entry.view(storage).detach().clone(memory_format=torch.contiguous_format)
            for name, entry in self.entries.items()
        }

    def read(self, tensors: Mapping[str, Tensor], storage: Tensor) -> None:
        """Fill a storage from named tensors; every name and shape must be there."""
        for name, entry in self.entries.items():
            if name not in tensors or tuple(tensors[name].shape) != entry.shape:
                found = "is missing" if name not in tensors else f"has shape {tuple(tensors[name].shape)}"
                raise FedloomError(f"weights: tensor {name} of shape {entry.shape} is expected, but it {found}")
            entry.view(storage).copy_(tensors[name])


class Weights:
    """A net bound to its flat storage: training the net moves the vector, copying into the vector loads the net."""

    def __init__(self, net: nn.Module, layout: Layout, device: str = "cpu") -> None:
        self.net = net
        self.layout = layout
        self.storage = torch.empty(layout.total, device=device)
        self.gradient = torch.zeros(layout.parameters, device=device)
        self.vector = self.storage[: layout.parameters]
        self.statistics = self.storage[layout.parameters :]
        self._parameters = dict(net.named_parameters())
        self._counters: list[tuple[Tensor, Tensor]] = []
        self._bind()

    @torch.no_grad()
    def _bind(self) -> None:
        for name, entry in self.layout.entries.items():
            home = entry.view(self.storage)
            if name in self._parameters:
                parameter = self._parameters[name]
                home.copy_(parameter)
                parameter.data = home
                parameter.grad = entry.view(self.gradient) if parameter.requires_grad else None
            else:
                owner, _, leaf = name.rpartition(".")
                module = self.net.get_submodule(owner)
                home.copy_(module.get_buffer(leaf))
                module._buffers[leaf] = home
        for name, buffer in self.net.named_buffers():
            if name not in self.layout.entries:  # integers and the like: reset for every client, never shared
                self._counters.append((buffer, buffer.clone()))

    def load(self, storage: Tensor) -> None:
        self.storage.copy_(storage)
        for buffer, initial in self._counters:
            buffer.copy_(initial)

    @property
    def counters(self) -> list[Tensor]:
        """Buffers that are not floats."""
        return [buffer for buffer, _ in self._counters]

    def train_only(self, names: Iterable[str]) -> list[slice]:
        """Let the gradient flow to these parameters and no others; returns their stretches of the vector."""
        wanted = set(names)
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in wanted)
            if name in wanted and parameter.grad is None:
                parameter.grad = self.layout.entries[name].view(self.gradient)
        return self.layout.slices(wanted)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes and values, independent of the order in which they are given."""
    state = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return state.hexdigest()
