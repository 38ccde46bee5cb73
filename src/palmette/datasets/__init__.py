"""Data sets by name: each a small module that says where its samples come from and reads them into a `Pool`.

Most pools are one heap of samples for a partition to deal out to the devices of a tree. Those that are generated, and those
whose devices and teams are their own, come by device already.
"""

from __future__ import annotations

from typing import Any

from palmette.datasets.cifar import CIFAR10, CIFAR100
from palmette.datasets.crowd import CROWD
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.digits import DIGITS
from palmette.datasets.donors import DONORS
from palmette.datasets.emnist import EMNIST
from palmette.datasets.fashion_mnist import FASHION_MNIST
from palmette.datasets.femnist import FEMNIST
from palmette.datasets.mnist import MNIST, MNIST_WRITERS
from palmette.datasets.multilevel import CHEM97, HSB82, INSTEVAL, RADON
from palmette.datasets.newsgroups import NEWSGROUPS
from palmette.datasets.pool import Pool
from palmette.datasets.shakespeare import SHAKESPEARE
from palmette.datasets.synthetic import SYNTHETIC
from palmette.datasets.wikitext import WIKITEXT
from palmette.errors import BadInput, nearest
from palmette.values import shown

__all__ = ["DATASETS", "Dataset", "File", "Pool", "dataset_of", "load"]

DATASETS: dict[str, Dataset] = {
    "digits": DIGITS,
    "mnist": MNIST,
    "mnist-writers": MNIST_WRITERS,
    "fashion-mnist": FASHION_MNIST,
    "emnist": EMNIST,
    "femnist": FEMNIST,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "shakespeare": SHAKESPEARE,
    "newsgroups": NEWSGROUPS,
    "wikitext": WIKITEXT,
    "synthetic": SYNTHETIC,
    "crowd": CROWD,
    "hsb82": HSB82,
    "chem97": CHEM97,
    "insteval": INSTEVAL,
    "radon": RADON,
    "donors": DONORS,
}


def dataset_of(name: str) -> Dataset:
    """Return the data set of this name."""
    if not isinstance(name, str) or name not in DATASETS:
        raise BadInput(f"there is no data set {shown(name)}{nearest(shown(name), DATASETS)}")
    return DATASETS[name]


def load(name: str, **options: Any) -> Pool:
    """Load a data set by name; options are those of its function (``folder``, ``pixels``, ``devices``, ...)."""
    found = dataset_of(name)
    for option in options:
        if option not in found.takes:
            raise BadInput(f"{name} has no option {option!r}{nearest(option, found.takes)}")
    return found.read(**options)
