"""The package that ``palmette new`` writes: its files, in which a few words stand for the method's name."""

from __future__ import annotations

import os
import re
import shutil
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from palmette.errors import BadInput


def write(name: str, folder: Path) -> None:
    """Write the package of a method into a folder that is not there, or is empty; all of it or nothing.

    Args:
        name: The method's name, such as ``my-prox``.
        folder: The package's folder.
    """
    beside = folder.absolute().parent / f".{folder.absolute().name}.{os.getpid()}.new"
    try:
        for path, text in package(name).items():
            (beside / path).parent.mkdir(parents=True, exist_ok=True)
            (beside / path).write_text(text, encoding="utf-8")
        beside.rename(folder.absolute())
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}; choose another folder with --at") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def package(name: str) -> dict[str, str]:
    """Return the texts of the package's files, by their path in it."""
    module = name.replace("-", "_")
    words = {
        "name": name,
        "package": module,
        "kind": "".join(part.capitalize() for part in name.split("-")),
        "range": _range(version("palmette")),
    }
    here = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"src/{module}/__init__.py": "method.py",
        f"tests/test_{module}.py": "test.py",
    }
    own = files(__name__)
    texts = {path: own.joinpath(f"{kept}.txt").read_text(encoding="utf-8") for path, kept in here.items()}
    return {path: Template(text).substitute(words) for path, text in texts.items()} | {f"src/{module}/py.typed": ""}


def _range(now: str) -> str:
    """Return which versions of Palmette a method fits that was written for one: those before the next that may break it."""
    major, minor = map(int, re.findall(r"\d+", now)[:2])
    return f">={now},<{f'0.{minor + 1}' if major == 0 else major + 1}"
