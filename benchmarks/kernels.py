"""What one core reaches in the convolutions of our nets, kernel by kernel: python benchmarks/kernels.py [--batch 50]

For every shape of convolution in a net, GFLOP/s of the direct sum (two a multiply-add, processor time, best of --repeats) of

    forward, input, weight   oneDNN's kernels for the convolution, the input's gradient, the weight's gradient
    torch, ours, native      these together (without the input's gradient in a first layer), fedloom's portable kernels
                             (fedloom.nets.kernels), and its compiled ones where a C++ compiler is available
    way                      what the portable ones do, where shapes say that it is something else than torch's

beside a product of two matrices of 1024 x 1024, then a whole training pass (forward and backward) of the net with torch's
kernels, with portable and with compiled ones, taking turns. Memory is kept as workers keep it. The kernels run on warm
memory, a net's do not.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.engine.backends.memory import keep_freed_memory
from fedloom.nets.build import build
from fedloom.nets.kernels.products import Conv2d
from fedloom.nets.kernels.use import lacks_native, served, use_native
from fedloom.nets.net import Net

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
NETS = {"lenet": COLOUR, "cnn": GREY, "conv4": COLOUR, "vgg11": COLOUR, "mobilenet": COLOUR, "resnet18": COLOUR}
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


def shapes(net: Net, images: tuple[int, int, int]) -> Counter[Shape]:
    found: Counter[Shape] = Counter()

    def note(conv: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        stride, padding, kernel = conv.stride[0], int(conv.padding[0]), conv.kernel_size[0]
        found[Shape(conv.in_channels, conv.out_channels, kernel, stride, padding, conv.groups, args[0].shape[2])] += 1

    hooks = [m.register_forward_hook(note) for m in net.modules() if isinstance(m, nn.Conv2d)]
    net.eval()(torch.zeros(2, *images))
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
    needs_input = shape.inputs > 3  # the first layer's images need no gradient
    seen = x.clone().requires_grad_(needs_input)
    wanted = (seen, quick.weight) if needs_input else (quick.weight,)
    way = chosen(quick(seen), shape)
    calls["ours"] = lambda: torch.autograd.grad(quick(seen), wanted, g)
    compiled = copy.deepcopy(quick)
    has_native = served(compiled) > 0 and not lacks_native(compiled)
    if has_native:
        use_native(compiled)
        mine = (seen, compiled.weight) if needs_input else (compiled.weight,)
        calls["native"] = lambda: torch.autograd.grad(compiled(seen), mine, g)
    best = {name: min(spent) for name, spent in turns(calls, repeats).items()}
    flops = 2 * y.numel() * shape.inputs // shape.groups * shape.kernel**2
    passes = ["forward", "input", "weight"] if needs_input else ["forward", "weight"]
    cells = [f"{flops / best[name] / 1e9:.0f}" if name in passes else "" for name in ("forward", "input", "weight")]
    work, torchs = len(passes) * flops / 1e9, sum(best[name] for name in passes)
    cells += [f"{work / torchs:.0f}", f"{work / best['ours']:.0f}" if way else ""]
    cells += [f"{work / best['native']:.0f}" if has_native else "", way]
    return " | ".join(cells)


def chosen(made: Tensor, shape: Shape) -> str:
    """How our layer works, by the operation that its result remembers."""
    names, node = [], made.grad_fn
    while node is not None:
        if hasattr(node, "way"):
            return str(node.way.__name__.rpartition(".")[2])
        names.append(type(node).__name__)
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
    if any("_Spectral" in name for name in names):
        return "spectra"
    if any("_Convolve" in name for name in names):
        return "product"
    if any("_Depthwise" in name for name in names):
        return "depthwise"
    if not any("Convolution" in name for name in names):
        return "linear"
    return "border first" if shape.groups > 1 and shape.size < shape.kernel else ""


def whole(name: str, batch: int, repeats: int, trained: bool) -> dict[str, float]:
    """Seconds of a pass of the whole net, forward and backward or as in tests, by kernels."""
    x = torch.randn(batch, *NETS[name]).contiguous(memory_format=LAST)
    y = torch.arange(batch) % 10

    def passes(net: Net) -> Callable[[], object]:
        net.train(trained)
        if not trained:
            return lambda: torch.no_grad()(net)(x)
        return lambda: torch.autograd.grad(F.cross_entropy(net(x), y), tuple(net.parameters()))

    ours = passes(build(name, NETS[name], 10, "batch"))
    torchs = passes(build(name, NETS[name], 10, "batch", "torch"))
    calls = {"torch's": torchs, "portable": ours}
    compiled = build(name, NETS[name], 10, "batch")
    if served(compiled) and not lacks_native(compiled):
        use_native(compiled)
        calls["compiled"] = passes(compiled)
    return {kernels: median(spent) for kernels, spent in turns(calls, repeats).items()}


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
        columns = ("times", "forward", "input", "weight", "torch", "ours", "native", "way")
        print(f"| {name}, batch {given.batch} | {' | '.join(columns)} |\n|---{'|--:' * 7}|---|")
        for shape, count in shapes(build(name, NETS[name], 10, "batch"), NETS[name]).items():
            print(f"| {shape} | {count} | {kernels(shape, given.batch, given.repeats)} |", flush=True)
        for what, count, trained in (("training", given.batch, True), ("test", 2 * given.batch, False)):
            seconds = whole(name, count, given.repeats, trained)
            listed = ", ".join(f"{1e3 * spent:.0f} ms with {kernels} kernels" for kernels, spent in seconds.items())
            print(f"\na {what} pass of {count} images: {listed}", flush=True)
        print()


if __name__ == "__main__":
    main()
