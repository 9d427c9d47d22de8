"""The page's figures as files for papers: SVG, PNG or PDF, drawn by the page's scripts in a headless browser."""

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

from fedloom.errors import FedloomError, shown
from fedloom.io.files import write
from fedloom.report.page.content import content
from fedloom.report.page.html import page
from fedloom.runs.labels import Labels

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
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--mute-audio",
)
WIDTH = 720  # pixels: the text width of a paper at 10 points
TIMEOUT = 180.0  # seconds for one run of the browser


def export(paths: Sequence[str | Path], out: str | Path, kind: str, labels: Labels = ()) -> list[Path]:
    """Write all figures into a folder and return their paths."""
    if kind not in get_args(Format):
        raise FedloomError(f"format: {shown(kind)} is unknown; allowed are html, {', '.join(get_args(Format))}")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise FedloomError(f"report: {folder} is a file; with --format {kind} figures go to a folder, as in -o figures")
    program, text = browser(), page(content(paths, labels=labels), export=True)
    with tempfile.TemporaryDirectory(prefix="fedloom-") as directory:
        scratch = Path(directory)
        images = _draw(program, text, "svg" if kind == "pdf" else kind, scratch)
        files = []
        for name, image in images.items():
            path = folder / f"{name}.{kind}"
            write(path, _print_pdf(program, image, scratch) if kind == "pdf" else image)
            files.append(path)
    return files


def browser() -> str:
    """Chromium or Chrome on this machine, or the program that FEDLOOM_BROWSER names."""
    wanted = os.environ.get("FEDLOOM_BROWSER")
    programs = [path for name in ([wanted] if wanted else NAMES) if (path := shutil.which(name))]
    programs += [path for path in PLACES if not wanted and Path(path).exists()]
    if not programs:
        raise FedloomError(
            "report: png, svg and pdf are drawn by Chromium or Chrome, and none was found; install one (Debian: apt install "
            "chromium), name it with FEDLOOM_BROWSER, or open the HTML page and save figures there with the camera button"
        )
    return programs[0]


def _draw(program: str, text: str, kind: str, scratch: Path) -> dict[str, bytes]:
    """Open the page in the browser. Its scripts draw the figures and store them in the DOM, which is read back."""
    source = scratch / "page.html"
    tail = f'<script>save({json.dumps(kind)}, {WIDTH}).then(() => document.body.dataset.saved = "yes");</script></body>'
    source.write_text(text.replace("</body>", tail), encoding="utf-8")
    dom = _run(
        program, scratch, "--virtual-time-budget=120000", "--dump-dom", source.as_uri(), f"--window-size={WIDTH},1000"
    )
    match = re.search(r'<script type="application/json" id="saved">(.*?)</script>', dom, re.DOTALL)
    if match is None:
        raise FedloomError(f"report: {program} did not draw the figures; is it a recent Chromium or Chrome?")
    return {name: _content(address) for name, address in json.loads(match[1]).items()}


def _content(address: str) -> bytes:
    head, _, body = address.partition(",")
    return base64.b64decode(body) if "base64" in head else unquote_to_bytes(body)


def _print_pdf(program: str, svg: bytes, scratch: Path) -> bytes:
    """An SVG as a PDF of the same size, as vector graphics."""
    size = re.search(rb'width="([\d.]+)" height="([\d.]+)"', svg)
    assert size is not None
    width, height = (float(value) for value in size.groups())
    source, target = scratch / "figure.html", scratch / "figure.pdf"
    style = f"@page{{size:{width}px {height}px;margin:0}}body{{margin:0}}svg{{display:block}}"
    source.write_bytes(f"<!doctype html><meta charset=utf-8><style>{style}</style>".encode() + svg)
    _run(program, scratch, f"--print-to-pdf={target}", "--no-pdf-header-footer", source.as_uri())
    if not target.exists():
        raise FedloomError(f"report: {program} did not print a PDF")
    return target.read_bytes()


def _run(program: str, scratch: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [program, *FLAGS, f"--user-data-dir={scratch / 'profile'}", *arguments],
            capture_output=True,
            timeout=TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FedloomError(f"report: {program} could not be run: {error}") from None
    return done.stdout.decode("utf-8", errors="replace")
