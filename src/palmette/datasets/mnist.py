"""MNIST: 70,000 handwritten digits, and the same digits by the people who wrote them.

The file mnist.npz holds x_train, y_train, x_test and y_test in the data set's order. The writers come from the extended
labels of QMNIST, which say for every digit of MNIST who wrote it (a NIST writer id) and in which series of forms: series 0
are employees of the Census Bureau, series 4 high-school students.
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

_NPZ = File("mnist.npz", ("mnist", ""))
_WRITERS = File("mnist_writers.npz", ("mnist", ""))
_SERIES = {0: "employees", 4: "students"}
_LICENCE = "MNIST has no licence of its own: it is made from public data of NIST, a United States agency"


def mnist(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return the 70,000 MNIST digits, training and test images pooled in the data set's order."""
    path = files.find("mnist", _NPZ, folder)
    x_train, x_test, y_train, y_test = files.read_npz(path, ["x_train", "x_test", "y_train", "y_test"])
    return images.pooled("mnist", str(path), [x_train, x_test], [y_train, y_test], pixels)


def mnist_writers(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return MNIST by writer: a device is a person, a team one of two populations; MNIST's test writers are unseen devices."""
    pool, path = mnist(folder=folder, pixels=pixels), files.find("mnist-writers", _WRITERS, folder)
    names = ["writer_train", "writer_test", "hsf_train", "hsf_test"]
    train, test, *series = files.read_npz(path, names)
    writer, population = np.concatenate([train, test]), np.concatenate(series)
    if not len(writer) == len(population) == len(pool.y) or not set(np.unique(population)) <= set(_SERIES):
        raise BadInput(f"{path} does not fit mnist.npz: it tells of {len(writer)} digits; get both again")
    new = np.arange(len(writer)) >= len(train)
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


MNIST = Dataset(
    "70,000 handwritten digits of 28x28 pixels, 10 classes; needs the file mnist.npz",
    mnist,
    "labels",
    files=(_NPZ,),
    licence=_LICENCE,
    origin="Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998",
)
MNIST_WRITERS = Dataset(
    "MNIST by the people who wrote it: 539 writers and 297 unseen ones as devices, employees and students as teams",
    mnist_writers,
    natural=True,
    files=(_NPZ, _WRITERS),
    licence=f"{_LICENCE}; the writers are from QMNIST, under a BSD licence",
    origin="C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, NeurIPS 2019 (extended labels)",
)
