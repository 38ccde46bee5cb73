"""What holds for all tests: nothing is written into the repository, and nobody waits for a disk."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer.testing


def pytest_configure(config: pytest.Config) -> None:
    """Hear Ctrl-C also where a shell started the tests in the background, which ignores it: processes of tests inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _apart_from_the_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work in a temporary folder: what a test writes without saying where does not land among the sources.

    A disk need not keep it either. `os.fsync` protects from power failures, which no test can cause, and a run calls it for
    every file; that it is called, and when, is tested where it is replaced by one that takes notes. And the command line is put
    together from its functions once, not at every command: a process of a user's does it once, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        if folder := os.environ.get("PALMETTE_DATA"):
            patch.setenv("PALMETTE_DATA", str(Path(folder).resolve()))
        patch.setattr(os, "fsync", lambda number: None)
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


@pytest.fixture(autouse=True)
def _the_same_luck() -> None:
    """Start every test with the same state of torch's generator, whichever tests came before it in its process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_folder(_apart_from_the_sources: None) -> Path:
    """The folder of public data sets, which PALMETTE_DATA names; where there is none, a test is skipped, but not in CI."""
    named = os.environ.get("PALMETTE_DATA")
    if named and Path(named).is_dir():
        return Path(named)
    if os.environ.get("CI"):
        pytest.fail("PALMETTE_DATA must name the folder of data sets")
    pytest.skip("PALMETTE_DATA names no folder of data sets")
