"""First weights from a file (`init`): a tensor of the same name and shape is taken, all others are listed.

The file is laid over the net twice. Before parts build, so that a head they derive from the drawn one (a simplex, an
orthonormal frame, a normalised head) derives from the file's; and after, by the names of the finished net, so that a
run's own final.safetensors is read wholly. Where parts gave tensors other names, the names that fit more of the file
count. A tensor that a part fixes for good is taken only where the file holds one of the same kind, with the same angles
between its rows: an ordinary head is no simplex. Only safetensors are read: a pickle can run code.

A run stores the weights it began with and the digest of the file; resuming reads the former, and not the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.engine.files import read_tensors
from fedloom.errors import FedloomError
from fedloom.nets.foreign import our_names
from fedloom.paths import expanded
from fedloom.recipe import Recipe
from fedloom.weights import Weights, digest

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".tar")


@dataclass(frozen=True)
class Placed:
    """A tensor of the drawn net that was filled from the file."""

    name: str  # in the file
    module: nn.Module
    leaf: str
    tensor: Tensor
    before: Tensor

    def now(self, net: nn.Module) -> str | None:
        """Its name in the finished net, if it is still there: a part may have put it into a module, or replaced it."""
        for name, parameter in net.named_parameters():
            if parameter is self.tensor:
                return name
        for name, module in net.named_modules():
            if module is self.module and self.leaf in module._buffers:
                return f"{name}.{self.leaf}"
        return None


@dataclass
class Start:
    """The tensors of a file, by our names, and where they went."""

    source: str
    digest: str
    tensors: Mapping[str, Tensor]
    placed: list[Placed] = field(default_factory=list)

    @torch.no_grad()
    def fill(self, net: nn.Module) -> None:
        """Lay the file over a net as it was drawn."""
        for name, home in [*net.named_parameters(), *net.named_buffers()]:
            if self._fits(name, home):
                owner, _, leaf = name.rpartition(".")
                self.placed.append(Placed(name, net.get_submodule(owner), leaf, home, home.clone()))
                home.copy_(self.tensors[name])

    @torch.no_grad()
    def load(self, weights: Weights, model: str) -> dict[str, Any]:
        """Lay the file over the finished net; what was loaded and what was not."""
        layout = weights.layout
        homes = {name: entry.view(weights.storage) for name, entry in layout.entries.items()}
        moved = {now: one for one in self.placed if (now := one.now(weights.net)) is not None}
        elsewhere = {one.name for now, one in moved.items() if now != one.name}
        if sum(self._fits(name, home) for name, home in homes.items()) > len(self.placed):
            for (
                now,
                one,
            ) in moved.items():  # the file has the finished net's names: what fitted the drawn one did so by chance
                homes[now].copy_(one.before)
            moved, elsewhere = {}, set()
        loaded, missing, fixed, mismatched = [], [], [], {}
        for name, home in homes.items():
            named = name in self.tensors and name not in elsewhere
            if name in moved:
                loaded.append(name)
            elif named and not self._fits(name, home):
                mismatched[name] = {"file": list(self.tensors[name].shape), "net": list(home.shape)}
            elif named and name in layout.regions.constant and not _same_kind(self.tensors[name], home.cpu()):
                fixed.append(name)
            elif named:
                home.copy_(self.tensors[name])
                loaded.append(name)
            else:
                missing.append(name)
        if not loaded:
            some, ours = ", ".join(list(self.tensors)[:3]) or "nothing", ", ".join(list(homes)[:3])
            raise FedloomError(
                f"init: no tensor of {self.source} fits {model}: it holds {some}, …, and the net {ours}, …; names and "
                f"shapes must be the same"
            )
        used = {*loaded, *fixed, *mismatched, *elsewhere}
        counters = [name for name in self.tensors if name.endswith("num_batches_tracked")]
        return {
            "source": self.source,
            "digest": self.digest,
            "loaded": loaded,
            "missing": missing,
            "mismatched": mismatched,
            "fixed": fixed,
            "unused": [name for name in self.tensors if name not in used and name not in counters],
        }

    def _fits(self, name: str, home: Tensor) -> bool:
        found = self.tensors.get(name)
        return found is not None and found.shape == home.shape and found.is_floating_point()


def read_start(recipe: Recipe) -> Start:
    """The file that `init` names; it must still be what the recipe says it was."""
    source = str(recipe.init)
    path = _download(source) if source.startswith("hf:") else expanded(source, "init")
    if path.suffix.lower() in PICKLES:
        raise FedloomError(
            f"init: {source} may hold a pickle, which can run code when it is read; convert it first, with "
            f"safetensors.torch.save_file(state_dict, 'weights.safetensors')"
        )
    if path.suffix.lower() != ".safetensors":
        raise FedloomError(f"init: {source} is not understood; allowed are PATH.safetensors and hf:owner/name[/file]")
    try:
        tensors, _ = read_tensors(path, sealed=False)
    except FedloomError as error:
        raise FedloomError(f"init: {error}") from None
    found = digest(tensors)[:16]
    if recipe.init_digest not in (None, found):
        raise FedloomError(
            f"init: {source} is no longer what this recipe was run with (its digest is {found}, not "
            f"{recipe.init_digest}); leave out init_digest to take it as it is now"
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
            raise FedloomError(f"init: {name} of {source} is not finite")
    names = our_names(tensors)
    return Start(source, found, {names[name]: tensor for name, tensor in tensors.items()})


def told_origin(origin: Mapping[str, Any]) -> str:
    """One sentence about where the first weights came from."""
    mismatched = origin["mismatched"]
    total = sum(len(origin[kind]) for kind in ("loaded", "missing", "mismatched", "fixed"))
    said = [f"init: {len(origin['loaded'])} of {total} tensors are from {origin['source']}"]
    if origin["missing"]:
        said.append(f"not in the file: {_some(origin['missing'])}")
    if mismatched:
        shapes = [
            f"{name} ({_size(item['file'])} there, {_size(item['net'])} here)" for name, item in mismatched.items()
        ]
        said.append(f"of another shape: {_some(shapes)}")
    if origin["fixed"]:
        said.append(f"fixed by the method: {_some(origin['fixed'])}")
    if origin["unused"]:
        said.append(f"only in the file: {_some(origin['unused'])}")
    return "; ".join(said)


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _size(shape: list[int]) -> str:
    return "x".join(str(length) for length in shape) or "a number"


def _same_kind(one: Tensor, other: Tensor) -> bool:
    """Whether the rows of two matrices have the same lengths and angles."""
    if one.dim() != 2:
        return False
    a, b = one.double(), other.double()
    return torch.allclose(a @ a.T, b @ b.T, rtol=0, atol=1e-4)


def _download(source: str) -> Path:
    owner, _, rest = source.removeprefix("hf:").partition("/")
    name, _, file = rest.partition("/")
    if not owner or not name:
        raise FedloomError(f"init: {source} must read hf:owner/name or hf:owner/name/file.safetensors")
    file = file or "model.safetensors"
    if not file.endswith(".safetensors"):
        return Path(file)  # refused by its kind before anything is fetched
    try:
        library = import_module("huggingface_hub")
    except ImportError:
        raise FedloomError(
            'init: hf:… needs the huggingface_hub library, which is missing: pip install "fedloom[hub]"'
        ) from None
    try:
        return Path(library.hf_hub_download(f"{owner}/{name}", file))
    except Exception as error:  # the library and its transport raise many kinds; all become one sentence
        said = str(error).strip().splitlines()
        raise FedloomError(f"init: {source} cannot be fetched: {said[0] if said else type(error).__name__}") from None
