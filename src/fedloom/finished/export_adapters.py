"""Low-rank adapters as the files that the peft library reads: adapter_config.json and adapter_model.safetensors.

    net = peft.PeftModel.from_pretrained(base, FOLDER)

`base` is the net without adapters: the same modules, with the weights of the frozen base. What was trained beside the
adapters is in the files too, as peft's `modules_to_save`: the head, and normalizers if they were trained. A head that a part
replaced (fn) must be replaced in `base`, too. fedloom.json says which base it is, by the digest of its tensors.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedloom.engine.program import Program
from fedloom.errors import FedloomError
from fedloom.io.digest import digest
from fedloom.io.files import write_json
from fedloom.methods.lora import LoRA
from fedloom.nets.layers.adapters import adapted_layers, library, unload
from fedloom.version import __version__


def write_adapters(net: nn.Module, program: Program, facts: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write the adapters of a net, which is taken apart, to a new folder; returns the content of fedloom.json."""
    part = next((part for part in program.method.parts if isinstance(part, LoRA)), None)
    if part is None:
        raise FedloomError(
            f"out: {out} is a folder, for adapters, and {program.method} has none; name a file that ends in .pt2 or .onnx"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FedloomError(f"out: {out} exists already; choose another place")
    targets, trained = list(adapted_layers(net)), _beside(program)
    state = {name.replace(".default", ""): tensor for name, tensor in net.state_dict().items()}
    regions = program.layout.regions
    base = {name: program.layout.tensors(program.initial)[name] for name in regions.base}
    unload(net)
    config = part.low_rank.config(targets, modules_to_save=trained, inference_mode=True)
    adapted = library().get_peft_model(net, config)
    with torch.no_grad():
        for name, tensor in library().get_peft_model_state_dict(adapted).items():
            tensor.copy_(state[name.removeprefix("base_model.model.")])
    content = {
        **facts,
        "targets": targets,
        "trained_beside": trained,
        "base": digest({name.replace(".base_layer.", "."): tensor for name, tensor in base.items()}),
        "versions": {"fedloom": __version__, "torch": torch.__version__, "peft": library().__version__},
    }
    try:
        _write_folder(adapted, content, out)
    except OSError as error:
        raise FedloomError(f"out: {out} cannot be written ({error.strerror}); choose another place") from None
    return content


def _beside(program: Program) -> list[str]:
    """The modules that are trained beside adapters: the head, and the normalizers that have a trained tensor."""
    regions = program.layout.regions
    norms = [name for name in regions.select("norm") if name not in regions.constant]
    return [*dict.fromkeys(name.rpartition(".")[0] for name in norms), "head"]


def _write_folder(adapted: Any, content: Mapping[str, Any], out: Path) -> None:
    """All files or none: they are written beside the folder, which is then renamed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        adapted.save_pretrained(str(draft))
        write_json(draft / "fedloom.json", dict(content))
        draft.chmod(0o755)
        os.replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
