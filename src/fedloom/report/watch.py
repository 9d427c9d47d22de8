"""`fedloom watch`: the page of runs that still go, served to this machine only. The page asks every two seconds whether
files have changed and draws itself again with all switches as they were."""

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
from fedloom.report.content import content
from fedloom.report.gather import find
from fedloom.report.page import page, plotly

HOST = "127.0.0.1"
WATCHED = ("recipe.yaml", "rounds.jsonl", "clients.jsonl", "summary.json", "analysis/*", "personal/*.json")


class Source:
    """The page's data, made again only when a file of the runs has changed."""

    def __init__(self, paths: Sequence[str | Path], title: str = "") -> None:
        self.paths, self.title = [Path(path) for path in paths], title or "fedloom watch"
        self._lock = threading.Lock()
        self._kept: dict[str, Any] = {}

    def mark(self) -> str:
        """What the files look like now."""
        told = hashlib.sha256()
        for run in find(self.paths, some=False):
            for pattern in WATCHED:
                for file in sorted(run.path.glob(pattern)):
                    try:
                        seen = file.stat()
                    except OSError:
                        continue  # replaced just now, or it cannot be seen at all
                    told.update(f"{file} {seen.st_mtime_ns} {seen.st_size}\n".encode())
        return told.hexdigest()[:20]

    def data(self) -> dict[str, Any]:
        with self._lock:
            mark = self.mark()
            if self._kept.get("mark") != mark:
                self._kept = {**content(self.paths, self.title, some=False), "live": True, "mark": mark}
            return self._kept


def serve(paths: Sequence[str | Path], port: int = 8000, title: str = "") -> ThreadingHTTPServer:
    """A server that is bound but not yet running: call its serve_forever()."""
    for path in paths:
        if not Path(path).is_dir():
            raise FedloomError(f"watch: there is no folder {path}")
    plotly()  # without it, say so now
    if not 0 <= port <= 65535:
        raise FedloomError(f"port: must be 0 to 65535 (got {port})")
    try:
        return ThreadingHTTPServer((HOST, port), _handler(Source(paths, title)))
    except OSError as error:
        raise FedloomError(f"port: {port} cannot be used ({error.strerror}); choose another with --port") from None


def _handler(source: Source) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            if name not in (HOST, "localhost"):  # a page elsewhere that has its name point here
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"only for this machine\n")
            elif address.path == "/":
                self._answer(HTTPStatus.OK, "text/html", page(source.data(), live=True).encode())
            elif address.path == "/data.json":
                data = source.data()
                if parse_qs(address.query).get("mark") == [data["mark"]]:
                    self._answer(HTTPStatus.NO_CONTENT, "application/json", b"")
                else:
                    text = json.dumps(data, allow_nan=False, default=str)
                    self._answer(HTTPStatus.OK, "application/json", text.encode())
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not here\n")

        def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """A request every two seconds is nothing to tell."""

    return Handler
