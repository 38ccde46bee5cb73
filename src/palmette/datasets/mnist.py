"""MNIST: 70,000 handwritten digits, and the same digits by the people who wrote them.

The file mnist.npz holds x_train, y_train, x_test and y_test in the data set's order; the four standard idx files serve as well.
The writers come from the extended labels of QMNIST, which say for every digit of MNIST who wrote it (a NIST writer id) and in
which series of forms: series 0 and 1 are employees of the Census Bureau, series 4 high-school students. QMNIST's training
labels follow MNIST's training images one by one, and the first 10,000 of its test labels MNIST's test images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from palmette.datasets import files, images
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.images import Pixels
from palmette.datasets.natural import by_device
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.values import Array

# Not in the folder of data sets itself, where files of these names may be Fashion-MNIST's.
_IDX = tuple(
    files.idx(f"{part}-ubyte.gz", ("mnist", "MNIST/raw"))
    for part in ("train-images-idx3", "t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1")
)
_NPZ = File(
    "mnist.npz",
    ("mnist", ""),
    sha256="731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    url="https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
    size=11_490_434,
    instead=(_IDX,),
)
_WRITERS = File("mnist_writers.npz", ("mnist", ""))
_QMNIST = tuple(
    File(
        f"qmnist-{part}-labels-idx2-int.gz",
        ("mnist", "QMNIST/raw", ""),
        url=f"https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-{part}-labels-idx2-int.gz",
        md5=md5,
        instead=((_WRITERS,),),
    )
    for part, md5 in (("train", "0058f8dd561b90ffdd0f734c6a30e5e4"), ("test", "5b5b05890a5e13444e108efe57b788aa"))
)
_SERIES = {0: "employees", 1: "employees", 4: "students"}
_LICENCE = "none of its own; made from public data of NIST, an agency of the United States"


def mnist(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return the 70,000 MNIST digits, training and test images pooled in the data set's order."""
    path, *more = files.present(_NPZ, folder) or [files.find("mnist", _NPZ, folder)]
    if more:
        x_train, x_test, y_train, y_test = map(files.read_idx, [path, *more])
    else:
        x_train, x_test, y_train, y_test = files.read_npz(path, ["x_train", "x_test", "y_train", "y_test"])
    where = str(path.parent if more else path)
    return images.pooled("mnist", where, [x_train, x_test], [y_train, y_test], pixels)


def mnist_writers(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return MNIST by writer: a device is a person, a team one of two populations; MNIST's test writers are unseen devices."""
    paths = [files.find("mnist-writers", file, folder) for file in _QMNIST]
    pool = mnist(folder=folder, pixels=pixels)
    short = [path for path in paths if path.name == _WRITERS.name]
    train, test = _short(short[0]) if short else _extended(paths, pool.y)
    writer, population = np.concatenate([train, test], axis=1)
    if len(writer) != len(pool.y) or not set(np.unique(population)) <= set(_SERIES):
        raise BadInput(
            f"{(short or paths)[0]} does not fit the images of MNIST: it tells of {len(writer)} digits and there are "
            f"{len(pool.y)}, or of a series of forms that is none of {', '.join(map(str, _SERIES))}; get both again"
        )
    new = np.arange(len(writer)) >= train.shape[1]
    return by_device(
        "mnist-writers",
        pool.x,
        pool.y,
        np.char.add("writer-", writer.astype(str)),
        np.array([_SERIES[one] for one in population.tolist()]),
        classes=10,
        affine=pool.affine,
        unseen=new,
    )


def _extended(paths: list[Path], labels: Array) -> list[Array]:
    """Read writers and series (two lines) of training and of test digits from QMNIST's extended labels."""
    tables = [files.read_idx(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table.ndim != 2 or table.shape[1] != 8:
            raise BadInput(f"{path} has a table of {table.shape}, not 8 columns of extended labels; get it again")
    tables[1] = tables[1][: max(0, len(labels) - len(tables[0]))]  # the others are digits that MNIST does not have
    found = np.concatenate([table[:, 0] for table in tables])
    if len(found) == len(labels) and (found != labels).any():
        raise BadInput(f"{paths[0].parent}: the labels of QMNIST are not those of MNIST's images; get both again")
    return [np.stack([table[:, 2], table[:, 1]]) for table in tables]


def _short(path: Path) -> list[Array]:
    """Read the same from one npz file."""
    writer, other, series, others = files.read_npz(path, ["writer_train", "writer_test", "hsf_train", "hsf_test"])
    if not writer.shape == series.shape or not other.shape == others.shape:
        raise BadInput(f"{path} tells of {len(writer)} writers and {len(series)} series of forms; get it again")
    return [np.stack([writer, series]), np.stack([other, others])]


MNIST = Dataset(
    "70,000 handwritten digits of 28x28 pixels, 10 classes",
    mnist,
    "labels",
    files=(_NPZ,),
    licence=_LICENCE,
    origin="Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998",
    samples=70_000,
)
MNIST_WRITERS = Dataset(
    "MNIST by the people who wrote it: 539 writers and 297 unseen ones as devices, employees and students as teams",
    mnist_writers,
    natural=True,
    files=(_NPZ, *_QMNIST),
    licence=f"{_LICENCE}; the writers are from QMNIST, under a BSD licence",
    origin="C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, NeurIPS 2019 (extended labels)",
    samples=70_000,
    devices=836,
)
