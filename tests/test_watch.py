"""`palmette watch`: a page that follows a run, for a browser on the same machine, which it only reads for."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import palmette as pm
from page_runs import Tab, browser, digits
from palmette.cli.app import app
from palmette.errors import BadInput
from palmette.page.live import Server, Watch
from palmette.runs.folder import CHECKPOINT, MANIFEST, METRICS, PROGRESS, Folder

pytestmark = pytest.mark.xdist_group("page")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits("permfl", tmp_path_factory.mktemp("watched") / "run", rounds=4, settings={"team_steps": 2}).folder


@pytest.fixture
def going_on(finished: Path, tmp_path: Path) -> Path:
    """A run as it is after its second round, on which this process works."""
    place = tmp_path / "run"
    shutil.copytree(finished, place)
    (place / MANIFEST).unlink()
    (place / "state.bin").replace(place / CHECKPOINT)
    (place / METRICS).unlink()
    publish(finished, place, 2)
    return place


def publish(finished: Path, place: Path, done: int) -> None:
    """Put the history up to a round on disk, as a run does."""
    table = pm.load(finished).metrics
    so_far = table.filter([row <= done for row in table["round"].to_pylist()])
    pq.write_table(so_far.replace_schema_metadata({"so far": json.dumps({"round": done})}), place / PROGRESS)


@contextmanager
def served(*folders: Path) -> Iterator[Server]:
    with Server(Watch(folders)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(timeout=10)


def ask(server: Server, path: str, verb: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    host, port = server.server_address[:2]
    link = http.client.HTTPConnection(str(host), int(port), timeout=10)
    link.request(verb, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = link.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    link.close()
    return found


def test_the_page_and_its_data_are_served_and_nothing_else(finished: Path) -> None:
    with served(finished) as server:
        assert server.address.startswith("http://localhost:")
        assert server.server_address[0] == "127.0.0.1"
        status, headers, body = ask(server, "/")
        assert status == 200
        assert b"data-live" in body
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert ask(server, "/data.json")[0] == 200
        for path in ("/config.toml", "/../config.toml", "/data.json/..", "/favicon.ico", "//etc/passwd", "/%2e%2e/x"):
            assert ask(server, path)[0] == 404
        for verb in ("POST", "PUT", "DELETE"):
            assert ask(server, "/", verb)[0] == 501
        assert "Python" not in headers["Server"]


def test_a_page_of_another_site_is_told_nothing(finished: Path) -> None:
    with served(finished) as server:
        assert ask(server, "/data.json", Host="evil.example")[0] == 403
        assert ask(server, "/data.json", Host=f"localhost:{server.server_address[1]}")[0] == 200


def test_data_are_sent_anew_only_when_they_changed(finished: Path, going_on: Path) -> None:
    with served(going_on) as server:
        status, headers, body = ask(server, "/data.json")
        assert (status, json.loads(body)["runs"][0]["done"]) == (200, 2)
        assert ask(server, "/data.json", If_None_Match=headers["ETag"])[::2] == (304, b"")
        publish(finished, going_on, 3)
        for _ in range(200):  # a moment after it was read, it is not read again
            status, _, body = ask(server, "/data.json", If_None_Match=headers["ETag"])
            if status == 200:
                break
            time.sleep(0.02)
        assert (status, json.loads(body)["runs"][0]["done"]) == (200, 3)


def test_what_takes_long_to_read_is_not_read_all_the_time(going_on: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("palmette.page.live.time.monotonic", lambda: clock[0])
    watch, reads = Watch([going_on]), []

    def slow() -> dict[str, Any]:
        clock[0] += 3
        reads.append(clock[0])
        return {}

    monkeypatch.setattr(watch, "data", slow)
    watch.news()
    (going_on / PROGRESS).touch()
    for later in (105.0, 114.0, 116.0, 117.0):
        clock[0] = later
        watch.news()
    assert reads == [103.0, 119.0]


def test_watching_changes_nothing_in_the_folder(going_on: Path) -> None:
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in going_on.iterdir()}
    with served(going_on) as server:
        ask(server, "/")
        ask(server, "/data.json")
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in going_on.iterdir()} == before


def test_a_folder_that_goes_away_or_breaks_is_said_and_the_server_stays(going_on: Path) -> None:
    with served(going_on) as server:
        (going_on / PROGRESS).write_bytes(b"not a table")
        status, _, body = ask(server, "/data.json")
        assert status == 503
        assert b"progress.parquet" in body
        shutil.rmtree(going_on)
        assert ask(server, "/data.json")[0] == 503


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "run")
    with served(tmp_path / "run") as server:
        status, _, body = ask(server, "/data.json")
    folder.unlock()
    assert status == 200
    assert json.loads(body)["sentences"] == ["The run has not begun yet."]
    with pytest.raises(BadInput, match="neither a run nor a study"):
        Watch([tmp_path / "run"]).data()


def test_the_open_page_follows_the_run_and_keeps_what_one_has_opened(finished: Path, going_on: Path) -> None:
    folder = Folder(going_on)
    folder.lock()
    with served(going_on) as server, browser() as chrome:
        tab = Tab(chrome.new_page())
        tab.open(server.address)
        tab.page.get_by_text("live: running").wait_for()
        assert "is running: 2 of 4 rounds are done" in tab.text(".lead")
        tab.page.get_by_role("button", name="team-1", exact=True).click()
        tab.page.locator("#run-curves summary").click()
        tab.page.get_by_role("button", name="team-1", exact=True).focus()
        publish(finished, going_on, 3)
        tab.page.get_by_text("is running: 3 of 4 rounds are done").wait_for()
        assert tab.page.evaluate("document.activeElement.textContent") == "team-1"
        assert tab.page.get_by_role("button", name="team-1", exact=True).get_attribute("aria-expanded") == "true"
        numbers = tab.page.locator("#run-curves details[open] tbody tr")
        numbers.nth(3).wait_for()  # still open, with the round that is new
        folder.unlock()
        tab.page.get_by_text("stopped", exact=True).wait_for()
        for path in finished.iterdir():
            shutil.copy(path, going_on / path.name)
        publish(finished, going_on, 4)  # what a browser asks for next has changed
        tab.page.get_by_text("finished", exact=True).first.wait_for()
        tab.page.get_by_text("4 rounds, seed 0.").wait_for()
        assert tab.complaints == []


# -- the command -------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_watching_with_a_word(finished: Path) -> None:
    command = [sys.executable, "-c", "from palmette.cli.app import app; app()", "watch", str(finished)]
    process = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"watch  http://localhost:\d+/  \(stop with Ctrl-C\)\n", line)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert errors == "palmette: stopped watching; a run that is going on goes on\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "nowhere is not the folder of a run"),
        (["{run}", "--port", "70000"], "--port"),
        (["{run}", "--host", "no such host"], "cannot listen on no such host"),
    ],
)
def test_bad_input_is_one_line(words: list[str], reason: str, finished: Path) -> None:
    done = CliRunner().invoke(app, ["watch", *(word.format(run=finished) for word in words)])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr


def test_a_port_in_use_is_said(finished: Path) -> None:
    with served(finished) as server:
        port = server.server_address[1]
        with pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            Server(Watch([finished]), port=int(port))
