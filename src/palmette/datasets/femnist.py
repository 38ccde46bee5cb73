"""FEMNIST: the handwritten digits and letters of NIST's forms by the people who wrote them, as LEAF's code leaves them.

LEAF writes JSON files into the folders train and test (or all_data, where it was not split): the names of writers (``users``),
their numbers of samples, for every writer images (``x``, 784 numbers in 0..1, paper bright) and labels (``y``: digits 0..9,
capital letters 10..35, small letters 36..61). Writers are the devices.

LEAF splits either the samples of every writer (``-t sample``): then its training and test samples are kept as they are; or the
writers (``-t user``): then the writers of the folder test are unseen devices.

A writer is called by NIST, as in f0001_41: writer 1 on form 41. Teams are what the files name as ``hierarchies``; else the
series of forms by the writer's number: up to 2099 series 0 to 3 (employees of the Census Bureau), up to 2599 series 4
(high-school students), beyond it series 6 to 8. Where writers go by other names there are no teams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from palmette.datasets import files
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.images import Pixels, affine
from palmette.datasets.natural import by_device
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.values import Array, shown

_CLASSES, _SIDE = 62, 28
_PLACES = ("femnist/data", "femnist", "data/femnist/data", "")
_TRAIN, _TEST, _ALL = (File(f"{part}/*.json", _PLACES) for part in ("train", "test", "all_data"))
_FILES = replace(_TRAIN, instead=((_ALL,),))
_SERIES = ((2100, "series-0-3"), (2600, "series-4"), (10_000, "series-6-8"))


@dataclass(frozen=True)
class _Writer:
    """The samples of one writer in one file."""

    name: str
    team: str | None
    x: Array
    y: Array


def femnist(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return LEAF's FEMNIST by writer: a device is a person, a team the series of forms they wrote in."""
    scale = affine(pixels)
    first = files.find("femnist", _FILES, folder)
    base = first.parent.parent
    train = list(_writers(sorted(first.parent.glob("*.json"))))
    test = list(_writers(sorted((base / "test").glob("*.json")))) if first.parent.name == "train" else []
    names, others = {one.name for one in train}, {one.name for one in test}
    shared = names & others
    if shared and names != others:
        lone = sorted(names ^ others)[0]
        raise BadInput(
            f"{base}: some writers are in both folders, train and test, but {lone!r} is in one only; get both again"
        )
    every = [*train, *test]
    sizes = [len(one.y) for one in every]
    team = _teams(every)
    pool = by_device(
        "femnist",
        np.concatenate([one.x for one in every]),
        np.concatenate([one.y for one in every]),
        np.repeat([one.name for one in every], sizes),
        None if team is None else np.repeat(team, sizes),
        classes=_CLASSES,
        affine=scale,
        unseen=np.repeat([one.name not in names for one in every], sizes) if others and not shared else None,
    )
    if not shared:
        return pool
    assert pool.tree is not None
    kept = {one.name: len(one.y) for one in train}
    return replace(pool, train=np.array([kept[name] for name in pool.tree.labels[0] or ()], dtype=np.int64))


def _teams(writers: list[_Writer]) -> list[str] | None:
    """Return the team of every writer: as the files say, else by their numbers; ``None`` for no teams."""
    if all(one.team is not None for one in writers):
        return [str(one.team) for one in writers]
    numbers = [re.fullmatch(r"f(\d{4})_\d+", one.name) for one in writers]
    if any(number is None for number in numbers):
        return None
    return [next(name for below, name in _SERIES if int(number[1]) < below) for number in numbers if number]


def _writers(paths: list[Path]) -> Iterator[_Writer]:
    """Read the writers of some files, each of them once."""
    seen: dict[str, Path] = {}
    for path in paths:
        for one in _file(path):
            if one.name in seen:
                raise BadInput(
                    f"{path}: the writer {one.name!r} is in {seen[one.name].name} too; take one of the files away"
                )
            seen[one.name] = path
            yield one
    if not seen:
        raise BadInput(f"{paths[0]} holds no writers with samples; get it again")


def _file(path: Path) -> Iterator[_Writer]:
    """Read the writers of one file."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as fault:
        raise BadInput(f"{path} is damaged or not a JSON file ({fault}); get it again") from fault
    users, data = _part(path, found, "users", list), _part(path, found, "user_data", dict)
    counts = _part(path, found, "num_samples", list)
    above = _part(path, found, "hierarchies", list) if "hierarchies" in found else [None] * len(users)
    if not len(users) == len(counts) == len(above):
        raise BadInput(
            f"{path} has {len(users)} users, {len(counts)} num_samples and {len(above)} hierarchies; they must be as many"
        )
    for user, count, team in zip(users, counts, above, strict=True):
        x, y = _samples(f"{path}: the writer {shown(user)}", data.get(user))
        if len(y) != count:
            raise BadInput(f"{path}: the writer {shown(user)} has {len(y)} samples, num_samples says {shown(count)}")
        if count:
            yield _Writer(str(user), None if team is None else str(team), x, y)


def _part(path: Path, found: Any, key: str, kind: type) -> Any:
    if not isinstance(found, dict) or not isinstance(found.get(key), kind):
        raise BadInput(f"{path} has no {key!r}; it is not a file of LEAF, get it again")
    return found[key]


def _samples(where: str, given: Mapping[str, Any] | None) -> tuple[Array, Array]:
    """Turn the samples of a writer into bytes and labels."""
    try:
        assert given is not None
        x = np.array(given["x"], dtype=np.float64).reshape(-1, _SIDE * _SIDE)
        y = np.array(given["y"])
        y = y.astype(np.int64) if len(y) else np.zeros(0, dtype=np.int64)
    except (AssertionError, KeyError, TypeError, ValueError) as fault:
        raise BadInput(
            f"{where} has no images 'x' of {_SIDE * _SIDE} numbers and labels 'y'; get the file again"
        ) from fault
    pixels = np.rint(x * 255)
    if len(x) != len(y) or not ((np.abs(x * 255 - pixels) < 0.01) & (pixels >= 0) & (pixels <= 255)).all():
        raise BadInput(f"{where} has pixels that are no multiples of 1/255 in 0..1, or not a label for each image")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < _CLASSES:
        raise BadInput(f"{where} has labels outside 0..{_CLASSES - 1}; get the file again")
    return pixels.astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE), y


FEMNIST = Dataset(
    "Handwritten digits and letters of 28x28 pixels, 62 classes, by the people who wrote them: 3,550 writers as devices",
    femnist,
    natural=True,
    files=(_FILES,),
    licence="none of its own; made from public data of NIST, an agency of the United States, by LEAF's code (BSD)",
    origin="S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018",
    how="LEAF makes it from NIST's forms: clone github.com/TalwalkarLab/leaf, run preprocess.sh -s niid --sf 1.0 -t sample in "
    "its folder data/femnist, and copy data/femnist/data with its folders train and test to femnist/data in the folder of data "
    "sets. There are no checksums, as LEAF draws the split anew each time. mnist-writers is like it and needs no such work.",
    samples=805_263,
    devices=3_550,
)
