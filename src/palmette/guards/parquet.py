"""Parquet files of others, read without letting a few bytes become gigabytes.

A page of such a file may say that it unpacks to 2 GB, and a run of equal values takes a few bytes however long it is. So what
every page claims is read first (the headers only, in a few lines below) and held against the size of the file; texts are read
as numbers of a list of texts, and put in their places only where there is room for them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST_PAGE = 1 << 28  # bytes of one page; writers make pages of one megabyte
MOST_BATCH = 1 << 30  # bytes of some rows of a table that is read piece by piece
_LEAST, _TIMES = 1 << 26, 64  # a table may take 64 MiB, or so many times the bytes of its file
_FEW, _EACH = 10**6, 1000  # rows that a large table may have: a million, or so many for each byte of its file
_ROWS = 1 << 16  # that are read at once
_DEEP = 8  # structures within structures in the header of a page


class Unsound(pa.ArrowInvalid):  # type: ignore[misc]
    """A file that says of itself what cannot be, or that would take too much memory; one of Arrow's errors."""


def read(data: bytes, schema: pa.Schema | None = None) -> pa.Table:
    """Read a table from the bytes of a Parquet file, in this thread alone.

    Columns that are not wanted are left out, and the metadata of the file's schema are kept.
    `pyarrow.parquet.read_table` hands the bytes to threads of Arrow, which may let go of them only when Python has ended; the
    process then aborts.

    Args:
        data: The file.
        schema: The columns that it must have; those that it has, where it is left out.
    """
    room = max(_LEAST, _TIMES * len(data))
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            found = file.schema_arrow
            wanted = found.remove_metadata() if schema is None else schema
            _check_columns(found, wanted)
            check(memoryview(data), file.metadata, room, wanted.names)
        texts = [field.name for field in wanted if _is_text(field.type)]
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts, pre_buffer=False) as file:
            batches = list(_decoded(file, wanted, room))
    except (pa.ArrowException, OSError) as error:
        raise Unsound(" ".join(str(error).split())) from None
    return pa.Table.from_batches(batches, wanted).replace_schema_metadata(found.metadata)


def batches(path: Path, wanted: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Read columns of a large file, some rows at a time.

    Args:
        path: The file.
        wanted: The columns.
        rows: Rows that are read at once, at most.
    """
    texts = [field.name for field in head(path) if _is_text(field.type)]
    # Without these options Arrow keeps all that it has read of a file in memory.
    with pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False, buffer_size=1 << 20) as file:
        schema = pa.schema([_spelled(file.schema_arrow.field(name)) for name in wanted])
        for batch in file.iter_batches(rows, columns=list(wanted)):
            if sum(_bytes(batch.column(name)) for name in wanted) > MOST_BATCH:
                raise Unsound(f"{batch.num_rows:,} of its rows would take more than {MOST_BATCH:,} bytes")
            columns = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def head(path: Path) -> pa.Schema:
    """Return the columns of a file whose pages are as large as pages are."""
    with pq.ParquetFile(path) as file, path.open("rb") as raw:
        size = path.stat().st_size
        if file.metadata.num_rows > max(_FEW, _EACH * size):
            raise Unsound(f"it says that it has {file.metadata.num_rows:,} rows, in {size:,} bytes")
        with mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
            check(data, file.metadata)
        return file.schema_arrow


def _spelled(field: pa.Field) -> pa.Field:
    """Return a column with texts in place of their numbers in a list."""
    return pa.field(field.name, field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _is_text(kind: pa.DataType) -> bool:
    """Tell whether values may be of any length, so that one in a list may stand for many."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(kind) for is_kind in kinds)


def _check_columns(found: pa.Schema, wanted: pa.Schema) -> None:
    """Refuse a table without a column of the right name and type."""
    for field in wanted:
        if found.names.count(field.name) != 1:
            raise Unsound(f"it must have one column {field.name!r}, and has {', '.join(map(repr, found.names[:20]))}")
        if found.field(field.name).type != field.type:
            raise Unsound(f"its column {field.name!r} is of type {found.field(field.name).type}, not {field.type}")


def _decoded(file: pq.ParquetFile, schema: pa.Schema, room: int) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(_ROWS, columns=schema.names, use_threads=False):
        room -= sum(_bytes(batch.column(name)) for name in schema.names)
        if room < 0:
            raise Unsound("its texts would take far more memory than the file is large")
        yield pa.RecordBatch.from_arrays([batch.column(field.name).cast(field.type) for field in schema], schema=schema)


def _bytes(column: pa.Array) -> int:
    """Return the bytes that a column takes, of one in numbers of a list also those of its texts."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    sizes = pc.binary_length(column.dictionary).take(column.indices)
    return int(column.indices.nbytes) + int(pc.sum(sizes.cast(pa.int64())).as_py() or 0)


# -- what pages claim ------------------------------------------------------------------------------------------------------


def check(data: Any, metadata: pq.FileMetaData, room: int | None = None, names: Sequence[str] | None = None) -> None:
    """Refuse a file whose pages say that they unpack to more than can be.

    Args:
        data: The file's bytes, or a map of it.
        metadata: What its end says about it.
        room: Bytes that all pages may unpack to together; any number where it is left out.
        names: The columns that count; all where they are left out.
    """
    if metadata.num_rows < 0 or (room is not None and metadata.num_rows > room):
        raise Unsound(f"it says that it has {metadata.num_rows:,} rows, in {len(data):,} bytes")
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        if not rows.num_rows:
            continue  # the group of an empty table, of which nothing is read
        for number in range(rows.num_columns):
            column = rows.column(number)
            if not column.num_values or (names is not None and column.path_in_schema.split(".")[0] not in names):
                continue  # a column without values has no page of them
            for size, values in _pages(data, column):
                if size > MOST_PAGE:
                    raise Unsound(f"one of its pages says that it unpacks to {size:,} bytes")
                if room is not None:
                    room -= max(size, 8 * values)
                    if room < 0:
                        raise Unsound(f"its columns say that they unpack to far more than its {len(data):,} bytes")


def _pages(data: Any, column: Any) -> Iterator[tuple[int, int]]:
    """Give the bytes and the values that every page of a column claims."""
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    if at < 4 or column.total_compressed_size < 0 or end > len(data):
        raise Unsound(f"its column {column.path_in_schema!r} does not lie within the file")
    while at < end:
        header, at = _structure(data, at, end, _DEEP)
        packed, unpacked = header.get(3), header.get(2)
        if not isinstance(packed, int) or not isinstance(unpacked, int) or packed < 0 or unpacked < 0:
            raise Unsound(f"the header of a page of column {column.path_in_schema!r} is no header")
        about = header.get(5) or header.get(8) or {}
        values = about.get(1, 0) if isinstance(about, dict) else 0
        yield unpacked, values if isinstance(values, int) and values > 0 else 0
        at += packed


def _structure(data: Any, at: int, end: int, deep: int) -> tuple[dict[int, Any], int]:
    """Read a structure of Thrift's compact protocol: its numbers and structures by field, and where it ends."""
    found: dict[int, Any] = {}
    field = 0
    while True:
        head, at = _byte(data, at, end)
        if head == 0:
            return found, at
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at, end)
        found[field], at = _value(data, at, end, head & 15, deep)


def _value(data: Any, at: int, end: int, kind: int, deep: int) -> tuple[Any, int]:
    """Read one value; texts are passed over."""
    if kind in (1, 2):
        return None, at
    if kind == 3:
        return None, _within(at + 1, end)
    if kind in (4, 5, 6):
        return _number(data, at, end)
    if kind == 7:
        return None, _within(at + 8, end)
    if kind == 8:
        size, at = _natural(data, at, end)
        return None, _within(at + size, end)
    if kind == 12 and deep:
        return _structure(data, at, end, deep - 1)
    if kind in (9, 10) and deep:
        head, at = _byte(data, at, end)
        size, at = (head >> 4, at) if head >> 4 < 15 else _natural(data, at, end)
        for _ in range(size):
            # Within a list, a truth takes a byte.
            _, at = _value(data, at, end, 3 if head & 15 in (1, 2) else head & 15, deep - 1)
        return None, at
    raise Unsound("the header of a page is no header")


def _number(data: Any, at: int, end: int) -> tuple[int, int]:
    size, at = _natural(data, at, end)
    return (size >> 1) ^ -(size & 1), at


def _natural(data: Any, at: int, end: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        byte, at = _byte(data, at, end)
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
    raise Unsound("the header of a page is no header")


def _byte(data: Any, at: int, end: int) -> tuple[int, int]:
    return int(data[_within(at + 1, end) - 1]), at + 1


def _within(at: int, end: int) -> int:
    if at > end:
        raise Unsound("the header of a page runs out of its column")
    return at
