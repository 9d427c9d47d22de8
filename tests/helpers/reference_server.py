"""What servers do after the average, written out plainly: double precision, named tensors, torch's own optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from reference import Loss, Problem, Weights, cross_entropy, features, mean, training_images
from torch import Tensor, nn

from fedloom.rng import key, numpy_generator, torch_generator


def logits(w: Weights, x: Tensor) -> Tensor:
    return features(w, x.flatten(1)) @ w["head.weight"].T + w["head.bias"]


def server_draws(p: Problem, part: str, t: int) -> torch.Generator:
    return torch_generator(p.recipe["seed"], f"refine-{part}", t, "server")


def trained(p: Problem, w: Weights, t: int, loss: Loss = cross_entropy) -> list[Weights]:
    """The uploads of a round."""
    return [p.local(w, t, k, loss) for k in p.cohorts[t - 1]]


def averaged(p: Problem, uploads: Sequence[Weights], t: int) -> Weights:
    return mean(uploads, p.shares(p.cohorts[t - 1]))


def undealt(p: Problem) -> Tensor:
    """Training images that no client holds."""
    dealt = np.load(p.path / "partition.npz")["train_index"]
    return torch.from_numpy(np.setdiff1d(np.arange(len(training_images()[1])), dealt))


def shuffled(number: int, size: int, draws: torch.Generator) -> Iterator[Tensor]:
    """Places of images, a batch at a time, epoch after epoch without end."""
    while True:
        yield from torch.randperm(number, generator=draws).split(size)


def feddf(p: Problem, steps: int, batch: int, lr: float, temperature: float) -> Weights:
    """One round: Adam along a cosine, towards the softmax of the mean of the clients' logits."""
    uploads = trained(p, p.initial, 1)
    x = training_images()[0][undealt(p)]
    wanted = (sum(logits(w, x) for w in uploads) / len(uploads) / temperature).softmax(1)  # type: ignore[union-attr]
    w = {name: value.clone().requires_grad_() for name, value in averaged(p, uploads, 1).items()}
    adam = torch.optim.Adam(w.values(), lr=lr)
    batches = shuffled(len(x), batch, server_draws(p, "feddf", 1))
    for step in range(steps):
        chosen = next(batches)
        said = (logits(w, x[chosen]) / temperature).log_softmax(1)
        ratio = wanted[chosen].log() - said
        loss = temperature**2 * (wanted[chosen] * ratio).sum(1).mean()
        adam.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {name: value.detach() for name, value in w.items()}


def server_data(p: Problem, share: float, epochs: int, names: Sequence[str]) -> Weights:
    """After every average, epochs of the recipe's SGD on a share of all dealt images."""
    dealt = np.load(p.path / "partition.npz")["train_index"]
    order = numpy_generator(p.recipe["seed"], "share", "server-data").permutation(len(dealt))
    index = torch.from_numpy(dealt[np.sort(order[: round(share * len(dealt))])])
    x, y = (values[index] for values in training_images())
    w = p.initial
    for t, _ in p.rounds:
        w = {name: value.clone() for name, value in averaged(p, trained(p, w, t), t).items()}
        moving = [w[name].requires_grad_() for name in names]
        sgd = torch.optim.SGD(
            moving, lr=p.rate(t), momentum=p.recipe["momentum"], weight_decay=p.recipe["weight_decay"]
        )
        draws = server_draws(p, "server-data", t)
        for _ in range(epochs):
            for chosen in torch.randperm(len(y), generator=draws).split(p.recipe["batch"]):
                sgd.zero_grad()
                cross_entropy(w, x[chosen], y[chosen]).backward()
                sgd.step()
        w = {name: value.detach() for name, value in w.items()}
    return w


# generators


def drawn(make: Callable[[], nn.Module], seed: int, purpose: str) -> nn.Module:
    """A module with torch's own first values, from the key of the run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, purpose))
        return make().double()


def counts(p: Problem, cohort: Sequence[int]) -> Tensor:
    """(clients, C) images of each class."""
    return torch.stack([torch.bincount(p.data[k][1], minlength=10) for k in cohort]).double()


def alike(noise: Tensor, made: Tensor) -> Tensor:
    """exp of minus the mean over all pairs of how far noises are apart times how far what is made of them is apart."""
    total = torch.zeros((), dtype=torch.double)
    for e, g in zip(noise, made, strict=True):
        far = (noise - e).pow(2).mean(1) * (made - g).abs().flatten(1).mean(1)
        total = total + far.sum()
    return torch.exp(-total / len(noise) ** 2)


def nll(z: Tensor, y: Tensor) -> Tensor:
    return -z.log_softmax(1)[torch.arange(len(y)), y]


def picked(y: Tensor) -> Tensor:
    return torch.eye(10, dtype=torch.double)[y]


class Features:
    """FedGen's generator and its one Adam for the whole run."""

    def __init__(self, seed: int, noise: int, hidden: int, lr: float, decay: float) -> None:
        def make() -> nn.Module:
            return nn.Sequential(
                nn.Linear(noise + 10, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 64)
            )

        self.net, self.noise, self.lr = drawn(make, seed, "fedgen"), noise, lr
        self.adam = torch.optim.Adam(self.net.parameters(), lr=lr, weight_decay=decay)

    def learn(self, p: Problem, uploads: Sequence[Weights], t: int, steps: int, batch: int) -> None:
        n = counts(p, p.cohorts[t - 1])
        draws = server_draws(p, "fedgen", t)
        self.adam.param_groups[0]["lr"] = self.lr * 0.98 ** (t - 1)
        self.net.train()
        for _ in range(steps):
            y = torch.multinomial((n.sum(0) > 0).float(), batch, replacement=True, generator=draws)
            e = torch.rand(batch, self.noise, generator=draws).double()
            made = self.net(torch.cat([e, picked(y)], 1))
            loss = alike(e, made)
            for w, own in zip(uploads, n, strict=True):
                z = made @ w["head.weight"].T + w["head.bias"]
                loss = loss + (own[y] / n.sum(0)[y] * nll(z, y)).mean()
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        self.net.eval()

    @torch.no_grad()
    def made(self, y: Tensor, draws: torch.Generator) -> Tensor:
        e = torch.rand(len(y), self.noise, generator=draws).double()
        found: Tensor = self.net(torch.cat([e, picked(y)], 1))
        return found


def fedgen(
    p: Problem, alpha: float, beta: float, steps: int, batch: int, noise: int, hidden: int, lr: float
) -> tuple[Weights, Features]:
    w, g = p.initial, Features(p.recipe["seed"], noise, hidden, lr, decay=1e-2)
    heard = torch.zeros(10)

    def regularized(t: int, size: int, draws: torch.Generator, heard: Tensor) -> Loss:
        def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            total = cross_entropy(w, x, y)
            if t == 1:
                return total
            other = torch.multinomial(heard, batch, replacement=True, generator=draws)
            z = g.made(other, draws) @ w["head.weight"].T + w["head.bias"]
            total = total + max(alpha * 0.98 ** (t - 1), 1e-4) * batch / size * nll(z, other).mean()
            target = (g.made(y, draws) @ w["head.weight"].T + w["head.bias"]).softmax(1).detach()
            apart = (target * (target.log() - logits(w, x).log_softmax(1))).sum(1).mean()
            return total + max(beta * 0.98 ** (t - 1), 1e-4) * apart

        return loss

    for t, cohort in p.rounds:
        uploads = []
        for k in cohort:
            draws = p.shuffles(t, k)
            size = len(p.data[k][1]) if p.recipe["batch"] == "full" else p.recipe["batch"]
            loss = regularized(t, size, draws, heard)
            uploads.append(p.local(w, t, k, loss, batches=p.batches(k, p.recipe["epochs"], draws)))
        w = averaged(p, uploads, t)
        g.learn(p, uploads, t, steps, batch)
        heard = ((heard + counts(p, cohort).sum(0)) > 0).float()
    return w, g


class Images(nn.Module):
    """FedFTG's generator for 8x8 images."""

    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(noise, 4 * width), nn.Linear(10, 4 * width)
        self.first = nn.BatchNorm2d(2 * width)
        self.conv1, self.bn1 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width)
        self.conv2, self.bn2 = nn.Conv2d(2 * width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 1, 3, padding=1), nn.BatchNorm2d(1, affine=False)

    def forward(self, e: Tensor, y: Tensor) -> Tensor:
        x = self.first(torch.cat([self.a(e), self.b(picked(y))], 1).view(len(y), -1, 2, 2))
        x = self.bn1(self.conv1(doubled(x)))
        x = self.bn2(self.conv2(doubled(torch.where(x > 0, x, 0.2 * x))))
        made: Tensor = self.bn3(self.conv3(torch.where(x > 0, x, 0.2 * x)).tanh())
        return made


def doubled(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def fedftg(
    p: Problem, iterations: int, student_steps: int, batch: int, noise: int, width: int, lr: float, generator_lr: float
) -> Weights:
    w, g = p.initial, drawn(lambda: Images(noise, width), p.recipe["seed"], "fedftg")
    for t, cohort in p.rounds:
        uploads = trained(p, w, t)
        w = {name: value.clone().requires_grad_() for name, value in averaged(p, uploads, t).items()}
        n = counts(p, cohort)
        draws = server_draws(p, "fedftg", t)
        adam = torch.optim.Adam(g.parameters(), lr=generator_lr * 0.998 ** (t - 1))
        sgd = torch.optim.SGD(w.values(), lr=lr * 0.998 ** (t - 1), weight_decay=p.recipe["weight_decay"])
        for _ in range(iterations):
            y = torch.multinomial(n.sum(0).float(), batch, replacement=True, generator=draws)
            e = torch.randn(batch, noise, generator=draws).double()
            a = (n / n.sum(0).clamp(min=1))[:, y]
            g.train()
            for i, w_i in enumerate(uploads):
                x = g(e, y)
                z, z_i = logits(w, x), logits(w_i, x)
                loss = (a[i] * nll(z_i, y)).mean() - (a[i] * (z - z_i).abs().sum(1) / 10).mean()
                adam.zero_grad()
                (loss + alike(e, x) / len(uploads)).backward()
                adam.step()
            g.eval()
            with torch.no_grad():
                x = g(e, y)
                wanted = sum(a[i][:, None] * logits(w_i, x).softmax(1) for i, w_i in enumerate(uploads))
            for _ in range(student_steps):
                sgd.zero_grad()
                (-(wanted * logits(w, x).log_softmax(1)).sum(1).mean() / 10).backward()
                sgd.step()
        w = {name: value.detach() for name, value in w.items()}
    return w
