"""What is learned: classes by their names, or numbers."""

from __future__ import annotations

from palmette.population import Encoding
from palmette.tables import columns
from palmette.tables.meaning import Understood
from palmette.tables.source import Table
from palmette.tables.survey import MOST, Column
from palmette.values import shown

COMMAS = "its numbers have commas, which may stand for thousands or for decimals; write them without, as in 1234.5"
_CLASSES = 20  # different whole numbers that are classes rather than amounts
_MANY = 1000  # classes, beyond which a label looks like a name


def name_classes(found: Understood, table: Table) -> None:
    """Decide whether classes or numbers are learned, and name the classes."""
    how, findings, column = found.how, found.findings, found.columns[found.how.label]
    kind, distinct = column.kind, None
    if kind in ("other", "empty", "date"):
        what = {"empty": "is empty", "date": "holds dates"}.get(kind, f"holds {column.odd}")
        findings.problem(f"the label {what}; it must be names, or numbers", None, column.name)
        return
    if kind == "mixed" and how.target != "class":
        found.each(table, column, "text", column.strange, "the label {cell} is not a number, as the others are")
        return
    if how.target == "number" and kind == "text":
        found.each(table, column, "text", column.strange, "the label {cell} is not a number")
        return
    if how.target != "number" and (
        kind in ("text", "mixed") or how.target == "class" or (kind == "number" and column.whole)
    ):
        distinct = _distinct(table, column.name, MOST)
    if kind == "comma" and not table.decimal_commas:
        findings.problem(COMMAS, None, column.name)
    elif kind == "comma":
        findings.notes.append(f"column {column.name!r}: its numbers have decimal commas")
    if how.target == "number" or kind == "comma" or distinct is None:
        _measured(found, table, column)
        return
    if how.target == "auto" and kind == "number" and len(distinct) > _CLASSES:
        findings.notes.append(
            f"column {column.name!r}: whole numbers from {column.low:g} to {column.high:g}, taken as amounts to be predicted "
            "(regression); say data.target=class if they are classes"
        )
        return
    if how.target == "auto" and kind == "number":
        findings.notes.append(
            f"column {column.name!r}: {len(distinct)} different whole numbers, taken as classes; say data.target=number if "
            "they are amounts"
        )
    if len(distinct) > (MOST if how.target == "class" else _MANY):
        more = "more than " if len(distinct) > MOST else ""
        findings.problem(
            f"the label has {more}{min(len(distinct), MOST):,} different values in {column.known:,} rows and looks like a "
            f"name; a model has one output for each. Name another column, or say data.target=class if these are classes",
            None,
            column.name,
        )
        return
    if len(distinct) < 2:
        findings.problem(f"the label is {shown(distinct[0])} in all rows; there is nothing to learn", None, column.name)
    found.classes = tuple(distinct)


def fit_classes(found: Understood, table: Table, known: Encoding) -> None:
    """Take the classes of models that are there already; a label that they do not know is a problem."""
    column = found.columns[known.label]
    if known.classes is None:
        if column.kind == "comma" and not table.decimal_commas:
            found.findings.problem(COMMAS, None, column.name)
        elif column.kind not in ("number", "comma"):
            found.each(table, column, "text", column.strange, "the label {cell} is not a number")
        elif column.infinite:
            found.each(table, column, "infinite", column.infinite, "the number is infinite")
        return
    found.classes = known.classes
    strange = [name for name in _distinct(table, column.name, MOST) if name not in known.classes]
    if strange:
        told = ", ".join(map(shown, strange[:5]))
        names = ", ".join(map(shown, known.classes[:20]))
        found.findings.problem(f"the models do not know the label {told}; they know {names}", None, column.name)


def _measured(found: Understood, table: Table, column: Column) -> None:
    if column.infinite:
        found.each(table, column, "infinite", column.infinite, "the number is infinite")
    if column.low == column.high:
        found.findings.problem(f"the label is {column.low:g} in all rows; there is nothing to learn", None, column.name)


def _distinct(table: Table, name: str, most: int) -> list[str]:
    """Return the different values of a column by name: numbers by size, texts by letter."""
    seen: dict[str, None] = {}
    for _, batch in table.batches([name]):
        if len(seen) > most:
            continue  # to the end all the same, so that no file stays open
        seen |= dict.fromkeys(columns.names(columns.plain(batch.column(name))).unique().drop_null().to_pylist())
    try:
        return sorted(seen, key=float)
    except ValueError:
        return sorted(seen)
