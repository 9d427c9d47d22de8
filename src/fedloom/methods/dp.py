"""Client-level differential privacy (McMahan et al., ICLR 2018): the model hardly depends on any one client.

    D_i = (w_i - w_g) min(1, clip / ||w_i - w_g||),   w <- w_g + (sum over S of D_i) / m + N(0, (noise clip / m)^2 I)

m is the planned cohort size, a constant (with `participation: bernoulli` the expected one). A lost upload counts as a
zero update: dividing by the number of arrivals would let one client's failure rescale all others, and the noise would
no longer cover it. For the same reason clients have equal weights, whatever `weighting` says, and noise is added even
in a round without any upload.

The accountant. Neighboring data sets differ in all data of one client, N being public ("replace one"), so the sum changes by at
most 2 clip and the noise is noise/2 times that sensitivity. Over T rounds two bounds hold, both computed by Google's
dp-accounting; the smaller one is reported:
    - cohorts are fixed-size samples without replacement: Renyi accounting (Wang, Balle, Kasiviswanathan 2019);
      or with `participation: bernoulli` each client is in a cohort independently: accounting by the privacy loss
      distribution of the Poisson-subsampled Gaussian (Koskela et al. 2020), whose two mixtures are q N(+-clip) + (1-q) N(0);
    - for any cohorts: T Gaussian mechanisms equal one with noise/sqrt(T), exactly (Balle and Wang 2018).
With full participation only the second holds. The same where clients keep state (personal regions, client state of parts):
their uploads then reveal earlier cohorts, and sampling hides a client only while cohorts are secret. The same on real
machines, where every site has the recipe, and its seed determines the cohorts.

What epsilon covers: the weights after every round, including the final ones, against somebody who knows neither
cohorts nor seed. What it does not cover: the logs of the run folder (train_loss, cohorts, lost, clients' accuracies),
checkpoints and client state, which belong to the simulation; selecting hyper-parameters or a best round by results;
the mean and deviation of `data.normalize: set`, which are computed on all training samples and assumed public
(otherwise give two lists, or none). The noise is `server.noise`. In a simulation it comes from the seed, so that runs
repeat; it is not private, since anyone who knows the seed can subtract it. On real machines it comes from the
operating system, so two runs differ, and the server is trusted to add it. It is rounded to float32, as the weights
are; attacks on the rounding are not considered.

Refused: parts whose clients upload more than weights (controls, norms), parts that use single clients' models at the
server (queries that train, distillation), shared statistics of normalizers. Personal regions never leave their
client.

Defaults: clip = 1 and noise = 1 are starting points, not a recommendation; delta = N^-1.1. With noise = 0 updates are
clipped but nothing is private: epsilon is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedloom.errors import FedloomError
from fedloom.extras import install
from fedloom.methods.api.context import RunPlan, ServerContext
from fedloom.methods.api.hyperparameters import NonNegative, Positive
from fedloom.methods.api.part import Allows, Part
from fedloom.methods.api.search import Range, Span

SAMPLED, ANY = "sampling without replacement, Renyi", "whoever takes part, exact Gaussian"
BERNOULLI = "Bernoulli sampling, privacy loss distribution"
LEAST = 0.5  # noise below which the distribution takes long, for an epsilon that protects nobody
INTERVAL = 1e-3  # of the distribution's steps; coarser ones give a larger epsilon


class DP(Part):
    """Clipped updates, averaged with Gaussian noise: client-level differential privacy."""

    paper = "McMahan et al. 2018, DP-FedAvg"
    search_ranges: ClassVar[Mapping[str, Range]] = {
        "clip": Span(0.1, 10.0, log=True, source="a decade around the default of 1; the noise is a matter of privacy")
    }
    always: ClassVar[bool] = True
    bounds: ClassVar[bool] = True  # by clipping; dropping a client because of others' uploads would invalidate epsilon
    allows: ClassVar[Allows | None] = Allows(
        frozenset(
            {"build", "regions", "phases", "loss", "regularizer", "mix_share", "gradient", "correct_gradient"}
            | {"before_training", "after_training", "extra_training", "personalize", "own_logits"}
            | {"client_state", "server_state", "broadcast", "served_weights", "check", "summary"}
            | {"queries", "answer", "final_tensors", "finalize"}  # `check` refuses replies
        ),
        otherwise="which dp would neither clip nor hide",
    )
    clip: Positive = 1.0
    """largest norm of an update"""
    noise: NonNegative = 1.0
    """deviation of the noise, in units of clip / cohort size"""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """probability that the guarantee may fail; null: N^-1.1 of N clients"""

    def check(self, plan: RunPlan) -> None:
        if plan.statistics:
            raise FedloomError(
                "averaged statistics of normalizers would be shared without clipping or noise; set bn to batch or "
                "local, or choose a net without them"
            )
        if plan.queried:
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

    def aggregate(self, server: ServerContext) -> Tensor:
        w, m = server.weights, server.task.cohort
        total = torch.zeros_like(w)
        for w_i in server.uploads:
            move = w_i - w
            norm = torch.linalg.vector_norm(move.double())
            total += move * torch.clamp(self.clip / (norm + 1e-12), max=1.0).to(move.dtype)
        if self.noise:
            total += self.noise * self.clip * server.noise(len(w))
        return w + total / m

    def summary(self, plan: RunPlan) -> dict[str, Any]:
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
        if plan.sampling is not None:
            facts["sampling"] = f"Bernoulli, probability {plan.sampling:g}"
        sampled = task.cohort < task.clients if plan.sampling is None else plan.sampling < 1
        amplified = sampled and not plan.stateful and not plan.known_cohorts
        facts["bounds"] = bounds(self.noise, plan, delta, amplified)
        if not amplified and sampled:
            why = "clients keep state" if plan.stateful else "every site knows the seed"
            facts["note"] = f"{why}, so that cohorts are no secret: sampling is not counted on"
        return {"epsilon": min(facts["bounds"].values()), "delta": delta, "privacy": facts}


def bounds(noise: float, plan: RunPlan, delta: float, amplified: bool) -> dict[str, float]:
    """Epsilon of the run's Gaussian mechanisms; if `amplified`, also by sampling. `noise`: over the norm of one update."""
    library, task = _library(), plan.task
    multiplier = (
        noise / 2
    )  # over the sensitivity: replacing one client's update moves the sum by at most twice its norm
    epsilons = {ANY: float(library.get_epsilon_gaussian(multiplier / math.sqrt(task.rounds), delta))}
    relation = library.NeighboringRelation.REPLACE_ONE
    if amplified and plan.sampling is not None and noise >= LEAST:
        losses = library.pld.PLDAccountant(relation, INTERVAL if noise < 2 else INTERVAL / 10)
        losses.compose(library.PoissonSampledDpEvent(plan.sampling, library.GaussianDpEvent(noise)), task.rounds)
        epsilons[BERNOULLI] = float(losses.get_epsilon(delta))
    elif amplified and plan.sampling is None:
        accountant = library.rdp.RdpAccountant(neighboring_relation=relation)
        event = library.SampledWithoutReplacementDpEvent(task.clients, task.cohort, library.GaussianDpEvent(multiplier))
        accountant.compose(event, task.rounds)
        epsilons[SAMPLED] = float(accountant.get_epsilon(delta))
    return {name: value for name, value in epsilons.items() if math.isfinite(value)}


def _library() -> Any:
    try:
        import_module("dp_accounting.rdp")
        import_module("dp_accounting.pld")
        return import_module("dp_accounting")
    except ImportError:
        raise FedloomError(
            f"its accountant is the dp-accounting library, which is missing: {install('privacy')}"
        ) from None
