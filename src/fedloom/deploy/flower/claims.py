"""What sites claim about their data before the first round, and the operator's confirmation.

The claims decide a site's weight in the average and the size of the net, and cannot be checked from outside. So they are
bounded by the recipe (`deploy.max_samples`, `deploy.max_classes`, `deploy.max_share`) and printed as a table, and a new
federation starts only if the app's settings contain their fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedloom.data import InputSpec
from fedloom.deploy.messages.schema import SiteFacts
from fedloom.engine.server.shares import client_shares
from fedloom.engine.sites import joined_names
from fedloom.errors import FedloomError, cleaned
from fedloom.recipe import Deploy, Recipe


def excessive(facts: SiteFacts, deploy: Deploy) -> str | None:
    """Why a claim is not accepted."""
    for what, count in (("train", facts.train), ("test", facts.test)):
        if count < 1:
            return f"it has no {what} samples"
        if count > deploy.max_samples:
            return f"it claims {count} {what} samples, and deploy.max_samples is {deploy.max_samples}"
    if len(facts.class_names) > deploy.max_classes:
        return f"it claims {len(facts.class_names)} classes, and deploy.max_classes is {deploy.max_classes}"
    if len(set(facts.class_names)) < len(facts.class_names):
        return "it claims a class twice"
    return None


def agreed(claims: Sequence[SiteFacts], deploy: Deploy) -> tuple[InputSpec, tuple[str, ...]]:
    """The inputs that all sites share, with the largest vocabulary, and the union of their classes."""
    specs = [facts.inputs.value() for facts in claims]
    for client, (facts, spec) in enumerate(zip(claims, specs, strict=True)):
        if _compared(spec) != _compared(specs[0]):
            raise FedloomError(
                f"client {client} ({facts.name}) has {spec}, and client 0 ({claims[0].name}) {specs[0]}; "
                "all sites must have the same inputs (data.resize brings images to one size, schema= columns to one "
                "encoding)"
            )
    _check_schemas(claims)
    names = joined_names([facts.class_names for facts in claims])
    if len(names) > deploy.max_classes:
        raise FedloomError(
            f"the sites together claim {len(names)} classes, and deploy.max_classes is {deploy.max_classes}"
        )
    return replace(specs[0], vocabulary=max(spec.vocabulary for spec in specs)), names


def _compared(spec: InputSpec) -> tuple[object, ...]:
    return spec.kind, spec.shape, spec.dtype, spec.padding


def _check_schemas(claims: Sequence[SiteFacts]) -> None:
    """Equal shapes can mean different things: columns in another order, or other means."""
    made = [(client, facts) for client, facts in enumerate(claims) if facts.schema_digest]
    for client, facts in made[1:]:
        if facts.schema_digest != made[0][1].schema_digest:
            raise FedloomError(
                f"client {client} ({facts.name}) and client {made[0][0]} ({made[0][1].name}) prepare their rows by different "
                "schemas; give all sites one file with schema=PATH.json in their data"
            )


def fingerprint(claims: Sequence[SiteFacts]) -> str:
    """Hash of all that the table shows, and of every class name."""
    content = [
        [facts.name, facts.train, facts.test, facts.inputs.model_dump(), facts.schema_digest, facts.class_names]
        for facts in claims
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def confirm(claims: Sequence[SiteFacts], recipe: Recipe, given: str, say: Callable[[str], None]) -> None:
    """Print the claims; raise an error unless they are the ones that the operator confirmed."""
    for line in table(claims, recipe):
        say(line)
    current = fingerprint(claims)
    say(f"fingerprint of these claims: {current}")
    if given == current:
        return
    problem = "are not those that were confirmed" if given else "are not confirmed"
    raise FedloomError(
        f'app config: the sites\' claims {problem}; if the table above is right, set confirm = "{current}" under '
        f"[tool.flwr.app.config] in pyproject.toml, or start again with --run-config 'confirm=\"{current}\"'"
    )


def table(claims: Sequence[SiteFacts], recipe: Recipe) -> list[str]:
    """One line per client. Shares are those of a round in which all clients take part."""
    shares = client_shares([facts.train for facts in claims], recipe)
    rows = [("client", "name", "train", "test", "share", "inputs", "classes")]
    for client, (facts, share) in enumerate(zip(claims, shares, strict=True)):
        count = len(facts.class_names)
        classes = f"{count}: {cleaned(', '.join(facts.class_names[:20]), 60)}"
        numbers = str(facts.train), str(facts.test), f"{100 * share:.1f} %"
        rows.append((str(client), cleaned(facts.name, 24) or "-", *numbers, _about(facts.inputs.value()), classes))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return ["  ".join((*(cell.ljust(n) for cell, n in zip(row, widths, strict=False)), row[6])) for row in rows]


def _about(spec: InputSpec) -> str:
    return f"{spec.kind} {'x'.join(map(str, spec.shape))} {spec.dtype}"
