"""Texts become tokens: of tables, of Hugging Face sets on disk, and of the bundled set."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedloom.data import load
from fedloom.data.text.words import encode, most_frequent, words_of
from fedloom.errors import FedloomError

TEXTS = [f"The {'cat' if row % 2 else 'dog'} didn't eat {row % 7} mice, or did it?" for row in range(100)]


def test_words_are_lower_case_and_punctuation_stands_alone() -> None:
    assert words_of("The cat didn't eat 3 mice!") == ["the", "cat", "didn't", "eat", "3", "mice", "!"]
    assert most_frequent(["b a a", "c b a"], 4) == ("a", "b")
    assert most_frequent(["b a", "c"], 100) == ("a", "b", "c")


def test_tokens_are_cut_padded_and_unknown_words_are_1() -> None:
    x, cut = encode(["a b c d", "b", "", "z"], ("a", "b"), 3)
    assert x.tolist() == [[2, 3, 1], [3, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert (x.dtype, cut) == (np.int32, 1)


def test_the_vocabulary_is_of_training_rows_only(tmp_path: Path) -> None:
    texts = [f"{text} secret" if row % 5 == 0 else text for row, text in enumerate(TEXTS)]
    pd.DataFrame({"text": texts, "y": ["a", "b"] * 50, "other": 1}).to_csv(tmp_path / "t.csv", index=False)
    dataset = load(f"table:{tmp_path}/t.csv?target=y&text=text&length=8")
    words = json.loads(dataset.schema)["words"]
    counts = Counter(w for row, text in enumerate(texts) if row % 5 for w in words_of(text))
    assert words == sorted(counts, key=lambda word: (-counts[word], word)) and "secret" not in words
    assert (dataset.inputs.kind, dataset.inputs.shape) == ("tokens", (8,))
    assert (dataset.inputs.vocabulary, dataset.inputs.padding) == (len(words) + 2, 0)
    notes = " ".join(dataset.notes)
    assert "100 of 100 texts (100 %) were cut to 8 tokens" in notes and "not used beside text=text: other" in notes


def test_a_hugging_face_text_set_on_disk_is_found_by_its_types(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"sentence": datasets.Value("string"), "kind": label})
    split = datasets.Dataset.from_dict({"sentence": TEXTS, "kind": [row % 2 for row in range(100)]}, features)
    datasets.DatasetDict(train=split.select(range(80)), test=split.select(range(80, 100))).save_to_disk(
        tmp_path / "set"
    )
    dataset = load(f"hf:{tmp_path}/set?length=12&vocabulary=10")
    assert dataset.class_names == ("cat", "dog") and len(dataset.test_y) == 20
    words = most_frequent(TEXTS[:80], 10)
    assert np.array_equal(dataset.test_x.numpy(), encode(TEXTS[80:], words, 12)[0])
    schema = tmp_path / "schema.json"
    schema.write_text(dataset.schema)
    assert torch.equal(load(f"hf:{tmp_path}/set?schema={schema}").test_x, dataset.test_x)
    split.add_column("title", TEXTS).save_to_disk(tmp_path / "two")
    with pytest.raises(FedloomError, match=r"2 columns of type string; name the one to use, as in .*\?text=COLUMN"):
        load(f"hf:{tmp_path}/two")


def transformers_tokenizer(folder: Path) -> Any:
    """A tokenizer of words, built here and saved to a folder."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "the", "cat", "dog", "eat"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.Lowercase()
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    return fast


def test_a_transformers_tokenizer_of_a_local_folder_is_used(tmp_path: Path) -> None:
    tokenizer = transformers_tokenizer(tmp_path / "tokenizer")
    pd.DataFrame({"text": TEXTS, "y": ["a", "b"] * 50}).to_csv(tmp_path / "t.csv", index=False)
    dataset = load(f"table:{tmp_path}/t.csv?target=y&text=text&length=6&tokenizer={tmp_path}/tokenizer")
    expected = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=6)["input_ids"]
    assert dataset.test_x.tolist() == [row for number, row in enumerate(expected) if number % 5 == 0]
    assert (dataset.inputs.vocabulary, dataset.inputs.padding) == (6, 0)
    assert "100 of 100 texts" in dataset.notes[0]
    with pytest.raises(FedloomError, match="has a vocabulary of its own; leave it out"):
        load(f"table:{tmp_path}/t.csv?target=y&text=text&tokenizer=x&vocabulary=5")
    with pytest.raises(FedloomError, match=r"tokenizer '/nowhere' cannot be loaded"):
        load(f"table:{tmp_path}/t.csv?target=y&text=text&tokenizer=/nowhere")


@pytest.mark.slow
def test_the_bundled_text_set_has_five_classes_and_natural_clients() -> None:
    dataset = load("scipy_docs")
    assert dataset.class_names == ("examples", "notes", "parameters", "returns", "summary")
    assert len(dataset.train_y) > 10_000 and dataset.inputs.kind == "tokens"
    assert dataset.train_client is not None and {"stats", "signal", "optimize"} <= set(dataset.client_names)
    mixes = [torch.bincount(dataset.train_y[dataset.train_client == k], minlength=5) for k in range(3)]
    assert all(int(mix.min()) > 0 for mix in mixes)  # clients mix classes
    assert len(np.unique(np.concatenate([dataset.train_x.numpy(), dataset.test_x.numpy()]), axis=0)) > 15_000
    assert (dataset.train_x > 1).any(1).all()  # no text of unknown words alone


@pytest.mark.parametrize(("name", "rows", "columns", "classes"), [("breast_cancer", 569, 30, 2), ("wine", 178, 13, 3)])
def test_bundled_tables_are_those_of_scikit_learn(name: str, rows: int, columns: int, classes: int) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = getattr(datasets, f"load_{name}")()
    dataset = load(name)
    held = np.arange(rows) % 5 == 0
    assert (dataset.inputs.kind, dataset.inputs.shape, dataset.classes) == ("features", (columns,), classes)
    assert np.array_equal(dataset.test_x.numpy(), bunch.data[held].astype(np.float32))
    assert np.array_equal(dataset.train_y.numpy(), bunch.target[~held])
    received = dataset.pipeline()(dataset.train_x, None)
    assert torch.allclose(received.mean(0), torch.zeros(columns), atol=1e-5)
