"""The angles between the rows of a head as it is first drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError

FIELDS = {"clients": 10, "fraction": 0.2, "rounds": 2, "workers": 1, "eval_every": 0}


def heads(method: str, **fields: object) -> tuple[Tensor, Tensor]:
    """The head's weight, first and last."""
    run = fl.run({**FIELDS, **fields}, method=method)
    return tuple(load_file(run.path / f"{name}.safetensors")["head.weight"].double() for name in ("initial", "final"))  # type: ignore[return-value]


def gram(weight: Tensor) -> Tensor:
    return weight @ weight.T


@pytest.mark.parametrize("model", ["mlp", "linear", "cnn"])
def test_rows_have_the_angles_asked_for_and_the_length_of_drawn_ones(model: str) -> None:
    drawn, _ = heads("fedavg", model=model)
    length = float(drawn.square().sum(1).mean())
    for kind, cosine in (("orthogonal", 0.0), ("etf", -1 / 9)):
        first, last = heads("fedavg", model=model, head_init=kind)
        expected = length * (torch.eye(10, dtype=torch.float64) * (1 - cosine) + cosine)
        torch.testing.assert_close(gram(first), expected, rtol=0, atol=1e-6)
        assert (last - first).abs().max() > 1e-3  # it is only a first value
    off = gram(drawn) - torch.diag(gram(drawn).diagonal())
    assert off.abs().max() > 0.05 * length


def test_everything_else_is_drawn_as_before() -> None:
    plain, turned = fl.run(FIELDS), fl.run(FIELDS, head_init="etf")
    a, b = (load_file(run.path / "initial.safetensors") for run in (plain, turned))
    assert {name for name in a if not torch.equal(a[name], b[name])} == {"head.weight"}


def test_a_frozen_or_normalized_head_has_them_too() -> None:
    first, last = heads("babu", head_init="orthogonal")
    assert torch.equal(first, last)
    off = gram(first) - torch.diag(gram(first).diagonal())
    assert off.abs().max() < 1e-6
    first, _ = heads("fn", head_init="orthogonal")
    assert torch.equal(first, last)
    sphere, _ = heads("sphere", head_init="orthogonal")
    torch.testing.assert_close(gram(sphere), torch.eye(10, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "said"), [("orthogonal", "10 orthonormal class"), ("etf", "a simplex of 10 class")])
def test_too_few_dimensions_are_told(kind: str, said: str) -> None:
    Path("narrow.py").write_text(
        "from torch import nn\n\n\ndef narrow(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), nn.Linear(5, classes)\n"
    )
    with pytest.raises(FedloomError, match=f"head_init: {said}.* at least 10 dimensions; these have 5"):
        fl.run(FIELDS, model="narrow.py:narrow", head_init=kind)


def test_other_words_are_refused() -> None:
    with pytest.raises(FedloomError, match="head_init: must be 'default', 'orthogonal' or 'etf'"):
        fl.run(FIELDS, head_init="random")
