"""`timm:NAME`: an image model of the timm library, with its options.

    timm:resnet26d                      weights drawn by the recipe's seed
    timm:vit_tiny_patch16_224(pretrained=true, img_size=32)

Further parameters are those of timm.create_model: img_size, drop_rate, checkpoint_path (of safetensors alone) and so on.
Channels and classes are the data's. The net is cut at its last linear layer, or at `head=NAME`. timm needs torchvision.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from fedloom.data.spec import InputSpec, Shape
from fedloom.errors import FedloomError
from fedloom.extras import missing
from fedloom.nets.registry import Model, net_source, reason


@net_source("timm")
def timm(rest: str) -> Model:
    def image_model(
        shape: Shape, classes: int, inputs: InputSpec, pretrained: bool = False, **options: Any
    ) -> nn.Module:
        library = _library()
        path = options.get("checkpoint_path")
        if path and not str(path).endswith(".safetensors"):
            raise FedloomError(
                f"timm:{rest}: checkpoint_path is {path}; only .safetensors are read, a pickle can run code"
            )
        if not library.is_model(rest.partition(".")[0]):
            near = library.list_models(f"*{rest.partition('.')[0][:12]}*")[:5]
            hint = f", such as {', '.join(near)}" if near else ""
            raise FedloomError(
                f"timm:{rest}: timm {library.__version__} has no such model; choose one of its names{hint}"
            )
        try:
            made: nn.Module = library.create_model(
                rest, pretrained=pretrained, num_classes=classes, in_chans=shape[0], **options
            )
        except Exception as error:  # the library raises many types
            raise FedloomError(f"timm:{rest} cannot be made for {inputs} ({reason(error)})") from None
        return made.float()

    return Model(f"timm:{rest}", "an image model of timm", f"timm:{rest}", 1, image_model, ("image",), foreign=True)


def _library() -> Any:
    try:
        return import_module("timm")
    except ImportError as error:
        if error.name == "timm":
            raise missing("timm:…", "the timm library", "timm") from None
        cause = str(error)
    except Exception as error:  # a torchvision of another build of torch raises a RuntimeError
        cause = reason(error)
    raise FedloomError(
        f"timm is installed but cannot be imported ({cause}); it needs a torchvision that fits this torch: install both "
        "from one index, see https://pytorch.org"
    )
