"""How an extra is installed: as fedloom itself is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fedloom as fl
import fedloom.extras
from fedloom.extras import install, requirement

SOURCES = Path(fedloom.extras.__file__).parent


def test_from_a_checkout_it_is_the_checkout() -> None:
    root = Path(__file__).resolve().parents[1]
    assert install("flower") == f'pip install -e "{root}[flower]"'
    assert requirement("flower") == f"fedloom[flower] @ {root.as_uri()}"


def installed(origin: str | None, **more: object) -> list[str]:
    """What a fedloom in site-packages says; pip notes where it came from unless that was an index."""
    site = Path("site")
    (site / "fedloom").mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "errors.py", "extras.py", "version.py"):
        (site / "fedloom" / name).write_text((SOURCES / name).read_text())
    notes = site / "fedloom-9.9.dist-info"
    notes.mkdir(exist_ok=True)
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: fedloom\nVersion: 9.9\n")
    if origin is not None:
        (notes / "direct_url.json").write_text(json.dumps({"url": origin, **more}))
    place = f"import sys; sys.path.insert(0, {str(site.resolve())!r})"
    program = f"{place}; from fedloom.extras import *; print(install('tune')); print(requirement('tune'))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env={})
    return done.stdout.splitlines()


def test_from_an_index_it_is_the_index_and_from_elsewhere_that_place() -> None:
    assert installed(None) == ['pip install "fedloom[tune]"', f"fedloom[tune]=={fl.__version__}"]
    wheel = "fedloom[tune] @ file:///x/fedloom-9.9-py3-none-any.whl"
    assert installed("file:///x/fedloom-9.9-py3-none-any.whl", archive_info={}) == [f'pip install "{wheel}"', wheel]
    commit = "fedloom[tune] @ git+https://example.org/fedloom.git@abc"
    said = installed("https://example.org/fedloom.git", vcs_info={"vcs": "git", "commit_id": "abc"})
    assert said == [f'pip install "{commit}"', commit]
