"""Take a model away: the global one or a client's, as a file that loads without fedloom.

    model.pt2   torch.export.load("model.pt2").module()(pixels)
    model.onnx  any ONNX runtime; needs pip install "fedloom[export]" to write

Input are pixels as they are stored, float32 B,C,H,W from 0 to `scale` (255; 16 for digits); normalisation is inside. Output
are logits, B x classes. What the numbers mean lies beside the file as FILE.json, and inside it too.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom import __version__
from fedloom.data import Pipeline
from fedloom.engine.files import read_tensors, write, write_json
from fedloom.engine.folder import RunFolder
from fedloom.engine.inputs import Inputs
from fedloom.engine.local import Which
from fedloom.engine.setup import Experiment, one_thread
from fedloom.errors import FedloomError
from fedloom.measure.accuracy import remember
from fedloom.measure.personal import REGIONS, Tuned, check, restore_finished
from fedloom.methods import Part
from fedloom.run import Run, federation
from fedloom.weights import digest

FORMATS = (".pt2", ".onnx")


@dataclass(frozen=True)
class Exported:
    path: Path
    facts: dict[str, Any]  # what lies beside it as JSON
    notes: list[str]


class Standalone(nn.Module):
    """Pixels in, logits out: normalisation, net, and how a client reads its own logits."""

    # attributes, since torch 2.6 cannot export `get_buffer`
    factor: Tensor
    shift: Tensor
    counts: Tensor

    def __init__(self, net: nn.Module, pipeline: Pipeline, reader: Part | None, counts: Tensor | None) -> None:
        super().__init__()
        self.net = net
        deviation = torch.tensor(pipeline.std, dtype=torch.float64)
        shift = -torch.tensor(pipeline.mean, dtype=torch.float64) / deviation
        self.register_buffer("factor", (1 / (pipeline.scale * deviation)).float().view(-1, 1, 1))
        self.register_buffer("shift", shift.float().view(-1, 1, 1))
        self.reader = None if counts is None else reader
        self.register_buffer("counts", None if self.reader is None else counts)

    def forward(self, pixels: Tensor) -> Tensor:
        x = torch.addcmul(self.shift, pixels, self.factor)
        logits: Tensor = self.net(x)
        return logits if self.reader is None else self.reader.own_logits(logits, self.counts)


def export(
    run: Run | str | Path,
    out: str | Path,
    client: int | None = None,
    weights: str | Path | None = None,
    part: Tuned = "full",
    epochs: int = 0,
    lr: float | None = None,
    loss: Which = "method",
) -> Exported:
    """Write the global model of a finished run, a client's own (fine-tuned for some epochs, if asked), or an adopted one."""
    out = Path(out)
    if out.suffix not in FORMATS:
        raise FedloomError(f"out: {out} must end in {' or '.join(FORMATS)}")
    if out.suffix == ".onnx" and importlib.util.find_spec("onnxscript") is None:
        raise FedloomError('out: writing ONNX needs further packages: pip install "fedloom[export]"; .pt2 needs none')
    if client is not None and weights is not None:
        raise FedloomError("client: a client's model or the one in a file of weights; give only one of the two")
    if client is None and epochs:
        raise FedloomError(
            "epochs: the global model is not fine-tuned; give a client, or the weights of an adopted one"
        )
    folder = RunFolder(run.path if isinstance(run, Run) else run)
    recipe = folder.recipe()
    if not folder.finished:
        raise FedloomError(f"{folder.path} is not finished; carry it on with: fedloom run --resume {folder.path}")
    told: dict[str, Any] = {"model": "global", "notes": []}
    counts: Tensor | None
    if client is not None:
        rate = recipe.lr / 10 if lr is None else lr
        experiment, tensors, counts, accuracy = _client(folder, client, part, epochs, rate, loss)
        told |= {"model": f"client {client}", "accuracy_on_its_test_images": accuracy}
        if epochs:
            told["fine_tuned"] = {"part": part, "epochs": epochs, "lr": rate, "loss": loss}
        inputs = Inputs.of(experiment)
    else:
        inputs = folder.known_inputs()
        experiment = inputs.experiment(recipe, folder.initial)
        tensors, counts = _from_file(folder, recipe.digest(), None if weights is None else Path(weights), told)
        if weights is None:
            told["notes"] += _cautions(experiment)
    experiment.layout.read(tensors, experiment.weights.storage)
    model = Standalone(_detached(experiment.net), experiment.pipeline, experiment.method.the("own_logits"), counts)
    facts = _facts(folder, inputs, experiment, told, digest(tensors), out)
    _write(model.eval(), inputs.shape, facts, out)
    return Exported(out, facts, told["notes"])


def _client(
    folder: RunFolder, client: int, part: Tuned, epochs: int, lr: float, loss: Which
) -> tuple[Experiment, dict[str, Tensor], Tensor, float | None]:
    """A client's own model as it stands at the end of the run, fine-tuned if asked; needs the run's data."""
    experiment = folder.experiment()
    if not 0 <= client < experiment.partition.clients:
        raise FedloomError(f"client: the run has clients 0 to {experiment.partition.clients - 1} (got {client})")
    check(experiment.layout.regions, part, epochs, lr, loss)
    alone = replace(experiment, recipe=experiment.recipe.changed(lanes=1))  # all is done in this process
    with federation(alone, folder) as fed:
        restore_finished(fed, folder)
        fed.board.broadcast(fed.state.served())
        remember(fed, client)(0)
        worker = fed.lanes.worker
        report = worker.tune(client, fed.board.views(0), REGIONS[part], epochs, lr, loss)
        tensors = experiment.layout.tensors(worker.weights.storage.cpu())
    labels = experiment.at(experiment.recipe.rounds).train(client).y
    counts = torch.bincount(labels, minlength=experiment.images.classes).float()
    return experiment, tensors, counts, report["correct"][-1] / report["total"] if report["total"] else None


def _from_file(
    folder: RunFolder, identity: str, weights: Path | None, told: dict[str, Any]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The served weights, or those of a file that this run's model was adopted into."""
    tensors, metadata = read_tensors(folder.final if weights is None else weights)
    if metadata.get("recipe") != identity:
        raise FedloomError(f"weights: {weights} does not come from {folder.path}")
    if weights is None or "counts" not in metadata:
        told["model"] = "global" if weights is None else weights.name
        return tensors, None
    told |= {"model": f"adopted ({weights.name})"}
    told["fine_tuned"] = {name: metadata[name] for name in ("part", "epochs", "lr", "loss")}
    return tensors, torch.tensor(json.loads(metadata["counts"]), dtype=torch.float32)


def _cautions(experiment: Experiment) -> list[str]:
    if experiment.recipe.bn == "local" and experiment.layout.personal_statistics:
        raise FedloomError(
            "client: with bn local only clients have statistics to normalise with; export one of them with --client"
        )
    if experiment.layout.personal or experiment.layout.personal_statistics:
        regions = experiment.layout.regions
        kept = " and ".join(sorted({regions.region[n] for n, status in regions.status.items() if status == "personal"}))
        return [f"clients keep their {kept}: the global model has it as drawn; --client exports one of theirs"]
    if experiment.method.hooked("personalise"):
        return [
            "this method is meant for the models that clients make of the global one; --client exports one of theirs"
        ]
    return []


def _detached(net: nn.Module) -> nn.Module:
    """A copy whose tensors stand for themselves: in the run they are views into one storage."""
    for parameter in net.parameters():
        parameter.grad = None
    twin = copy.deepcopy(net).requires_grad_(False).eval()
    for parameter in twin.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    for module in twin.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.clone(memory_format=torch.contiguous_format)
    return twin


def _facts(
    folder: RunFolder, inputs: Inputs, experiment: Experiment, told: Mapping[str, Any], weights: str, out: Path
) -> dict[str, Any]:
    pipeline, summary = experiment.pipeline, Run(folder.path).summary
    channels, height, width = inputs.shape
    by_batch = experiment.recipe.bn == "batch" and any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) for m in experiment.net.modules()
    )
    return {
        "file": out.name,
        **{name: value for name, value in told.items() if name != "notes"},
        "input": {
            "name": "pixels",
            "dtype": "float32",
            "shape": ["batch", channels, height, width],
            "range": [0, inputs.scale],
            "normalisation": {
                "where": "inside the model",
                "formula": "(pixels / scale - mean) / std",
                "scale": pipeline.scale,
                "mean": list(pipeline.mean),
                "std": list(pipeline.std),
            },
        },
        "output": {"name": "logits", "shape": ["batch", len(inputs.class_names)]},
        "class_names": list(inputs.class_names),
        "depends_on_the_batch": by_batch,  # batch normalisation without running statistics
        "method": summary["method"],
        "net": experiment.recipe.model,
        "run": {"weights": summary["digest"], "recipe": summary["recipe_digest"], "data": inputs.data_digest},
        "weights": weights,
        "versions": {"fedloom": __version__, "torch": torch.__version__},
    }


def _write(model: Standalone, shape: tuple[int, int, int], facts: dict[str, Any], out: Path) -> None:
    pixels = torch.rand(3, *shape) * facts["input"]["range"][1]
    text = json.dumps(facts, indent=2)
    with one_thread(), _quiet():
        program = torch.export.export(model, (pixels,), dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}})
        if out.suffix == ".pt2":
            buffer = io.BytesIO()
            torch.export.save(program, buffer, extra_files={"fedloom.json": text})
            content = buffer.getvalue()
        else:
            content = _onnx(program, text)
    try:
        write(out, content)
        write_json(out.with_name(out.name + ".json"), facts)
    except OSError as error:
        raise FedloomError(f"out: {out} cannot be written ({error.strerror}); choose another place") from None


def _onnx(program: torch.export.ExportedProgram, text: str) -> bytes:
    made = torch.onnx.export(program, dynamo=True, input_names=["pixels"], output_names=["logits"], verbose=False)
    assert made is not None
    proto = made.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "fedloom", text
    return bytes(proto.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters talk of their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
