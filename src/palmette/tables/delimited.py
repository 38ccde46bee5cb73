"""CSV files as people have them: other encodings, semicolons, tabs, gzip, rows that are broken."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv

from palmette.errors import BadInput
from palmette.guards.packed import FAULTS, unzipped
from palmette.values import shown

_BLOCK = 1 << 22  # bytes that are read at once
_COUNTED = 1 << 24  # letters of a file within which the line of a row is looked for
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_WORDS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "\\t": "\t"}
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# Cells that mean that there is no value.
NOTHING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "#NA", "<NA>", "."]


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written.

    Attributes:
        encoding: Its encoding.
        delimiter: What stands between two cells.
        zipped: Whether it is packed with gzip.
        notes: What was guessed, in sentences.
    """

    encoding: str
    delimiter: str
    zipped: bool
    notes: tuple[str, ...] = ()


def find_out(path: Path, head: bytes, encoding: str, delimiter: str) -> Dialect:
    """Find out how a file is written; what is given is taken as it is.

    Args:
        path: The file.
        head: Its first bytes.
        encoding: Its encoding or ``"auto"``.
        delimiter: Its delimiter or ``"auto"``.
    """
    zipped, notes = head.startswith(b"\x1f\x8b"), []
    if encoding == "auto":
        encoding, note = _encoding(path, zipped)
        notes += [note] if note else []
    else:
        try:
            if codecs.lookup(encoding).name == "utf-8" and (found := _encoding(path, zipped)[0]) != "utf-8":
                told = f"{path.name} is not UTF-8, as encoding = {shown(encoding)} says"
                raise BadInput(f"{told}; write {found}, or leave it out")
        except LookupError:
            raise BadInput(
                f"encoding = {shown(encoding)} is not known; write utf-8, latin-1, cp1252 or utf-16"
            ) from None
    delimiter = _WORDS.get(delimiter, delimiter)
    if delimiter == "auto":
        with _opened(path, zipped) as raw:
            line = codecs.getreader(encoding)(raw, "replace").readline(1 << 20)
        if "\0" in line:
            raise BadInput(f"{path} is not a text file; a table is a CSV or a Parquet file")
        delimiter = max(_DELIMITERS, key=lambda mark: _cells(line, mark))
        if delimiter != ",":
            notes.append(f"{path.name}: its cells are separated by {_DELIMITERS[delimiter]}")
    elif len(delimiter) != 1 or not delimiter.isascii():
        raise BadInput(f"delimiter = {shown(delimiter)} must be one character, such as ; or tab")
    return Dialect(encoding, delimiter, zipped, tuple(notes))


def columns(path: Path, dialect: Dialect) -> list[str]:
    """Return the names of a file's columns."""
    with _opened(path, dialect.zipped) as raw:
        options = pv.ReadOptions(use_threads=False, encoding=dialect.encoding, block_size=_BLOCK)
        loose = pv.ConvertOptions(check_utf8=False)
        with pv.open_csv(raw, options, _parse(dialect, {}), loose) as reader:
            return list(reader.schema.names)


def batches(
    path: Path | None, dialect: Dialect, names: list[str], wanted: list[str], broken: dict[int, str]
) -> Iterator[pa.RecordBatch]:
    """Read columns of a file as texts, batch after batch.

    Args:
        path: The file.
        dialect: How it is written.
        names: All its columns.
        wanted: Those to read.
        broken: Is filled with the rows that have too few or too many cells.
    """
    assert path is not None
    with _opened(path, dialect.zipped) as raw:
        options = pv.ReadOptions(use_threads=False, encoding=dialect.encoding, block_size=_BLOCK)
        texts = pv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=wanted,
            null_values=NOTHING,
            strings_can_be_null=True,
        )
        with pv.open_csv(raw, options, _parse(dialect, broken), texts) as reader:
            yield from reader


def line_of(path: Path, dialect: Dialect, row: int) -> int | None:
    """Return the line of a row in its file; ``None`` where empty lines or lines within cells may shift it, or it is far down.

    Args:
        path: The file.
        dialect: How it is written.
        row: The row; 1 is the first under the header.
    """
    seen = letters = 0
    try:
        with _opened(path, dialect.zipped) as raw, io.TextIOWrapper(raw, dialect.encoding, "replace") as text:
            for line in text:
                seen, letters = seen + 1, letters + len(line)
                if line.strip("\n\ufeff") == "" or line.count('"') % 2 or letters > _COUNTED:
                    return None
                if seen > row:
                    return seen
    except FAULTS:
        return None
    return None


def _parse(dialect: Dialect, broken: dict[int, str]) -> pv.ParseOptions:
    def passed_over(row: Any) -> str:
        if row.number is not None:
            broken[row.number - 1] = f"has {row.actual_columns} cells, the header has {row.expected_columns}"
        return "skip"

    return pv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True, invalid_row_handler=passed_over)


def _opened(path: Path, zipped: bool) -> Any:
    return unzipped(path) if zipped else path.open("rb")


def _encoding(path: Path, zipped: bool) -> tuple[str, str | None]:
    """Return a file's encoding, and what to say where it had to be guessed."""
    with _opened(path, zipped) as raw:
        head = raw.read(4)
        for mark, name in _MARKS:
            if head.startswith(mark) and name != "utf-8":
                return name, f"{path.name}: read as {name.upper()}, as its first bytes say"
        decoder, line, block = codecs.getincrementaldecoder("utf-8")(), 1, head
        sound = True  # as Windows-1252, which leaves some bytes without a meaning
        failed = ""
        while block:
            if not failed:
                try:
                    decoder.decode(block)
                    line += block.count(b"\n")
                except UnicodeDecodeError as error:
                    line += block[: error.start].count(b"\n")
                    failed = f"byte 0x{block[min(error.start, len(block) - 1)]:02x} in line {line:,}"
            sound &= not any(byte in block for byte in (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d"))
            block = raw.read(_BLOCK)
    if not failed:
        return "utf-8", None
    if head.startswith(codecs.BOM_UTF8):
        raise BadInput(
            f"{path.name} begins as UTF-8 does, and is not UTF-8 ({failed}); save it again, or say data.encoding"
        )
    name = "cp1252" if sound else "latin-1"
    return name, f"{path.name}: not UTF-8 ({failed}), read as {name}; if that is wrong, say data.encoding"


def _cells(line: str, mark: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=mark), []))
    except csv.Error:  # a cell beyond all that Python reads
        return 0
