"""Scikit-learn's digits: they come with a package that is there anyway."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from palmette.datasets.dataset import Dataset
from palmette.datasets.images import Pixels, affine
from palmette.datasets.pool import Pool
from palmette.errors import BadInput


def digits(*, pixels: Pixels = "signed") -> Pool:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels; no file is needed."""
    table = _table()
    return Pool(
        table[:, :64].reshape(-1, 1, 8, 8).copy(), table[:, 64].astype(np.int64), 10, affine(pixels, 16), name="digits"
    )


@cache
def _table() -> NDArray[np.uint8]:
    """Read the file once in a process: to understand its numbers takes longer than to deal them out."""
    # Read from the file scikit-learn ships: importing the package takes a second, as long as all the rest of a start.
    home = find_spec("sklearn")
    places = home.submodule_search_locations if home is not None else None
    if not places:
        raise BadInput("digits come with scikit-learn, which is not installed; run: pip install scikit-learn")
    with gzip.open(Path(next(iter(places))) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",").astype(np.uint8)


DIGITS = Dataset(
    "1,797 handwritten digits of 8x8 pixels, 10 classes; comes with scikit-learn",
    digits,
    "dirichlet",
    (("within", "team"),),
    licence="CC BY 4.0",
    origin="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998 (its test part)",
    samples=1_797,
)
