"""One row of the table of data sets, and the files that belong to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from palmette.datasets.pool import Pool

_ELSEWHERE = ("folder", "pixels", "devices", "tree", "seed")  # what a population is told that a data set may ask for


@dataclass(frozen=True)
class File:
    """A file of a public data set.

    Attributes:
        name: Its name; with a ``*`` all files of a folder that fit it.
        places: Folders, within the folder of data sets, where it is looked for; ``palmette data get`` puts it into the first.
        sha256: The SHA-256 of its bytes; empty where the public file may differ from one source to another.
        url: Where it is downloaded from; empty where it cannot be.
        size: Its bytes, for the progress of a download; 0 where they are not known.
        md5: The MD5 of its bytes, where that is all its public source tells.
        instead: Other files that serve as well, each group of them whole.
    """

    name: str
    places: tuple[str, ...]
    sha256: str = ""
    url: str = ""
    size: int = 0
    md5: str = ""
    instead: tuple[tuple[File, ...], ...] = ()


@dataclass(frozen=True)
class Dataset:
    """One data set that Palmette knows by name.

    Attributes:
        description: One line for people.
        read: Makes the pool of samples.
        partition: Name of the partition used when the user names none; ``None`` where samples come by device.
        options: Options of that partition.
        natural: Whether its devices and teams are its own, so that no tree is chosen for it.
        files: The files it is read from; none where it is generated or comes with a package.
        licence: What its licence allows, in a line.
        origin: Where it comes from, in a line.
        model: Name of a model that fits its samples, where the default one does not.
        how: How to get the files where they cannot be downloaded, in a line or two.
        samples: Number of samples, as in its publication; 0 where settings decide it.
        devices: Number of devices of its own, the unseen ones included; 0 where it has none.
    """

    description: str
    read: Callable[..., Pool]
    partition: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    natural: bool = False
    files: tuple[File, ...] = ()
    licence: str = ""
    origin: str = ""
    how: str = ""
    samples: int = 0
    devices: int = 0
    model: str = ""

    @property
    def own(self) -> tuple[str, ...]:
        """The keywords of ``read`` that are options of the data set; the others are said elsewhere, as by the tree."""
        return tuple(name for name in self.takes if name not in _ELSEWHERE or (self.natural and name == "devices"))

    @property
    def takes(self) -> tuple[str, ...]:
        """The keywords of ``read``."""
        return tuple(inspect.signature(self.read).parameters)
