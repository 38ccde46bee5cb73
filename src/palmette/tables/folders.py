"""A folder for every device, with images, npz files or tables in it, and a list of teams."""

from __future__ import annotations

import csv
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from palmette.datasets.files import read_npz
from palmette.errors import BadInput
from palmette.population import Population
from palmette.tables.assemble import assemble
from palmette.tables.read import read_table
from palmette.tables.source import Table, looks_like_a_table, open_table
from palmette.values import Array, one_line, shown, whole

TEAMS, LABELS = "teams.csv", "labels.csv"
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")  # a file of another kind under such a name is none of these
_MOST_PIXELS = 1 << 27  # of one image; cameras make a tenth of it
# What reading a damaged image may raise.
_FAULTS = (
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, SyntaxError, EOFError, MemoryError),
    *(struct.error, zlib.error),
)
_PIXELS = (2 / 255, -1.0)  # from bytes to -1..1
_RULES = ("test", "unseen")  # settings that images and arrays share with tables


def is_folders(path: Path) -> bool:
    """Return whether a folder holds a folder for every device."""
    return path.is_dir() and any(one.is_dir() and not one.name.startswith(".") for one in path.iterdir())


def read_folders(
    path: str | Path, *, seed: int = 0, size: int | None = None, grey: bool = False, **how: Any
) -> Population:
    """Make a population from a folder that holds a folder for every device.

    A device's folder holds images, in a folder for every class or with a file ``labels.csv`` (columns ``file`` and
    ``label``); or npz files with the arrays ``x`` and ``y``; or CSV or Parquet files. ``teams.csv`` beside the devices' folders
    has the column ``device`` and columns for the teams, from the top down; without it devices have no teams.

    Args:
        path: The folder.
        seed: Seed of the split and of the devices kept out.
        size: Side in pixels that images are brought to; by default all must have one size.
        grey: Whether images become grey.
        **how: ``test`` and ``unseen``, as in `read_table`; for tables all its keywords but ``device`` and ``team``.
    """
    base = Path(path).expanduser()
    devices = sorted(one for one in base.iterdir() if one.is_dir() and not one.name.startswith("."))
    heads, above = _teams(base, [one.name for one in devices])
    kind = _kind(devices)
    if kind != "image" and (size is not None or grey):
        raise BadInput(f"data.size and data.grey are for images; the folders in {base} hold none")
    if kind == "table":
        return read_table(_joined(base, devices, heads, above), seed=seed, **_said_by_folders(how, heads))
    for name in how:
        if name not in _RULES:
            raise BadInput(f"data.{name} = {shown(how[name])} is for tables; the folders in {base} hold {kind}s")
    parts = [_images(one, size, grey) if kind == "image" else _arrays(one) for one in devices]
    shapes = {x.shape[1:] for x, _ in parts}
    if len(shapes) > 1:
        first = next(
            one for one, part in zip(devices, parts, strict=True) if part[0].shape[1:] != parts[0][0].shape[1:]
        )
        told = f"samples of {first.name!r} have the shape {shapes.pop()}, those of {devices[0].name!r} another"
        raise BadInput(
            f"{base}: {told}; make them equal{', for instance with data.size=32' if kind == 'image' else ''}"
        )
    if len({y.shape[1:] for _, y in parts}) > 1:
        raise BadInput(f"{base}: labels of devices have different shapes; give one label for each sample")
    paths = [(*above[one.name], one.name) for one, (x, _) in zip(devices, parts, strict=True) for _ in range(len(x))]
    return assemble(
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]),
        paths,
        source=base.name,
        seed=seed,
        affine=_PIXELS if kind == "image" else None,
        image=tuple(shapes.pop()) if kind == "image" else None,
        **how,
    )


def table_in(path: Path, how: dict[str, Any]) -> tuple[Table, dict[str, Any]] | None:
    """Return the tables in the folders of devices as one, and how it is read; ``None`` where the folders hold no tables."""
    devices = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    if _kind(devices) != "table":
        return None
    heads, above = _teams(path, [one.name for one in devices])
    return _joined(path, devices, heads, above), _said_by_folders(how, heads)


def _said_by_folders(how: dict[str, Any], heads: list[str]) -> dict[str, Any]:
    """Add which columns are the device and its teams; who says otherwise is refused."""
    own: dict[str, Any] = {"device": "device", "team": heads}
    for name, value in own.items():
        if how.get(name, value) != value:
            raise BadInput(f"data.{name} = {shown(how[name])}: the folders and {TEAMS} say that; leave it out")
    return {**how, **own}


def _teams(base: Path, devices: list[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Read the list of teams: the names of its columns, and the teams of every device."""
    file = base / TEAMS
    if not file.exists():
        return [], dict.fromkeys(devices, ())
    rows = _rows(file, ["device"])
    heads = [name for name in rows[0] if name != "device"] if rows else []
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if row["device"] in found:
            raise BadInput(f"{file}: the device {row['device']!r} stands in two rows; a device has one team")
        found[row["device"]] = tuple(row[name] for name in heads)
    missing = [name for name in devices if name not in found]
    if missing:
        raise BadInput(
            f"{file} does not name the team of {', '.join(map(repr, missing[:5]))}; add a row for each folder"
        )
    empty = [name for name in found if name not in devices]
    if empty:
        raise BadInput(
            f"{file} names {', '.join(map(repr, empty[:5]))}, for which there is no folder; an empty device cannot train"
        )
    return heads, found


def _rows(file: Path, needed: list[str]) -> list[dict[str, str]]:
    """Read a small CSV file as texts."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as raw:
            reader = csv.DictReader(raw)
            rows = [dict(row) for row in reader]
            lacking = [name for name in needed if name not in (reader.fieldnames or [])]
    except (OSError, UnicodeError, csv.Error) as error:
        raise BadInput(f"{file} cannot be read: {one_line(str(error))}") from None
    if lacking:
        raise BadInput(f"{file} has no column {lacking[0]!r}; its first line must name {', '.join(needed)}")
    for number, row in enumerate(rows, 1):
        if None in row or any(cell is None or not cell.strip() for cell in row.values()):
            raise BadInput(f"{file}, row {number}: a cell is missing or there is one too many")
    return [{name: cell.strip() for name, cell in row.items()} for row in rows]


def _kind(devices: list[Path]) -> str:
    """Find out what the folders hold: ``"image"``, ``"array"`` or ``"table"``."""
    found: dict[str, Path] = {}
    for device in devices:
        kinds = {_kind_of(file) for file in device.rglob("*") if file.is_file() and not file.name.startswith(".")}
        kinds -= {"table"} if "image" in kinds else set()  # labels.csv beside images
        if not kinds - {""}:
            raise BadInput(f"the folder {device} holds no image, npz file or table; an empty device cannot train")
        for kind in kinds - {""}:
            found.setdefault(kind, device)
    if len(found) > 1:
        told = " and ".join(f"{kind}s (as in {place.name!r})" for kind, place in found.items())
        raise BadInput(f"the folders hold {told}; all must hold the same")
    return next(iter(found))


def _kind_of(file: Path) -> str:
    if file.suffix.lower() in _IMAGES:
        return "image"
    return "array" if file.suffix == ".npz" else "table" if looks_like_a_table(file) else ""


def _joined(base: Path, devices: list[Path], heads: list[str], above: dict[str, tuple[str, ...]]) -> Table:
    """Return the tables of all devices as one, with columns for the device and its teams."""
    parts = []
    for device in devices:
        own = {"device": device.name, **dict(zip(heads, above[device.name], strict=True))}
        for part in open_table(device).parts:
            clash = [name for name in own if name in part.columns]
            if clash:
                raise BadInput(
                    f"{device / part.name} has a column {clash[0]!r} of its own; the folder says that, rename it"
                )
            part.name, part.constants = f"{device.name}/{part.name}", own
            parts.append(part)
    return Table(base.name, base.absolute(), parts)


def _arrays(device: Path) -> tuple[Array, Array]:
    """Return the samples and labels of a device's npz files."""
    pairs = [read_npz(file, ["x", "y"]) for file in sorted(device.rglob("*.npz"))]
    for file, (x, y) in zip(sorted(device.rglob("*.npz")), pairs, strict=True):
        if x.ndim < 2 or len(x) != len(y) or x.dtype.kind not in "buif":
            raise BadInput(
                f"{file}: x must be numbers of shape (samples, ...) and y one label each, not {x.shape} and {y.shape}"
            )
    if len({x.shape[1:] for x, _ in pairs}) > 1:
        raise BadInput(f"the files in {device} hold samples of different shapes; make them equal")
    if len({y.shape[1:] for _, y in pairs}) > 1:
        raise BadInput(f"the files in {device} hold labels of different shapes; give one label for each sample")
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def _images(device: Path, size: int | None, grey: bool) -> tuple[Array, Array]:
    """Return the images and labels of a device: classes by folder, or by a file of labels."""
    files = sorted(file for file in device.rglob("*") if file.suffix.lower() in _IMAGES)
    if (device / LABELS).exists():
        named = {row["file"]: row["label"] for row in _rows(device / LABELS, ["file", "label"])}
        labels = [named.get(str(file.relative_to(device))) for file in files]
    else:
        labels = [None if file.parent == device else file.relative_to(device).parts[0] for file in files]
    if None in labels:
        lost = files[labels.index(None)].relative_to(device)
        raise BadInput(
            f"{device}: nobody says what {str(lost)!r} shows; put the images into a folder for each class, or "
            f"write {LABELS} with the columns file and label"
        )
    side = None if size is None else whole("data.size", size, 1, 4096)
    pictures = [_picture(file, side, grey) for file in files]
    modes = {picture.shape[0] for picture in pictures}
    if len(modes) > 1:  # some are grey and some are not
        pictures = [np.repeat(picture, 3, 0) if picture.shape[0] == 1 else picture for picture in pictures]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            have = f"{picture.shape[2]}x{picture.shape[1]}, others {pictures[0].shape[2]}x{pictures[0].shape[1]}"
            raise BadInput(f"{file} has {have} pixels; bring all to one size with data.size=32")
    return np.stack(pictures), np.array(labels, dtype=str)


def _picture(file: Path, side: int | None, grey: bool) -> Array:
    """Read one image as bytes of shape (channels, height, width)."""
    from PIL import Image

    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"it has {image.width:,} x {image.height:,} pixels, more than {_MOST_PIXELS:,} in all")
            plain = image.convert("L" if grey or image.mode in ("1", "L", "I;16") else "RGB")
            if side is not None:
                plain = plain.resize((side, side), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain, dtype=np.uint8)
    except (*_FAULTS, Image.DecompressionBombError) as error:
        raise BadInput(f"{file} is no image or is damaged: {one_line(str(error))}") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
