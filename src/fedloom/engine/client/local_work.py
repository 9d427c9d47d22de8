"""How much a client trains in a round: a function of recipe, round and client, so server and nodes compute the same."""

from __future__ import annotations

from fedloom.engine.client.purposes import WORK
from fedloom.methods.api.context import Phase
from fedloom.methods.api.part import Method
from fedloom.recipe import Recipe, span
from fedloom.rng import numpy_generator


def local_work(recipe: Recipe, client: int | None, round: int) -> Phase:
    """Epochs or steps; uniform over the recipe's range, both ends included, if it has one. `client`: None for the server."""
    least, most = span(recipe.work)
    amount = least
    if least < most:
        who = "server" if client is None else client
        amount = int(numpy_generator(recipe.seed, WORK, round, who).integers(least, most, endpoint=True))
    return Phase(amount) if recipe.steps is None else Phase(steps=amount)


def local_phases(method: Method, work: Phase) -> tuple[Phase, ...]:
    """A client's local work, as the part that claims `phases` arranges it."""
    arranger = method.the("phases")
    return tuple(arranger.phases(work.epochs)) if arranger else (work,)
