"""A frozen base, beside which adapters are trained, is never sent: every site builds it from the recipe, by seed or `init`.

The server sends its digest alone. A site whose base differs (another file, another version of torch) does not join.
"""

from __future__ import annotations

from torch import Tensor

from fedloom.deploy.messages.schema import FederationInfo
from fedloom.deploy.site.config import NodeConfig
from fedloom.deploy.site.local_data import site_experiment
from fedloom.deploy.site.private import Refusal
from fedloom.engine.threads import one_thread
from fedloom.errors import FedloomError
from fedloom.io.digest import digest
from fedloom.recipe import Recipe


def own_base(recipe: Recipe, node: NodeConfig, info: FederationInfo, expected: str) -> dict[str, Tensor]:
    """The tensors of the base as this site builds them; refuses if they are not those with the expected digest."""
    try:
        with one_thread():
            program = site_experiment(recipe, node, info, None).program
    except FedloomError as error:
        if not str(error).startswith("init:"):  # why loading data failed is not for the server to know
            raise
        raise Refusal(f"cannot build the frozen base: {error}") from None
    tensors = program.layout.tensors(program.initial)
    base = {name: tensors[name] for name in program.layout.regions.base}
    if digest(base) != expected:
        source = f"the file that init names, {recipe.init}" if recipe.init else f"the seed {recipe.seed}"
        raise Refusal(f"builds another frozen base than the server's from {source}: file or torch version differ")
    return base
