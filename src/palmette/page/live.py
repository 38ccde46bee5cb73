"""A page that follows runs and studies while they go on, served to a browser on the same machine."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from palmette.errors import BadInput, PalmetteError
from palmette.page.collect import collect
from palmette.page.html import page, policy
from palmette.runs.folder import CONFIG, METRICS, PROGRESS, Folder, runs_in
from palmette.studies.plan import OUTCOMES, STUDY

HOST = "127.0.0.1"
_OWN = ("127.0.0.1", "localhost", "[::1]")  # names of this machine that a browser on it may use
_REST = 4  # times as long as it took to read a large study, it is not read again: the runs need the machine more
_LOOKED_AT = (CONFIG, PROGRESS, METRICS, STUDY, OUTCOMES)


class Watch:
    """What is watched, read anew when a file of it has changed.

    Args:
        folders: Runs, studies, or folders of these.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self._lock = threading.Lock()
        self._kept: tuple[str, bytes] = ("", b"")
        self._rest = -math.inf  # until when the page is left as it is

    def news(self) -> tuple[str, bytes]:
        """Return the data of the page as JSON, and a mark that changes when they do."""
        with self._lock:  # one reader at a time: several tabs need not read the same files at once
            if (began := time.monotonic()) < self._rest:
                return self._kept
            mark = self._mark()
            if mark != self._kept[0]:
                text = json.dumps(self.data(), allow_nan=False, separators=(",", ":"))
                self._kept = (mark, text.encode())
                self._rest = time.monotonic() + _REST * (time.monotonic() - began)
            return self._kept

    def data(self) -> dict[str, Any]:
        """Return the data of the page as they are now."""
        try:
            return collect(self.folders, theory=False)
        except BadInput:
            if any(Folder(folder).busy for folder in self.folders):  # it has a folder, and nothing in it yet
                return _nothing_yet(self.folders)
            raise

    def _mark(self) -> str:
        """Return a text that changes with the files that the page is made of, and with who works on them."""
        seen = []
        for folder in self.folders:
            for place in (folder, *runs_in(folder), *(path.parent for path in folder.glob(f"runs/*/{CONFIG}"))):
                stats = [(name, (place / name).stat()) for name in _LOOKED_AT if (place / name).exists()]
                seen.append(
                    (str(place), [(name, one.st_mtime_ns, one.st_size) for name, one in stats], Folder(place).busy)
                )
        return f'"{hashlib.sha256(repr(seen).encode()).hexdigest()[:24]}"'


def _nothing_yet(folders: Sequence[Path]) -> dict[str, Any]:
    names = ", ".join(str(folder) for folder in folders)
    told = {"format": 1, "palmette": "", "kind": "run", "title": names, "sentences": ["The run has not begun yet."]}
    return {**told, "tiles": [], "groups": [], "runs": [], "populations": [], "notes": [], "state": "waiting"}


class Server(ThreadingHTTPServer):
    """Serves the page and its data, and nothing else; it reads and never writes.

    Args:
        watch: What is watched.
        host: The address to listen on: by default this machine alone.
        port: The port; 0 for any that is free.
    """

    daemon_threads = True

    def __init__(self, watch: Watch, host: str = HOST, port: int = 0) -> None:
        self.watch = watch
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise BadInput(
                f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}"
            ) from None
        self.own_only = host in (HOST, "localhost")

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        host, port = self.server_address[:2]
        return f"http://{'localhost' if self.own_only else str(host)}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Palmette", ""  # which Python it is, is nobody's business

    def do_GET(self) -> None:
        # A page of another site could make a browser ask here under that site's name; it is told nothing.
        name = (self.headers.get("Host") or "").rpartition(":")
        if self.server.own_only and (name[0] or name[2]) not in _OWN:
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for a browser on the same machine", "text/plain")
            return
        try:
            if self.path == "/":
                text = page(self.server.watch.data(), live=True)
                self._answer(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8")
            elif self.path == "/data.json":
                mark, data = self.server.watch.news()
                same = self.headers.get("If-None-Match") == mark
                self._answer(HTTPStatus.NOT_MODIFIED if same else HTTPStatus.OK, data, "application/json", mark)
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"there is only the page itself: /", "text/plain")
        except (PalmetteError, OSError) as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode(), "text/plain; charset=utf-8")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, mark: str = "") -> None:
        body = b"" if status == HTTPStatus.NOT_MODIFIED else body
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        headers |= {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
        headers |= {"Content-Security-Policy": policy(live=True)} | ({"ETag": mark} if mark else {})
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing for each request."""
