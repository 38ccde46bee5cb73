"""A device's own samples, read where they are; they never leave the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from palmette.deploy.kit import NodeFile
from palmette.errors import BadInput
from palmette.population import Encoding, Population, load_population
from palmette.population.saved import is_saved
from palmette.tables.again import read_again
from palmette.tables.source import open_table

_TEST = 0.25


def read_own(path: Path | None, node: NodeFile, seed: int) -> Population:
    """Read a device's samples as the models of its federation do.

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
    made = load_population(path) if is_saved(path) else _table(path, node, seed)
    if made.devices != 1:
        raise BadInput(f"{path} has samples of {made.devices} devices; a device of a federation reads only its own")
    return made


def _table(path: Path, node: NodeFile, seed: int) -> Population:
    if node.data.encoding is None:
        raise BadInput(
            f"{path}: this federation's samples are no rows of a table; give a folder that 'palmette data pack' made"
        )
    known = Encoding.from_dict(node.data.encoding)
    source: Any = path
    if known.device not in open_table(path).columns:
        table = pa.parquet.read_table(path) if path.suffix in (".parquet", ".pq") else pa.csv.read_csv(path)
        source = table.append_column(known.device, pa.array([node.name] * len(table)))
    made, _ = read_again(source, known, test=_TEST, seed=seed)
    return made
