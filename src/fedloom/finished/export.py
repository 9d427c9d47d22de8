"""Export a model, the global one or a client's, to a file that loads without fedloom.

    model.pt2   torch.export.load("model.pt2").module()(inputs)
    model.onnx  any ONNX runtime; writing it needs the extra export
    FOLDER      low-rank adapters in peft's own files (export_adapters.py); the other formats have them merged into the weights

The input is what the data hold: `pixels`, float32 B,C,H,W from 0 to `scale` (255; 16 for digits), `features`, float32 of
their shape, or `tokens`, int64 B,T. Normalization is part of the model (standalone.py). The output is logits, B x classes.
Shapes, classes and origin are in FILE.json, and in the file itself.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.data import InputSpec, Pipeline
from fedloom.engine.experiment import Experiment
from fedloom.engine.inputs import RunInputs
from fedloom.engine.program import Program
from fedloom.engine.threads import one_thread
from fedloom.errors import FedloomError
from fedloom.evaluation.fine_tuned import TunedPart
from fedloom.evaluation.measure import Values
from fedloom.evaluation.personalization import REGIONS, check
from fedloom.evaluation.tasks.finetune import FineTune
from fedloom.extras import install
from fedloom.finished.export_adapters import write_adapters
from fedloom.finished.restore import check_finished, restore_finished
from fedloom.finished.standalone import Standalone, example, input_facts, standalone
from fedloom.io.digest import digest
from fedloom.io.files import read_tensors, write, write_json
from fedloom.methods.api.context import Objective
from fedloom.nets.layers.adapters import merge
from fedloom.nets.registry import reason
from fedloom.runs.federation import federation
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import Run
from fedloom.version import __version__

FORMATS = (".pt2", ".onnx")


@dataclass(frozen=True)
class Exported:
    """A written model: its file, what `FILE.json` says of it, and notes for the user.

    >>> exported = fl.export(run, "client.pt2", client=0)
    >>> exported.facts["class_names"][:3]
    ['0', '1', '2']
    """

    path: Path
    facts: dict[str, Any]  # of FILE.json
    notes: list[str]


def export(
    run: Run | str | Path,
    out: str | Path,
    client: int | None = None,
    weights: str | Path | None = None,
    part: TunedPart = "full",
    epochs: int = 0,
    lr: float | None = None,
    loss: Objective = "method",
) -> Exported:
    """Write the global model of a finished run, a client's own (fine-tuned for some epochs, if asked), or an adopted one.

    >>> fl.export(run, "model.pt2").path
    PosixPath('model.pt2')
    """
    out = Path(out)
    if out.suffix not in ("", *FORMATS):
        raise FedloomError(f"out: {out} must end in {' or '.join(FORMATS)}, or name a folder for adapters")
    if out.suffix == ".onnx" and importlib.util.find_spec("onnxscript") is None:
        raise FedloomError(f"out: writing ONNX needs further packages: {install('export')}; .pt2 needs none")
    if client is not None and weights is not None:
        raise FedloomError("client: a client's model or the one in a file of weights; give only one of the two")
    if client is None and epochs:
        raise FedloomError(
            "epochs: the global model is not fine-tuned; give a client, or the weights of an adopted one"
        )
    folder = RunFolder(run.path if isinstance(run, Run) else run)
    recipe = folder.recipe()
    check_finished(folder)
    description: dict[str, Any] = {"model": "global", "notes": []}
    counts: Tensor | None
    if client is not None:
        rate = recipe.lr / 10 if lr is None else lr
        experiment, tensors, counts, values = _client(folder, client, part, epochs, rate, loss)
        program, inputs = experiment.program, RunInputs.of(experiment)
        on_its_test = {f"{metric}_on_its_test_images": value for metric, value in values.items()}
        description |= {"model": f"client {client}", **on_its_test}
        if epochs:
            description["fine_tuned"] = {"part": part, "epochs": epochs, "lr": rate, "loss": loss}
    else:
        inputs = folder.known_inputs()
        program = inputs.program(recipe, folder.initial)
        tensors, counts = _from_file(folder, recipe.digest(), None if weights is None else Path(weights), description)
        if weights is None:
            description["notes"] += _cautions(program)
    program.layout.read(tensors, program.weights.storage)
    if out.suffix == "":
        about_run = {name: value for name, value in description.items() if name != "notes"}
        facts = about_run | {
            "method": str(program.method),
            "net": recipe.model,
            "class_names": list(inputs.class_names),
        }
        return Exported(out, write_adapters(_detached(program.net), program, facts, out), description["notes"])
    pipeline = inputs.pipeline(recipe)
    reader = program.method.the("own_logits")
    model = standalone(_merged(program.net), inputs.spec, pipeline, reader, counts)
    facts = _facts(folder, inputs, program, pipeline, description, digest(tensors), out)
    _write(model.eval(), inputs.spec, facts, out)
    return Exported(out, facts, description["notes"])


def _client(
    folder: RunFolder, client: int, part: TunedPart, epochs: int, lr: float, loss: Objective
) -> tuple[Experiment, dict[str, Tensor], Tensor, Values]:
    """A client's own model at the end of the run, optionally fine-tuned; needs the run's data."""
    experiment = folder.experiment()
    if not 0 <= client < experiment.data.partition.clients:
        raise FedloomError(f"client: the run has clients 0 to {experiment.data.partition.clients - 1} (got {client})")
    check(experiment.program.layout.regions, part, epochs, lr, loss, experiment.program.method.parts)
    alone = experiment.with_recipe(experiment.recipe.changed(workers=1))  # all is done in this process
    with federation(alone, folder) as fed:
        restore_finished(fed, folder)
        fed.buffers.broadcast(fed.state.served())
        fed.load_state(client)(0)
        replica = fed.backend.replica
        task = FineTune(client, list(REGIONS[part]), epochs, lr, loss, alternate=part == "alternate")
        report = task.tune(replica, fed.buffers.views(0))
        tensors = experiment.program.layout.tensors(replica.weights.storage.cpu())
    labels = experiment.data.at(experiment.recipe.rounds).train(client).y
    counts = torch.bincount(labels, minlength=experiment.data.dataset.classes).float()
    accuracy = report["correct"][-1] / report["total"] if report["total"] else None
    others = {metric: values[-1] for metric, values in report["metrics"].items()}
    return experiment, tensors, counts, {"accuracy": accuracy, **others}


def _from_file(
    folder: RunFolder, identity: str, weights: Path | None, description: dict[str, Any]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The served weights, or those of a file that this run's model was adopted into."""
    tensors, metadata = read_tensors(folder.final if weights is None else weights)
    if metadata.get("recipe") != identity:
        raise FedloomError(f"weights: {weights} does not come from {folder.path}")
    if weights is None or "counts" not in metadata:
        description["model"] = "global" if weights is None else weights.name
        return tensors, None
    description |= {"model": f"adopted ({weights.name})"}
    description["fine_tuned"] = {name: metadata[name] for name in ("part", "epochs", "lr", "loss")}
    return tensors, torch.tensor(json.loads(metadata["counts"]), dtype=torch.float32)


def _cautions(program: Program) -> list[str]:
    if program.recipe.bn == "local" and program.layout.personal_statistics:
        raise FedloomError(
            "client: with bn local only clients have statistics to normalize with; export one of them with --client"
        )
    if program.layout.personal or program.layout.personal_statistics:
        regions = program.layout.regions
        kept = " and ".join(sorted({regions.region[n] for n, status in regions.status.items() if status == "personal"}))
        return [f"clients keep their {kept}: the global model has it at initialization; --client exports one of theirs"]
    if program.method.hooked("personalize"):
        return [
            "this method is meant for the models that clients make of the global one; --client exports one of theirs"
        ]
    return []


def _detached(net: nn.Module) -> nn.Module:
    """A copy whose tensors stand for themselves: in the run they are views into one storage."""
    twin = copy.deepcopy(net).requires_grad_(False).eval()
    for parameter in twin.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    for module in twin.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.clone(memory_format=torch.contiguous_format)
    return twin


def _merged(net: nn.Module) -> nn.Module:
    twin = _detached(net)
    merge(twin)
    return twin


def _facts(
    folder: RunFolder,
    inputs: RunInputs,
    program: Program,
    pipeline: Pipeline,
    description: Mapping[str, Any],
    weights: str,
    out: Path,
) -> dict[str, Any]:
    summary = Run(folder.path).summary
    by_batch = program.recipe.bn == "batch" and any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) for m in program.net.modules()
    )
    return {
        "file": out.name,
        **{name: value for name, value in description.items() if name != "notes"},
        "input": input_facts(inputs.spec, pipeline),
        "output": {"name": "logits", "shape": ["batch", len(inputs.class_names)]},
        "class_names": list(inputs.class_names),
        "depends_on_the_batch": by_batch,  # batch normalization without running statistics
        "method": summary["method"],
        "net": program.recipe.model,
        "run": {"weights": summary["digest"], "recipe": summary["recipe_digest"], "data": inputs.data_digest},
        "weights": weights,
        "versions": {"fedloom": __version__, "torch": torch.__version__},
    }


def _write(model: Standalone, inputs: InputSpec, facts: dict[str, Any], out: Path) -> None:
    text = json.dumps(facts, indent=2)
    with one_thread(), _quiet():
        program = _traced(model, inputs, str(facts["net"]))
        if out.suffix == ".pt2":
            buffer = io.BytesIO()
            torch.export.save(program, buffer, extra_files={"fedloom.json": text})
            content = buffer.getvalue()
        else:
            content = _onnx(program, model.noun, text, str(facts["net"]))
    try:
        write(out, content)
        write_json(out.with_name(out.name + ".json"), facts)
    except OSError as error:
        raise FedloomError(f"out: {out} cannot be written ({error.strerror}); choose another place") from None


def _traced(model: Standalone, inputs: InputSpec, net: str) -> torch.export.ExportedProgram:
    batch = {model.noun: {0: torch.export.Dim("batch")}}
    try:
        return torch.export.export(model, (example(inputs),), dynamic_shapes=batch)
    except Exception as error:  # a net from elsewhere may do what cannot be traced
        raise FedloomError(f"out: {net} cannot be exported: torch.export fails ({reason(error)})") from error


def _onnx(program: torch.export.ExportedProgram, noun: str, text: str, net: str) -> bytes:
    try:
        made = torch.onnx.export(program, dynamo=True, input_names=[noun], output_names=["logits"], verbose=False)
    except Exception as error:  # not every operation has a translation
        raise FedloomError(
            f"out: {net} cannot be written as ONNX ({reason(error)}); choose a name that ends in .pt2"
        ) from error
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
