"""Things of a user's own by import path, ``module:name``, or by file, so that a command or a config can name them."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from palmette.errors import BadInput
from palmette.files import is_file, load_file, parts_of, shown


def load_names(path: str, what: str, example: str) -> tuple[dict[str, Any], str, str]:
    """Load the file or import the module of a path and return what it holds, the name, and what to call the place.

    Args:
        path: ``module:name``, or ``file.py`` with or without ``:name``; without it the name is empty.
        what: What it is to be, as in ``"the algorithm"``.
        example: A name for an error message, as in ``"MyMethod"``.
    """
    if is_file(path):
        file, name = parts_of(path)
        return load_file(file), name, shown(file)
    found, name = import_names(path, what, example)
    return found, name, f"the module {path.partition(':')[0]}"


def import_names(path: str, what: str, example: str) -> tuple[dict[str, Any], str]:
    """Import the module of a path ``module:name`` and return what it holds, and the name.

    Modules of the current folder are found too.

    Args:
        path: The path.
        what: What it is to be, as in ``"the algorithm"``.
        example: A name for an error message, as in ``"MyMethod"``.
    """
    module, _, name = path.partition(":")
    if module.endswith(".py") or "/" in module or not (module and name):
        tail = module.removesuffix(".py").replace("/", ".").strip(".") or "my_module"
        kind = "class" if example[:1].isupper() else "function"
        raise BadInput(f"{path!r} is no import path; write {tail}:{name or example}, module and {kind}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # after all others, so that no file of the folder hides an installed module
    try:
        with redirect_stdout(sys.stderr):  # a command's standard output is its result
            return vars(import_module(module)), name
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise BadInput(f"{module} cannot be imported: it needs the module {error.name!r}") from error
        raise BadInput(
            f"there is no module {error.name!r} for {what} {path!r}; it is looked for in the current folder and "
            "among installed packages"
        ) from None
    except (Exception, SystemExit) as error:  # whatever a module of somebody else raises
        raise BadInput(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
