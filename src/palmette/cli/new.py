"""The command ``palmette new``: a small package with a method of one's own, to be changed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from palmette.cli.failures import one_line_errors
from palmette.guards.terminal import tell

# Their classes would hide what the method imports.
_USED = (
    *("any", "class-var", "tensor", "inner", "server", "state"),
    *("batch-size", "count", "non-negative", "positive"),
)


def new(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="The name of your method, such as my-prox.")],
    at: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder to write. [dim](default: METHOD, here)[/dim]")
    ] = None,
) -> None:
    """Write a small package with a method of your own, and its tests.

    [bold]Example:[/bold]  palmette new my-prox

    The method in it works as it is: change it into yours.
    Once the package is installed, its name is known to run,
    compare, sweep and list. A method can also be a single
    file: palmette run ./mine.py
    """
    with one_line_errors():
        from palmette.cli.template import write

        name = _checked(method)
        folder = Path(name) if at is None else at
        _refuse_taken(folder)
        _refuse_module(name)
        write(name, folder)
        package = name.replace("-", "_")
        tell(
            f"{folder} holds the method {name} now:\n"
            f"  src/{package}/__init__.py   the method: its comments say what to change\n"
            f"  tests/test_{package}.py   its tests, with the contract of all algorithms\n"
            "  pyproject.toml, README.md\n\n"
            "Next:\n"
            f"  cd {shlex.quote(str(folder))}\n"
            "  python -m pip install -e '.[dev]'\n"
            "  python -m pytest\n"
            f"  palmette run {name} --rounds 5\n"
            f"  palmette compare {name} permfl fedavg --steps 300\n\n"
            f"Without installing it:  palmette run src/{package}/__init__.py"
        )


def _checked(method: str) -> str:
    """Return the name of a method, or refuse one that cannot be a package's, a class's and a folder's or is taken."""
    from keyword import iskeyword

    from palmette.algorithms import ALGORITHMS
    from palmette.algorithms.installed import installed
    from palmette.cli.keys import GROUPS, TOP
    from palmette.errors import BadInput

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", method):
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", method)
        meant = re.sub(r"-(?=\d)", "", "-".join(parts).lower())
        hint = f", as in {meant}" if re.match("[a-z]", meant) else ", as in my-prox"
        raise BadInput(
            f"a method cannot be called {method!r}: use small letters, digits and '-', with a letter first{hint}"
        )
    if len(method) > 40:
        raise BadInput(f"a method cannot be called {method!r}: use at most 40 letters")
    if method in ALGORITHMS or method in installed():
        whose = "Palmette" if method in ALGORITHMS else "an installed package"
        raise BadInput(
            f"there is an algorithm of {whose} named {method!r} already; choose another name, as in my-{method}"
        )
    if iskeyword(method) or method in (*_USED, *GROUPS, *TOP):
        raise BadInput(f"a method cannot be called {method!r}, which means something else; choose another name")
    return method


def _refuse_taken(folder: Path) -> None:
    """Refuse to write over anything."""
    from palmette.errors import BadInput

    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise BadInput(f"{folder} is there already and is no folder; choose another with --at")
    if folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"{folder} is there already and is not empty; nothing is written over. Choose another with --at")


def _refuse_module(name: str) -> None:
    """Refuse a package that would hide a module, or be hidden by it."""
    from importlib.util import find_spec

    from palmette.errors import BadInput

    package = name.replace("-", "_")
    found = find_spec(package)
    if found is not None and found.origin is not None:  # else it is a mere folder of that name
        raise BadInput(
            f"there is a Python module named {package!r} already ({found.origin}), which the package of the method would be "
            f"mixed up with; choose another name, as in my-{name}"
        )
