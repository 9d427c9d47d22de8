"""The commands of `fedloom flower`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from fedloom.cli import complete, console
from fedloom.cli.console import line as _say
from fedloom.cli.outcome import Outcome
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe, assign, read_recipe
from fedloom.recipe import recipe as checked_recipe

if TYPE_CHECKING:
    from fedloom.deploy.flower.plan import DisclosurePlan, PlanRow
    from fedloom.engine.sites import Where

Given = Annotated[
    Path,
    Argument(metavar="RECIPE", help="a YAML file", show_default=False, autocompletion=complete.recipe_file),
]
Setting = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="override a field of the recipe: a.b=value",
        metavar="FIELD=VALUE",
        show_default=False,
        autocompletion=complete.field,
    ),
]


def _recipe(path: Path, settings: list[str] | None, without_data: bool = False) -> Recipe:
    fields = read_recipe(path)
    for setting in settings or []:
        assign(fields, setting)
    if without_data:
        return checked_recipe(fields)

    from fedloom.engine.given import given_recipe

    return given_recipe(fields)


def init(
    directory: Annotated[Path, Argument(metavar="DIR", help="a new folder for the app", show_default=False)],
    given: Given,
    sites: Annotated[
        bool, Option("--sites", help="every node has its own data (default: its share of the recipe's)")
    ] = False,
    test: Annotated[
        str | None, Option(help="with --sites: an npz with test samples for the server", show_default=False)
    ] = None,
    shape: Annotated[
        str | None,
        Option(
            help="with --sites, if the recipe names no data: shape of an input: 3x32x32 of images, 30 or 6x128 of features, "
            "64 of tokens",
            show_default=False,
        ),
    ] = None,
    classes: Annotated[
        str | None,
        Option(help="with --shape: number of classes, or their names separated by commas", show_default=False),
    ] = None,
    scale: Annotated[
        float | None, Option(help="with --shape of images: inputs are x / scale, for example 255", show_default=False)
    ] = None,
    kind: Annotated[str | None, Option(help="with --shape: image | features | tokens", show_default="image")] = None,
    vocabulary: Annotated[
        int | None, Option(help="with --shape of tokens: number of tokens", show_default=False)
    ] = None,
    roster: Annotated[
        str | None, Option(help="a file with the public keys of the sites that may join", show_default=False)
    ] = None,
    set_: Setting = None,
) -> Outcome:
    """Write a Flower app for a recipe; `flwr run DIR` runs it on nodes."""
    if test and not sites:
        raise FedloomError(
            "--test: without --sites the server evaluates on the recipe's own test samples; leave it out"
        )

    from fedloom.deploy.flower import app_template

    inputs = app_template.SiteInputs.of(shape, classes, scale, kind, vocabulary)
    data: Where = "sites" if sites else "split"
    folder, made = app_template.init(directory, _recipe(given, set_), data, test, roster, inputs)
    _say(f"app: {folder}")
    _say(f"recipe: {folder / app_template.PACKAGE / 'recipe.yaml'} (digest {made.digest()})")
    if sites and inputs is None and made.data.normalize != "none":
        _say("data.normalize: written as numbers, since nobody sees the samples of all sites")
    _say(f"run folder: {folder / 'run'} (on the server)")
    return Outcome({"path": folder, "digest": made.digest(), "run": folder / "run"}, [folder])


def sites(
    directory: Annotated[Path, Argument(metavar="DIR", help="a folder for the files", show_default=False)],
    given: Given,
    set_: Setting = None,
) -> Outcome:
    """Write the data of each client of a recipe to a file of its own, for a trial with --sites."""
    from fedloom.deploy.flower import app_template

    return _written(app_template.write_sites(directory, _recipe(given, set_)))


def plan(
    given: Given,
    shape: Annotated[
        str | None,
        Option(help="shape of an input, such as 1x28x28, if the data are not on this machine", show_default=False),
    ] = None,
    classes: Annotated[int | None, Option(help="with --shape: number of classes", show_default=False)] = None,
    kind: Annotated[str | None, Option(help="with --shape: image | features | tokens", show_default="image")] = None,
    vocabulary: Annotated[
        int | None, Option(help="with --shape of tokens: number of tokens", show_default=False)
    ] = None,
    set_: Setting = None,
) -> Outcome:
    """List exactly what leaves a site, what stays there, and what it receives."""
    from fedloom.deploy.flower import app_template
    from fedloom.deploy.flower.app import canonical, check_federated
    from fedloom.deploy.flower.plan import blank_experiment
    from fedloom.deploy.flower.plan import plan as plan_of
    from fedloom.engine.experiment import prepare

    made = canonical(_recipe(given, set_, without_data=shape is not None))
    if (shape is None) != (classes is None):
        raise FedloomError("plan: --shape and --classes go together")
    if shape is not None and classes is not None:
        if classes < 2:
            raise FedloomError(f"--classes: {classes}; there must be at least 2")
        scale = 255.0 if kind in (None, "image") else None
        inputs = app_template.SiteInputs.of(shape, str(classes), scale, kind, vocabulary)
        assert inputs is not None
        experiment = blank_experiment(made, inputs.spec, classes)
    else:
        experiment = prepare(made)
    check_federated(experiment)
    listed = plan_of(experiment, made)
    _show(listed)
    return Outcome(_plan_data(listed))


def _plan_data(listed: DisclosurePlan) -> dict[str, Any]:
    def rows(rows: list[PlanRow]) -> list[dict[str, Any]]:
        return [{"name": row.name, "type": row.kind, "bytes": row.nbytes, "what": row.what} for row in rows]

    return {
        "digest": listed.recipe.digest(),
        "leaves": {title: rows(section) for title, section in listed.sections.items()},
        "stays": rows(listed.stays),
        "is_sent": rows(listed.down),
        "bytes_up": listed.up_bytes,
    }


def _show(listed: DisclosurePlan) -> None:
    from fedloom.report.table import size

    made = listed.recipe
    _say(f"recipe {made.digest()}: {made.method}, {made.rounds} rounds, {made.clients} clients")
    for title, rows in listed.sections.items():
        console.out.print(_table(f"leaves a site {title}", rows))
    console.out.print(_table("stays at the site", listed.stays))
    console.out.print(_table("is sent to a site in a round", listed.down))
    _say(
        f"up: {size(listed.up_bytes)} per client and round. Nothing else is sent, and the server accepts nothing else."
    )


def _table(title: str, rows: list[PlanRow]) -> Table:
    from fedloom.report.table import plain_table, size

    table = plain_table(title, ["name", "type", "what", "bytes"], 3)
    for row in rows:
        table.add_row(escape(row.name), row.kind, escape(row.what), size(row.nbytes) if row.nbytes else "")
    return table


def certs(
    directory: Annotated[Path, Argument(metavar="DIR", help="a new folder for the keys", show_default=False)],
    nodes: Annotated[int, Option(help="number of nodes")] = 3,
    host: Annotated[
        list[str] | None, Option(help="name or IP of the SuperLink", show_default="localhost, 127.0.0.1")
    ] = None,
) -> Outcome:
    """Create TLS certificates, SuperNode keys and the roster of their public keys, for a trial."""
    if nodes < 1:
        raise FedloomError(f"--nodes: must be at least 1 (got {nodes})")
    names = [f"site-{number}" for number in range(nodes)]
    return _written(_keys("certs")[0].make(directory, names, host or ["localhost", "127.0.0.1"]))


def _written(paths: list[Path]) -> Outcome:
    for path in paths:
        _say(str(path))
    return Outcome({"paths": paths}, paths)


def _keys(command: str) -> tuple[ModuleType, ModuleType]:
    """The modules that need cryptography, which comes with an extra."""
    try:
        from fedloom.deploy.keys import certs, roster
    except ImportError:
        from fedloom.extras import install

        raise FedloomError(f"{command}: the package cryptography is missing: {install('flower')}") from None
    return certs, roster


def roster(
    path: Annotated[Path, Argument(metavar="ROSTER", help="a new file", show_default=False)],
    keys: Annotated[
        list[Path], Argument(metavar="PUB...", help="public keys (P-384, OpenSSH), client 0 first", show_default=False)
    ],
) -> Outcome:
    """Write a roster of the sites' own public keys; each site checks it and keeps its own copy."""
    lines = list(_keys("roster")[1].write_roster(path, keys))
    for line in lines:
        _say(line)
    return Outcome({"path": path, "lines": lines}, [path])


def check(
    path: Annotated[Path, Argument(metavar="ROSTER", help="a roster file", show_default=False)],
    keys: Annotated[
        list[Path] | None,
        Argument(metavar="[KEY...]", help="private keys that it should know", show_default=False),
    ] = None,
) -> Outcome:
    """Check a roster, and private keys against it; sites compare the output."""
    lines = list(_keys("check")[1].check(path, keys or []))
    for line in lines:
        _say(line)
    return Outcome({"path": path, "lines": lines})


def personalize(
    state: Annotated[Path, Argument(help="the state folder of this node", show_default=False)],
    part: Annotated[str, Option(help="full | head | body | adapter | alternate")] = "full",
    epochs: Annotated[int, Option(help="epochs of fine-tuning")] = 5,
    lr: Annotated[float, Option(help="learning rate of fine-tuning")] = 0.001,
    data: Annotated[str | None, Option(help="the site's data, if they moved", show_default=False)] = None,
    weights: Annotated[
        Path | None,
        Option(help="the server's final.safetensors, if the site missed the end of the run", show_default=False),
    ] = None,
) -> Outcome:
    """On a node: fine-tune the final model on the site's own data and store it. Nothing is sent."""
    from fedloom.deploy.site.personalize import personalize as tune  # imports flwr
    from fedloom.evaluation.metrics import find_metric

    result = tune(state, part, epochs, lr, data, weights)  # type: ignore[arg-type]
    for name, values in result.metrics.items():
        metric, first, last = find_metric(name), values[0], values[-1]
        if first is None or last is None:
            continue
        unit = " %" if metric.format == "percent" else ""
        _say(
            f"{metric.title} on the site's own test samples: {metric.text(first)}{unit} before, "
            f"{metric.text(last)}{unit} after {epochs} epochs"
        )
    _say(f"personal model: {result.model}")
    return Outcome({"metrics": result.metrics, "part": part, "epochs": epochs, "lr": lr}, [state])


COMMANDS = {
    "init": init,
    "sites": sites,
    "plan": plan,
    "certs": certs,
    "roster": roster,
    "check": check,
    "personalize": personalize,
}
