"""Write a method: a regularizer in a few lines, added to others and compared with them.

    python examples/write_a_method.py
    fedloom run --parts examples/write_a_method.py --method "scaffold + evenfeatures"     # on the command line

docs/extending.md lists all hooks.
"""

from __future__ import annotations

from torch import Tensor

import fedloom as fl
from fedloom.methods import Batch, ClientContext


class EvenFeatures(fl.Part):
    """Keeps the norms of a batch's features close to their mean, so that no class dominates the head."""

    paper = "an example"
    strength: float = 0.1  # a field is a hyper-parameter: evenfeatures(strength=0.5)
    search_ranges = {"strength": fl.Span(0.01, 1.0, log=True, source="a guess")}  # noqa: RUF012 where fl.tune looks

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        norms = batch.features.norm(dim=1)
        return self.strength * (norms / norms.mean().detach() - 1).square().mean()


def main() -> None:
    comparison = fl.compare(
        "fedavg; evenfeatures; scaffold; scaffold + evenfeatures(strength=0.5)",
        seeds=2,
        split="shards:2",
        clients=20,
        rounds=10,
        name="write-a-method",
    )
    for method in comparison.rows:
        print(f"{method:40} {100 * comparison.mean(method, 'global'):.1f} %")


if __name__ == "__main__":
    main()
