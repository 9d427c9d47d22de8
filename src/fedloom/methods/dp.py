"""Client-level differential privacy (McMahan et al., ICLR 2018): what is learnt hardly depends on any one client.

    D_i = (w_i - w_g) min(1, clip / ||w_i - w_g||),   w <- w_g + (sum over S of D_i) / m + N(0, (noise clip / m)^2 I)

m is the planned size of the cohort, a constant. An upload that is lost counts as a zero update: to divide by the number that
arrived would let one client's failure rescale all others, and the noise would no longer cover it. For the same reason
clients count alike, whatever `weighting` says, and noise is added even in a round in which no upload arrives.

The accountant. Neighbours differ in all data of one client, N being public ("replace one"), so the sum moves by at most
2 clip and the noise is noise/2 times that sensitivity. Over T rounds two bounds hold, both computed by Google's
dp-accounting, and the smaller is reported:
    - cohorts are fixed-size samples without replacement: Renyi accounting (Wang, Balle, Kasiviswanathan 2019);
    - whoever is in the cohorts: T Gaussian mechanisms are one with noise/sqrt(T), exactly (Balle and Wang 2018).
Everybody in every round: the second alone. Also the second alone where clients remember anything (personal regions,
memory of parts): what they send then tells of earlier cohorts, and sampling hides a client only while those are secret.
And on real machines, where every site has the recipe, and the seed in it decides the cohorts.

What epsilon covers: the weights after every round, final ones included, for somebody who knows neither cohorts nor seed.
What it does not cover: the run folder's logs (train_loss, cohorts, lost, clients' accuracies), checkpoints and clients'
own memory, which belong to the simulation; choosing hyper-parameters or a best round by looking; the mean and deviation of
`data.normalize: set`, which are of all training images and taken as public (give two lists, or none, where they are
not). The noise is `server.noise`. In a simulation it comes from the seed, so that runs repeat; it is not private, since who
knows the seed can subtract it. On real machines it comes from the operating system's randomness, so two runs differ, and the
server is trusted to add it. It is rounded to float32, as the weights are; attacks on the rounding are not considered.

Refused: parts whose clients upload more than weights (a control, norms), parts that use single clients' models at the
server (a second act, distillation), shared statistics of normalisers. Personal regions never leave their client.

Defaults: clip = 1 and noise = 1 are places to begin, not a recommendation; delta = N^-1.1. With noise = 0 there is clipping
and no privacy: epsilon is null.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.methods.part import NonNegative, Part, Positive
from fedloom.methods.seen import Plan, Server

SAMPLED, ANY = "sampling without replacement, Renyi", "whoever takes part, exact Gaussian"


class DP(Part):
    """Clipped updates, averaged with Gaussian noise: client-level differential privacy."""

    paper = "McMahan et al. 2018, DP-FedAvg"
    always: ClassVar[bool] = True
    bounds: ClassVar[bool] = True  # by clipping; to drop one client for what others sent would undo the accounting
    beside: ClassVar[frozenset[str] | None] = frozenset(
        {"build", "regions", "phases", "objective", "penalty", "mix", "gradient", "correct", "finish", "personalise"}
        | {"own_logits"}
        | {"client_memory", "server_memory", "broadcast", "served", "check", "summary"}
        | {"further", "findings", "fixes", "tell", "conclude"}  # a survey is seen in the plan
    )
    because: ClassVar[str] = "which dp would neither clip nor hide"
    clip: Positive = 1.0
    noise: NonNegative = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None

    def check(self, plan: Plan) -> None:
        if plan.statistics:
            raise FedloomError(
                "averaged statistics of normalisers would be shared without clipping or noise; set bn to batch or "
                "local, or choose a net without them"
            )
        if plan.surveys:
            raise FedloomError(
                "at the end all clients would be asked for sums over their data, without clipping or noise; leave the "
                "calibration out"
            )
        if self.delta is None and plan.task.clients < 2:
            raise FedloomError(
                "the default delta is N^-1.1, which is no probability to speak of with 1 client; give delta"
            )
        if self.noise:
            _library()

    def combine(self, server: Server) -> Tensor:
        w, m = server.weights, server.task.cohort
        total = torch.zeros_like(w)
        for w_i in server.uploads:
            move = w_i - w
            norm = torch.linalg.vector_norm(move.double())
            total += move * torch.clamp(self.clip / (norm + 1e-12), max=1.0).to(move.dtype)
        if self.noise:
            total += self.noise * self.clip * server.noise(len(w))
        return w + total / m

    def summary(self, plan: Plan) -> dict[str, Any]:
        task = plan.task
        delta = task.clients**-1.1 if self.delta is None else self.delta
        facts: dict[str, Any] = {
            "protects": "all data of one client, against somebody who sees the weights of every round",
            "clients": task.clients,
            "cohort": task.cohort,
            "rounds": task.rounds,
            "noise_std": self.noise * self.clip / task.cohort,
        }
        if not self.noise:
            facts["note"] = "noise is 0: updates are clipped, but nothing is private and epsilon is infinite"
            return {"epsilon": None, "delta": delta, "privacy": facts}
        amplified = task.cohort < task.clients and not plan.remembers and not plan.known_cohorts
        facts["bounds"] = bounds(self.noise / 2, task.rounds, task.clients, task.cohort if amplified else None, delta)
        if not amplified and task.cohort < task.clients:
            why = "clients remember" if plan.remembers else "every site knows the seed"
            facts["note"] = f"{why}, so that cohorts are no secret: sampling is not counted on"
        return {"epsilon": min(facts["bounds"].values()), "delta": delta, "privacy": facts}


def bounds(multiplier: float, rounds: int, clients: int, cohort: int | None, delta: float) -> dict[str, float]:
    """Epsilon of so many Gaussian mechanisms; with a cohort, also by sampling. `multiplier`: noise over sensitivity."""
    library = _library()
    found = {ANY: float(library.get_epsilon_gaussian(multiplier / math.sqrt(rounds), delta))}
    if cohort is not None:
        accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
        event = library.GaussianDpEvent(multiplier)
        accountant.compose(library.SampledWithoutReplacementDpEvent(clients, cohort, event), rounds)
        found[SAMPLED] = float(accountant.get_epsilon(delta))
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _library() -> Any:
    try:
        import_module("dp_accounting.rdp")
        return import_module("dp_accounting")
    except ImportError:
        raise FedloomError(
            'its accountant is the dp-accounting library, which is missing: pip install "fedloom[privacy]"'
        ) from None
