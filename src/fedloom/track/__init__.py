"""Trackers: what a run tells to TensorBoard, MLflow or Weights & Biases while it goes.

    fedloom run --track tensorboard …        also mlflow, wandb, or several with commas between

A tracker gets the recipe once, the numbers of every round, and the summary. It never decides anything: the digest of a
run is the same with and without, and a tracker that fails is told about and dropped while the run goes on.
"""

from fedloom.track.tracker import Tracking, check, tracking

__all__ = ["Tracking", "check", "tracking"]
