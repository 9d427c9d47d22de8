"""nn.Modules on disk without pickle, so that a run whose net was given as an object can be resumed in another process.

    $FEDLOOM_CACHE/modules/NAME-DIGEST/module.json           the tree: classes by import path, plain attributes
    $FEDLOOM_CACHE/modules/NAME-DIGEST/tensors.safetensors   parameters and buffers

The digest is that of the content: the same object is stored once, and a changed file is refused. What is described, and how it
is rebuilt, is in describe.py: reading a stored module imports its classes and runs none of their constructors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedloom.errors import FedloomError, shown
from fedloom.io.files import loads, write
from fedloom.nets.describe import Unstorable, describe, rebuild

TREE, TENSORS = "module.json", "tensors.safetensors"
_NAME = re.compile(r"[A-Za-z0-9_]{1,60}-[0-9a-f]{16}")


def modules_folder() -> Path:
    return Path(os.environ.get("FEDLOOM_CACHE") or "~/.cache/fedloom").expanduser() / "modules"


def store(module: nn.Module) -> str:
    """Put a module into the cache; returns its name in a recipe, module:NAME-DIGEST."""
    title = type(module).__name__
    try:
        content, files, tensors = describe(module)
    except Unstorable as error:
        raise FedloomError(
            f"model: this {title} cannot be stored for resuming: {error}; write a function (shape, classes) that makes it "
            "into a .py file, and name it as in model: net.py:function"
        ) from None
    name = f"{re.sub('[^A-Za-z0-9_]', '', title)[:60] or 'Module'}-{_digest(content, tensors)}"
    folder = modules_folder() / name
    if not _is_complete(folder):
        text = json.dumps({"content": content, "files": files})
        try:
            _install(folder, text, save_tensors({key: tensor.contiguous() for key, tensor in tensors.items()}))
        except OSError as error:
            raise FedloomError(
                f"the cache folder {folder.parent} cannot be written ({error.strerror or error}); set FEDLOOM_CACHE to a "
                "writable folder with enough space"
            ) from error
    return f"module:{name}"


def stored_name(module: nn.Module, head: str | None = None) -> str:
    """What a recipe calls a module that is given as an object. `head`: its last layer, where it is not found by itself."""
    return store(module) + (f"(head={head})" if head else "")


def load(name: str) -> nn.Module:
    """The module of this name, NAME-DIGEST, with the weights that it was stored with."""
    if not _NAME.fullmatch(name):
        raise FedloomError(
            f"module:{shown(name)} is no stored module; fl.run(model=net) names it, as module:NAME-DIGEST"
        )
    folder = modules_folder() / name
    try:
        described = loads((folder / TREE).read_bytes())
        tensors = load_tensors((folder / TENSORS).read_bytes())
        content, files = described["content"], described["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedloomError(
            f"module:{name} is not in the cache, {folder.parent} ({type(error).__name__}); copy its folder there, or run "
            "the script that gives it to fedloom again"
        ) from None
    if _digest(content, tensors) != name.rpartition("-")[2]:
        raise FedloomError(f"module:{name}: {folder} was changed since it was stored; remove it and store it again")
    try:
        return rebuild(content, files, tensors)
    except Unstorable as error:
        raise FedloomError(f"module:{name} cannot be rebuilt: {error}") from None


def _digest(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8)
    for key in sorted(tensors):
        tensor = tensors[key].detach().cpu().contiguous()
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def _is_complete(folder: Path) -> bool:
    try:
        load(folder.name)
    except FedloomError:
        return False
    return True


def _install(folder: Path, tree: str, tensors: bytes) -> None:
    """Written under another name and renamed, so that a folder is never half-written."""
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    draft.mkdir(parents=True)
    try:
        write(draft / TENSORS, tensors, durable=True)
        write(draft / TREE, tree, durable=True)
        shutil.rmtree(folder, ignore_errors=True)  # damaged, or it would have been used
        draft.rename(folder)
    except OSError:
        if not _is_complete(folder):  # another process may have been first
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
