"""Damage to the files of a folder: accidents, and what somebody writes who wants to do harm and knows the formats."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from fuzz_values import wild

from palmette.guards.texts import from_toml

EVIL = "\x1b[2J\x1b]0;owned\x07[/bold]\u202e../../x"
NASTY: tuple[Any, ...] = (
    *(0, 1, -1, 2, 127, 128, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), True, False, None),
    *(
        "",
        "x",
        "\0",
        "../../outside/file",
        "/etc/passwd",
        "PM",
        "TM",
        "TM99999999999",
        "TM/../../x",
        "GM",
        "all",
        "sampled",
    ),
    *(
        "mean",
        "nodes",
        "accuracy",
        "loss",
        "99999x99999",
        "1x" * 70 + "1",
        "9" * 4000,
        "x" * 100_000,
        EVIL,
        "code:make",
    ),
    *([], [0], [[]], ["a"], [1, 2], {}, {"a": 1}, {"": {}}, [None] * 3, list(range(300))),
)


def nested(luck: random.Random) -> Any:
    """Return lists or objects within each other, too deep for most readers."""
    made: Any = 1
    for _ in range(luck.choice((50, 400, 900))):
        made = [made] if luck.random() < 0.5 else {"a": made}
    return made


def nasty(luck: random.Random) -> Any:
    """Return a value that somebody might not expect."""
    draw = luck.random()
    return nested(luck) if draw < 0.03 else wild(luck) if draw < 0.2 else luck.choice(NASTY)


def changed(luck: random.Random, told: Any) -> Any:
    """Return plain data with one to three of its values replaced, removed, added or doubled."""
    made = json.loads(json.dumps(told))
    for _ in range(luck.choice((1, 1, 2, 3))):
        place = made
        while isinstance(place, dict | list) and place:
            key: Any = luck.choice(list(place)) if isinstance(place, dict) else luck.randrange(len(place))
            if not isinstance(place[key], dict | list) or not place[key] or luck.random() < 0.3:
                break
            place = place[key]
        if not isinstance(place, dict | list) or not place:
            return nasty(luck)
        what = luck.randrange(4)
        if what == 0:
            del place[key]
        elif what == 1 and isinstance(place, dict):
            place[luck.choice(("kind", "x", "", EVIL, "given", "tree"))] = nasty(luck)
        elif what == 1:
            place.append(nasty(luck))
        else:
            place[key] = nasty(luck)
    return made


# -- bytes -----------------------------------------------------------------------------------------------------------------


def scratched(luck: random.Random, data: bytes) -> bytes:
    """Return bytes with some of them flipped, cut off, left out, doubled or filled with nothing."""
    made = bytearray(data)
    for _ in range(luck.choice((1, 1, 2, 8))):
        at, size = luck.randrange(len(made) + 1), luck.choice((1, 1, 4, 64, 4096))
        what = luck.randrange(6)
        if what == 0 and at < len(made):
            made[at] ^= 1 << luck.randrange(8)
        elif what == 1:
            del made[at:]
        elif what == 2:
            del made[at : at + size]
        elif what == 3:
            made[at:at] = luck.randbytes(size)
        elif what == 4:
            made[at : at + size] = bytes(min(size, len(made) - at))
        else:
            made += made[at : at + size]
    return bytes(made)


def as_json(luck: random.Random, data: bytes) -> bytes:
    """Return JSON that says something else."""
    if luck.random() < 0.05:
        return luck.choice((b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b"null", b"[]", b"{}", b'"x"', b"NaN"))
    try:
        return json.dumps(plain(changed(luck, json.loads(data)))).encode()
    except RecursionError:  # deeper than this program can write
        return b'{"a":' * 500


def as_toml(luck: random.Random, data: bytes) -> bytes:
    """Return TOML that says something else."""
    if luck.random() < 0.08:
        return luck.choice(
            (
                b"a." * 100_000 + b"a = 1",
                b"a = " + b"[" * 50_000,
                data + b'\ntree = "9x9"\n',
                b"[" + b"a." * 300 + b"a]",
            )
        )
    try:
        return tomli_w.dumps(plain(changed(luck, from_toml(data)))).encode()
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):  # what no TOML can hold
        return scratched(luck, data)


def plain(value: Any) -> Any:
    """Return a value as JSON and TOML can hold it, or nearly."""
    if isinstance(value, dict):
        return {str(key).encode("utf-8", "replace").decode(): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if isinstance(value, int | float) or value is None else str(value)


# -- tables and tensors ----------------------------------------------------------------------------------------------------


def as_parquet(luck: random.Random, data: bytes) -> bytes:
    """Return a table that is sound as a file and wrong as what it is."""
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    ways: tuple[Callable[[random.Random, pa.Table], pa.Table], ...] = (
        _column,
        _column,
        _type,
        _rows,
        _rows,
        _bomb,
        _metadata,
    )
    made, sink = luck.choice(ways)(luck, table), io.BytesIO()
    options: dict[str, Any] = luck.choice(({}, {"compression": "zstd"}, {"use_dictionary": False}, {"version": "1.0"}))
    try:
        pq.write_table(made, sink, **options)
    except MemoryError:  # more than this process may take to write it
        return scratched(luck, data)
    return sink.getvalue() if luck.random() < 0.9 else scratched(luck, sink.getvalue())


def _column(luck: random.Random, table: pa.Table) -> pa.Table:
    """Put other values into a column, where its type takes them."""
    at = luck.randrange(table.num_columns)
    field, values = table.field(at), table.column(at).to_pylist()
    for _ in range(luck.choice((1, 1, 5))):
        if values:
            values[luck.randrange(len(values))] = nasty(luck)
    if luck.random() < 0.2:
        values = [luck.choice((*NASTY, *values[:3]))] * len(values)
    kept = []
    for value in values:
        try:
            kept.append(pa.scalar(value, field.type).as_py())
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            kept.append(None if luck.random() < 0.3 else table.column(at)[0].as_py() if table.num_rows else None)
    return table.set_column(at, field, pa.array(kept, field.type))


def _type(luck: random.Random, table: pa.Table) -> pa.Table:
    """Leave a column out, name it otherwise, double it or make it another type."""
    at, what = luck.randrange(table.num_columns), luck.randrange(4)
    name, rows = table.field(at).name, table.num_rows
    if what == 0:
        return table.remove_column(at)
    if what == 1:
        return table.rename_columns([EVIL if one == name else one for one in table.column_names])
    if what == 2:
        return table.append_column(name, table.column(at))
    kind = luck.choice((pa.int8(), pa.string(), pa.float64(), pa.binary(), pa.list_(pa.int32()), pa.bool_(), pa.null()))
    return table.set_column(at, name, pa.nulls(rows, kind))


def _rows(luck: random.Random, table: pa.Table) -> pa.Table:
    """Leave rows out, double them or put them in another order."""
    count = table.num_rows
    if not count or luck.random() < 0.1:
        return table.slice(0, 0)
    keep = [luck.randrange(count) for _ in range(luck.choice((1, count // 2, count, 3 * count)))]
    return table.take(pa.array(sorted(keep) if luck.random() < 0.5 else keep, pa.int64()))


def _bomb(luck: random.Random, table: pa.Table) -> pa.Table:
    """Return very many rows or very long texts that take next to no room in the file."""
    if luck.random() < 0.5 or not table.num_rows:
        one = table.slice(0, 1)
        count = luck.choice((10**5, 10**6))
        columns = [
            pa.repeat(column[0], count) if one.num_rows else pa.nulls(count, column.type) for column in one.columns
        ]
        return pa.table(columns, schema=table.schema)
    at = next((at for at, field in enumerate(table.schema) if pa.types.is_string(field.type)), None)
    if at is None:
        return table
    long = pa.array(["x" * 10**6], pa.string())
    places = pa.array(np.zeros(table.num_rows, np.int32))
    return table.set_column(at, table.field(at).name, pa.DictionaryArray.from_arrays(places, long))


def _metadata(luck: random.Random, table: pa.Table) -> pa.Table:
    """Say something else in the metadata."""
    known = {b"so far": b"{}", b"classes": b"[]", **(table.schema.metadata or {})}
    key = luck.choice([name for name in known if not name.startswith(b"ARROW")])
    return table.replace_schema_metadata({**known, key: as_json(luck, known[key])})


def as_tensors(luck: random.Random, data: bytes, skip: int = 0) -> bytes:
    """Return a safetensors file whose header says something else; bytes before it stay."""
    size = int.from_bytes(data[skip : skip + 8], "little")
    header = json.loads(data[skip + 8 : skip + 8 + size])
    rest = data[skip + 8 + size :]
    names = [name for name in header if name != "__metadata__"]
    if luck.random() < 0.4 and "about" in header.get("__metadata__", {}):
        header["__metadata__"]["about"] = as_json(luck, header["__metadata__"]["about"].encode()).decode()
    elif luck.random() < 0.6 and names:
        one, width = header[luck.choice(names)], luck.choice((0, 1, 2, 10**9, 2**40, 2**62))
        changes = ({"shape": [width]}, {"shape": [width] * 3}, {"shape": [*one["shape"], 1]}, {"shape": []})
        kinds = tuple({"dtype": kind} for kind in ("I64", "U8", "BOOL", "F16"))
        one.update(luck.choice((*changes, luck.choice(kinds), {"data_offsets": [0, width]})))
    else:
        header = changed(luck, header)
    text = json.dumps(plain(header)).encode()
    claimed = len(text) if luck.random() < 0.95 else luck.choice((0, 2**31, 2**62, len(data)))
    return data[:skip] + claimed.to_bytes(8, "little") + text + rest


# -- files -----------------------------------------------------------------------------------------------------------------


def replaced(luck: random.Random, file: Path, others: list[Path], outside: Path) -> None:
    """Put something else in the place of a file: nothing, a link out of the folder, a pipe, a folder, another file."""
    file.unlink()
    what = luck.randrange(6)
    if what == 1:
        file.symlink_to(luck.choice((outside, Path("/etc/passwd"), Path("/dev/zero"), file.parent, Path("nowhere"))))
    elif what == 2:
        os.mkfifo(file)
    elif what == 3:
        file.mkdir()
    elif what == 4 and others:
        file.write_bytes(luck.choice(others).read_bytes())
    elif what == 5:
        file.write_bytes(luck.choice((b"", b"\0" * 100, luck.randbytes(200), EVIL.encode())))


def checksum(data: bytes) -> bytes:
    """Return the checksum that a run writes."""
    return hashlib.sha256(data).hexdigest().encode()
