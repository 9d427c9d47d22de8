"""Texts become tokens by a schema: our own words, or a tokenizer of the transformers library (the extra transformers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.arrays import Content
from fedloom.data.schema import TextSchema
from fedloom.data.text import words
from fedloom.errors import FedloomError, brief, shown
from fedloom.extras import missing
from fedloom.io.archives import Array
from fedloom.values import whole

OPTIONS = ("tokenizer", "length", "vocabulary")
OWN = "words"


@dataclass(frozen=True)
class TextOptions:
    """How texts are tokenized where no schema says it."""

    tokenizer: str = OWN
    length: int = 64
    vocabulary: int = 10_000  # of our own tokenizer, with padding and unknown

    @classmethod
    def of(cls, where: str, options: Mapping[str, str]) -> TextOptions:
        numbers = {}
        for name, low, high in (("length", 1, 100_000), ("vocabulary", 3, 10_000_000)):
            if name in options:
                number = whole(options[name])
                if number is None or not low <= number <= high:
                    raise FedloomError(
                        f"{where}: {name} is {shown(options[name])}; allowed are whole numbers from {low} to {high}"
                    )
                numbers[name] = number
        tokenizer = options.get("tokenizer", OWN)
        if tokenizer != OWN and "vocabulary" in numbers:
            raise FedloomError(f"{where}: the tokenizer {shown(tokenizer)} has a vocabulary of its own; leave it out")
        return cls(tokenizer, **numbers)

    @property
    def files(self) -> list[Path]:
        """Of a tokenizer in a local folder."""
        folder = Path(self.tokenizer).expanduser()
        return sorted(path for path in folder.rglob("*") if path.is_file()) if self.tokenizer != OWN else []

    def fit(self, column: str, target: str, classes: Sequence[str], texts: Sequence[str]) -> TextSchema:
        """From the texts of training rows."""
        own = words.most_frequent(texts, self.vocabulary) if self.tokenizer == OWN else ()
        return TextSchema(
            text=column,
            target=target,
            classes=tuple(classes),
            rows=len(texts),
            tokenizer=self.tokenizer,
            words=own,
            length=self.length,
        )


def tokens(texts: Sequence[str], schema: TextSchema) -> tuple[Content, list[str]]:
    """The keys x, kind, vocabulary and padding, and notes."""
    if schema.tokenizer == OWN:
        x, cut = words.encode(texts, schema.words, schema.length)
        vocabulary, padding = len(schema.words) + words.FIRST, words.PADDING
    else:
        x, cut, vocabulary, padding = _by_transformers(texts, schema)
    content = {
        "x": x,
        "kind": np.array("tokens"),
        "vocabulary": np.array(vocabulary),
        "padding": np.array(padding),
    }
    share = 100 * cut / max(len(texts), 1)
    notes = [f"{cut} of {len(texts)} texts ({share:.0f} %) were cut to {schema.length} tokens; length=N keeps more"]
    return content, notes if cut else []


def _by_transformers(texts: Sequence[str], schema: TextSchema) -> tuple[Array, int, int, int]:
    tokenizer = _tokenizer(schema.tokenizer)
    if tokenizer.pad_token_id is None:
        raise FedloomError(f"tokenizer {shown(schema.tokenizer)} has no padding token; choose another one")
    encoded = tokenizer(list(texts), padding="max_length", truncation=True, max_length=schema.length)["input_ids"]
    x = np.array(encoded, dtype=np.int32)
    full = np.flatnonzero((x != tokenizer.pad_token_id).all(1))
    again = tokenizer([texts[int(row)] for row in full], truncation=False)["input_ids"] if len(full) else []
    return x, sum(len(one) > schema.length for one in again), len(tokenizer), int(tokenizer.pad_token_id)


def _tokenizer(name: str) -> Any:
    try:
        library = import_module("transformers")
    except ImportError as error:
        raise missing(f"tokenizer {shown(name)}", "the transformers library", "transformers") from error
    folder = Path(name).expanduser()
    try:
        return library.AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name)
    except Exception as error:  # the library and its HTTP client raise many types
        raise FedloomError(
            f"tokenizer {shown(name)} cannot be loaded ({brief(str(error))}); expected words, a folder that "
            "save_pretrained wrote, or a name on the Hugging Face hub"
        ) from None
