"""How a table is to be read: which column is what, and the rules; checked and made plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from palmette.errors import BadInput, nearest
from palmette.values import fraction, plain, shown

CHOICES = {
    "target": ("auto", "class", "number"),
    "missing": ("refuse", "mean", "drop"),
    "scale": ("standard", "none"),
    "repeats": ("apart", "refuse"),
}
_LISTS = ("team", "features", "drop", "categories", "tokens")
_NAMES = ("device", "label", "split", "time")


@dataclass(frozen=True)
class How:
    """How to read a table; `palmette.read_table` says what every field means."""

    device: str
    label: str
    team: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    target: str = "auto"
    missing: str = "refuse"
    scale: str = "standard"
    test: float = 0.25
    split: str | None = None
    time: str | None = None
    unseen: float = 0.0
    repeats: str = "apart"
    encoding: str = "auto"
    delimiter: str = "auto"

    def as_dict(self) -> dict[str, Any]:
        """Return all that is said, as plain data."""
        return {key: plain(value) for key, value in asdict(self).items() if value is not None and value != ()}


def make_how(given: Mapping[str, Any], columns: Sequence[str]) -> How:
    """Check how a table is to be read; all problems are raised together."""
    how, problems = try_how(given, columns)
    if how is None:
        raise BadInput("; ".join(problems))
    return how


def try_how(given: Mapping[str, Any], columns: Sequence[str]) -> tuple[How | None, list[str]]:
    """Check how a table is to be read and return it, or every problem in a sentence, each with the nearest column.

    Args:
        given: The keywords of `palmette.read_table`, as a person gives them.
        columns: The names of the table's columns.
    """
    values = {name: plain(value) for name, value in given.items() if value is not None}
    problems: list[str] = []
    for name in ("device", "label"):
        if name not in values:
            what = "names the device of a row" if name == "device" else "is to be learned"
            problems.append(f"say which column {what}: data.{name}; the table has {listed(columns)}")
    for name, allowed in CHOICES.items():
        if name in values and values[name] not in allowed:
            problems.append(f"data.{name} = {shown(values[name])} is unknown; it is {' or '.join(allowed)}")
    for name in ("test", "unseen"):
        try:
            values[name] = fraction(f"data.{name}", values.get(name, 0.25 if name == "test" else 0.0))
        except BadInput as error:
            problems.append(str(error))
    for name in _LISTS:
        values[name], wrong = _list(name, values.get(name, ()), columns)
        problems += wrong
    for name in _NAMES:
        if name in values:
            values[name] = str(values[name]) if isinstance(values[name], int) else values[name]
            problems += _unknown(name, [values[name]], columns)
    problems += [] if problems else _clashes(values)
    return None if problems else How(**values), problems


def listed(columns: Sequence[str]) -> str:
    """List the names of columns, of many the first."""
    return ", ".join(columns[:20]) + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")


def _list(name: str, value: Any, columns: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return a list of columns; a text is cut at its commas, unless it is itself the name of a column."""
    if isinstance(value, str):
        value = [value] if value in columns else [part.strip() for part in value.split(",")]
    if not isinstance(value, list | tuple):
        value = [value]
    value = [str(one) if isinstance(one, int) else one for one in value]
    return tuple(value) if all(isinstance(one, str) for one in value) else (), _unknown(name, value, columns)


def _unknown(name: str, wanted: Sequence[Any], columns: Sequence[str]) -> list[str]:
    return [
        f"data.{name}: there is no column {shown(one)}{nearest(str(one), columns)}"
        for one in wanted
        if one not in columns
    ]


def _clashes(values: dict[str, Any]) -> list[str]:
    """Refuse a column that is said to be two things, and rules that exclude each other."""
    told: list[str] = []
    roles: dict[str, str] = {}
    for name in (*_NAMES, "team"):
        for column in values.get(name, ()) if name == "team" else [values[name]] if name in values else []:
            if column in roles:
                told.append(
                    f"the column {column!r} is both data.{roles[column]} and data.{name}; a column is one thing"
                )
            roles[column] = name
    for name in ("features", "tokens", "categories", "drop"):
        told += [
            f"the column {column!r} is both data.{roles[column]} and in data.{name}; take it out of one of them"
            for column in values[name]
            if column in roles
        ]
    if "split" in values and "time" in values:
        told.append("data.split and data.time both say which rows are for testing; give one of them")
    if values["tokens"] and (values["features"] or values["categories"]):
        told.append("data.tokens are all the features there are; leave data.features and data.categories out")
    return told
