"""What a table means: which rows are used, who has them, which are for testing, and what every column is."""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.population import Encoding
from palmette.tables import columns
from palmette.tables.how import How
from palmette.tables.labels import COMMAS, fit_classes, name_classes
from palmette.tables.meaning import Flags, Understood
from palmette.tables.places import Places
from palmette.tables.problems import Findings
from palmette.tables.source import Table
from palmette.tables.split import Moments, Split, is_time
from palmette.tables.survey import MOST, SHOWN, Column

_ROWS = 20  # growing numbers that are no accident
_CORRECT = "correct it (a cell without a value is empty or says NA)"
_REST = f"as the others are; {_CORRECT}, or list the column in data.categories"
_TAKEN = f"and the models take this column as numbers; {_CORRECT}"
_BY_TIME = " split by it (data.time),"
_CATEGORIES = 100  # different texts of a feature, beyond which it looks like a name


def understand(table: Table, how: How, known: Encoding | None = None) -> Understood:
    """Look through a table once and find out what it means; all problems are collected, none is raised.

    Args:
        table: The table.
        how: How it is to be read.
        known: What models that are there already make of its columns; new data must fit.
    """
    roles = (*how.team, how.device, how.label, *(name for name in (how.split, how.time) if name))
    chosen = how.tokens or how.features or tuple(name for name in table.columns if name not in (*roles, *how.drop))
    used = list(dict.fromkeys((*chosen, *roles)))
    found = Understood(how, Findings(), {name: Column(name, table.decimal_commas) for name in used})
    found.findings.notes += table.notes
    for text in table.problems:
        found.findings.problem(text)
    if table.problems:
        return found
    places, split, moments = Places((*how.team, how.device)), Split(), Moments()
    gaps: list[Flags] = []
    voids: list[Flags] = []
    needed = [name for name in used if name != how.split and name != how.time]
    for begin, batch in table.batches(used):
        cells = {name: columns.plain(batch.column(name)) for name in used}
        for name, column in found.columns.items():
            column.add(cells[name], begin)
        places.add(cells)
        gaps.append(np.any([_gap(cells[name]) for name in needed], axis=0))
        voids.append(_gap(cells[how.label]))
        if how.split is not None:
            split.add(cells[how.split], begin)
        if how.time is not None:
            moments.add(cells[how.time])
    found.paths, found.owner = places.paths, places.rows
    gap = np.concatenate(gaps) if gaps else np.zeros(0, dtype=bool)
    _broken(found, table)
    if not len(gap):
        found.findings.problem("the table has no rows under its header")
        return found
    _paths(found)
    _kinds(found, table, chosen, known)
    if known is None:
        _doubtful(found)
        name_classes(found, table)
    else:
        fit_classes(found, table, known)
    _gaps(found, table, needed, gap, np.concatenate(voids))
    if how.split is not None:
        found.test = split.flags(found, table)
    if how.time is not None:
        found.moment = moments.all(found)
    return found


def _gap(array: Any) -> Flags:
    flags: Flags = array.is_null().to_numpy(zero_copy_only=False)
    return flags


def _broken(found: Understood, table: Table) -> None:
    broken = list(table.broken)
    for row, text in broken[: 2 * SHOWN]:
        found.findings.problem(f"the row {text}", row)
    if len(broken) > 2 * SHOWN:
        found.findings.problem(f"{len(broken) - 2 * SHOWN:,} more rows have too few or too many cells")


def _paths(found: Understood) -> None:
    """Refuse devices and teams that are neither names nor whole numbers."""
    for name in (*found.how.team, found.how.device):
        column = found.columns[name]
        if column.odd or (column.kind == "number" and not column.whole):
            what = column.odd or "numbers with fractions"
            found.findings.problem(f"it holds {what}; devices and teams are names or whole numbers", None, name)


def _kinds(found: Understood, table: Table, chosen: tuple[str, ...], known: Encoding | None) -> None:
    """Decide what every feature becomes; what models that are there take as numbers must be numbers."""
    how, findings = found.how, found.findings
    if not chosen:
        findings.problem("no column is left as a feature; name some with data.features")
    for name in chosen:
        column, kind = found.columns[name], found.columns[name].kind
        if kind == "other":
            findings.problem(
                f"it holds {column.odd}, which is neither numbers nor texts; leave it out (data.drop)", None, name
            )
        elif kind == "empty":
            findings.problem("all its cells are empty; leave it out (data.drop)", None, name)
        elif name in how.tokens:
            if kind != "number" or not column.whole or column.low < 0:
                findings.problem("tokens must be whole numbers of at least 0", None, name)
            found.kinds[name] = "token"
        elif name in how.categories:
            found.kinds[name] = "category"
            if len(column.texts) > MOST:
                findings.problem(f"it has more than {MOST:,} different values, too many for categories", None, name)
        elif kind == "date":
            findings.problem(
                f"it holds dates, which are no numbers; leave it out (data.drop),{_BY_TIME if is_time(column) else ''} or make "
                "numbers of it first, such as the month or the days since a beginning",
                None,
                name,
            )
        elif kind == "mixed" or (kind == "text" and known is not None):
            told = f"{{cell}} is not a number, {_REST if known is None else _TAKEN}"
            found.each(table, column, "text", column.strange, told)
            found.kinds[name] = "number"
        elif kind == "text":
            found.kinds[name] = "category"
        else:
            found.kinds[name] = kind
            if kind == "comma" and not table.decimal_commas:
                findings.problem(COMMAS, None, name)
            elif kind == "comma":
                findings.notes.append(f"column {name!r}: its numbers have decimal commas")
        if found.kinds.get(name) in ("number", "comma") and column.infinite:
            found.each(table, column, "infinite", column.infinite, "the number is infinite")


def _doubtful(found: Understood) -> None:
    """Tell of features that look like names, that tell nothing, or that number the rows."""
    for name in found.kinds:
        column = found.columns[name]
        if column.kind == "text" and name not in found.how.categories:
            _many(found, column)
        _suspicious(found, column)


def _suspicious(found: Understood, column: Column) -> None:
    """Warn of a column that tells nothing, or that looks like a number of the row."""
    kind = found.kinds.get(column.name)
    if (kind in ("number", "comma") and column.low == column.high) or (kind == "category" and len(column.texts) == 1):
        found.findings.warn("it is the same in all rows and tells nothing; leave it out (data.drop)", None, column.name)
    if kind == "number" and column.whole and column.rising and column.known >= _ROWS:
        text = "it grows from row to row and looks like an identifier; leave it out (data.drop)"
        found.findings.warn(text, None, column.name)
    elif kind == "number" and column.whole and column.seen and column.known >= _ROWS:
        found.findings.notes.append(
            f"column {column.name!r}: its whole numbers are all different, and it is taken as an amount; if it is an "
            "identifier, such as the number of a patient, leave it out (data.drop)"
        )


def _many(found: Understood, column: Column) -> None:
    count = len(column.texts)
    if count > _CATEGORIES or (count > 0.5 * column.known and count > 20):
        more = "more than " if count > MOST else ""
        found.findings.problem(
            f"it has {more}{min(count, MOST):,} different texts in {column.known:,} rows and looks like a name or free text; "
            "leave it out (data.drop), or list it in data.categories to have one input for each",
            None,
            column.name,
        )


def _gaps(found: Understood, table: Table, needed: list[str], gap: Flags, void: Flags) -> None:
    """Apply the rule for missing values."""
    how, findings = found.how, found.findings
    places = (*how.team, how.device, how.label)
    found.keep = ~gap
    if how.missing == "drop":
        if gap.any():
            some = [name for name in needed if found.columns[name].missing]
            findings.notes.append(
                f"{int(gap.sum()):,} of {len(gap):,} rows left out, because a value is missing in "
                f"{', '.join(map(repr, some[:5]))}"
            )
        return
    if how.missing == "mean":
        found.keep = (found.owner >= 0) & ~void
    for name in needed:
        column = found.columns[name]
        if not column.missing or column.kind in ("empty", "other"):
            continue
        if name in places or how.missing == "refuse":
            hint = (
                "fill it in, or say data.missing=drop"
                if name in places
                else "fill it in, or say data.missing=mean or drop"
            )
            found.each(table, column, "missing", column.missing, f"the value is missing; {hint}")
        elif found.kinds.get(name) == "category":
            findings.notes.append(f"column {name!r}: {_missing(column)} left without a category")
        else:
            findings.notes.append(f"column {name!r}: {_missing(column)} replaced by the mean of the training rows")


def _missing(column: Column) -> str:
    return f"{column.missing:,} missing value{'s' if column.missing != 1 else ''}"
