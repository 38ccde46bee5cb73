"""Fashion-MNIST: pictures of clothes in the format of MNIST."""

from __future__ import annotations

from pathlib import Path

from palmette.datasets import files, images
from palmette.datasets.dataset import Dataset
from palmette.datasets.images import Pixels
from palmette.datasets.pool import Pool

_PLACES = ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "")
_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # the only address; the checksums make up for http
_KNOWN = {
    "train-images-idx3": ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
    "t10k-images-idx3": ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
    "train-labels-idx1": ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
    "t10k-labels-idx1": ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
}
_FILES = tuple(
    files.idx(f"{part}-ubyte.gz", _PLACES, sha256, f"{_URL}/{part}-ubyte.gz", size)
    for part, (sha256, size) in _KNOWN.items()
)


def fashion_mnist(*, folder: str | Path | None = None, pixels: Pixels = "signed") -> Pool:
    """Return the 70,000 Fashion-MNIST images, training and test images pooled in the data set's order."""
    paths = [files.find("fashion-mnist", file, folder) for file in _FILES]
    x_train, x_test, y_train, y_test = map(files.read_idx, paths)
    return images.pooled("fashion-mnist", str(paths[0].parent), [x_train, x_test], [y_train, y_test], pixels)


FASHION_MNIST = Dataset(
    "70,000 pictures of clothes of 28x28 pixels, 10 classes",
    fashion_mnist,
    "labels",
    files=_FILES,
    licence="MIT, Zalando SE",
    samples=70_000,
    origin="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, 2017",
)
