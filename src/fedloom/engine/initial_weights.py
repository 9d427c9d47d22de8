"""Initial weights from a file (`init`): tensors of the same name and shape are loaded, all others are listed.

The file is loaded twice. First before parts build, so that a head that a part derives from the random one (a simplex, an
orthonormal frame, a normalized head) derives from the file's; then by the names of the finished net, so that a run's own
final.safetensors is loaded completely. Where parts renamed tensors, the set of names that matches more of the file is used.
A head that a part fixes is loaded only if the file's has the same angles between its rows: an ordinary head is no simplex.
Only safetensors are read: a pickle can run code.

A run stores its initial weights and the digest of the file; resuming reads the stored weights, not the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.extras import missing
from fedloom.io.digest import digest
from fedloom.io.files import read_tensors
from fedloom.nets.foreign import our_names
from fedloom.paths import expanded
from fedloom.recipe import Recipe
from fedloom.weights import Weights

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".tar")


@dataclass(frozen=True)
class Placed:
    """A tensor of the net before parts build, loaded from the file."""

    name: str  # in the file
    module: nn.Module
    leaf: str
    tensor: Tensor
    before: Tensor

    def now(self, net: nn.Module) -> str | None:
        """Its name in the finished net, or None: a part may have moved it into another module, or replaced it."""
        for name, parameter in net.named_parameters():
            if parameter is self.tensor:
                return name
        for name, module in net.named_modules():
            if module is self.module and self.leaf in module._buffers:
                return f"{name}.{self.leaf}"
        return None


@dataclass
class InitialWeights:
    """The tensors of a file, by fedloom's names, and where they were loaded."""

    source: str
    digest: str
    tensors: Mapping[str, Tensor]
    placed: list[Placed] = field(default_factory=list)

    @torch.no_grad()
    def fill(self, net: nn.Module) -> None:
        """Load the file into a net before parts build."""
        for name, home in [*net.named_parameters(), *net.named_buffers()]:
            if self._fits(name, home):
                owner, _, leaf = name.rpartition(".")
                self.placed.append(Placed(name, net.get_submodule(owner), leaf, home, home.clone()))
                home.copy_(self.tensors[name])

    @torch.no_grad()
    def load(self, weights: Weights, model: str) -> dict[str, Any]:
        """Load the file into the finished net; returns which tensors were loaded and which were not."""
        layout = weights.layout
        homes = {name: entry.view(weights.storage) for name, entry in layout.entries.items()}
        moved = {now: one for one in self.placed if (now := one.now(weights.net)) is not None}
        elsewhere = {one.name for now, one in moved.items() if now != one.name}
        if sum(self._fits(name, home) for name, home in homes.items()) > len(self.placed):
            # the file has the finished net's names: what matched before parts built did so by chance
            for now, one in moved.items():
                homes[now].copy_(one.before)
            moved, elsewhere = {}, set()
        fixed_heads = [name for name in layout.regions.constant if layout.regions.region.get(name) == "head"]
        loaded, missing, fixed, mismatched = [], [], [], {}
        for name, home in homes.items():
            named = name in self.tensors and name not in elsewhere
            if name in moved:
                loaded.append(name)
            elif named and not self._fits(name, home):
                mismatched[name] = {"file": list(self.tensors[name].shape), "net": list(home.shape)}
            elif named and name in fixed_heads and not _same_kind(self.tensors[name], home.cpu()):
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
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.shape == home.shape and tensor.is_floating_point()


def read_initial_weights(recipe: Recipe) -> InitialWeights:
    """The file that `init` names; its digest must match the recipe's `init_digest`."""
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
    file_digest = digest(tensors)[:16]
    if recipe.init_digest not in (None, file_digest):
        raise FedloomError(
            f"init: {source} is no longer what this recipe was run with (its digest is {file_digest}, not "
            f"{recipe.init_digest}); leave out init_digest to use it as it is now"
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
            raise FedloomError(f"init: {name} of {source} is not finite")
    names = our_names(tensors)
    return InitialWeights(source, file_digest, {names[name]: tensor for name, tensor in tensors.items()})


def describe_origin(origin: Mapping[str, Any]) -> str:
    """One sentence about where the initial weights came from."""
    mismatched = origin["mismatched"]
    total = sum(len(origin[kind]) for kind in ("loaded", "missing", "mismatched", "fixed"))
    facts = [f"init: {len(origin['loaded'])} of {total} tensors are from {origin['source']}"]
    if origin["missing"]:
        facts.append(f"not in the file: {_some(origin['missing'])}")
    if mismatched:
        shapes = [
            f"{name} ({_size(item['file'])} there, {_size(item['net'])} here)" for name, item in mismatched.items()
        ]
        facts.append(f"of another shape: {_some(shapes)}")
    if origin["fixed"]:
        facts.append(f"fixed by the method: {_some(origin['fixed'])}")
    if origin["unused"]:
        facts.append(f"only in the file: {_some(origin['unused'])}")
    return "; ".join(facts)


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
        return Path(file)  # refused by its suffix before anything is downloaded
    try:
        library = import_module("huggingface_hub")
    except ImportError:
        raise missing("init: hf:…", "the huggingface_hub library", "hub") from None
    try:
        return Path(library.hf_hub_download(f"{owner}/{name}", file))
    except Exception as error:  # the library and its transport raise many types
        lines = str(error).strip().splitlines()
        raise FedloomError(f"init: {source} cannot be fetched: {lines[0] if lines else type(error).__name__}") from None
