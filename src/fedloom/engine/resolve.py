"""What `auto` means: decided once, when a run starts, by fixed rules without timing, and stored in the run's recipe.

The rule of `precision: auto` is in precision.py, that of `kernels: auto` in kernels.py, that of `vmap: auto` in
client/vmap/choose.py.
"""

from __future__ import annotations

from fedloom.engine.client.vmap.choose import choose_vmap
from fedloom.engine.experiment import Experiment
from fedloom.engine.kernels import check_kernels, choose_kernels
from fedloom.engine.precision import choose_precision
from fedloom.nets.kernels.use import use_native


def resolve(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """The experiment with a resolved recipe, and a note for the user about every decision."""
    recipe, notes = experiment.recipe, []
    if recipe.precision == "auto":
        precision, reason = choose_precision(recipe, experiment.program.net, experiment.program.task.inputs)
        notes.append(f"precision: auto is {precision} here: {reason}")
        experiment = experiment.with_recipe(recipe.changed(precision=precision))
    check_kernels(recipe, experiment.program.net)
    if recipe.kernels == "auto":
        kernels, why = choose_kernels(experiment.recipe, experiment.program.net)
        if why:
            notes.append(f"kernels: auto is {kernels} here: {why}")
        if kernels == "native":
            use_native(experiment.program.net)
        experiment = experiment.with_recipe(experiment.recipe.changed(kernels=kernels))
    if recipe.vmap != "off":
        vmap, reason = choose_vmap(experiment)
        if recipe.vmap == "auto":
            notes.append(f"vmap: auto is {vmap} here: {reason}")
        experiment = experiment.with_recipe(experiment.recipe.changed(vmap=vmap))
    return experiment, notes
