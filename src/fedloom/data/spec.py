"""What the inputs of a net are: their kind, shape and stored type. Nets, transforms and shifts are chosen by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedloom.errors import FedloomError, shown

Kind = Literal["image", "features", "tokens"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Shape = tuple[int, ...]

# what sentences call the inputs
NOUNS: dict[Kind, str] = {"image": "images", "features": "features", "tokens": "tokens"}


@dataclass(frozen=True)
class InputSpec:
    """One input of a net, as the net receives it."""

    kind: Kind
    shape: Shape  # image: channels, height, width; features: any; tokens: one number, the length
    dtype: str = "float32"  # of stored samples: uint8 or float32 (image), float32 (features), int32 (tokens)
    scale: float = 1.0  # of uint8 images: the largest pixel value; nets receive x / scale
    vocabulary: int = 0  # tokens are 0 to vocabulary - 1
    padding: int = 0  # the token that fills sequences up to their length

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FedloomError(f"kind is {shown(self.kind)}; allowed are {', '.join(KINDS)}")

    @classmethod
    def image(cls, shape: Shape, scale: float = 255.0) -> InputSpec:
        """Images of uint8 with this number of channels, height and width."""
        return cls("image", tuple(shape), "uint8", scale)

    @classmethod
    def of(cls, given: InputSpec | Shape) -> InputSpec:
        """A shape of three numbers alone means images; any other shape means features."""
        if isinstance(given, InputSpec):
            return given
        return cls.image(given) if len(given) == 3 else cls("features", tuple(given))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> InputSpec:
        return cls(**{**stored, "shape": tuple(stored["shape"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def noun(self) -> str:
        """What a sentence calls the inputs: images, features or tokens."""
        return NOUNS[self.kind]

    @property
    def stored_shape(self) -> Shape:
        """Of one stored sample: images are stored as height, width, channels."""
        return (*self.shape[1:], self.shape[0]) if self.kind == "image" else self.shape

    def blank(self, count: int) -> Tensor:
        """Network inputs without content: zeros, or padding."""
        if self.kind == "tokens":
            return torch.full((count, *self.shape), self.padding, dtype=torch.int64)
        return torch.zeros(count, *self.shape)

    def random(self, *count: int, generator: torch.Generator) -> Tensor:
        """Network inputs of noise: standard normal, or tokens drawn uniformly."""
        if self.kind == "tokens":
            return torch.randint(max(self.vocabulary, 1), (*count, *self.shape), generator=generator)
        return torch.randn(*count, *self.shape, generator=generator)

    def __str__(self) -> str:
        if self.kind == "image":
            channels, height, width = self.shape
            return f"images of {height}x{width}x{channels}"
        if self.kind == "tokens":
            return f"sequences of {self.shape[0]} tokens"
        return f"features of shape {'x'.join(map(str, self.shape))}"
