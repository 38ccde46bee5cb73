"""Tables of any size as batches of rows: CSV, Parquet and Arrow files, folders of them, and tables in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from palmette.errors import BadInput
from palmette.guards import parquet
from palmette.guards.packed import FAULTS
from palmette.tables import delimited
from palmette.tables.delimited import Dialect
from palmette.values import one_line, shown

_ROWS = 1 << 16  # of one batch of a table in memory or of a Parquet file
_ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt", ".parquet", ".pq", ".arrow", ".feather")
_HINTS = {
    b"PK\x03\x04": "is an Excel workbook or another zip file; save the sheet as CSV (UTF-8), or read it with "
    "pandas.read_excel and give the table to pm.read_table",
    b"\xd0\xcf\x11\xe0": "is an old Excel workbook; save the sheet as CSV (UTF-8)",
    b"SQLite f": "is an SQLite database; save the table as CSV or Parquet",
    b"\x89HDF": "is an HDF5 file; save the table as CSV or Parquet",
    b"\x93NUM": "is a numpy array without names of columns; give it in Python with pm.Population.from_arrays",
    b"%PDF": "is a PDF file; a table is a CSV or a Parquet file",
    b"{": "looks like JSON; save the table as CSV or Parquet",
    b"<": "looks like HTML or XML; save the table as CSV or Parquet",
    b"BZh": "is packed with bzip2; unpack it first, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "is packed with zstd; unpack it first, or pack it with gzip",
    b"\xfd7zXZ": "is packed with xz; unpack it first, or pack it with gzip",
}


@dataclass
class Part:
    """One file of a table, or the table in memory.

    Attributes:
        name: What to call it in a sentence.
        path: The file, ``None`` in memory.
        kind: ``"csv"``, ``"parquet"``, ``"arrow"`` or ``"memory"``.
        columns: The names of its columns.
        table: The table in memory.
        dialect: How a CSV file is written.
        constants: Columns that the file does not have, each with its one value: what the name of its folder says.
        broken: Rows of a CSV file with too few or too many cells, by their number; filled while the file is read.
    """

    name: str
    path: Path | None
    kind: str
    columns: list[str]
    table: pa.Table | None = None
    dialect: Dialect | None = None
    broken: dict[int, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)

    def where(self, row: int) -> str:
        """Say where a row stands: ``"row 12"``, and its line in a CSV file where that can be known."""
        line = delimited.line_of(self.path, self.dialect, row) if self.path and self.dialect else None
        return f"row {row:,}" if line is None else f"row {row:,} (line {line:,} of the file)"

    @property
    def names(self) -> list[str]:
        """The names of all its columns, without white space at their ends."""
        return [*self.constants, *(name.strip() for name in self.columns)]

    def batches(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        """Read the wanted columns, batch after batch."""
        own = [name for name in wanted if name not in self.constants]
        written = {name.strip(): name for name in reversed(self.columns)}
        for batch in self._read([written[name] for name in own] or self.columns[:1]):
            columns = {name: batch.column(written[name]) for name in own}
            rows = batch.num_rows
            columns |= {name: pa.repeat(self.constants[name], rows) for name in wanted if name in self.constants}
            yield pa.RecordBatch.from_pydict({name: columns[name] for name in wanted})

    def _read(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            if self.table is not None:
                yield from self.table.select(wanted).to_batches(max_chunksize=_ROWS)
            elif self.kind == "parquet":
                assert self.path is not None
                yield from parquet.batches(self.path, wanted, _ROWS)
            elif self.kind == "arrow":
                with pa.memory_map(str(self.path)) as stream:
                    reader = pa.ipc.open_file(stream)
                    for number in range(reader.num_record_batches):
                        batch = reader.get_batch(number).select(wanted)
                        batch.validate(full=True)  # places that lie outside would be looked up all the same
                        yield batch
            else:
                assert self.dialect is not None
                yield from delimited.batches(self.path, self.dialect, self.columns, wanted, self.broken)
        except (pa.ArrowException, *FAULTS) as error:
            raise BadInput(f"{self.name} cannot be read to its end: {one_line(str(error))}") from None


class Table:
    """A table that can be read more than once, batch after batch.

    Attributes:
        name: What to call it.
        path: The file or folder it is in; ``None`` in memory.
        parts: Its files.
        columns: The names of its columns, in the order of the first file.
        notes: What was guessed about the files, in sentences.
        problems: What is wrong with the files as such, in sentences.
    """

    def __init__(self, name: str, path: Path | None, parts: list[Part]) -> None:
        self.name, self.path, self.parts = name, path, parts
        self.columns = parts[0].names
        self.notes = [note for part in parts if part.dialect for note in part.dialect.notes]
        for part in parts:
            if spaced := [name for name in part.columns if name != name.strip()]:
                self.notes.append(f"{part.name}: white space around names of columns left out, as in {spaced[0]!r}")
        self.problems: list[str] = []
        for part in parts:
            self.problems += _headings(part)
            missing, more = set(self.columns) - set(part.names), set(part.names) - set(self.columns)
            if missing or more:
                told = [f"has no column {name!r}" for name in sorted(missing)]
                told += [f"has the column {name!r}, which {parts[0].name} does not have" for name in sorted(more)]
                self.problems.append(f"{part.name} {' and '.join(told)}; all files of a table need the same columns")
        self._begins: list[int] = []

    def batches(self, wanted: list[str] | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Give the wanted columns batch after batch, each with the number of rows before it."""
        names, begins = self.columns if wanted is None else wanted, []
        rows = 0
        for part in self.parts:
            begins.append(rows)
            for batch in part.batches(names):
                yield rows, batch
                rows += batch.num_rows
        self._begins = begins

    def where(self, row: int) -> str:
        """Say where a row stands: ``"row 12"``, in a folder of files ``"b.csv row 3"``; row 1 is the first under the header.

        Of a CSV file the line is told, too, as in ``"row 12 (line 13 of the file)"``.
        """
        number = max((at for at, begin in enumerate(self._begins) if begin <= row), default=0)
        place = row - (self._begins[number] if self._begins else 0) + 1
        part = self.parts[number]
        for broken in sorted(part.broken):  # these were passed over and count all the same
            place += broken <= place
        return part.where(place) if len(self.parts) == 1 else f"{part.name} {part.where(place)}"

    @property
    def decimal_commas(self) -> bool:
        """Whether a comma within a number can only be a decimal comma: where cells are separated by something else."""
        return all(part.dialect is not None and part.dialect.delimiter != "," for part in self.parts)

    @property
    def broken(self) -> Iterable[tuple[str, str]]:
        """Rows that were passed over because they have too few or too many cells: where, and what is wrong."""
        for part in self.parts:
            for row, text in sorted(part.broken.items()):
                yield (part.where(row) if len(self.parts) == 1 else f"{part.name} {part.where(row)}"), text

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all files; nothing for a table in memory."""
        digest = hashlib.sha256()
        for part in self.parts:
            if part.path is None:
                return ""
            with part.path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:32]


def open_table(source: Any, *, encoding: str = "auto", delimiter: str = "auto") -> Table:
    """Open a file, a folder of files, or a pandas or Arrow table in memory.

    Args:
        source: The path, or the table.
        encoding: The encoding of a CSV file; ``"auto"`` finds it out.
        delimiter: What stands between the cells of a CSV file; ``"auto"`` finds it out.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        files = _files(path)
        return Table(path.name, path.absolute(), [_part(file, encoding, delimiter) for file in files])
    table = _in_memory(source)
    return Table("the table", None, [Part("the table", None, "memory", table.column_names, table)])


def looks_like_a_table(path: Path) -> bool:
    """Return whether a file's name is that of a table."""
    return path.name.lower().endswith(_ENDINGS)


def _in_memory(source: Any) -> pa.Table:
    """Return a pandas, polars or Arrow table, or a mapping of columns, as an Arrow table."""
    try:
        if isinstance(source, pa.Table):
            return source
        if isinstance(source, pa.RecordBatch):
            return pa.Table.from_batches([source])
        if isinstance(source, dict):
            return pa.table(source)
        if type(source).__module__.split(".")[0] == "datasets":  # of Hugging Face
            return source.with_format("arrow")[:]
        if type(source).__module__.split(".")[0] == "pandas":
            return pa.Table.from_pandas(source, preserve_index=False)
        if "__arrow_c_stream__" in dir(type(source)):
            return pa.table(source)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(f"the table cannot be read: {one_line(str(error))}") from None
    raise BadInput(
        f"{shown(source)} is no table; give the path of a CSV or Parquet file, a pandas or Arrow table, or a mapping of columns"
    )


def _files(path: Path) -> list[Path]:
    """Return the files of a table, in the order of their names."""
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}; check the path and the folder you are in")
    if not path.is_dir():
        if not path.is_file():
            raise BadInput(f"{path} is no ordinary file, but a pipe or a device; write the table into a file")
        return [path]
    found = sorted(one for one in path.iterdir() if one.is_file() and looks_like_a_table(one))
    if not found:
        raise BadInput(f"the folder {path} holds no table; it needs files that end in {', '.join(_ENDINGS)}")
    return found


def _part(path: Path, encoding: str, delimiter: str) -> Part:
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        if not head:
            raise BadInput(f"{path} is empty; a table needs a line with the names of its columns and rows under it")
        if head.startswith(b"PAR1"):
            return Part(path.name, path, "parquet", parquet.head(path).names)
        if head.startswith(b"ARROW1"):
            with pa.memory_map(str(path)) as stream:
                return Part(path.name, path, "arrow", pa.ipc.open_file(stream).schema.names)
        for magic, hint in _HINTS.items():
            if head.lstrip(b"\xef\xbb\xbf \r\n").startswith(magic):
                raise BadInput(f"{path} {hint}")
        if path.suffix.lower() in (".parquet", ".pq"):
            raise BadInput(
                f"{path} is not a Parquet file, or it is damaged: it does not begin with PAR1; write it again"
            )
        dialect = delimited.find_out(path, head, encoding, delimiter)
        return Part(path.name, path, "csv", delimited.columns(path, dialect), dialect=dialect)
    except BadInput:
        raise
    except (pa.ArrowException, LookupError, *FAULTS) as error:
        raise BadInput(f"{path} cannot be read: {one_line(str(error))}") from None


def _headings(part: Part) -> list[str]:
    """Say what is wrong with the names of columns."""
    told = [
        f"{part.name} has two columns named {name!r}; rename one of them"
        for name in sorted({name for name in part.names if part.names.count(name) > 1})
    ]
    if part.kind == "csv" and part.columns and all(_is_number(name) for name in part.columns):
        told.append(
            f"{part.name} begins with numbers, not with the names of columns; write the names into its first line"
        )
    return told


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
