"""Ctrl-C: once finishes the round, twice stops at once, and while modules are loaded it is no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.errors import PalmetteError
from palmette.learner import Halted
from palmette.protocol import Device
from problems import regression, simulate

ENDLESS = ["--tree", "2x2", "--rounds", "2", "--set", "local_steps=10000000"]
LOADING = "from palmette.__main__ import main; print('loading', flush=True); main()"


def command(program: str, *words: str, place: Path) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", program, *words], text=True, cwd=place, env=environment, **pipes)


def until(stream: object, words: str) -> None:
    told = ""
    while words not in told:
        line = stream.readline()  # type: ignore[attr-defined]
        assert line, told
        told += line


@pytest.mark.parametrize("backend", ["fused", "loop"])
def test_a_second_ctrl_c_stops_in_the_middle_of_endless_steps(backend: str, tmp_path: Path) -> None:
    words = ["run", "permfl", *ENDLESS, "--set", f"engine.backend={backend}", "--out", "run"]
    process = command(LOADING, *words, place=tmp_path)
    try:
        until(process.stderr, "devices, 2 rounds")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        until(process.stderr, "stopping after this round; press Ctrl-C again")
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - start
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.splitlines() == ["palmette: stopped at once, no round is kept; go on with: palmette resume run"]
    assert seconds < 5  # two, on a machine that has nothing else to do


@pytest.mark.parametrize("moment", [0.05, 0.2, 0.7, 1.4])
def test_ctrl_c_while_modules_are_loaded_ends_in_a_line(moment: float, tmp_path: Path) -> None:
    process = command(LOADING, "run", "permfl", *ENDLESS, place=tmp_path)
    try:
        until(process.stdout, "loading")
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        if process.poll() is None and moment >= 1:  # it may have come as far as the first round
            process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "stopped" in errors.splitlines()[-1]
    assert out == ""


def test_steps_that_nobody_wants_end(tmp_path: Path) -> None:
    simulation = simulate("permfl", regression("2x2"), 1)
    device = Device(
        *(simulation.learner, torch.zeros(4, dtype=torch.int64), simulation.tree, torch.arange(4)),
        **simulation._where(),
    )
    rows = simulation.learner.initial().expand(4, -1)
    with simulation.learner.halted(), pytest.raises(Halted):
        device.descend(rows, steps=10, lr=0.1)
    assert device.descend(rows, steps=10, lr=0.1).shape == rows.shape
    assert issubclass(Halted, PalmetteError)


def test_chunks_in_other_threads_end_with_the_round_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = simulate("permfl", regression("2x2"), 1, chunk=2, threads=2)
    monkeypatch.setattr(simulation.learner, "worth_a_thread", lambda devices: True)
    plain, under_way, ended = simulation._work, threading.Event(), threading.Event()

    def endless(parcel: Any, positions: slice) -> Any:
        if threading.current_thread() is threading.main_thread():
            assert under_way.wait(10)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()  # while this thread waits for the other
            return plain(parcel, positions)
        under_way.set()
        try:
            while True:
                simulation.learner.go_on()
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(simulation, "_work", endless)
    with pytest.raises(KeyboardInterrupt):
        simulation.step()
    assert ended.is_set()
    simulation.learner.go_on()  # and the next round is not given up


@pytest.mark.parametrize("batch", ["next", "same", "full"])
def test_a_descent_in_many_calls_has_the_bits_of_one(batch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for most in (1 << 20, 1, 7, 40):
        monkeypatch.setattr("palmette.learner.descent._CALL_STEPS", most)
        simulation = simulate("permfl", regression([3, 2, 4], unequal=True), 1, backend="fused")
        ids = torch.arange(9)
        device = Device(
            *(simulation.learner, torch.zeros(9, dtype=torch.int64), simulation.tree, ids), **simulation._where()
        )
        rows = torch.rand(9, simulation.learner.width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        steps = torch.tensor([0, 1, 33, 33, 90, 90, 90, 64, 5])
        found.append(device.descend(rows, steps=steps, lr=0.01, pull=0.5, centre=rows + 1, batch=batch))  # type: ignore[arg-type]
    assert all(torch.equal(found[0], other) for other in found[1:])
