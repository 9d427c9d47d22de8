"""Every figure of the page as a file for a paper: SVG, PNG or PDF, drawn by the same scripts in a headless browser."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote_to_bytes

from fedloom.engine.files import write
from fedloom.errors import FedloomError, shown
from fedloom.report.content import content
from fedloom.report.page import page

Format = Literal["svg", "png", "pdf"]
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "brave-browser",
)
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--hide-scrollbars",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
        "--disable-dev-shm-usage",
        "--mute-audio",
    ),
)
WIDTH = 720  # pixels: a text's width at 10 points
PATIENCE = 180.0  # seconds for one start of the browser


def export(paths: Sequence[str | Path], out: str | Path, kind: str) -> list[Path]:
    """Write all figures into a folder and return their paths."""
    if kind not in get_args(Format):
        raise FedloomError(f"format: {shown(kind)} is unknown; allowed are html, {', '.join(get_args(Format))}")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise FedloomError(f"report: {folder} is a file; with --format {kind} figures go to a folder, as in -o figures")
    program, text = browser(), page(content(paths), export=True)
    with tempfile.TemporaryDirectory(prefix="fedloom-") as made:
        place = Path(made)
        drawn = _drawn(program, text, "svg" if kind == "pdf" else kind, place)
        files = []
        for name, image in drawn.items():
            path = folder / f"{name}.{kind}"
            write(path, _printed(program, image, place) if kind == "pdf" else image)
            files.append(path)
    return files


def browser() -> str:
    """The Chromium or Chrome of this machine, or the one that FEDLOOM_BROWSER names."""
    wish = os.environ.get("FEDLOOM_BROWSER")
    found = [path for name in ([wish] if wish else NAMES) if (path := shutil.which(name))]
    found += [place for place in PLACES if not wish and Path(place).exists()]
    if not found:
        raise FedloomError(
            "report: png, svg and pdf are drawn by Chromium or Chrome, and none was found; install one (Debian: apt install "
            "chromium), name it with FEDLOOM_BROWSER, or open the HTML page and save figures there with the camera button"
        )
    return found[0]


def _drawn(program: str, text: str, kind: str, place: Path) -> dict[str, bytes]:
    """Open the page, which draws its figures and leaves them in its own text, and read that."""
    source = place / "page.html"
    tail = f'<script>save({json.dumps(kind)}, {WIDTH}).then(() => document.body.dataset.saved = "yes");</script></body>'
    source.write_text(text.replace("</body>", tail), encoding="utf-8")
    seen = _run(
        program, place, "--virtual-time-budget=120000", "--dump-dom", source.as_uri(), f"--window-size={WIDTH},1000"
    )
    match = re.search(r'<script type="application/json" id="saved">(.*?)</script>', seen, re.DOTALL)
    if match is None:
        raise FedloomError(f"report: {program} did not draw the figures; is it a recent Chromium or Chrome?")
    return {name: _content(address) for name, address in json.loads(match[1]).items()}


def _content(address: str) -> bytes:
    head, _, body = address.partition(",")
    return base64.b64decode(body) if "base64" in head else unquote_to_bytes(body)


def _printed(program: str, svg: bytes, place: Path) -> bytes:
    """An SVG as a PDF of the same size, still vectors."""
    size = re.search(rb'width="([\d.]+)" height="([\d.]+)"', svg)
    assert size is not None
    width, height = (float(value) for value in size.groups())
    source, target = place / "figure.html", place / "figure.pdf"
    style = f"@page{{size:{width}px {height}px;margin:0}}body{{margin:0}}svg{{display:block}}"
    source.write_bytes(f"<!doctype html><meta charset=utf-8><style>{style}</style>".encode() + svg)
    _run(program, place, f"--print-to-pdf={target}", "--no-pdf-header-footer", source.as_uri())
    if not target.exists():
        raise FedloomError(f"report: {program} did not print a PDF")
    return target.read_bytes()


def _run(program: str, place: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [program, *FLAGS, f"--user-data-dir={place / 'profile'}", *arguments], capture_output=True, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FedloomError(f"report: {program} could not be run: {error}") from None
    return done.stdout.decode("utf-8", errors="replace")
