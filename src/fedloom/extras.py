"""How to install fedloom with an extra, such as flower: right for the way in which fedloom itself is installed."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.version import __version__


def install(extra: str) -> str:
    """The command that installs an extra.

    From a checkout, `pip install -e "PATH[extra]"`. Where fedloom was installed from a file or an address, that one, since
    `fedloom[extra]` would ask the package index for another fedloom.
    """
    if checkout := _checkout():
        return f'pip install -e "{checkout}[{extra}]"'
    origin = _origin()
    return f'pip install "fedloom[{extra}] @ {origin}"' if origin else f'pip install "fedloom[{extra}]"'


def requirement(extra: str) -> str:
    """This fedloom as a dependency of another package: of the same version, from where it was installed."""
    checkout = _checkout()
    origin = checkout.as_uri() if checkout else _origin()
    return f"fedloom[{extra}] @ {origin}" if origin else f"fedloom[{extra}]=={__version__}"


def missing(what: str, needs: str, extra: str) -> FedloomError:
    """`hf:…` needs the transformers library, which is missing: pip install ..."""
    return FedloomError(f"{what} needs {needs}, which is missing: {install(extra)}")


def _checkout() -> Path | None:
    """The folder of the sources, if they are used in place."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "fedloom").is_dir() else None


def _origin() -> str | None:
    """Where pip took fedloom from (PEP 610); None: from an index."""
    try:
        text = metadata.distribution("fedloom").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if not text:
        return None
    stored: dict[str, Any] = json.loads(text)
    version = stored.get("vcs_info")
    return f"{version['vcs']}+{stored['url']}@{version['commit_id']}" if version else str(stored["url"])
