"""A model's state as one flat vector with named regions.

Every float tensor of a net is a view into one contiguous float32 storage: first all parameters (`vector`), then all
float buffers (`statistics`). Tensors are ordered by status, so that the vector of a paper's equation is a prefix and
never a gather:

    vector     = [ shared: trained and sent | personal: trained, kept by the client | frozen: neither ]
    statistics = [ shared | personal ]

and within each status by region: body, norm, adapter, head. 4-d weights keep channels-last strides inside the vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets.kernels.native.gradients import gradients_in

Status = Literal["shared", "personal", "frozen"]
REGIONS = ("body", "norm", "adapter", "head")
BEFORE_HEAD = ("body", "norm", "adapter")  # all that makes features
STATUSES: tuple[Status, ...] = ("shared", "personal", "frozen")


@dataclass(frozen=True)
class Regions:
    """The region and status of each tensor of a net, as decided by the parts of a method; immutable."""

    region: Mapping[str, str]  # tensor name -> body | norm | adapter | head
    statistics: frozenset[str]  # names of buffers: shared or personal like their region, never trained
    constant: Mapping[str, str]  # name of a tensor that is never trained (a fixed head) -> the part that fixed it
    status: Mapping[str, Status] = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)  # tensor name -> the part that decided its status
    speaker: str = "the recipe"  # the part that is deciding now

    @staticmethod
    def of(net: nn.Module, region: Mapping[str, str], constant: Mapping[str, str]) -> Regions:
        parameters = dict(net.named_parameters())
        statistics = frozenset(name for name in region if name not in parameters)
        status: dict[str, Status] = {name: "frozen" if name in constant else "shared" for name in region}
        return Regions(dict(region), statistics, dict(constant), status)

    def freeze(self, *which: str) -> Regions:
        """Neither trained nor shared: the tensors keep their initial values."""
        return self._decide("frozen", which)

    def keep(self, *which: str) -> Regions:
        """Trained and kept by each client: never uploaded, never averaged."""
        return self._decide("personal", which)

    def share(self, *which: str) -> Regions:
        """Trained and sent, as without any decision; another part may then not decide otherwise."""
        return self._decide("shared", which)

    def select(self, *which: str) -> list[str]:
        """Names of the tensors in these regions, which do not overlap, or under these module names (`body.conv1`)."""
        return [
            name
            for name, region in self.region.items()
            if any(region == w if w in REGIONS else name == w or name.startswith(w + ".") for w in which)
        ]

    @property
    def base(self) -> list[str]:
        """Names of the tensors that adapters are trained beside: all constant ones before the head; none without adapters."""
        if "adapter" not in self.region.values():
            return []
        return [name for name in self.constant if self.region.get(name) in BEFORE_HEAD]

    def _decide(self, status: Status, which: tuple[str, ...]) -> Regions:
        names = self.select(*which)
        if not names:
            raise FedloomError(
                f"method: {self.speaker} decides about {' and '.join(which)}, but this net has no such tensors"
            )
        fixed = [name for name in names if name in self.constant]
        if fixed and len(fixed) == len(names):
            by = self.constant[fixed[0]]
            message = f"method: {by} fixes {fixed[0]} for good, so {self.speaker} has nothing "
            if status == "frozen":
                raise FedloomError(f"{message}left to freeze: {by} alone does it; leave {self.speaker} out")
            raise FedloomError(f"{message}to decide about it; keep one")
        names = [name for name in names if name not in self.constant]
        for name in names:
            if name in self.decided and self.decided[name] != self.speaker:
                raise FedloomError(
                    f"method: {self.decided[name]} and {self.speaker} both decide what happens to the "
                    f"{self.region[name]}; keep one"
                )
        statuses = dict.fromkeys(names, status)
        return replace(
            self, status={**self.status, **statuses}, decided={**self.decided, **dict.fromkeys(names, self.speaker)}
        )


@dataclass(frozen=True)
class TensorSlot:
    """The position of one tensor in the flat storage."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int
    channels_last: bool

    def numbers(self, storage: Tensor) -> Tensor:
        return storage.narrow(0, self.offset, self.size)

    def view(self, storage: Tensor) -> Tensor:
        return self.shaped(self.numbers(storage))

    def shaped(self, flat: Tensor) -> Tensor:
        if self.channels_last:
            n, c, h, w = self.shape
            return flat.view(n, h, w, c).permute(0, 3, 1, 2)
        return flat.view(self.shape)


class Layout:
    """The order of a net's tensors in the flat storage, and the lengths of its segments."""

    def __init__(self, net: nn.Module, regions: Regions) -> None:
        tensors: dict[str, Tensor] = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self.regions = regions
        self.entries: dict[str, TensorSlot] = {}
        self.lengths: dict[tuple[str, Status], int] = {}
        offset = 0
        for kind in ("parameter", "statistic"):
            for status in STATUSES:
                begin = offset
                for region in REGIONS:
                    for name, own_region in regions.region.items():
                        own_kind = "statistic" if name in regions.statistics else "parameter"
                        if (own_kind, regions.status[name], own_region) != (kind, status, region):
                            continue
                        shape = tuple(tensors[name].shape)
                        channels_last = len(shape) == 4 and shape[1] > 1 and shape[2] * shape[3] > 1
                        entry = TensorSlot(name, shape, offset, tensors[name].numel(), channels_last)
                        self.entries[name] = entry
                        offset += entry.size
                self.lengths[kind, status] = offset - begin
        self.total = offset
        self.shared = self.lengths["parameter", "shared"]
        self.personal = self.lengths["parameter", "personal"]
        self.trained = self.shared + self.personal
        self.parameters = self.trained + self.lengths["parameter", "frozen"]
        self.statistics = self.total - self.parameters
        self.shared_statistics = self.lengths["statistic", "shared"]
        self.personal_statistics = self.lengths["statistic", "personal"]

    def slices(self, names: Iterable[str]) -> list[slice]:
        """The slices of the parameter vector that hold these tensors; adjacent ones are merged."""
        wanted = set(names)
        slices: list[slice] = []
        for entry in self.entries.values():
            if entry.name not in wanted or entry.offset >= self.parameters or entry.size == 0:
                continue
            if slices and slices[-1].stop == entry.offset:
                slices[-1] = slice(slices[-1].start, entry.offset + entry.size)
            else:
                slices.append(slice(entry.offset, entry.offset + entry.size))
        return slices

    def trainable(self, *regions: str) -> list[str]:
        """Names of the trained parameters, or only those in these regions."""
        for region in regions:
            if region not in REGIONS and not self.regions.select(region):
                raise FedloomError(f"method: a phase trains {region!r}, which this net does not have")
        names = self.regions.select(*regions) if regions else list(self.entries)
        return [n for n in names if n not in self.regions.statistics and self.regions.status[n] != "frozen"]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of the tensors in a vector that is a prefix of the parameters."""
        entries = [entry for entry in self.entries.values() if entry.offset + entry.size <= len(vector)]
        return {entry.name: entry.view(vector) for entry in entries}

    def views(self, flat: Tensor, begin: int = 0) -> dict[str, Tensor]:
        """Views of the tensors in a segment of the storage that starts at `begin`.

        They come from one torch.split, so their gradient is one concatenation.
        """
        entries = [e for e in self.entries.values() if begin <= e.offset and e.offset + e.size <= begin + len(flat)]
        pieces = torch.split(flat, [entry.size for entry in entries])
        return {entry.name: entry.shaped(piece) for entry, piece in zip(entries, pieces, strict=True)}

    def tensors(self, storage: Tensor) -> dict[str, Tensor]:
        """Contiguous copies by name, for files."""
        return {
            name: entry.view(storage).detach().clone(memory_format=torch.contiguous_format)
            for name, entry in self.entries.items()
        }

    def read(self, tensors: Mapping[str, Tensor], storage: Tensor) -> None:
        """Fill a storage from named tensors; every tensor of the net must be present with its shape."""
        for name, entry in self.entries.items():
            if name not in tensors or tuple(tensors[name].shape) != entry.shape:
                problem = "is missing" if name not in tensors else f"has shape {tuple(tensors[name].shape)}"
                raise FedloomError(f"weights: tensor {name} of shape {entry.shape} is expected, but it {problem}")
            entry.view(storage).copy_(tensors[name])


class Weights:
    """A net bound to its flat storage: training the net changes the vector, and copying into the vector loads the net."""

    def __init__(self, net: nn.Module, layout: Layout, device: str = "cpu") -> None:
        self.net = net
        self.layout = layout
        self.storage = torch.empty(layout.total, device=device)
        self.gradient = torch.zeros(layout.parameters, device=device)
        self.vector = self.storage[: layout.parameters]
        self.statistics = self.storage[layout.parameters :]
        self._parameters = dict(net.named_parameters())
        self._counters: list[tuple[Tensor, Tensor]] = []
        self._trained: list[tuple[nn.Parameter, Tensor]] = []  # with the place of its gradient
        self._places: dict[int, Tensor] = {}  # the same, by addresses
        self._bind()
        self._slices = self.train_only([name for name, p in self._parameters.items() if p.requires_grad])

    @torch.no_grad()
    def _bind(self) -> None:
        for name, entry in self.layout.entries.items():
            view = entry.view(self.storage)
            if name in self._parameters:
                parameter = self._parameters[name]
                view.copy_(parameter)
                parameter.data = view
            else:
                path, _, leaf = name.rpartition(".")
                module = self.net.get_submodule(path)
                view.copy_(module.get_buffer(leaf))
                module._buffers[leaf] = view
        for name, buffer in self.net.named_buffers():
            if name not in self.layout.entries:  # integer buffers: reset for every client, never shared
                self._counters.append((buffer, buffer.clone()))

    def load(self, storage: Tensor, shared: bool = True) -> None:
        """`shared`: with the shared tensors, which come from elsewhere otherwise."""
        layout = self.layout
        begins = (0, layout.parameters) if shared else (layout.shared, layout.parameters + layout.shared_statistics)
        for begin, end in zip(begins, (layout.parameters, layout.total), strict=True):
            self.storage[begin:end].copy_(storage[begin:end])
        for buffer, initial in self._counters:
            buffer.copy_(initial)

    @property
    def counters(self) -> list[Tensor]:
        """Buffers that are not float tensors."""
        return [buffer for buffer, _ in self._counters]

    def train_only(self, names: Iterable[str]) -> list[slice]:
        """Require gradients of these parameters only; returns their slices of the vector."""
        wanted = set(names)
        self._trained, self._places = [], {}
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in wanted)
            if name in wanted:
                entry = self.layout.entries[name]
                self._trained.append((parameter, entry.view(self.gradient)))
                self._places[parameter.data_ptr()] = entry.numbers(self.gradient)
        self._slices = self.layout.slices(wanted)
        return self._slices

    def backward(self, loss: Tensor, slices: list[slice]) -> None:
        """Writes the gradient into these slices of the flat vector, with zeros where nothing is trained.

        Compiled kernels write it there themselves. What autograd hands over otherwise is copied, which is less work than to
        let it add that to zeros.
        """
        if slices != self._slices:
            for s in slices:
                self.gradient[s].zero_()
        with gradients_in(self._places):
            torch.autograd.backward(loss)
        views, gradients = [], []
        for parameter, view in self._trained:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:  # the loss does not depend on it
                view.zero_()
            elif gradient.data_ptr() != view.data_ptr():
                views.append(view)
                gradients.append(gradient)
        if views:
            torch._foreach_copy_(views, gradients)

    @contextmanager
    def training(self, names: Iterable[str]) -> Iterator[list[slice]]:
        """As `train_only`, for a while."""
        before = [name for name, parameter in self._parameters.items() if parameter.requires_grad]
        yield self.train_only(names)
        self.train_only(before)
