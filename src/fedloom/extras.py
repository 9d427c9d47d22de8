"""How to install the packages of an extra, such as flower: right for the way in which fedloom itself is installed."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

from fedloom.errors import FedloomError


def install(extra: str) -> str:
    """The command that installs an extra.

    From a checkout, `pip install -e "PATH[extra]"`. Where fedloom was installed from a file or an address, that one, since
    `fedloom[extra]` would ask the package index for another fedloom.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file() and (checkout / "src" / "fedloom").is_dir():
        return f'pip install -e "{checkout}[{extra}]"'
    origin = _origin()
    return f'pip install "fedloom[{extra}] @ {origin}"' if origin else f'pip install "fedloom[{extra}]"'


def missing(what: str, needs: str, extra: str) -> FedloomError:
    """`hf:…` needs the transformers library, which is missing: pip install ..."""
    return FedloomError(f"{what} needs {needs}, which is missing: {install(extra)}")


def _origin() -> str | None:
    """Where pip took fedloom from (PEP 610); None: from an index."""
    try:
        text = metadata.distribution("fedloom").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    return str(json.loads(text)["url"]) if text else None
