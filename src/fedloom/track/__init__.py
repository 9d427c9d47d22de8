"""Trackers: runs logged to TensorBoard, MLflow or Weights & Biases.

    fedloom run --track tensorboard …        also mlflow, wandb, or several separated by commas

A tracker gets the recipe, the numbers of every round, and the summary. The digest of a run is the same with and without
trackers. A tracker that fails is reported and dropped, and the run continues.
"""

from fedloom.track.tracker import Tracking, check

__all__ = ["Tracking", "check"]
