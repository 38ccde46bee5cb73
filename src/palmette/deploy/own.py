"""A device's own samples, read where they are; they never leave the device."""

from __future__ import annotations

from pathlib import Path

from palmette.deploy.kit import NodeFile
from palmette.errors import BadInput
from palmette.population import Encoding, Population, load_population
from palmette.population.saved import is_saved
from palmette.tables.again import read_again
from palmette.tables.source import Table, open_table
from palmette.values import shown

_TEST = 0.25


def read_own(path: Path | None, node: NodeFile, seed: int) -> tuple[Population, list[str]]:
    """Read a device's samples as the models of its federation do; return them, and what was guessed or left out.

    Args:
        path: A table (CSV or Parquet) with the columns of the federation's example, or a folder that ``palmette data pack``
            made. A table without a column for the device is this device's.
        node: What the device was told.
        seed: Seed of the split into training and test samples.
    """
    if path is None:
        raise BadInput(
            f"{node.name!r} has no samples in its kit; say where they are: palmette serve --kit DIR --data PATH"
        )
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}")
    made, notes = (load_population(path), []) if is_saved(path) else _table(path, node, seed)
    if made.devices != 1:
        raise BadInput(f"{path} has samples of {made.devices} devices; a device of a federation reads only its own")
    return made, notes


def _table(path: Path, node: NodeFile, seed: int) -> tuple[Population, list[str]]:
    if node.data.encoding is None:
        raise BadInput(
            f"{path}: this federation's samples are no rows of a table; give a folder that 'palmette data pack' made"
        )
    known = Encoding.from_dict(node.data.encoding)
    table = open_table(path)
    missing = [name for name in (known.device, *known.team) if name not in table.columns]
    for part in table.parts:
        part.constants |= dict.fromkeys(missing, node.name)
    made, notes = read_again(Table(table.name, table.path, table.parts), known, test=_TEST, seed=seed)
    if known.device not in missing and made.devices == 1 and not _is(node.name, made.tree.name(0, 0)):
        raise BadInput(
            f"{path}: its rows are of {shown(made.tree.name(0, 0))} (column {known.device!r}), and this device is "
            f"{shown(node.name)}; give the file of this device, or leave that column out of it"
        )
    return made, notes


def _is(name: str, told: str) -> bool:
    """Return whether a device is the one that its rows name; one whose name stands in several teams has a path for a name."""
    return name.rsplit("/")[-1] == told.rsplit("/")[-1]
