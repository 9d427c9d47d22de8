"""`hf:FOLDER`: encoders of the transformers library, from configurations and from weights saved in a local folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError
from fedloom.nets import build, spelled_model
from fedloom.rng import seeded

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)
TOKENS = InputSpec("tokens", (10,), "int32", vocabulary=40, padding=2)
SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CONFIGS: dict[str, Any] = {
    "bert": lambda: transformers.BertConfig(**SMALL, max_position_embeddings=16),
    "roberta": lambda: transformers.RobertaConfig(**SMALL, max_position_embeddings=16),
    "distilbert": lambda: transformers.DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=32),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    ),
}


def sentences() -> torch.Tensor:
    x = TOKENS.random(4, generator=torch.Generator().manual_seed(1))
    x[x == TOKENS.padding] = 5
    x[0, 4:] = TOKENS.padding
    return x


def saved(folder: Path, name: str, labels: int = 3) -> Any:
    config = CONFIGS[name]()
    config.num_labels, config.pad_token_id = labels, TOKENS.padding
    torch.manual_seed(7)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_weights_give_the_librarys_own_outputs(name: str, tmp_path: Path) -> None:
    model = saved(tmp_path, name)
    net = build(f"hf:{tmp_path}", TOKENS, 3, "running").eval()
    x = sentences()
    with torch.no_grad():
        expected = model(input_ids=x, attention_mask=(x != TOKENS.padding).long()).logits
        torch.testing.assert_close(net(x), expected)
        assert net.features(x).shape == (4, 16)
        alone = net(x[:1])
        torch.testing.assert_close(net(x)[:1], alone)
        assert net(TOKENS.blank(2)).isfinite().all()


def test_a_configuration_alone_is_drawn_by_the_seed(tmp_path: Path) -> None:
    CONFIGS["bert"]().save_pretrained(tmp_path)

    def drawn(seed: int, text: str) -> torch.Tensor:
        with seeded(seed, "init"):
            return torch.cat([weight.flatten() for weight in build(text, TOKENS, 3, "running").parameters()])

    name = f"hf:{tmp_path}"
    assert torch.equal(drawn(0, name), drawn(0, name)) and not torch.equal(drawn(0, name), drawn(1, name))
    saved(tmp_path, "bert")
    assert torch.equal(drawn(0, f"{name}(pretrained=false)"), drawn(0, f"{name}?pretrained=false"))
    assert not torch.equal(drawn(0, f"{name}(pretrained=false)"), drawn(0, name))


def test_a_head_of_another_number_of_classes_is_drawn_by_the_seed(tmp_path: Path) -> None:
    model = saved(tmp_path, "bert", labels=3)
    heads = []
    for seed in (0, 0, 1):
        with seeded(seed, "init"):
            net = build(f"hf:{tmp_path}", TOKENS, 7, "running")
        heads.append(net.head.get_parameter("weight"))
        word = net.body.get_parameter("net.bert.embeddings.word_embeddings.weight")
        assert torch.equal(word, model.bert.embeddings.word_embeddings.weight)
    assert heads[0].shape == (7, 16)
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_the_head_may_be_named_by_its_own_name(tmp_path: Path) -> None:
    saved(tmp_path, "distilbert")
    text = f"hf:{tmp_path}(head=classifier)"
    assert spelled_model(text) == text
    assert build(text, TOKENS, 3, "running").dim == 16
    with pytest.raises(FedloomError, match=r"it has no submodule 'x'.*its submodules are distilbert, pre_classifier"):
        build(f"hf:{tmp_path}(head=x)", TOKENS, 3, "running")


def test_images_are_classified_too(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        **{**SMALL, "num_hidden_layers": 1}, image_size=16, patch_size=4, num_channels=1, num_labels=5
    )
    model = transformers.AutoModelForImageClassification.from_config(config).eval()
    model.save_pretrained(tmp_path)
    net = build(f"hf:{tmp_path}", (1, 16, 16), 5, "running").eval()
    x = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(net(x), model(pixel_values=x).logits)
    with pytest.raises(FedloomError, match=r"takes images of 16x16; these are 8x8: set data.resize to 16"):
        build(f"hf:{tmp_path}", (1, 8, 8), 5, "running")
    with pytest.raises(FedloomError, match="takes images of 1 channels; these have 3"):
        build(f"hf:{tmp_path}", (3, 16, 16), 5, "running")


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (InputSpec("tokens", (30,), "int32", vocabulary=40), "takes at most 16 tokens; the data have sequences of 30"),
        (InputSpec("tokens", (10,), "int32", vocabulary=41), "knows 40 tokens; the data have 41"),
        (InputSpec("features", (10,)), "takes tokens or image inputs; these are features"),
    ],
)
def test_data_that_do_not_fit_are_refused(inputs: InputSpec, sentence: str, tmp_path: Path) -> None:
    saved(tmp_path, "bert")
    with pytest.raises(FedloomError, match=sentence):
        build(f"hf:{tmp_path}", inputs, 3, "running")


def test_a_folder_without_a_configuration_and_a_pickle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"the folder holds no config.json; save_pretrained writes one"):
        build(f"hf:{tmp_path}", TOKENS, 3, "running")
    with pytest.raises(FedloomError, match="there is no such folder"):
        build(f"hf:{tmp_path}/missing", TOKENS, 3, "running")
    CONFIGS["bert"]().save_pretrained(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")  # never read: the net is made from its configuration
    assert build(f"hf:{tmp_path}", TOKENS, 3, "running").dim == 16


@pytest.mark.slow
def test_a_federated_run_has_the_same_bits_for_any_number_of_workers_and_personal_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "encoder", "bert")
    draw = np.random.default_rng(0)
    x, y = draw.integers(3, 40, (80, 10)), draw.integers(0, 3, 80)
    x[:, 7:] = 2
    np.savez("text.npz", train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:], padding=2, vocabulary=40)
    fields = {"data": "text.npz", "model": "hf:encoder", "clients": 4, "split": "iid", "rounds": 2, "lr": 0.01}
    one = fl.run(fields, method="fn + prox", workers=1, out="one")
    two = fl.run(fields, method="fn + prox", workers=2, out="two")
    assert one.summary["digest"] == two.summary["digest"]

    done = subprocess.run(
        [sys.executable, "-m", "fedloom", "personalize", "one", "--epochs", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
