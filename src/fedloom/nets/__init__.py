"""Networks as body + head, found by name."""

from fedloom.data.spec import Shape
from fedloom.nets.build import build, list_models, spelled_model
from fedloom.nets.layers.batchnorm import (
    BatchNormMode,
    BatchStatistics,
    batch_normalizers,
    set_batch_norm,
    use_test_batch,
)
from fedloom.nets.layers.heads import CosineHead, FeatureNormHead, FixedHead, simplex_etf, weight_of
from fedloom.nets.net import Net, fixed_tensors, region_of
from fedloom.nets.registry import BodyHead, model
from fedloom.nets.scripts import refuse_while_reading
from fedloom.nets.stored import stored_name

__all__ = [
    "BatchNormMode",
    "BatchStatistics",
    "BodyHead",
    "CosineHead",
    "FeatureNormHead",
    "FixedHead",
    "Net",
    "Shape",
    "batch_normalizers",
    "build",
    "fixed_tensors",
    "list_models",
    "model",
    "refuse_while_reading",
    "region_of",
    "set_batch_norm",
    "simplex_etf",
    "spelled_model",
    "stored_name",
    "use_test_batch",
    "weight_of",
]
