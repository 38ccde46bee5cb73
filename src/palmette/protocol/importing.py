"""Algorithms of one's own by import path, so that a command or a config can name them."""

from __future__ import annotations

from palmette.errors import BadInput, nearest
from palmette.imports import import_names
from palmette.protocol.algorithm import Algorithm
from palmette.protocol.definition import check_kind


def import_algorithm(path: str) -> type[Algorithm]:
    """Import an algorithm's class by its path ``module:Class``; modules of the current folder are found too."""
    found, name = import_names(path, "the algorithm", "MyMethod")
    module = path.partition(":")[0]
    if name not in found:
        kinds = [word for word, one in found.items() if isinstance(one, type) and issubclass(one, Algorithm)]
        there = nearest(name, kinds) if kinds else "; it has no algorithm"
        raise BadInput(f"the module {module} has no {name!r}{there}")
    kind = found[name]
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise BadInput(f"{path} is no algorithm: it must be a class derived from pm.Algorithm, not {kind!r}")
    check_kind(kind)
    return kind
