"""Names of methods in tables and on the page: what the user typed, or a display name, as in `--label "dr + fd=FedDr+"`.

    read_labels(["dr + fd=FedDr+"], ["fedavg", "dr + fd(beta=0.8) @ lr=0.3"])   -> {"dr + fd(beta=0.8) @ lr=0.3": "FedDr+"}

The text before the = is a method as it was given, without its settings behind the @, or its parts alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.errors import FedloomError, shown
from fedloom.io.files import read_json
from fedloom.methods import Method, method

FILE = "labels.json"  # names by folder: of a comparison's methods, in their order, or of the run that the file is in
HERE = "."  # the folder that the file is in
LONGEST = 80
Labels = Sequence[str] | Mapping[str, str]


def read_labels(given: Labels, rows: Sequence[str], required: bool = True) -> dict[str, str]:
    """The display name of each row that is given one. `required`: a name of a method that is not there is refused."""
    pairs = list(given.items()) if isinstance(given, Mapping) else [_cut(text, rows) for text in given]
    labels: dict[str, str] = {}
    for written, name in pairs:
        if not name.strip() or len(name) > LONGEST or not name.isprintable():
            raise FedloomError(f"label: the name of {shown(written)} must have 1 to {LONGEST} printable characters")
        named = named_rows(written, rows)
        if not named and not required and is_method(written):
            continue
        if not named:
            raise FedloomError(f"label: {shown(written)} is none of the methods, which are {'; '.join(rows)}")
        if len(named) > 1:
            raise FedloomError(
                f"label: {shown(written)} could be {' or '.join(named)}; write out the one that is meant"
            )
        if named[0] in labels:
            raise FedloomError(f"label: {named[0]} is named twice")
        labels[named[0]] = name.strip()
    refuse_equal_names([labels.get(row, row) for row in rows])
    return labels


def refuse_equal_names(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedloomError(f"label: two methods would be called {shown(twice[0])}; give each a name of its own")


def named_rows(written: str, rows: Sequence[str]) -> list[str]:
    """The rows that a text means: the one that says the same; or else those of the same sum, or of the same parts."""
    if same := [row for row in rows if _plain(row) == _plain(written)]:
        return same
    if "@" in written:
        return []
    for identity in (_sum, _parts):
        wanted = identity(written)
        if wanted is not None and (named := [row for row in rows if identity(row) == wanted]):
            return named
    return []


def stored_names(run: Path) -> list[str]:
    """What a comparison calls the method of one of its runs, then what was typed for the run, as far as they are stored."""
    above = run.resolve().parents
    places = [(root, place.name) for root, place in zip(above[1:3], above, strict=False)]  # a sweep has one more level
    stored = [names_in(root).get(folder) for root, folder in (*places, (run, HERE))]
    return [name[:LONGEST] for name in stored if name]


def name_of(run: Path, method: str) -> str:
    """What the user called the method of a run: a display name, or what was typed. `method`: what it is called otherwise."""
    return next(iter(stored_names(run)), method)


def names_in(folder: Path) -> dict[str, str]:
    """Names by folder, in the order of the methods; empty without a readable file."""
    names = read_json(folder / FILE)
    return {k: v for k, v in names.items() if isinstance(v, str)} if isinstance(names, dict) else {}


def is_method(row: str) -> bool:
    """Whether a name is a method, with or without settings, rather than a display name."""
    return _read(without_unknown(row)) is not None


def _cut(text: str, rows: Sequence[str]) -> tuple[str, str]:
    """At the = whose left side is a method: hyper-parameters, settings and names may hold others."""
    places = [place for place, sign in enumerate(text) if sign == "="]
    if not places:
        raise FedloomError(f'label: cannot read {shown(text)}; write METHOD=NAME, as in "dr + fd=FedDr+"')
    place = next((place for place in reversed(places) if named_rows(text[:place], rows)), places[0])
    return text[:place].strip(), text[place + 1 :].strip()


def _plain(row: str) -> str:
    return re.sub(r"\s+", "", row)


def _sum(row: str) -> str | None:
    read = None if "?" in row else _read(row)
    return None if read is None else read.spelled()


def _parts(row: str) -> str | None:
    read = _read(without_unknown(row))
    return None if read is None else " + ".join(part.name for part in read.parts)


def without_unknown(row: str) -> str:
    """A method without hyper-parameters that tuning chooses: `dr + fd(beta=?)` is `dr + fd`."""
    text = re.sub(r"[\w-]+\s*=\s*\?\s*(,\s*|(?=\)))", "", row)
    return re.sub(r"\(\s*\)", "", re.sub(r",\s*\)", ")", text))


def _read(row: str) -> Method | None:
    try:
        return method(row.partition("@")[0])
    except FedloomError:
        return None
