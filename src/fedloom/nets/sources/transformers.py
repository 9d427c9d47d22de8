"""`hf:NAME_OR_FOLDER`: a transformers encoder with a classification head, on tokens or images.

    hf:distilbert-base-uncased            config and weights from the Hugging Face hub, or its local cache
    hf:path/to/folder                     a folder with config.json and, if there are any, model.safetensors
    hf:path/to/folder(pretrained=false)   the architecture alone, with weights drawn by the recipe's seed

Weights are loaded where there are any, unless `pretrained=false`; a head of another number of classes is drawn anew, as are
tensors that the file lacks. Only safetensors are read. The attention mask follows from the data's padding. Dropout is the
configuration's, and drawn as for any other net. The net is cut at its last linear layer, or at `head=NAME`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.data.spec import InputSpec, Shape
from fedloom.errors import FedloomError
from fedloom.extras import missing
from fedloom.nets.registry import Model, net_source, reason
from fedloom.nets.split import logits_of

AUTO = {"tokens": "AutoModelForSequenceClassification", "image": "AutoModelForImageClassification"}


class Masked(nn.Module):
    """A model of token sequences that is told which positions are padding."""

    def __init__(self, net: nn.Module, padding: int) -> None:
        super().__init__()
        self.net, self.padding = net, padding

    def forward(self, x: Tensor) -> Tensor:
        real = (x != self.padding).long()
        first = torch.zeros_like(real)
        first[:, 0] = 1 - real.any(1).long()  # attention over nothing is NaN in some models
        return logits_of(self.net(input_ids=x, attention_mask=real + first))


class Pixels(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.net(pixel_values=x))


@net_source("hf")
def transformers(rest: str) -> Model:
    def encoder(shape: Shape, classes: int, inputs: InputSpec, pretrained: bool = True) -> nn.Module:
        library = _library()
        with _quiet(library):
            config = _config(library, rest)
            config.num_labels = classes
            _fit(config, inputs, rest)
            net = _made(library, config, rest, inputs, pretrained)
        net = net.float()
        return Masked(net, inputs.padding) if inputs.kind == "tokens" else Pixels(net)

    name = f"hf:{rest}"
    return Model(name, "a transformers encoder", name, 1, encoder, ("tokens", "image"), foreign=True)


def _library() -> Any:
    try:
        return import_module("transformers")
    except ImportError:
        raise missing("hf:…", "the transformers library", "transformers") from None


def _config(library: Any, source: str) -> Any:
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise FedloomError(f"hf:{source}: the folder holds no config.json; save_pretrained writes one")
    try:
        return library.AutoConfig.from_pretrained(source)
    except Exception as error:  # the library and its transport raise many types
        raise FedloomError(
            f"hf:{source}: there is no such folder with a config.json, and the hub does not give it ({reason(error)})"
        ) from None


def _fit(config: Any, inputs: InputSpec, source: str) -> None:
    """The configuration's view of the data: vocabulary and length must suffice, padding and image size are the data's."""
    if inputs.kind == "tokens":
        vocabulary, longest = getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None)
        if vocabulary is not None and vocabulary < inputs.vocabulary:
            raise FedloomError(
                f"hf:{source} knows {vocabulary} tokens; the data have {inputs.vocabulary}: use this model's tokenizer"
            )
        if longest is not None and longest < inputs.shape[0]:
            raise FedloomError(
                f"hf:{source} takes at most {longest} tokens; the data have sequences of {inputs.shape[0]}"
            )
        config.pad_token_id = inputs.padding
        return
    channels, height, width = inputs.shape
    own_channels = getattr(config, "num_channels", channels)
    if own_channels != channels:
        raise FedloomError(f"hf:{source} takes images of {own_channels} channels; these have {channels}")
    side = getattr(config, "image_size", None)
    if isinstance(side, int) and (side, side) != (height, width):
        raise FedloomError(
            f"hf:{source} takes images of {side}x{side}; these are {height}x{width}: set data.resize to {side}"
        )


def _made(library: Any, config: Any, source: str, inputs: InputSpec, pretrained: bool) -> nn.Module:
    factory = getattr(library, AUTO[inputs.kind])
    stored = not Path(source).is_dir() or any(Path(source).glob("*.safetensors"))
    try:
        if pretrained and stored:
            # a head of another number of classes is drawn anew; a pickle (.bin) can run code, and is not read
            net = factory.from_pretrained(source, config=config, ignore_mismatched_sizes=True, use_safetensors=True)
        else:
            net = factory.from_config(config)
    except Exception as error:  # the library raises many types
        raise FedloomError(f"hf:{source} cannot be made for {inputs} ({reason(error)})") from None
    made: nn.Module = net
    return made


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Notes about drawn heads and progress bars: fedloom says itself what it does."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    bars = library.utils.logging.is_progress_bar_enabled()
    library.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.disable(before)
        if bars:
            library.utils.logging.enable_progress_bar()
