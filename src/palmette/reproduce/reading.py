"""The files of experiments: those of the five papers by name, and a user's own."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from palmette.errors import BadInput, nearest
from palmette.guards.texts import from_toml
from palmette.reproduce.experiment import Experiment
from palmette.values import one_line

_FOLDER, _OWN = (files("palmette.reproduce") / place for place in ("papers", "own"))


def names() -> list[str]:
    """Return the names of all experiments of the papers, in their order."""
    return sorted(_found(), key=_order)


def own_names() -> list[str]:
    """Return the names of our own studies."""
    return sorted(_found(own=True))


def _order(name: str) -> tuple[int, bool, str]:
    """Return the place of an experiment: by paper, and there tables first."""
    papers = ("pfedmt", "permfl", "sfedhp", "group", "l2gd")
    return (papers.index(name.partition("-")[0]), "table" not in name, name)


@cache
def _found(*, own: bool = False) -> dict[str, Traversable]:
    folder = _OWN if own else _FOLDER
    return {path.name.removesuffix(".toml"): path for path in folder.iterdir() if path.name.endswith(".toml")}


def read(name: str) -> Experiment:
    """Return an experiment by its name, or from a file of the user's."""
    known = {**_found(), **_found(own=True)}
    if name in known:
        return _parsed(known[name].read_bytes(), name, name)
    if not name.endswith(".toml"):
        raise BadInput(f"unknown experiment {name!r}{nearest(name, known)}")
    path = Path(name)
    try:
        return _parsed(path.read_bytes(), path.stem, name)
    except OSError as error:
        raise BadInput(f"cannot read {name}: {error.strerror}") from None


def _parsed(data: bytes, name: str, where: str) -> Experiment:
    try:
        return Experiment.model_validate({**from_toml(data), "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        unknown = first["type"] == "extra_forbidden"
        wrong = "there is no such key in the file of an experiment" if unknown else one_line(first["msg"])
        raise BadInput(f"{where}: {at + ': ' if at else ''}{wrong}") from None
    except ValueError as error:
        raise BadInput(f"cannot read {where}: {one_line(str(error))}") from None
