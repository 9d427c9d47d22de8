"""`timm:NAME`, with a stand-in for torchvision where it is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from standin_torchvision import standin_torchvision

import fedloom as fl
from fedloom.errors import FedloomError
from fedloom.io.files import read_tensors
from fedloom.nets import build, spelled_model
from fedloom.rng import seeded

torch.set_num_threads(1)
MISSING = importlib.util.find_spec("torchvision") is None
pytestmark = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")


@pytest.fixture
def vision() -> Iterator[None]:
    if not MISSING:
        yield
        return
    with standin_torchvision():
        yield


@pytest.mark.skipif(not MISSING, reason="torchvision is installed")
def test_a_missing_torchvision_is_named() -> None:
    with pytest.raises(
        FedloomError, match=r"cannot be imported \(No module named 'torchvision'\); it needs a torchvision"
    ):
        build("timm:resnet10t", (3, 32, 32), 10, "running")


@pytest.mark.parametrize(
    ("text", "shape", "dim"),
    [
        ("timm:resnet10t", (3, 32, 32), 512),
        ("timm:vit_tiny_patch16_224(img_size=32, patch_size=8, depth=1)", (1, 32, 32), 192),
        ("timm:mobilenetv3_small_050", (3, 32, 32), 1024),
    ],
)
def test_timms_own_features_and_classifier_are_body_and_head(
    vision: None, text: str, shape: tuple[int, ...], dim: int
) -> None:
    import timm

    with seeded(0, "init"):
        net = build(text, shape, 7, "running").eval()
    name, _, options = text.removeprefix("timm:").partition("(")
    values = dict(item.strip().split("=") for item in options.rstrip(")").split(",") if item)
    with seeded(0, "init"):
        model = timm.create_model(name, num_classes=7, in_chans=shape[0], **{k: int(v) for k, v in values.items()})
    model.eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(net(x), model(x), rtol=1e-4, atol=1e-5)
        features = model.forward_head(model.forward_features(x), pre_logits=True)
        torch.testing.assert_close(net.features(x), features, rtol=1e-4, atol=1e-5)
    assert net.dim == dim


def test_options_are_timms_and_wrong_ones_are_refused(vision: None) -> None:
    assert spelled_model("timm:resnet10t?drop_rate=0.1&pretrained=false") == "timm:resnet10t(drop_rate=0.1)"
    with pytest.raises(FedloomError, match=r"timm:resnet10t cannot be made for .*unexpected keyword argument 'foo'"):
        build("timm:resnet10t(foo=1)", (3, 32, 32), 7, "running")
    with pytest.raises(FedloomError, match=r"timm .* has no such model; choose one of its names, such as"):
        build("timm:resnet10", (3, 32, 32), 7, "running")
    with pytest.raises(FedloomError, match=r"only .safetensors are read, a pickle can run code"):
        build("timm:resnet10t(checkpoint_path=a.pth)", (3, 32, 32), 7, "running")


@pytest.mark.slow
def test_a_run_with_weights_saved_locally(vision: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    model = timm.create_model("resnet10t", num_classes=10, in_chans=1)
    save_file(model.state_dict(), "weights.safetensors")
    text = "timm:resnet10t(checkpoint_path=weights.safetensors)"
    run = fl.run(model=text, clients=5, fraction=0.4, rounds=1, workers=1, lr=0.01, out="run")
    initial = read_tensors(Path("run/initial.safetensors"))[0]
    assert torch.equal(initial["head.weight"], model.fc.weight)
    assert torch.equal(initial["body.conv1.0.weight"], model.conv1[0].weight)
    assert run.recipe.model == text
