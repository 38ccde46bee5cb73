"""A folder with a file of a user's own, and commands that are run in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palmette.cli.app import app


@contextmanager
def folder_with(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the file mine.py, which is the current one; what was loaded is forgotten afterwards."""
    (folder / "mine.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def palmette(*words: str) -> Any:
    """Run a command."""
    return CliRunner().invoke(app, list(words))


def done(*words: str) -> str:
    """Run a command that has to work and return what it printed."""
    result = palmette(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)
