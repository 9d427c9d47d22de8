"""Datasets as tensors, splits (which client holds which samples), and the transform of a batch."""

from fedloom.data.dataset import Dataset, load
from fedloom.data.objects import DataLike, named_data
from fedloom.data.partition.partition import Partition
from fedloom.data.sources import list_sets
from fedloom.data.spec import InputSpec, Kind
from fedloom.data.split import check_spec, list_splits, split, stage_rounds, stages
from fedloom.data.split.hold_out import hold_out
from fedloom.data.split.view import ClientViews, LabeledSamples
from fedloom.data.split_objects import SplitLike, call_function, is_function, named_split
from fedloom.data.transforms.choose import pipeline_of
from fedloom.data.transforms.normalize import check_normalize, normalization
from fedloom.data.transforms.pipeline import Pipeline

__all__ = [
    "ClientViews",
    "DataLike",
    "Dataset",
    "InputSpec",
    "Kind",
    "LabeledSamples",
    "Partition",
    "Pipeline",
    "SplitLike",
    "call_function",
    "check_normalize",
    "check_spec",
    "hold_out",
    "is_function",
    "list_sets",
    "list_splits",
    "load",
    "named_data",
    "named_split",
    "normalization",
    "pipeline_of",
    "split",
    "stage_rounds",
    "stages",
]
