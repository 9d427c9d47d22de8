"""The command that chooses rates and hyper-parameters on validation data: `fedloom tune`."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from fedloom.cli import complete, console
from fedloom.cli.flags import RecipeFile, recipe_fields, recipe_flags
from fedloom.cli.outcome import Outcome

Methods = 'methods; ? leaves a value open: "fedavg; scaffold; dr + fd(beta=?); fn @ epochs=2"'


@recipe_flags
def tune(
    recipe: RecipeFile = None,
    methods: Annotated[str, Option(help=Methods, autocompletion=complete.method)] = "fedavg; fn; babu; dr + fd",
    over: Annotated[
        list[str] | None,
        Option(
            help="lr=log:0.003..3 | fd.beta=0.3..0.99 | batch=16,32: what is tuned; repeat for more",
            show_default="every method's own ranges",
            metavar="SETTING=RANGE",
            autocompletion=complete.field,
        ),
    ] = None,
    trials: Annotated[int | None, Option(help="number of trials of every method", show_default="16")] = None,
    budget: Annotated[
        str | None,
        Option(help="in place of trials, for all methods together: 2h | 90m | 5000rounds", show_default=False),
    ] = None,
    halving: Annotated[bool, Option(help="stop the worse half of the trials after 1/4 and 1/2 of the rounds")] = True,
    **flags: Any,
) -> Outcome:
    """Choose rates and hyper-parameters on validation data, with the same budget for every method."""
    fields = recipe_fields(recipe, flags, methods)

    from fedloom import api
    from fedloom.report.personal import print_wide
    from fedloom.report.sheet import rich_table
    from fedloom.report.tuning import TuningBar, next_command, tuning_sheet

    with TuningBar(console.out) as bar:
        study = api.tune(methods, over or [], trials, budget, halving=halving, given=fields, observer=bar)
    print_wide(console.out, rich_table(tuning_sheet(study)))
    for name, warnings in study.warnings.items():
        for warning in warnings:
            console.out.print(
                f"warning: {name}: {warning}", highlight=False, markup=False, soft_wrap=True, style="yellow"
            )
    console.line(
        f"trials: {study.root}/trials.csv; choices: {study.root}/tuned.json; page: fedloom report {study.root}"
    )
    following = next_command(study) if study.best else None
    if following:
        console.line(f"next: {following}")
    data = {
        "path": study.root,
        "best": study.best,
        "warnings": study.warnings,
        "trials": study.rows(),
        "next": following,
    }
    return Outcome(data, [study.root])
