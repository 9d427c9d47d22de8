"""A tokenizer of words: lower-case words and single signs of punctuation, numbered by how frequent they are in training.

Token 0 is padding, 1 is any word that is not in the vocabulary; 2, 3 and so on are the most frequent words, the most
frequent first, ties in alphabetical order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fedloom.io.archives import Array

WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
PADDING, UNKNOWN, FIRST = 0, 1, 2


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def most_frequent(texts: Iterable[str], vocabulary: int) -> tuple[str, ...]:
    """The words of a vocabulary of this size, which includes padding and unknown."""
    counts = Counter(word for text in texts for word in words_of(text))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST])


def encode(texts: Sequence[str], words: Sequence[str], length: int) -> tuple[Array, int]:
    """Tokens int32 N,length, cut and padded at the end, and the number of texts that were cut; one without words is unknown."""
    number_of = {word: number for number, word in enumerate(words, FIRST)}
    tokens = np.full((len(texts), length), PADDING, np.int32)
    cut = 0
    for row, text in enumerate(texts):
        numbers = [number_of.get(word, UNKNOWN) for word in words_of(text)] or [UNKNOWN]
        cut += len(numbers) > length
        tokens[row, : len(numbers)] = numbers[:length]
    return tokens, cut
