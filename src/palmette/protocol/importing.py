"""Algorithms of one's own, by import path or by file, so that a command or a config can name them."""

from __future__ import annotations

from typing import Any

from palmette.errors import BadInput, nearest
from palmette.files import is_file, load_file, parts_of, shown
from palmette.imports import load_names
from palmette.protocol.algorithm import Algorithm
from palmette.protocol.definition import check_kind


def import_algorithm(path: str) -> type[Algorithm]:
    """Import an algorithm's class by its import path ``module:Class`` or its file, ``mine.py`` or ``mine.py:Class``.

    Modules of the current folder are found too. A file that holds one algorithm needs no class.
    """
    found, name, holder = load_names(path, "the algorithm", "MyMethod")
    name = name or _only(found, holder)
    if name not in found:
        kinds = [word for word, one in found.items() if isinstance(one, type) and issubclass(one, Algorithm)]
        there = nearest(name, kinds) if kinds else "; it has no algorithm"
        raise BadInput(f"{holder} has no {name!r}{there}")
    kind = found[name]
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise BadInput(f"{path} is no algorithm: it must be a class derived from pm.Algorithm, not {kind!r}")
    check_kind(kind)
    return kind


def whole_path(path: str) -> str:
    """Return the path of an algorithm that means the same in every folder: of a file, from the root, with the class."""
    if not is_file(path):
        return path
    file, name = parts_of(path)
    return f"{file}:{name or _only(load_file(file), shown(file))}"


def _only(found: dict[str, Any], file: str) -> str:
    """Return the name of the one algorithm that a file defines; one that is not finished counts where there is no other."""
    own = {
        name: one
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, Algorithm) and one.__module__ == found["__name__"]
    }
    public = {name: one for name, one in own.items() if not name.startswith("_")} or own
    names = [name for name, one in public.items() if not one.__abstractmethods__] or list(public)
    if not names:
        raise BadInput(f"{file} defines no algorithm: write a class derived from pm.Algorithm in it")
    if len(names) > 1:
        written = ", ".join(f"{file}:{name}" for name in names)
        raise BadInput(f"{file} defines {len(names)} algorithms; say which one is meant: {written}")
    return names[0]
