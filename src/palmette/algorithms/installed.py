"""Algorithms that other installed packages bring, by the entry points ``palmette.algorithms``.

Only the packages' metadata are read to find them; a package is imported when its algorithm is used.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from palmette.errors import BadInput
from palmette.protocol import Algorithm
from palmette.protocol.importing import import_algorithm

GROUP = "palmette.algorithms"


def installed() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points of other packages, by the name of the algorithm; two packages may bring the same name."""
    return _found(tuple(sys.path))


def path_of(name: str) -> str:
    """Return the import path of an installed algorithm; a name that several packages bring is refused."""
    first, *others = installed()[name]
    if others:
        paths = ", ".join(f"{one.value} of {_package(one)}" for one in (first, *others))
        raise BadInput(
            f"several packages bring an algorithm named {name!r}: {paths}; uninstall one, or give its import path"
        )
    if not first.attr:
        raise BadInput(
            f"the package {_package(first)} says that its algorithm {name!r} is {first.value!r}, which names no class; its "
            f'pyproject.toml must say {name} = "{first.value}:MyMethod"'
        )
    return f"{first.module}:{first.attr}"


def load(name: str) -> type[Algorithm]:
    """Import an installed algorithm's class; what is wrong is told with the package that brings it."""
    path = path_of(name)
    package = _package(installed()[name][0])
    try:
        kind = import_algorithm(path)
    except BadInput as error:
        raise BadInput(f"the algorithm {name!r} of the package {package} cannot be used: {error}") from error
    if kind.name != name:
        raise BadInput(
            f"the package {package} brings {path} as {name!r}, but the class is named {kind.name!r}: give both the same name"
        )
    return kind


def clashes(taken: Container[str]) -> list[str]:
    """Return a sentence for every installed algorithm whose name an algorithm of Palmette has."""
    return [
        f"the package {_package(one)} also brings an algorithm named {name!r}, which is not used: {name} is Palmette's own; "
        f"give its import path, {one.value}, and a name of its own"
        for name, found in installed().items()
        for one in found
        if name in taken
    ]


@cache
def _found(paths: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Read the metadata of all packages on the paths, once; one that lies there twice counts once."""
    found: dict[str, dict[tuple[str, str], EntryPoint]] = {}
    for one in entry_points(group=GROUP):
        found.setdefault(one.name, {}).setdefault((one.value, _package(one)), one)
    return {name: tuple(ones.values()) for name, ones in sorted(found.items())}


def _package(one: EntryPoint) -> str:
    return one.dist.name if one.dist is not None else one.module.partition(".")[0]
