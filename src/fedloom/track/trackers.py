"""TensorBoard, MLflow and Weights & Biases. A package is imported when its tracker is created. All data stay on this machine
unless the tracker's own environment variables say otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.io.files import write
from fedloom.recipe import Recipe


def settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe as flat fields, such as data.name."""
    fields: dict[str, Any] = {}
    for name, value in recipe.model_dump(mode="json").items():
        fields |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return fields


class TensorBoard:
    """Event files in runs/x/tensorboard; show them with: tensorboard --logdir runs."""

    def __init__(self, folder: Path, recipe: Recipe, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
        if not done:
            self._writer.add_text("recipe", f"```yaml\n{recipe.to_yaml()}\n```")

    def log(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def close(self, summary: Mapping[str, float] | None) -> None:
        self._writer.close()


class MLflow:
    """A run of the experiment `fedloom` at $MLFLOW_TRACKING_URI, or in mlflow.db beside the run folder."""

    def __init__(self, folder: Path, recipe: Recipe, done: int) -> None:
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder.parent / 'mlflow.db').resolve()}"
        self._client: Any = MlflowClient(tracking_uri=uri)
        id_file = folder / "mlflow.txt"  # a resumed run keeps its MLflow id
        if id_file.exists():
            self._run = id_file.read_text(encoding="utf-8").strip()
            self._client.set_terminated(self._run, "RUNNING")
            return
        experiment = self._client.get_experiment_by_name("fedloom")
        files = (folder.parent / "mlflow").resolve().as_uri()
        number = experiment.experiment_id if experiment else self._client.create_experiment("fedloom", files)
        self._run = self._client.create_run(number, run_name=str(recipe.name or folder.name)).info.run_id
        for name, value in settings(recipe).items():
            self._client.log_param(self._run, name, value)
        write(id_file, self._run + "\n")

    def log(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        self._client.log_batch(self._run, [Metric(name, value, round, round) for name, value in values.items()])

    def close(self, summary: Mapping[str, float] | None) -> None:
        for name, value in (summary or {}).items():
            self._client.log_metric(self._run, f"final/{name}", value)
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")


class WandB:
    """A run of the project `fedloom` in runs/x/wandb, offline unless $WANDB_MODE says otherwise."""

    def __init__(self, folder: Path, recipe: Recipe, done: int) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedloom"),
            name=recipe.name or folder.name,
            dir=str(folder),
            config=settings(recipe),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)

    def close(self, summary: Mapping[str, float] | None) -> None:
        for name, value in (summary or {}).items():
            self._run.summary[f"final/{name}"] = value
        self._run.finish(exit_code=1 if summary is None else 0)
