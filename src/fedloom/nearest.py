"""An unknown name, answered with the nearest known ones, or plainly where none is near."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import SequenceMatcher
from pathlib import Path

from fedloom.elsewhere import ABSENT, ELSEWHERE
from fedloom.errors import LINE, brief, shown

MOST = 12  # names that are listed
ALIKE = 0.65  # least similarity of a proposal


def near(name: str, known: Iterable[str], kind: str = "", most: int = 1) -> list[str]:
    """Proposals, best first: the same name in another spelling, what other libraries call so, names that begin with it, and
    names that look alike. `kind`: of ELSEWHERE.
    """
    typed, spelled = plain(name), {plain(other): other for other in known}
    if typed in spelled:
        return [spelled[typed]]
    if kind == "methods" and typed in ABSENT:
        return []
    if typed in ELSEWHERE.get(kind, {}):
        return [ELSEWHERE[kind][typed]]
    longer = sorted((other for other in spelled if len(typed) > 2 and other.startswith(typed)), key=len)
    alike = {other: _similarity(typed, other) for other in spelled}
    whole = {other: SequenceMatcher(None, typed, other).ratio() for other in spelled}  # decides between equals
    close = sorted((other for other in spelled if alike[other] >= ALIKE), key=lambda o: (-alike[o], -whole[o]))
    if len(longer) > 1 and most == 1 and not (close and close[0] in longer):
        return []  # an abbreviation of several
    return [spelled[other] for other in dict.fromkeys([*longer, *close])][:most]


def advice(name: str, known: Iterable[str], kind: str, otherwise: str) -> str:
    """`did you mean scaffold?`; `otherwise` where nothing is near."""
    proposals = near(name, known, kind)
    if proposals:
        return f"did you mean {proposals[0]}?"
    return f"fedloom does not have it; {otherwise}" if kind == "methods" and plain(name) in ABSENT else otherwise


def nearest(what: str, name: str, known: Iterable[str], kind: str = "") -> str:
    """`paper 'fedbab' is unknown; did you mean fedbabu? Known are …`"""
    names = list(dict.fromkeys(known))
    proposals = near(name, names, kind, most=3)
    hint = f"; did you mean {' or '.join(proposals)}?" if proposals else "."
    listed = ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
    return f"{what} {shown(name)} is unknown{hint} Known are {listed}"


def unknown_part(name: str, known: Iterable[str]) -> str:
    return f"method: unknown part {shown(name)}; {advice(name, known, 'methods', '`fedloom list methods` shows all')}"


def unknown_model(name: str, known: Iterable[str], prefixes: Iterable[str]) -> str:
    names = list(known)
    hint = f"{advice(name, names, 'models', '')} ".lstrip()
    places = ", ".join(f"{prefix}:NAME" for prefix in prefixes)
    return (
        f"there is no model {shown(name)}: {hint}choose {', '.join(names)}, {places}, package.module:function or "
        "file.py:function"
    )


def unknown_term(spec: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    hint = f"{advice(name, names, 'splits', '')} ".lstrip()
    return f"split {shown(spec)}: there is no term {shown(name)}; {hint}allowed are {', '.join(names)}"


def unknown_metric(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    hint = f"{advice(name, names, 'metrics', '')} ".lstrip()
    return f"metrics: {shown(name)} is unknown; {hint}allowed are {', '.join(names)}"


def unknown_data(
    name: str, known: Iterable[str], files: Mapping[str, object], folder: str | None, forms: Collection[str]
) -> str:
    """`files`: of the folder $FEDLOOM_DATA, by name; `forms`: folder:PATH and others."""
    if path := bare_path(name):
        return path
    proposals = near(name, [*files, *known])
    hint = f"; did you mean {proposals[0]}?" if proposals else "."
    allowed = allowed_data(forms)
    if not folder:
        return (
            f"data {shown(name)} is not bundled and FEDLOOM_DATA is not set{hint} "
            f"Set FEDLOOM_DATA to the folder that holds {name}.npz, or use {allowed}"
        )
    content = ", ".join(files) or "no npz file"
    return f"data {shown(name)} is not in FEDLOOM_DATA ({folder}), which holds {content}{hint} Allowed: {allowed}"


def bare_path(name: str) -> str | None:
    """What to write in place of a path without its form: of a table, or of a folder of images."""
    path = Path(name)
    if path.suffix.lower() in (".csv", ".parquet"):
        there = "is a table" if path.is_file() else "does not exist, and would be a table"
        listed = ", ".join(_columns(path))
        columns = f", where COLUMN has the labels: one of {listed}" if listed else ", where COLUMN has the labels"
        return f"data {shown(name)} {there}; write table:{name}?target=COLUMN{columns}"
    return f"data {shown(name)} is a folder; write folder:{name}" if path.is_dir() else None


def _columns(path: Path) -> list[str]:
    """The columns of a CSV file, as far as its first line tells them."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return []
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        first = file.readline(100 * LINE)
    names = next(csv.reader([first]), [])
    return [brief(name) for name in names[:MOST]] + ["…"] * (len(names) > MOST)


def allowed_data(forms: Collection[str]) -> str:
    *others, last = sorted(forms, key=str.lower)
    return f"NAME (of `fedloom list data`, or of $FEDLOOM_DATA/NAME.npz), {', '.join(others)} or {last}"


def plain(name: str) -> str:
    """Without capitals and signs: Fed-Avg_M is fedavgm, FedDr+ is feddrplus."""
    return re.sub(r"[^a-z0-9]", "", name.strip().lower()[:LINE].replace("+", "plus"))


def _similarity(one: str, other: str) -> float:
    """Of two names without the `fed` that most methods begin with."""
    stems = [name.removeprefix("fed") or name for name in (one, other)]
    return SequenceMatcher(None, stems[0], stems[1]).ratio()
