"""Several processes give the bits of one; and what a person sees who starts them with torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from palmette.engines.peers import Place, place
from palmette.engines.sharing import Shares, blocks_of, homes_of
from palmette.runs import execute, make_config, resume

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what torchrun tells a process."""
    paths = f"{SOURCE}{os.pathsep}{HERE}"
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {
        **os.environ,
        **{name: str(value) for name, value in told.items()},
        "MASTER_ADDR": "127.0.0.1",
        "PYTHONPATH": paths,
    }


class Started:
    """Processes of one run, as torchrun would start them."""

    def __init__(self, size: int, words: list[str], folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.files = [folder / f"rank{rank}.txt" for rank in range(size)]
        self.processes = []
        for rank, file in enumerate(self.files):
            with open(file, "w") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        env=environment(rank, size, port),
                        cwd=folder,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def said(self, rank: int = 0) -> str:
        """Return what a process has written so far."""
        return self.files[rank].read_text()

    def wait_for(self, *texts: str) -> None:
        """Wait until rank 0 has written a line with some texts."""
        end = time.monotonic() + 90
        while not any(all(text in line for text in texts) for line in self.said().splitlines()):
            assert time.monotonic() < end, self.said()
            assert self.processes[0].poll() is None, self.said()
            time.sleep(0.05)

    def ended(self, seconds: float = 120) -> list[int]:
        """Wait for all, and return their exit codes."""
        end = time.monotonic() + seconds
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

    def kill(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Start processes that are ended with the test."""
    begun: list[Started] = []

    def one(size: int, *words: str) -> Started:
        begun.append(Started(size, list(words), tmp_path))
        return begun[-1]

    yield one
    for started in begun:
        started.kill()


def test_two_processes_give_the_bits_of_one_for_every_kind_of_algorithm(start) -> None:
    pair = start(
        2, str(HERE / "pairs.py"), "storm", "quick"
    )  # make prove-distributed does all of the table, in all cases
    codes = pair.ended(240)
    assert pair.said().split("\n") == ["all cases were compared", ""], pair.said()
    assert (codes, pair.said(1)) == ([0, 0], "")


ROUNDS = 40
RUN = [
    *("-m", "palmette", "run", "permfl", "--data", "synthetic", "--rounds", str(ROUNDS), "--out", "run"),
    *("--set", "engine.chunk=4", "--set", "settings.team_steps=3", "--set", "engine.check_steps=false"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the same run leaves in one process."""
    settings = {"algorithm": "permfl", "data": {"name": "synthetic"}, "settings": {"team_steps": 3}, "rounds": ROUNDS}
    folder = tmp_path_factory.mktemp("whole") / "run"
    execute(make_config({**settings, "engine": {"chunk": 4, "check_steps": False}}), folder)
    return lasting(folder)


def lasting(folder: Path) -> dict[str, bytes]:
    """Return the files that must not depend on who computed a run."""
    return {path.name: path.read_bytes() for kind in ("*.safetensors", "*.parquet") for path in folder.glob(kind)}


@pytest.mark.slow
def test_a_lost_process_and_ctrl_c_end_a_run_that_any_number_of_processes_goes_on_with(start, tmp_path, whole) -> None:
    pair = start(2, *RUN)
    pair.wait_for("round 1/")
    os.kill(pair.processes[1].pid, signal.SIGKILL)
    assert pair.ended(60) == [1, -signal.SIGKILL]
    told = [line for line in pair.said().splitlines() if line.startswith("palmette: ")]
    assert len(told) == 1, pair.said()
    assert told[0].startswith("palmette: process 1 of the 2 of this run is gone (")
    assert told[0].endswith("with: palmette resume run")
    assert "Traceback" not in pair.said()

    three = start(3, "-m", "palmette", "resume", "run")
    three.wait_for(": round ", f"/{ROUNDS} ")
    for process in three.processes * 2:  # torchrun passes it on to those that heard it
        process.send_signal(signal.SIGINT)
    assert three.ended(60) == [130, 0, 0], three.said()
    assert three.said().splitlines()[-1].startswith("palmette: stopped after round "), three.said()
    assert [three.said(1), three.said(2)] == ["", ""]

    assert resume(tmp_path / "run").config.rounds == ROUNDS
    assert lasting(tmp_path / "run") == whole


@pytest.mark.slow
def test_wrong_input_is_told_once_and_nobody_waits(start) -> None:
    pair = start(2, "-m", "palmette", "run", "permfl", "--data", "nonsense")
    assert pair.processes[0].wait(60) == 2
    assert pair.said().startswith("palmette: there is no data set 'nonsense'")
    assert pair.said().count("\n") == 1
    assert pair.ended(60)[1] in (0, 1)
    assert pair.said(1) == ""


def test_a_process_is_alone_unless_it_is_told_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(1, 2, 1).items():
        monkeypatch.setenv(name, value)
    assert place() == Place(1, 2, 1, 2)
    for name, value in {"WORLD_SIZE": "1", "RANK": "first", "MASTER_PORT": ""}.items():
        with monkeypatch.context() as other:
            other.setenv(name, value)
            assert place() is None


@pytest.mark.parametrize(("processes", "row_bytes"), [(2, 4), (3, 4), (9, 4), (2, 1 << 26), (3, 1 << 28)])
def test_every_chunk_has_one_process_and_every_sum_one_end(processes: int, row_bytes: int) -> None:
    count, chunks = 40, [slice(low, min(low + 3, 40)) for low in range(0, 40, 3)]
    parents = torch.arange(4).repeat_interleave(torch.tensor([17, 1, 20, 2]))
    blocks = blocks_of(chunks, processes, row_bytes)
    assert [chunk for block in blocks for chunk in block.chunks] == chunks
    assert {block.rank for block in blocks} == set(range(min(processes, len(chunks))))
    homes = homes_of(blocks, torch.ones(count, dtype=torch.bool))
    shares = Shares(blocks, torch.arange(count), parents, homes)
    ends = [parent for block in blocks for parent in range(*shares.finished(block).indices(4))]
    assert ends == [0, 1, 2, 3]
    assert not shares.guests


def test_replies_that_would_wait_for_a_sum_are_few_where_they_are_large() -> None:
    chunks = [slice(low, low + 4) for low in range(0, 400, 4)]
    few, many = blocks_of(chunks, 2, 1), blocks_of(chunks, 2, 1 << 24)
    assert len(few) == 2
    assert max(len(block.chunks) for block in many) * 4 << 24 <= 1 << 28


def test_devices_kept_out_of_training_do_not_move_the_others_from_home() -> None:
    trained = torch.arange(12) < 8
    blocks = blocks_of([slice(0, 4), slice(4, 8)], 2, 1)
    assert homes_of(blocks, trained).tolist() == [0] * 4 + [1] * 8
    ids = torch.arange(8)
    assert not Shares(blocks, ids, torch.zeros(8, dtype=torch.int64), homes_of(blocks, trained)).guests
