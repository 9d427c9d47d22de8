"""TensorBoard, MLflow and Weights & Biases. Each package is imported only when its tracker is made; all stay on this machine
unless their own environment variables say otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.engine.files import write
from fedloom.recipe import Recipe


def settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe as flat fields: data.name and so on."""
    found: dict[str, Any] = {}
    for name, value in recipe.model_dump(mode="json").items():
        found |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return found


class TensorBoard:
    """Event files in runs/x/tensorboard; look with: tensorboard --logdir runs."""

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
    """A run of the experiment `fedloom` at $MLFLOW_TRACKING_URI, or in runs/mlflow.db beside the run folder."""

    def __init__(self, folder: Path, recipe: Recipe, done: int) -> None:
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder.parent / 'mlflow.db').resolve()}"
        self._client: Any = MlflowClient(tracking_uri=place)
        kept = folder / "mlflow.txt"  # a resumed run goes on under its own number
        if kept.exists():
            self._run = kept.read_text(encoding="utf-8").strip()
            self._client.set_terminated(self._run, "RUNNING")
            return
        experiment = self._client.get_experiment_by_name("fedloom")
        files = (folder.parent / "mlflow").resolve().as_uri()
        number = experiment.experiment_id if experiment else self._client.create_experiment("fedloom", files)
        self._run = self._client.create_run(number, run_name=str(recipe.name or folder.name)).info.run_id
        for name, value in settings(recipe).items():
            self._client.log_param(self._run, name, value)
        write(kept, self._run + "\n")

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
