"""Download the files of public data sets: resumed where they stopped, checked, and put in place whole or not at all.

The library pooch was looked at first (1.9): it downloads into a temporary file that it deletes on every failure, so that a
lost connection or a Ctrl-C begins again at the first byte, and it brings requests along. EMNIST alone is half a gigabyte.
So this is urllib of the standard library, which heeds the proxy settings of the environment: what came so far stays in a
file beside the target, ``NAME.part``, and the next try asks for the rest (HTTP Range).
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import io
import os
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from palmette.datasets import files
from palmette.datasets.dataset import Dataset, File
from palmette.errors import BadInput, PalmetteError
from palmette.values import size

Watch = Callable[[int, int], None]
"""Is told how many bytes are there, and how many there will be (0 where it is not known)."""

TRIES, PAUSE = (
    5,
    1.0,
)  # a lost connection is taken up so often, after that many seconds and then twice as many each time
_WAIT = 30.0  # seconds without a byte after which a connection counts as lost
_PIECE = 1 << 18
_OFFLINE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}
_GONE = {401, 403, 404, 410, 451}  # answers that will not change


class _Lost(Exception):  # noqa: N818 - reads as what it is
    """The connection was lost, or the server could not answer now; another try may do."""


@dataclass(frozen=True)
class Got:
    """A file of a data set that is there.

    Attributes:
        path: Where it is.
        downloaded: Whether it was downloaded now.
        note: What is to be said about it; empty where it is what it should be.
    """

    path: Path
    downloaded: bool
    note: str


def get(
    name: str,
    entry: Dataset,
    folder: str | Path | None,
    watch: Callable[[File], AbstractContextManager[Watch]],
    *,
    pause: float = PAUSE,
) -> list[Got]:
    """Download the files of a data set that are not there; those that are there are left as they are.

    Args:
        name: The name of the data set.
        entry: Its row.
        folder: The folder of data sets; see `palmette.datasets.files.data_folder`.
        watch: Makes somebody to watch the download of a file.
        pause: Seconds before the second try.
    """
    missing = [file for file in entry.files if not files.present(file, folder)]
    if any(not file.url for file in missing):
        names = ", ".join(file.name for file in missing if not file.url)
        raise BadInput(f"palmette data get cannot download {name}: there is no public address of {names}. {entry.how}")
    got = []
    for file in entry.files:
        if file not in missing:
            got += [Got(path, False, _differs(file, path)) for path in files.present(file, folder)]
            continue
        path = files.data_folder(folder) / file.places[0] / file.name
        with watch(file) as seen:
            fetch(file, path, seen, pause=pause)
        got.append(Got(path, True, "" if file.sha256 or file.md5 else "not checked: its checksum is not published"))
    return list(dict.fromkeys(got))


def _differs(file: File, path: Path) -> str:
    told = mismatch(file, path) if path.name == file.name else ""
    return told and f"not the public file, as {told}; it is used as it is, and to get the public one move it away"


def fetch(file: File, path: Path, watch: Watch, *, pause: float = PAUSE) -> None:
    """Download a file, going on with what an earlier try left.

    Args:
        file: The file, with its address and what its bytes are known by.
        path: Where to put it.
        watch: Is told of the progress.
        pause: Seconds before the second try.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    begun = part.is_file()
    _download(file, part, watch, pause)
    told = mismatch(file, part)
    if told and begun:  # the public file may have changed since the first part of it came
        part.unlink()
        _download(file, part, watch, pause)
        told = mismatch(file, part)
    if told:
        part.unlink()
        raise PalmetteError(f"{file.name} from {file.url} is not the file that is expected: {told}; it was not kept")
    os.replace(part, path)


def mismatch(file: File, path: Path) -> str:
    """Say how a file differs from what its bytes are known by; empty where it does not, or where nothing is known of them."""
    wanted = file.sha256 or file.md5
    if not wanted:
        return ""
    digest, label = (hashlib.sha256, "SHA-256") if file.sha256 else (hashlib.md5, "MD5")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: digest(usedforsecurity=False)).hexdigest()
    return "" if found == wanted else f"its {label} is {found}, not {wanted}"


def _download(file: File, part: Path, watch: Watch, pause: float) -> None:
    """Try until the file is whole; what came of it stays when all tries have failed."""
    failures = 0
    while True:
        before = _length(part)
        try:
            _once(file, part, watch)
            return
        except _Lost as fault:
            failures = 1 if _length(part) > before else failures + 1  # a try that brought something was not in vain
            if failures == TRIES:
                kept = f"; {size(before)} of it are kept, and the next try goes on from there" if before else ""
                raise PalmetteError(f"{file.url} could not be downloaded: {fault}{kept}") from fault
            time.sleep(pause * 2 ** (failures - 1))


def _once(file: File, part: Path, watch: Watch) -> None:
    """Ask for the file, or for what is missing of it, and write what comes."""
    have = _length(part)
    headers = {"User-Agent": "palmette"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(file.url, headers=headers), timeout=_WAIT)
    except urllib.error.HTTPError as fault:
        with fault:
            _refused(file, part, have, fault)
        return
    except urllib.error.URLError as fault:
        if isinstance(fault.reason, socket.gaierror) or getattr(fault.reason, "errno", None) in _OFFLINE:
            raise PalmetteError(
                f"{file.url} could not be downloaded ({fault.reason}): is this machine offline? Connect it and try again"
            ) from fault
        raise _Lost(str(fault.reason)) from fault
    except (OSError, http.client.HTTPException) as fault:
        raise _Lost(str(fault) or type(fault).__name__) from fault
    with answer:
        whole = answer.status != http.client.PARTIAL_CONTENT  # a server without Range sends all of it again
        if not whole and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink()
            raise _Lost("the server sent another part of the file than was asked for")
        have = 0 if whole else have
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        _refuse_full_disk(file, part, (total or file.size) - have)
        with part.open("wb" if whole else "ab", buffering=0) as stream:
            while piece := _read(answer):
                _write(stream, piece, part)
                have += len(piece)
                watch(have, total or file.size)
    if have < total:
        raise _Lost(f"the connection ended after {size(have)} of {size(total)}")


def _refused(file: File, part: Path, have: int, fault: urllib.error.HTTPError) -> None:
    """Act on an answer that is no file."""
    if fault.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
        if fault.headers.get("Content-Range") == f"bytes */{have}":
            return  # all of it had come before
        part.unlink()
        raise _Lost("what had come before is longer than the file") from fault
    if fault.code in _GONE:
        raise PalmetteError(
            f"the server answers {fault.code} ({fault.reason}) to {file.url}; get the file from another public source and put "
            f"it at {part.with_name(file.name)}"
        ) from fault
    raise _Lost(f"the server answers {fault.code} ({fault.reason})") from fault


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(_PIECE)
    except (OSError, http.client.HTTPException) as fault:
        raise _Lost(str(fault) or type(fault).__name__) from fault


def _write(stream: io.FileIO, piece: bytes, part: Path) -> None:
    try:
        rest = memoryview(piece)
        while rest:
            rest = rest[stream.write(rest) :]
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise PalmetteError(
            f"there is no room left for {part}; make room and try again, or name another folder with --folder. What has come "
            "so far is kept"
        ) from fault


def _refuse_full_disk(file: File, part: Path, rest: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if rest > free:
        raise PalmetteError(
            f"{file.name} needs {size(rest)} more, but {part.parent} has room for {size(free)}; make room, or name another "
            "folder with --folder"
        )


def _length(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0
