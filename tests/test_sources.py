"""Data sets: where they are looked for, what they hold, what damaged files do."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from palmette.datasets import DATASETS, files, load
from palmette.errors import BadInput
from palmette.population import make_population


def idx(shape: tuple[int, ...], data: bytes | None = None, magic: bytes = b"\0\0\x08") -> bytes:
    body = bytes(i % 10 for i in range(int(np.prod(shape)))) if data is None else data
    return magic + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + body


def write_fashion(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx((count, 28, 28)), compresslevel=0))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx((count,))))


def write_mnist(path: Path, **changes: np.ndarray | None) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray | None] = {
        "x_train": random.integers(0, 256, (20, 28, 28), dtype=np.uint8),
        "y_train": np.arange(20) % 10,
        "x_test": random.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        "y_test": np.arange(10),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})


# -- synthetic ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("devices", "total"), [(40, 122_235), (50, 139_990), (100, 205_795)])
def test_synthetic_has_the_published_sizes(devices: int, total: int) -> None:
    pool = load("synthetic", devices=devices)
    assert pool.start is not None
    sizes = np.diff(pool.start)
    assert (len(pool.x), sizes.min(), sizes.max()) == (total, 250, 25_810)
    assert pool.x.shape == (total, 60)


def test_synthetic_draws_the_numbers_of_the_published_code() -> None:
    random = np.random.RandomState(0)
    sizes = (random.lognormal(4, 2, 4).astype(int) + 50) * 5
    mean_w = random.normal(0, 0.5, 4)
    centre = random.normal(0, 0.5, 4)
    mean_x = [random.normal(centre[i], 1, 60) for i in range(4)]
    x, y = [], []
    for i in range(4):
        w, b = random.normal(mean_w[i], 1, (60, 10)), random.normal(mean_w[i], 1, 10)
        x.append(random.multivariate_normal(mean_x[i], np.diag(np.arange(1, 61) ** -1.2), sizes[i]))
        y.append(np.argmax(x[-1] @ w + b, axis=1))
    pool = load("synthetic", devices=4)
    # Not bit for bit: multivariate_normal decomposes its matrix, and how that rounds depends on the machine.
    assert np.allclose(pool.x, np.concatenate(x), atol=1e-5)
    assert np.mean(pool.y != np.concatenate(y)) < 1e-3


def test_synthetic_devices_have_one_to_six_classes_as_published() -> None:
    pool = load("synthetic", devices=40)
    assert pool.start is not None
    counts = [len(np.unique(pool.y[a:b])) for a, b in pairwise(pool.start)]
    assert (min(counts), max(counts)) == (1, 6)


def test_synthetic_follows_seed_and_beta() -> None:
    base = load("synthetic", devices=3)
    assert np.array_equal(base.x, load("synthetic", devices=3, alpha=0.5, beta=0.5, seed=0).x)
    assert not np.array_equal(base.x, load("synthetic", devices=3, beta=1.0).x)
    assert len(base.x) != len(load("synthetic", devices=3, seed=1).x)


def test_synthetic_alpha_moves_all_logits_alike_and_so_no_label() -> None:
    base, far = load("synthetic", devices=3), load("synthetic", devices=3, alpha=5.0)
    assert np.array_equal(base.x, far.x)
    assert np.mean(base.y != far.y) < 1e-3


def test_synthetic_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    load("synthetic", devices=2)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index, union-attr]


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_folder_is_the_argument_else_the_variable_else_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALMETTE_DATA", "/variable")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert files.data_folder("/argument") == Path("/argument")
    assert files.data_folder() == Path("/variable")
    monkeypatch.delenv("PALMETTE_DATA")
    assert files.data_folder() == Path("/cache/palmette")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert files.data_folder() == Path("/home/somebody/.cache/palmette")


@pytest.mark.parametrize("place", ["mnist/mnist.npz", "mnist.npz"])
def test_mnist_pools_training_and_test_in_order(tmp_path: Path, place: str) -> None:
    write_mnist(tmp_path / place)
    pool = load("mnist", folder=tmp_path)
    assert pool.x.shape == (30, 1, 28, 28)
    assert pool.x.dtype == np.uint8
    assert pool.y.tolist() == [*range(10)] * 3


@pytest.mark.parametrize("place", ["fashion_mnist", "fashion-mnist", "."])
def test_fashion_mnist_is_found_in_each_place(tmp_path: Path, place: str) -> None:
    write_fashion(tmp_path / "data" / place)
    pool = load("fashion-mnist", folder=tmp_path / "data")
    assert pool.x.shape == (30, 1, 28, 28)
    assert pool.y.tolist() == [*range(10)] * 3
    assert pool.x[0, 0, 0, :12].tolist() == [*range(10), 0, 1]


@pytest.mark.parametrize(("name", "file"), [("mnist", "mnist.npz"), ("fashion-mnist", "train-images-idx3-ubyte.gz")])
def test_a_missing_file_says_which_where_and_how(tmp_path: Path, name: str, file: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(name, folder=tmp_path)
    text = str(caught.value)
    assert all(part in text for part in (file, str(tmp_path), "data.folder", "PALMETTE_DATA"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: b"hello",
        lambda data: data[:200] + bytes(byte ^ 255 for byte in data[200:400]) + data[400:],
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: object) -> None:
    write_mnist(tmp_path / "mnist.npz")
    write_fashion(tmp_path / "fashion-mnist")
    for name, path in (
        ("mnist", tmp_path / "mnist.npz"),
        ("fashion-mnist", tmp_path / "fashion-mnist" / "t10k-images-idx3-ubyte.gz"),
    ):
        path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
        with pytest.raises(BadInput, match=path.name):
            load(name, folder=tmp_path)


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ("not an idx file", b""),
        ("not an idx file", idx((3,), magic=b"\0\0\x0d")),
        ("not an idx file", idx((3,), magic=b"\x01\0\x08")),
        ("ends within its header", b"\0\0\x08\x03\0\0"),
        ("ends within its header", b"\0\0\x08\x00"),
        ("holds 5 bytes, its header says 6", idx((2, 3), bytes(5))),
        ("holds 7 bytes, its header says 6", idx((2, 3), bytes(7))),
    ],
)
def test_an_idx_file_must_be_what_its_header_says(tmp_path: Path, message: str, data: bytes) -> None:
    path = tmp_path / "some-idx.gz"
    path.write_bytes(gzip.compress(data))
    with pytest.raises(BadInput, match=f"some-idx.gz.*{message}"):
        files.read_idx(path)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("no array 'y_test'", {"y_test": None}),
        ("labels of", {"y_test": np.arange(9)}),
        ("images of", {"x_test": np.zeros((10, 8, 8), dtype=np.uint8)}),
        ("outside 0..9", {"y_test": np.arange(10) + 1}),
        ("damaged", {"y_test": np.array([{}] * 10, dtype=object)}),
    ],
)
def test_an_npz_of_something_else_is_refused(
    tmp_path: Path, message: str, changes: dict[str, np.ndarray | None]
) -> None:
    write_mnist(tmp_path / "mnist.npz", **changes)
    with pytest.raises(BadInput, match=message):
        load("mnist", folder=tmp_path)


def test_load_refuses_options_a_source_does_not_have() -> None:
    with pytest.raises(BadInput, match="mnist has no option 'foldr'; did you mean 'folder'"):
        load("mnist", foldr="x")


def test_every_source_has_a_line_of_description() -> None:
    assert {"crowd", "digits", "fashion-mnist", "mnist", "mnist-writers", "synthetic"} <= set(DATASETS)
    assert all(source.description and "\n" not in source.description for source in DATASETS.values())


# -- pixels and the real data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pixels", "low"), [("signed", -1.0), ("unit", 0.0)])
def test_digits_features_span_the_asked_range(pixels: str, low: float) -> None:
    made = make_population("digits", pixels=pixels)  # type: ignore[arg-type]
    features = made.features(torch.arange(len(made.x)))
    assert (features.min(), features.max()) == (low, 1.0)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_real_images_hold_seventy_thousand_in_ten_classes(name: str, data_folder: Path) -> None:
    pool = load(name, folder=data_folder)
    assert pool.x.shape == (70_000, 1, 28, 28)
    assert pool.affine == (2 / 255, -1.0)
    assert pool.y[:5].tolist() == {"mnist": [5, 0, 4, 1, 9], "fashion-mnist": [9, 0, 0, 3, 0]}[name]
    assert np.bincount(pool.y).min() >= 6313


def test_mnist_on_forty_devices_has_sizes_near_the_published(data_folder: Path) -> None:
    made = make_population("mnist", tree="4x10", folder=data_folder)
    sizes = made.start.diff()
    assert abs(int(sizes.sum()) - 39_700) < 0.15 * 39_700
    assert sizes.min() > 500
    assert abs(float(sizes.double().median()) - 980) < 100
    assert all(len(made.y[made.start[i] : made.start[i + 1]].unique()) == 2 for i in range(40))
    features = made.features(torch.arange(len(made.x)), torch.float64)
    assert features.min() == -1.0
    assert features.max() == pytest.approx(1.0, abs=1e-12)


def test_digits_are_scikit_learns_own() -> None:
    from sklearn.datasets import load_digits

    theirs, ours = load_digits(), load("digits")
    assert np.array_equal(ours.x[:, 0], theirs.images)
    assert np.array_equal(ours.y, theirs.target)
