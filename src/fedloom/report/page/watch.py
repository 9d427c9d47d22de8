"""`fedloom watch`: the page of running experiments, served to this machine only.

The page polls every two seconds. If files have changed, it redraws itself and keeps its switches.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedloom.errors import FedloomError
from fedloom.report.page.content import content
from fedloom.report.page.gather import find_runs, tuning_folders
from fedloom.report.page.html import page
from fedloom.runs.labels import Labels

HOST = "127.0.0.1"
WATCHED = (
    "recipe.yaml",
    "metrics.json",
    "rounds.jsonl",
    "clients.jsonl",
    "summary.json",
    "analysis/*",
    "personal/*.json",
)
TUNING = ("tune.json", "trials.jsonl", "tuned.json")


class PageData:
    """The page's data, read again only if a file of the runs has changed."""

    def __init__(self, paths: Sequence[str | Path], title: str = "", labels: Labels = ()) -> None:
        self.paths, self.title, self.labels = [Path(path) for path in paths], title or "fedloom watch", labels
        self._lock = threading.Lock()
        self._cached: dict[str, Any] = {}

    def mark(self) -> str:
        """A digest of the files' times and sizes."""
        digest = hashlib.sha256()
        folders: list[tuple[Path, tuple[str, ...]]] = [
            (run.path, WATCHED) for run in find_runs(self.paths, required=False)
        ]
        folders += [(folder, TUNING) for folder in tuning_folders(self.paths)]
        for folder, patterns in folders:
            for pattern in patterns:
                for file in sorted(folder.glob(pattern)):
                    try:
                        status = file.stat()
                    except OSError:
                        continue  # just replaced, or not accessible
                    digest.update(f"{file} {status.st_mtime_ns} {status.st_size}\n".encode())
        return digest.hexdigest()[:20]

    def data(self) -> dict[str, Any]:
        with self._lock:
            mark = self.mark()
            if self._cached.get("mark") != mark:
                self._cached = {**self._content(), "live": True, "mark": mark}
            return self._cached

    def _content(self) -> dict[str, Any]:
        try:
            return content(self.paths, self.title, required=False, labels=self.labels)
        except FedloomError as error:
            if not self._cached:
                raise
            made = content(self.paths, self.title, required=False)  # names that do not fit runs which are new
            return {**made, "problems": [*made["problems"], {"path": "--label", "reason": str(error)}]}


def serve(paths: Sequence[str | Path], port: int = 8000, title: str = "", labels: Labels = ()) -> ThreadingHTTPServer:
    """A server that is bound but not yet running: call its serve_forever()."""
    for path in paths:
        if not Path(path).is_dir():
            raise FedloomError(f"watch: there is no folder {path}")
    if not 0 <= port <= 65535:
        raise FedloomError(f"port: must be 0 to 65535 (got {port})")
    page_data = PageData(paths, title, labels)
    if labels:
        page_data.data()  # names that cannot be read are refused here
    try:
        return ThreadingHTTPServer((HOST, port), _handler(page_data))
    except OSError as error:
        raise FedloomError(f"port: {port} cannot be used ({error.strerror}); choose another with --port") from None


def _handler(page_data: PageData) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            if name not in (
                HOST,
                "localhost",
            ):  # DNS rebinding: a foreign page whose host name resolves to this machine
                self._respond(HTTPStatus.FORBIDDEN, "text/plain", b"only for this machine\n")
            elif address.path == "/":
                self._respond(HTTPStatus.OK, "text/html", page(page_data.data(), live=True).encode())
            elif address.path == "/data.json":
                data = page_data.data()
                if parse_qs(address.query).get("mark") == [data["mark"]]:
                    self._respond(HTTPStatus.NO_CONTENT, "application/json", b"")
                else:
                    text = json.dumps(data, allow_nan=False, default=str)
                    self._respond(HTTPStatus.OK, "application/json", text.encode())
            else:
                self._respond(HTTPStatus.NOT_FOUND, "text/plain", b"not here\n")

        def _respond(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are not logged: the page sends one every two seconds."""

    return Handler
