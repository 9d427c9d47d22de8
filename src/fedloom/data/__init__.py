"""Datasets as uint8 tensors, splits (which client holds which images), and the transform of a batch."""

from fedloom.data.dataset import Dataset, load
from fedloom.data.partition.partition import Partition
from fedloom.data.sources import list_sets
from fedloom.data.split import check_spec, list_splits, split, stage_rounds, stages
from fedloom.data.split.view import ClientViews, LabeledSamples
from fedloom.data.transforms.images import Augment, Pipeline
from fedloom.data.transforms.normalize import check_normalize, normalization

__all__ = [
    "Augment",
    "ClientViews",
    "Dataset",
    "LabeledSamples",
    "Partition",
    "Pipeline",
    "check_normalize",
    "check_spec",
    "list_sets",
    "list_splits",
    "load",
    "normalization",
    "split",
    "stage_rounds",
    "stages",
]
