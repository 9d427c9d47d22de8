"""What sites claim about their data before the first round, and the operator's confirmation.

The claims decide a site's weight in the average and the size of the net, and cannot be checked from outside. So they are
bounded by the recipe (`deploy.max_samples`, `deploy.max_classes`, `deploy.max_share`) and printed as a table, and a new
federation starts only if the app's settings contain their fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from fedloom.deploy.messages.schema import SiteFacts
from fedloom.engine.server.shares import client_shares
from fedloom.engine.sites import joined_names
from fedloom.errors import FedloomError, cleaned
from fedloom.recipe import Deploy, Recipe

Shape = tuple[int, int, int]


def excessive(facts: SiteFacts, deploy: Deploy) -> str | None:
    """Why a claim is not accepted."""
    for what, count in (("train", facts.train), ("test", facts.test)):
        if count < 1:
            return f"it has no {what} images"
        if count > deploy.max_samples:
            return f"it claims {count} {what} images, and deploy.max_samples is {deploy.max_samples}"
    if len(facts.class_names) > deploy.max_classes:
        return f"it claims {len(facts.class_names)} classes, and deploy.max_classes is {deploy.max_classes}"
    if len(set(facts.class_names)) < len(facts.class_names):
        return "it claims a class twice"
    return None


def agreed(claims: Sequence[SiteFacts], deploy: Deploy) -> tuple[Shape, tuple[str, ...]]:
    """The shape that all sites share, and the union of their classes."""
    for client, facts in enumerate(claims):
        if facts.shape != claims[0].shape:
            raise FedloomError(
                f"client {client} ({facts.name}) has images of {_by(facts.shape)}, and client 0 ({claims[0].name}) of "
                f"{_by(claims[0].shape)}; all sites must have one shape (data.resize brings images to one size)"
            )
    names = joined_names([facts.class_names for facts in claims])
    if len(names) > deploy.max_classes:
        raise FedloomError(
            f"the sites together claim {len(names)} classes, and deploy.max_classes is {deploy.max_classes}"
        )
    return claims[0].shape, names


def fingerprint(claims: Sequence[SiteFacts]) -> str:
    """Hash of all that the table shows, and of every class name."""
    content = [[facts.name, facts.train, facts.test, facts.shape, facts.class_names] for facts in claims]
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
    rows = [("client", "name", "train", "test", "share", "shape", "classes")]
    for client, (facts, share) in enumerate(zip(claims, shares, strict=True)):
        count = len(facts.class_names)
        classes = f"{count}: {cleaned(', '.join(facts.class_names[:20]), 60)}"
        numbers = str(facts.train), str(facts.test), f"{100 * share:.1f} %"
        rows.append((str(client), cleaned(facts.name, 24) or "-", *numbers, _by(facts.shape), classes))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return ["  ".join((*(cell.ljust(n) for cell, n in zip(row, widths, strict=False)), row[6])) for row in rows]


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))
