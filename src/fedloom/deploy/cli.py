"""The commands of `fedloom flower`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from fedloom.deploy import certs as certificates
from fedloom.deploy import scaffold
from fedloom.deploy.app import canonical, check_federated, sizes
from fedloom.deploy.plan import Plan, Row, blank
from fedloom.deploy.plan import plan as plan_of
from fedloom.engine.setup import prepare
from fedloom.engine.sites import Where
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe, assign, read_recipe, recipe
from fedloom.report.table import percent, plain_table, size

flower = typer.Typer(help="The same recipe on real machines, with Flower.", no_args_is_help=True)
out = Console()

Given = Annotated[Path, Argument(help="a YAML file", show_default=False)]
Setting = Annotated[list[str] | None, Option("--set", help="a field over the recipe's: a.b=value", show_default=False)]


def _recipe(path: Path, settings: list[str] | None) -> Recipe:
    fields = read_recipe(path)
    for setting in settings or []:
        assign(fields, setting)
    return recipe(fields)


def _say(text: str) -> None:
    out.print(text, highlight=False, markup=False, soft_wrap=True)


@flower.command()
def init(
    directory: Annotated[Path, Argument(metavar="DIR", help="a new folder for the app", show_default=False)],
    given: Given,
    sites: Annotated[
        bool, Option("--sites", help="every node gives its own data, else its share of the recipe's")
    ] = False,
    test: Annotated[
        str | None, Option(help="with --sites: an npz with test images for the server", show_default=False)
    ] = None,
    shape: Annotated[
        str | None,
        Option(help="with --sites: of an image, as 3x32x32, if the recipe names no data", show_default=False),
    ] = None,
    classes: Annotated[
        str | None, Option(help="with --shape: how many classes, or their names with commas", show_default=False)
    ] = None,
    scale: Annotated[
        float | None, Option(help="with --shape: inputs are x / scale, as 255", show_default=False)
    ] = None,
    roster: Annotated[
        str | None, Option(help="a file with the sites' public keys: only they join", show_default=False)
    ] = None,
    set_: Setting = None,
) -> None:
    """Write a small Flower app around a recipe; `flwr run DIR` takes it to nodes."""
    if test and not sites:
        raise FedloomError("--test: without --sites the server tests on the recipe's own test images; leave it out")
    inputs = scaffold.Inputs.of(shape, classes, scale)
    data: Where = "sites" if sites else "split"
    folder, made = scaffold.init(directory, _recipe(given, set_), data, test, roster, inputs)
    _say(f"app: {folder}")
    _say(f"recipe: {folder / scaffold.PACKAGE / 'recipe.yaml'} (digest {made.digest()})")
    if sites and inputs is None and made.data.normalize != "none":
        _say("data.normalize: written out as numbers, since nobody sees all sites' images")
    _say(f"run folder: {folder / 'run'} (on the server)")


@flower.command()
def sites(
    directory: Annotated[Path, Argument(metavar="DIR", help="a folder for the files", show_default=False)],
    given: Given,
    set_: Setting = None,
) -> None:
    """Write what each client of a recipe holds as a file of its own, for a trial with sites."""
    for path in scaffold.write_sites(directory, _recipe(given, set_)):
        _say(str(path))


@flower.command()
def plan(
    given: Given,
    shape: Annotated[
        str | None, Option(help="of an image, as 1x28x28, if the data are elsewhere", show_default=False)
    ] = None,
    classes: Annotated[int | None, Option(help="with --shape: how many classes", show_default=False)] = None,
    set_: Setting = None,
) -> None:
    """List exactly what leaves a site, what stays, and what it gets."""
    made = canonical(_recipe(given, set_))
    if (shape is None) != (classes is None):
        raise FedloomError("plan: --shape and --classes go together")
    if shape is not None and classes is not None:
        if classes < 2:
            raise FedloomError(f"--classes: {classes}; there must be at least 2")
        experiment = blank(made, sizes(shape, "--shape"), classes)
    else:
        experiment = prepare(made)
    check_federated(experiment)
    _show(plan_of(experiment, made))


def _show(found: Plan) -> None:
    _say(
        f"recipe {found.recipe.digest()}: {found.recipe.method}, {found.recipe.rounds} rounds, {found.recipe.clients} clients"
    )
    for title, rows in found.sections.items():
        out.print(_table(f"leaves a site {title}", rows))
    out.print(_table("stays at the site", found.stays))
    out.print(_table("comes to a site in a round", found.down))
    _say(f"up: {size(found.up_bytes)} a client and round. Nothing else is sent, and the server accepts nothing else.")


def _table(title: str, rows: list[Row]) -> Table:
    table = plain_table(title, ["name", "type", "what", "bytes"], 3)
    for row in rows:
        table.add_row(escape(row.name), row.kind, escape(row.what), size(row.nbytes) if row.nbytes else "")
    return table


@flower.command()
def certs(
    directory: Annotated[Path, Argument(metavar="DIR", help="a new folder for the keys", show_default=False)],
    nodes: Annotated[int, Option(help="how many nodes get a key")] = 3,
    host: Annotated[list[str] | None, Option(help="of the SuperLink", show_default="localhost, 127.0.0.1")] = None,
) -> None:
    """Make TLS certificates, SuperNode keys and the roster of their public halves for a trial."""
    if nodes < 1:
        raise FedloomError(f"--nodes: must be at least 1 (got {nodes})")
    names = [f"site-{number}" for number in range(nodes)]
    for path in certificates.make(directory, names, host or ["localhost", "127.0.0.1"]):
        _say(str(path))


def _rosters() -> ModuleType:
    try:
        from fedloom.deploy import roster as found
    except ImportError:
        raise FedloomError('roster: the package cryptography is missing; pip install "fedloom[flower]"') from None
    return found


@flower.command()
def roster(
    path: Annotated[Path, Argument(metavar="ROSTER", help="a new file", show_default=False)],
    keys: Annotated[
        list[Path], Argument(metavar="PUB...", help="public keys (P-384, OpenSSH), client 0 first", show_default=False)
    ],
) -> None:
    """Write the roster of public keys that sites made themselves; each site checks it and keeps its own copy."""
    for line in _rosters().enlist(path, keys):
        _say(line)


@flower.command()
def check(
    path: Annotated[Path, Argument(metavar="ROSTER", help="a roster file", show_default=False)],
    keys: Annotated[
        list[Path] | None, Argument(metavar="[KEY...]", help="private keys that it should list", show_default=False)
    ] = None,
) -> None:
    """Check a roster, and private keys against it; sites compare what it prints."""
    for line in _rosters().check(path, keys or []):
        _say(line)


@flower.command()
def personalize(
    state: Annotated[Path, Argument(help="the state folder of this node", show_default=False)],
    part: Annotated[str, Option(help="full | head | body")] = "full",
    epochs: Annotated[int, Option(help="epochs of fine-tuning")] = 5,
    lr: Annotated[float, Option(help="its learning rate")] = 0.001,
    data: Annotated[str | None, Option(help="where the site's images are now", show_default=False)] = None,
    weights: Annotated[
        Path | None, Option(help="the server's final.safetensors, if it was missed", show_default=False)
    ] = None,
) -> None:
    """On a node: fine-tune the final model on the site's own images and keep it. Nothing is sent."""
    from fedloom.deploy.personal import personalize as tune

    found = tune(state, part, epochs, lr, data, weights)  # type: ignore[arg-type]
    first, last = found.accuracy[0], found.accuracy[-1]
    if first is not None and last is not None:
        _say(
            f"accuracy on the site's own test images: {percent(first)} % before, {percent(last)} % after {epochs} epochs"
        )
    _say(f"personal model: {found.model}")
