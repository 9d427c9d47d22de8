"""Where image sets come from: the text of `data` is turned into a source, whose content is read only when needed."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from fedloom.data.sources.digits import digits
from fedloom.data.sources.folder import folder
from fedloom.data.sources.hub import hub
from fedloom.data.sources.npz import npz
from fedloom.data.sources.ready import READY, ready
from fedloom.data.sources.source import Source
from fedloom.errors import FedloomError, brief, shown

FORMS = "digits, NAME (of $FEDLOOM_DATA/NAME.npz, or of fedloom list data), PATH.npz, folder:PATH or hf:owner/name"


def find(text: str) -> Source:
    """The source that a text names, or one sentence about why it cannot be had."""
    try:
        return _find(text.strip())
    except FedloomError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # names that no file can have, links in a circle
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FedloomError(f"data {shown(text)} cannot be read ({brief(str(reason))})") from None


def _find(text: str) -> Source:
    kind, colon, rest = text.partition(":")
    if text == "digits":
        return digits()
    if kind == "hf" and colon:
        return hub(rest)
    if kind == "folder" and colon:
        return folder(rest)
    if text.endswith(".npz"):
        return npz(Path(text))
    if not text or not set(text).isdisjoint("/\\:"):
        raise FedloomError(f"data {shown(text)} is not understood; allowed is {FORMS}")
    if text in READY and text not in named():
        return ready(text)
    return npz(_named(text))


def named() -> dict[str, Path]:
    """The sets in $FEDLOOM_DATA by name; none when it is not set."""
    root = os.environ.get("FEDLOOM_DATA")
    found = sorted(Path(root).expanduser().glob("*.npz")) if root else []
    return {path.stem: path for path in found if path.is_file()}


def _named(name: str) -> Path:
    known = named()
    if name in known:
        return known[name]
    near = get_close_matches(name[:80], ["digits", *known, *READY], n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    root = os.environ.get("FEDLOOM_DATA")
    if not root:
        raise FedloomError(
            f"data {shown(name)} is not bundled and FEDLOOM_DATA is not set{hint} "
            f"Set FEDLOOM_DATA to the folder that holds {name}.npz, or use {FORMS}"
        )
    there = ", ".join(known) or "no npz file"
    raise FedloomError(
        f"data {shown(name)} is not in FEDLOOM_DATA ({root}), which holds {there}{hint} Allowed is {FORMS}"
    )
