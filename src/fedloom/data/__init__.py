"""Image sets as uint8 tensors, splits (who holds what), and whole batches made ready for a network."""

from fedloom.data.normalize import check_normalize, normalization
from fedloom.data.pipeline import Augment, Pipeline
from fedloom.data.sets import ImageSet, list_sets, load
from fedloom.data.splits import check_spec, list_splits, split, stage_rounds, stages
from fedloom.data.splits.holding import Holding, Pictures
from fedloom.data.splits.partition import Partition

__all__ = [
    "Augment",
    "Holding",
    "ImageSet",
    "Partition",
    "Pictures",
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
