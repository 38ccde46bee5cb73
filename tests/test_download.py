"""Downloads: resumed, checked, put in place whole or not at all; against a server on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from palmette.cli.app import app
from palmette.datasets import DATASETS, Dataset, File, Pool
from palmette.datasets import download as downloads
from palmette.datasets.files import find, present
from palmette.errors import BadInput, PalmetteError

BYTES = bytes(range(256)) * 4000
SHA = hashlib.sha256(BYTES).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves one file; what it does wrong is set by the test."""

    ranges = True  # whether it understands Range
    cut = 0  # how many answers end early
    status = 0  # answers this in place of the file, so many times
    failures = 0
    body = BYTES

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/some.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        wanted, server = self.headers["Range"], self.server
        server.asked.append(wanted)
        if server.failures:
            server.failures -= 1
            return self.send_error(server.status)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start >= len(server.body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.body)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.body) - 1}/{len(server.body)}")
        rest = server.body[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if server.cut:
            server.cut -= 1
            rest = rest[: len(rest) // 3]
        with contextlib.suppress(ConnectionError):
            self.wfile.write(rest)
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def the_file(server: Server, **changes: Any) -> File:
    return replace(File("some.bin", ("some", ""), SHA, server.url, len(BYTES)), **changes)


def fetch(file: File, folder: Path, seen: Callable[[int, int], None] = lambda have, total: None) -> bytes:
    downloads.fetch(file, folder / "some.bin", seen, pause=0)
    assert not (folder / "some.bin.part").exists()
    return (folder / "some.bin").read_bytes()


# -- one file ----------------------------------------------------------------------------------------------------------


def test_a_file_comes_whole_and_its_progress_is_told(server: Server, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    assert fetch(the_file(server), tmp_path / "new", lambda have, total: told.append((have, total))) == BYTES
    assert told[-1] == (len(BYTES), len(BYTES))
    assert len(told) > 1
    assert server.asked == [None]


def test_what_an_earlier_try_left_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "some.bin.part").write_bytes(BYTES[:1000])
    assert fetch(the_file(server), tmp_path) == BYTES
    assert server.asked == ["bytes=1000-"]


def test_a_part_that_is_whole_is_only_put_in_place(server: Server, tmp_path: Path) -> None:
    (tmp_path / "some.bin.part").write_bytes(BYTES)
    assert fetch(the_file(server), tmp_path) == BYTES
    assert server.asked == [f"bytes={len(BYTES)}-"]


@pytest.mark.parametrize("left", [BYTES + b"more", b"wrong" * 100], ids=["longer", "other"])
def test_a_part_of_another_file_is_begun_again(server: Server, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "some.bin.part").write_bytes(left)
    assert fetch(the_file(server), tmp_path) == BYTES
    assert server.asked == [f"bytes={len(left)}-", None]


def test_a_server_without_range_sends_all_of_it_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "some.bin.part").write_bytes(BYTES[:1000])
    assert fetch(the_file(server), tmp_path) == BYTES


def test_a_lost_connection_is_taken_up_where_it_ended(server: Server, tmp_path: Path) -> None:
    server.cut = 2 * downloads.TRIES  # each brings something, so that none is in vain
    assert fetch(the_file(server), tmp_path) == BYTES
    starts = [int(one.removeprefix("bytes=").removesuffix("-")) for one in server.asked[1:] if one]
    assert starts == sorted(set(starts))
    assert len(starts) == 2 * downloads.TRIES


def test_a_server_that_fails_is_asked_again_but_not_for_ever(server: Server, tmp_path: Path) -> None:
    server.status, server.failures = 503, downloads.TRIES - 1
    assert fetch(the_file(server), tmp_path) == BYTES
    server.failures, server.asked = 1000, []
    (tmp_path / "some.bin.part").write_bytes(BYTES[:1000])
    with pytest.raises(
        PalmetteError, match=r"the server answers 503 .*; 1 kB of it are kept, and the next try goes on"
    ):
        fetch(the_file(server), tmp_path)
    assert len(server.asked) == downloads.TRIES
    assert (tmp_path / "some.bin.part").stat().st_size == 1000


def test_a_file_that_is_not_there_is_told_at_once(server: Server, tmp_path: Path) -> None:
    server.status, server.failures = 404, 1
    with pytest.raises(PalmetteError, match=f"the server answers 404 .* to {server.url}"):
        fetch(the_file(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "label", "digits"), [("sha256", "SHA-256", 64), ("md5", "MD5", 32)])
def test_a_wrong_checksum_keeps_no_file_and_tells_both(
    server: Server, tmp_path: Path, kind: str, label: str, digits: int
) -> None:
    file = the_file(server, **{"sha256": "", kind: "0" * digits})
    found = hashlib.new(kind, BYTES).hexdigest()
    with pytest.raises(PalmetteError, match=f"its {label} is {found}, not {'0' * digits}; it was not kept"):
        fetch(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nobody_at_the_address_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        file = File("some.bin", ("",), url=f"http://127.0.0.1:{taken.getsockname()[1]}/some.bin")
        with pytest.raises(PalmetteError, match=r"some.bin could not be downloaded: .*refused"):
            fetch(file, tmp_path)


def test_a_machine_without_a_network_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*given: Any, **named: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(PalmetteError, match=r"not known.*is this machine offline"):
        downloads.fetch(
            File("some.bin", ("",), url="http://nowhere.invalid/some.bin"), tmp_path / "a", print, pause=100
        )


def test_a_full_disk_is_told_before_and_during(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(PalmetteError, match=r"some.bin needs 1.02 MB more, but .* has room for 1 kB"):
        fetch(the_file(server), tmp_path)
    monkeypatch.undo()
    with (
        pytest.raises(PalmetteError, match=r"there is no room left for .*/full.*; make room"),
        Path("/dev/full").open("wb", buffering=0) as stream,
    ):
        downloads._write(stream, b"abc", Path("/some/full"))  # type: ignore[arg-type]


# -- the files of a data set -------------------------------------------------------------------------------------------


def test_files_that_serve_instead_must_be_whole(tmp_path: Path) -> None:
    one, two = File("one", ("a", "")), File("two", ("",))
    file = File("main", ("here",), url="http://127.0.0.1/main", instead=((one, two),))
    (tmp_path / "one").touch()
    assert present(file, tmp_path) == []
    with pytest.raises(
        BadInput,
        match=r"needs the file main or one and two, looked for at .*/here/main; get it with: palmette data get x; "
        r".* with data\.folder or the",
    ):
        find("x", file, tmp_path)
    (tmp_path / "two").touch()
    assert present(file, tmp_path) == [tmp_path / "one", tmp_path / "two"]
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "main").touch()
    assert find("x", file, tmp_path) == tmp_path / "here" / "main"


def read(folder: Path | None = None) -> Pool:
    """Read nothing."""
    raise AssertionError


@pytest.fixture
def named(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(*files: File, **more: Any) -> None:
        monkeypatch.setitem(DATASETS, "some", Dataset("Some bytes", read, natural=True, files=files, **more))

    return put


def palmette(*words: str) -> Any:
    return CliRunner().invoke(app, ["data", *words])


def test_get_puts_files_in_their_first_place_and_leaves_those_that_are_there(
    server: Server, named: Any, tmp_path: Path
) -> None:
    named(the_file(server), samples=12, devices=3, licence="free")
    (before,) = [
        one for one in json.loads(palmette("list", "--folder", str(tmp_path), "--json").output) if one["name"] == "some"
    ]
    assert (before["here"], before["bytes"], before["samples"], before["devices"]) == (False, len(BYTES), 12, 3)
    done = palmette("get", "some", "--folder", str(tmp_path))
    assert done.exit_code == 0
    assert f"downloading {server.url}" in done.stderr
    assert (
        f"1 file of some, 1.02 MB, now in {tmp_path / 'some'}; train with: palmette run permfl --data some"
        in done.stdout
    )
    assert (tmp_path / "some" / "some.bin").read_bytes() == BYTES
    again = palmette("get", "some", "--folder", str(tmp_path), "--json")
    (row,) = json.loads(again.stdout)["files"]
    assert (row["downloaded"], row["note"], row["bytes"]) == (False, None, len(BYTES))
    assert len(server.asked) == 1
    text = " ".join(palmette("list", "--folder", str(tmp_path)).stdout.split())
    assert "Not here, 11.5 MB to download. 70,000 samples." in text
    assert "Some bytes. Here. 12 samples. 3 devices of its own. Licence: free." in text


def test_get_says_where_a_file_differs_and_where_nothing_is_known_of_it(
    server: Server, named: Any, tmp_path: Path
) -> None:
    (tmp_path / "some.bin").write_bytes(b"mine")
    named(the_file(server), the_file(server, name="other.bin", sha256=""))
    done = palmette("get", "some", "--folder", str(tmp_path))
    assert f"{tmp_path / 'some.bin'} is not the public file, as its SHA-256 is" in done.stderr
    assert "other.bin is not checked: its checksum is not published" in done.stderr
    assert (tmp_path / "some.bin").read_bytes() == b"mine"
    assert (tmp_path / "some" / "other.bin").read_bytes() == BYTES


def test_get_tells_how_where_it_cannot_download(named: Any, tmp_path: Path) -> None:
    named(File("some.bin", ("",)), how="Ask the authors.")
    done = palmette("get", "some", "--folder", str(tmp_path))
    assert done.exit_code == 2
    assert (
        done.stderr
        == "palmette: palmette data get cannot download some: there is no public address of some.bin. Ask the authors.\n"
    )
    assert "Not here, to be got by hand." in palmette("list", "--folder", str(tmp_path)).stdout


def test_get_of_nothing_known_or_nothing_needed() -> None:
    assert "no data set 'mnis'; did you mean 'mnist'?" in palmette("get", "mnis").stderr
    assert palmette("get", "mnis").exit_code == 2
    assert palmette("get", "digits").stdout.startswith("digits needs no files; train with")
    assert "palmette run permfl --data donors --model logistic" in palmette("get", "donors").stdout


def test_a_failed_get_is_one_line(server: Server, named: Any, tmp_path: Path) -> None:
    named(the_file(server, sha256="1" * 64))
    done = palmette("get", "some", "--folder", str(tmp_path))
    assert done.exit_code == 1
    assert f"its SHA-256 is {SHA}, not {'1' * 64}" in done.stderr.splitlines()[-1]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_stopped_get_goes_on_where_it_ended(
    server: Server, named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(the_file(server))
    write = downloads._write

    def stop(*given: Any) -> None:
        write(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "_write", stop)
    done = palmette("get", "some", "--folder", str(tmp_path))
    assert done.exit_code == 130
    assert (
        f"stopped; what has come so far is kept in {tmp_path}, and it goes on with: palmette data get some --folder {tmp_path}"
        in " ".join(done.stderr.split())
    )
    kept = (tmp_path / "some" / "some.bin.part").stat().st_size
    assert 0 < kept < len(BYTES)
    monkeypatch.setattr(downloads, "_write", write)
    assert palmette("get", "some", "--folder", str(tmp_path)).exit_code == 0
    assert server.asked == [None, f"bytes={kept}-"]


def test_a_data_set_is_listed_with_its_origin_licence_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path))
    text = CliRunner().invoke(app, ["list", "datasets", "fashion-mnist"]).stdout
    for part in ("MIT, Zalando SE", "H. Xiao", "not here, 30.9 MB to download", "t10k-labels-idx1-ubyte.gz: not here"):
        assert part in text


def test_every_public_file_has_an_address_and_a_checksum_or_its_data_set_says_how() -> None:
    for name, entry in DATASETS.items():
        for file in entry.files:
            assert file.url or entry.how, name
            assert (file.sha256 or file.md5 or not file.url) or entry.how, name
            assert len(file.sha256) in (0, 64), name
            assert len(file.md5) in (0, 32), name
