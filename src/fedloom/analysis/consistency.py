"""Consistency of weights and activations before and after aggregation (FedNN, figure 3).

The figure shows the outputs of one convolution under two clients' weights and under their average, where the clients'
images differ in shift and scale; it gives no number. Here, for each layer whose weight has two or more dimensions, over
clients k:

    weight_clients      mean cos(W_k, W_j) of two clients, before aggregation
    weight_global       mean cos(W_k, G_k), G_k the client's model after aggregation
    weight_scale        mean ||G_k|| / ||W_k||
    activation_clients  mean over test samples x and pairs of cos(a_k(x), a_j(x)), a_k the layer's output under W_k
    activation_global   mean over images and clients of cos(a_k(x), b_k(x)), b_k the layer's output under G_k
    activation_scale    mean std(b_k) / std(a_k)            1: aggregation keeps the scale
    activation_shift    mean |mean(b_k) - mean(a_k)| / std(a_k)   0: it keeps the mean

G_k is the aggregated model with the client's personal regions over it: the same model for all clients if nothing is
personal. W is the weight that the layer computes with: after normalization where weights are normalized. At most ENTRIES
entries of a layer's output per image are compared, the same ones for all models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.analysis.numbers import mean
from fedloom.analysis.vectors import unit
from fedloom.engine.client.replica import Replica
from fedloom.rng import seeded, torch_generator

IMAGES, ENTRIES, CLIENTS = 64, 2048, 10
COLUMNS = (
    "weight_clients",
    "weight_global",
    "weight_scale",
    "activation_clients",
    "activation_global",
    "activation_scale",
    "activation_shift",
)


@dataclass(frozen=True)
class Layer:
    """A layer of one model: its weight and its output on some images."""

    weight: Tensor  # (n,)
    output: Tensor  # (N, m)


def layers(net: nn.Module) -> dict[str, nn.Module]:
    """Layers whose weight has two or more dimensions, in the order of the net."""
    selected = {}
    for name, module in net.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() >= 2:
            selected[name] = module
    return selected


def observe(replica: Replica, index: Tensor, borrowed: bool) -> dict[str, Layer]:
    """Every layer of the net that is loaded now, on these test samples as one batch."""
    experiment = replica.experiment
    x = experiment.data.pipeline(experiment.data.dataset.test_x[index], None).to(replica.device)
    replica.evaluating(borrowed)
    outputs: dict[str, Tensor] = {}
    with torch.no_grad(), seeded(experiment.recipe.seed, "analysis"), _hooks(replica.net, outputs), replica.autocast():
        replica.net(x)
    modules = layers(replica.net)
    return {name: Layer(_weight(module), outputs[name]) for name, module in modules.items() if name in outputs}


def compare(before: Sequence[dict[str, Layer]], after: Sequence[dict[str, Layer]]) -> list[dict[str, Any]]:
    """One row per layer, from every client's model before and after aggregation."""
    return [
        {"layer": name, **_row([model[name] for model in before], [model[name] for model in after])}
        for name in before[0]
    ]


def _row(before: Sequence[Layer], after: Sequence[Layer]) -> dict[str, float]:
    w, g = [unit(layer.weight[None]) for layer in before], [unit(layer.weight[None]) for layer in after]
    a, b = [unit(layer.output) for layer in before], [unit(layer.output) for layer in after]
    pairs = list(combinations(range(len(before)), 2))
    both = list(zip(before, after, strict=True))
    return {
        "weight_clients": mean(_cosine(w[i], w[j]) for i, j in pairs),
        "weight_global": mean(_cosine(x, y) for x, y in zip(w, g, strict=True)),
        "weight_scale": mean(_ratio(q.weight.double().norm(), p.weight.double().norm()) for p, q in both),
        "activation_clients": mean(_cosine(a[i], a[j]) for i, j in pairs),
        "activation_global": mean(_cosine(x, y) for x, y in zip(a, b, strict=True)),
        "activation_scale": mean(_ratio(_std(q.output), _std(p.output)) for p, q in both),
        "activation_shift": mean(
            _ratio((q.output.double().mean() - p.output.double().mean()).abs(), _std(p.output)) for p, q in both
        ),
    }


def _std(values: Tensor) -> Tensor:
    return values.double().std(correction=0)


def _ratio(a: Tensor, b: Tensor) -> float:
    return float(a / b) if bool(b > 0) else float("nan")


def _cosine(a: Tensor, b: Tensor) -> float:
    """Mean cosine of rows of length 1."""
    return float((a * b).sum(1).mean())


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight  # after normalization where weights are normalized
    assert isinstance(weight, Tensor)
    return weight.detach().float().reshape(-1).cpu().clone()


@contextmanager
def _hooks(net: nn.Module, outputs: dict[str, Tensor]) -> Iterator[None]:
    handles = [module.register_forward_hook(_keep(name, outputs)) for name, module in layers(net).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _keep(name: str, outputs: dict[str, Tensor]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() >= 2:
            flat = output.reshape(len(output), -1).float().cpu()
            if flat.shape[1] > ENTRIES:
                order = torch.randperm(flat.shape[1], generator=torch_generator(0, name))
                flat = flat[:, order[:ENTRIES].sort().values]
            outputs[name] = flat.clone()  # the next layer may work in place

    return hook
