"""EMNIST: handwritten digits and letters of NIST's forms in the format of MNIST, in six splits.

The public archive gzip.zip holds four idx files for each split; it is read as it is, or the four files of a split unpacked. The
images lie in the files with rows and columns exchanged; they are turned upright here.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from palmette.datasets import files, images
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.images import Pixels
from palmette.datasets.pool import Pool
from palmette.errors import BadInput, nearest
from palmette.values import Array, shown

Split = Literal["digits", "letters", "balanced", "mnist", "byclass", "bymerge"]
_CLASSES = {"digits": 10, "letters": 26, "balanced": 47, "mnist": 10, "byclass": 62, "bymerge": 47}
_PARTS = ("train-images-idx3", "test-images-idx3", "train-labels-idx1", "test-labels-idx1")
_PLACES = ("emnist/gzip", "emnist", "EMNIST/raw", "gzip", "")
_UNPACKED = {
    split: tuple(files.idx(f"emnist-{split}-{part}-ubyte.gz", _PLACES) for part in _PARTS) for split in _CLASSES
}
_ZIP = File(
    "gzip.zip",
    ("emnist", "EMNIST/raw", ""),
    sha256="fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    size=561_753_746,
    instead=tuple(_UNPACKED.values()),
)
_ALONE = replace(_ZIP, instead=())  # files of another split do not serve instead


def emnist(*, split: Split = "digits", folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return one split of EMNIST, training and test images pooled in the data set's order.

    Args:
        split: Split of EMNIST: "digits" (280,000 digits), "letters" (26 classes, small and capital letters as one), "balanced"
            (47 classes of one size), "byclass" (62 classes), "bymerge" (47 classes), "mnist" (70,000 digits).
        folder: Folder with the files of data sets.
        pixels: Scale of image features.
    """
    if not isinstance(split, str) or split not in _CLASSES:
        raise BadInput(f"split = {shown(split)} is no split of EMNIST{nearest(str(split), _CLASSES)}")
    found = [files.present(file, folder) for file in _UNPACKED[split]]
    if all(found):
        where, parts = str(found[0][0].parent), [files.read_idx(path) for (path,) in found]
    else:
        where, parts = _zipped(files.find("emnist", _ALONE, folder), split)
    x_train, x_test, y_train, y_test = parts
    if any(image.ndim != 3 for image in (x_train, x_test)):
        raise BadInput(f"{where}: emnist has images of {x_train.shape} and {x_test.shape}; get it again")
    upright = [image.transpose(0, 2, 1) for image in (x_train, x_test)]
    labels = [y.astype(np.int64) - (split == "letters") for y in (y_train, y_test)]  # letters begin with 1
    return images.pooled("emnist", f"{where} ({split})", upright, labels, pixels, classes=_CLASSES[split])


def _zipped(path: Path, split: str) -> tuple[str, list[Array]]:
    """Read the four files of a split from the archive."""
    parts = []
    for part in _PARTS:
        name = f"gzip/emnist-{split}-{part}-ubyte.gz"
        try:
            with zipfile.ZipFile(path) as archive:
                data = gzip.decompress(archive.read(name))
        except KeyError as fault:
            raise BadInput(f"{path} holds no {name}; it is not EMNIST's archive, get it again") from fault
        except (OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as fault:
            raise BadInput(f"{path} is damaged or not a zip file ({fault}); get it again") from fault
        parts.append(files.parse_idx(data, f"{path} ({name})"))
    return str(path), parts


EMNIST = Dataset(
    "280,000 handwritten digits of 28x28 pixels, 10 classes; other splits have letters too, up to 62 classes",
    emnist,
    "labels",
    files=(_ZIP,),
    licence="none of its own; made from public data of NIST, an agency of the United States",
    origin="G. Cohen, S. Afshar, J. Tapson and A. van Schaik, EMNIST, IJCNN 2017",
    samples=280_000,
)
