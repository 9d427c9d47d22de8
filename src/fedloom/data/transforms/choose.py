"""The transform of a kind of inputs, from `data.normalize` and `augment`."""

from __future__ import annotations

from fedloom.data.spec import InputSpec
from fedloom.data.transforms.augment import parse_augment
from fedloom.data.transforms.features import FeaturePipeline
from fedloom.data.transforms.images import ImagePipeline
from fedloom.data.transforms.normalize import Statistics, check_normalize, normalization
from fedloom.data.transforms.pipeline import Pipeline
from fedloom.data.transforms.tokens import TokenPipeline
from fedloom.errors import FedloomError, shown


def pipeline_of(
    inputs: InputSpec, own: Statistics, name: str, normalize: object = "set", augment: str = "none"
) -> Pipeline:
    """`own`: mean and deviation of the dataset with this name."""
    if inputs.kind == "image":
        if (augmentation := parse_augment(augment)) is not None:
            augmentation.check(*inputs.shape[1:])
        return ImagePipeline(inputs.scale, *normalization(normalize, own, name), augment)
    if augment != "none":
        raise FedloomError(
            f"augment is {shown(augment)}; it changes images, and {name} holds {inputs.noun}: set augment to none"
        )
    if inputs.kind == "features":
        return FeaturePipeline(1.0, *normalization(normalize, own, name))
    if check_normalize(normalize) not in ("set", "none"):
        raise FedloomError(f"data.normalize holds numbers, but {name} holds tokens; set it to none")
    return TokenPipeline(1.0, *own)
