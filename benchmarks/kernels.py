"""What one core reaches in the convolutions of our nets, kernel by kernel: python benchmarks/kernels.py [--batch 50]

For every shape of convolution in a net, GFLOP/s (two a multiply-add, processor time, best of --repeats) of

    forward        oneDNN's convolution
    input          its kernel for the input's gradient
    weight         its kernel for the weight's gradient
    as a product   the weight's gradient by fedloom.nets.products, where shapes say that it is used; `in all` for a 1x1
                   convolution that is a linear layer: all three together, against oneDNN's three together

beside a product of two matrices of 1024 x 1024, then a whole training pass (forward and backward) of the net with and without
products, taking turns. Memory is kept as lanes keep it. The kernels run on warm memory, a net's do not.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.engine.lanes import keep_freed_memory
from fedloom.nets.net import Net, build
from fedloom.nets.products import Conv2d

NETS = ("lenet", "conv4", "vgg11", "mobilenet", "resnet18")
LAST = torch.channels_last


@dataclass(frozen=True)
class Shape:
    inputs: int
    out: int
    kernel: int
    stride: int
    padding: int
    groups: int
    size: int  # of the input

    def layer(self) -> nn.Conv2d:
        options = {"stride": self.stride, "padding": self.padding, "groups": self.groups, "bias": False}
        conv = nn.Conv2d(self.inputs, self.out, self.kernel, **options)
        conv.weight.data = conv.weight.data.contiguous(memory_format=LAST)
        return conv

    def __str__(self) -> str:
        kind = "depthwise " if self.groups > 1 else ""
        return f"{kind}{self.kernel}x{self.kernel} {self.inputs}-{self.out} at {self.size}x{self.size}/{self.stride}"


def shapes(net: Net) -> Counter[Shape]:
    found: Counter[Shape] = Counter()

    def note(conv: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        stride, padding, kernel = conv.stride[0], int(conv.padding[0]), conv.kernel_size[0]
        found[Shape(conv.in_channels, conv.out_channels, kernel, stride, padding, conv.groups, args[0].shape[2])] += 1

    hooks = [m.register_forward_hook(note) for m in net.modules() if isinstance(m, nn.Conv2d)]
    net.eval()(torch.zeros(2, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    return found


def turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of processor time of each call, in turns, after one that does not count."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name in calls if turn % 2 else reversed(calls):
            began = time.thread_time()
            calls[name]()
            if turn:
                spent[name].append(time.thread_time() - began)
    return spent


def kernels(shape: Shape, batch: int, repeats: int) -> str:
    conv, quick = shape.layer(), shape.layer()
    quick.__class__ = Conv2d
    x = torch.randn(batch, shape.inputs, shape.size, shape.size).contiguous(memory_format=LAST)
    y = conv(x).detach()
    g = torch.randn_like(y)
    s, p = shape.stride, shape.padding

    def back(x_too: bool, w_too: bool) -> object:
        rest = [s, s], [p, p], [1, 1], False, [0, 0], shape.groups, [x_too, w_too, False]
        return torch.ops.aten.convolution_backward(g, x, conv.weight.detach(), None, *rest)

    calls: dict[str, Callable[[], object]]
    calls = {"forward": lambda: F.conv2d(x, conv.weight.detach(), None, s, p, 1, shape.groups)}
    calls |= {"input": lambda: back(True, False), "weight": lambda: back(False, True)}
    pointwise = shape.kernel == shape.stride == 1
    seen = x.clone().requires_grad_(pointwise)
    made = quick(seen)
    changed = not type(made.grad_fn).__name__.startswith("ConvolutionBackward") or shape.size < shape.kernel
    if pointwise:
        calls["product"] = lambda: torch.autograd.grad(quick(seen), (seen, quick.weight), g)
    else:
        calls["product"] = lambda: torch.autograd.grad(made, quick.weight, g, retain_graph=True)
    best = {name: min(spent) for name, spent in turns(calls, repeats).items()}
    flops = 2 * y.numel() * shape.inputs // shape.groups * shape.kernel**2
    cells = [f"{flops / best[name] / 1e9:.0f}" for name in ("forward", "input", "weight")]
    if not changed:
        cells.append("")
    elif pointwise:
        old = best["forward"] + best["input"] + best["weight"]
        cells.append(f"in all {3 * flops / old / 1e9:.0f} → {3 * flops / best['product'] / 1e9:.0f}")
    else:
        cells.append(f"{flops / best['product'] / 1e9:.0f}")
    return " | ".join(cells)


def whole(name: str, batch: int, repeats: int) -> tuple[float, float]:
    """Seconds of a training pass of the whole net: torch's own convolutions, then ours."""
    x = torch.randn(batch, 3, 32, 32).contiguous(memory_format=LAST)
    y = torch.arange(batch) % 10

    def training(net: Net) -> Callable[[], object]:
        net.train()
        return lambda: torch.autograd.grad(F.cross_entropy(net(x), y), tuple(net.parameters()))

    ours = training(build(name, (3, 32, 32), 10, "batch"))
    with patch("fedloom.nets.net.use_products"):
        torchs = training(build(name, (3, 32, 32), 10, "batch"))
    spent = turns({"torch": torchs, "ours": ours}, repeats)
    return median(spent["torch"]), median(spent["ours"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="*", default=list(NETS), choices=NETS)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    limit = 2 * 1024**3 / min(turns({"product": lambda: a @ b}, 15)["product"]) / 1e9
    print(f"a product of 1024 x 1024 matrices: {limit:.0f} GFLOP/s\n")
    for name in given.nets:
        print(
            f"| {name}, batch {given.batch} | times | forward | input | weight | as a product |\n|---|--:|--:|--:|--:|--:|"
        )
        for shape, count in shapes(build(name, (3, 32, 32), 10, "batch")).items():
            print(f"| {shape} | {count} | {kernels(shape, given.batch, given.repeats)} |", flush=True)
        before, after = whole(name, given.batch, given.repeats)
        print(
            f"\na training pass: {1e3 * before:.0f} ms with torch's kernels, {1e3 * after:.0f} ms with ours\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
