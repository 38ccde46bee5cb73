"""Algorithms of one's own by import path, so that a command or a config can name them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from palmette.errors import BadInput, nearest
from palmette.protocol.algorithm import Algorithm
from palmette.protocol.definition import check_kind


def import_algorithm(path: str) -> type[Algorithm]:
    """Import an algorithm's class by its path ``module:Class``; modules of the current folder are found too."""
    module, _, name = path.partition(":")
    if module.endswith(".py") or "/" in module or not (module and name):
        tail = module.removesuffix(".py").replace("/", ".").strip(".") or "my_module"
        raise BadInput(f"{path!r} is no import path; write {tail}:{name or 'MyMethod'}, module and class")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # after all others, so that no file of the folder hides an installed module
    try:
        found = vars(import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise BadInput(f"{module} cannot be imported: it needs the module {error.name!r}") from error
        raise BadInput(
            f"there is no module {error.name!r} for the algorithm {path!r}; it is looked for in the current folder and "
            "among installed packages"
        ) from None
    except Exception as error:  # whatever a module of somebody else raises
        raise BadInput(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if name not in found:
        kinds = [word for word, one in found.items() if isinstance(one, type) and issubclass(one, Algorithm)]
        there = nearest(name, kinds) if kinds else "; it has no algorithm"
        raise BadInput(f"the module {module} has no {name!r}{there}")
    kind = found[name]
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise BadInput(f"{path} is no algorithm: it must be a class derived from pm.Algorithm, not {kind!r}")
    check_kind(kind)
    return kind
