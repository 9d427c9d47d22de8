"""From the text of `data` in a recipe to a data source. One source per file, imported when this package is."""

from __future__ import annotations

import os
from importlib import import_module
from pkgutil import iter_modules

from fedloom.data.sources.npz import open_npz, outline
from fedloom.data.sources.source import FORMATS, NAMES, DataSource
from fedloom.errors import FedloomError, brief, shown
from fedloom.nearest import allowed_data, bare_path, unknown_data
from fedloom.paths import data_files

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def find(text: str) -> DataSource:
    """The source that the text of `data` names; raises an error if there is none."""
    try:
        return _find(text.strip())
    except FedloomError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # impossible file names, symlink loops
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FedloomError(f"data {shown(text)} cannot be read ({brief(str(reason))})") from None


def list_sets() -> list[dict[str, str]]:
    """What `data` can be: name, summary, and where it comes from (a file in $FEDLOOM_DATA, or a download)."""
    files = data_files()
    rows = [{"name": known.name, "summary": known.summary, "file": ""} for known in NAMES.values() if known.bundled]
    rows += [{"name": name, "summary": outline(path), "file": str(path)} for name, path in files.items()]
    rows += [
        {"name": known.name, "summary": known.summary, "file": known.origin}
        for known in NAMES.values()
        if not known.bundled and known.name not in files
    ]
    return rows + [{"name": known.form, "summary": known.summary, "file": ""} for known in FORMATS.values()]


def _find(text: str) -> DataSource:
    for known in sorted(FORMATS.values(), key=lambda known: ":" not in known.form):  # hf:x.npz is not a path
        if (argument := known.argument(text)) is not None:
            return known.open(argument)
    forms = [known.form for known in FORMATS.values()]
    if not text or not set(text).isdisjoint("/\\:"):
        raise FedloomError(bare_path(text) or f"data {shown(text)} is not understood; allowed: {allowed_data(forms)}")
    files = data_files()
    if text in NAMES and (NAMES[text].bundled or text not in files):
        return NAMES[text].open()
    if text in files:
        return open_npz(str(files[text]))
    raise FedloomError(unknown_data(text, NAMES, files, os.environ.get("FEDLOOM_DATA"), forms))
