"""The page: one HTML file that contains its style, scripts, plotly.js and data. It fetches nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.io.files import write
from fedloom.report.page.content import content
from fedloom.runs.labels import Labels

SCRIPTS = ("core.js", "tables.js", "curves.js", "maps.js", "tuning.js", "start.js")


def report(
    paths: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    title: str = "",
    labels: Labels = (),
) -> Path:
    """Write the page about these run folders, or about all runs below these folders."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise FedloomError("report: no run folder is given")
    target = Path(out)
    if target.is_dir():
        raise FedloomError(f"report: {target} is a folder; name a file, as in -o {target / 'report.html'}")
    text = page(content(given, title, labels=labels))
    try:
        write(target, text)
    except OSError as error:
        raise FedloomError(f"report: {target} cannot be written ({error.strerror})") from None
    return target


def page(data: Mapping[str, Any], live: bool = False, export: bool = False) -> str:
    """The HTML text. `live`: it polls `fedloom watch` for changes; `export`: figures with legends, for papers.

    Text from recipes only occurs in the JSON block. The scripts insert it as text, never as HTML.
    """
    here = files("fedloom.report.page") / "assets"
    values = {
        "TITLE": html.escape(str(data["title"])),
        "STYLE": (here / "page.css").read_text(encoding="utf-8"),
        "PLOTLY": plotly().replace("</script", "<\\/script"),
        "DATA": embedded({**data, "live": live, "export": export}),
        "SCRIPT": "\n".join((here / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    pieces = (here / "page.html").read_text(encoding="utf-8").split("@@")
    return "".join(values[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element, whatever its strings contain."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def plotly() -> str:
    """plotly.js from the plotly package."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
