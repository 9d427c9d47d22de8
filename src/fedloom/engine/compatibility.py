"""Whether the parts of a method fit the local training that the recipe asks for; a part that does not is refused by name."""

from __future__ import annotations

from fedloom.errors import FedloomError
from fedloom.methods import Method
from fedloom.recipe import Recipe


def check_local_training(method: Method, recipe: Recipe) -> None:
    optimizer = recipe.optimizer
    for part in method.parts:
        if not part.plain_sgd:
            continue
        if optimizer.name != "sgd":
            raise FedloomError(
                f"optimizer.name: {part.name} {part.plain_sgd}, which holds for sgd and not for {optimizer.name}; "
                f"set it to sgd, or leave {part.name} out"
            )
        if optimizer.keep and recipe.momentum:
            raise FedloomError(
                f"optimizer.keep: {part.name} {part.plain_sgd}, which holds where momentum starts at zero in every "
                f"round; set it to false, or leave {part.name} out"
            )
    arranger = method.the("phases")
    if arranger is not None and recipe.steps is not None:
        raise FedloomError(
            f"steps: {arranger.name} arranges local epochs in phases, so local work is counted in epochs; set epochs "
            f"instead, or leave {arranger.name} out"
        )
