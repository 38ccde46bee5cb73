"""The columns of a batch as numbers or as names, whatever type they are stored in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_COMMA = r"^[+-]?[0-9]+,[0-9]+$"
_DATE = (
    r"^([0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T].*)?|[0-9]{4}/[0-9]{1,2}/[0-9]{1,2}.*"
    r"|[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}( .*)?)$"
)

_TURNED = r"^[0-9]{1,2}([./-])[0-9]{1,2}[./-][0-9]{4}( [0-9]{1,2}:[0-9]{2}(:[0-9]{2})?)?$"

Floats = NDArray[np.float64]


def family(kind: Any) -> str:
    """Return what a stored type is: ``number``, ``truth``, ``text``, ``date``, ``nothing`` or ``other``."""
    if pa.types.is_dictionary(kind):
        return family(kind.value_type)
    if pa.types.is_boolean(kind):
        return "truth"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or "string_view" in str(kind):
        return "text"
    if pa.types.is_temporal(kind):
        return "date"
    return "nothing" if pa.types.is_null(kind) else "other"


def plain(array: Any) -> Any:
    """Return a column without dictionaries, its texts without white space at the ends, its NaN as missing values."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = family(array.type)
    if kind == "text":
        trimmed = pc.utf8_trim_whitespace(array.cast(pa.string()))
        return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)
    if pa.types.is_floating(array.type):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    return array


def is_number(texts: Any, *, comma: bool = False) -> Any:
    """Return which texts are numbers; with ``comma`` those with a decimal comma."""
    return pc.fill_null(pc.match_substring_regex(texts, _COMMA if comma else _NUMBER), False)


def is_date(texts: Any) -> Any:
    """Return which texts look like dates."""
    return pc.fill_null(pc.match_substring_regex(texts, _DATE), False)


def numbers(array: Any, *, comma: bool = False) -> Floats:
    """Return a plain column as numbers; NaN where there is none.

    Args:
        array: The column, from `plain`.
        comma: Whether its numbers may have decimal commas.
    """
    kind = family(array.type)
    if kind == "text":
        texts = pc.replace_substring(array, ",", ".") if comma else array
        try:
            cast = texts.cast(pa.float64())
        except pa.ArrowInvalid:
            cast = pc.if_else(is_number(texts), texts, pa.scalar(None, pa.string())).cast(pa.float64())
    elif kind == "nothing":
        cast = pa.nulls(len(array), pa.float64())
    elif kind == "date":
        cast = array.cast(pa.timestamp("us")) if not pa.types.is_time(array.type) else array.cast(pa.time64("us"))
        cast = cast.cast(pa.int64()).cast(pa.float64())
    else:
        cast = pc.cast(array, pa.float64(), safe=False)
    found: Floats = np.array(cast.to_numpy(zero_copy_only=False), dtype=np.float64)
    return found


def names(array: Any) -> Any:
    """Return a plain column as names: whole numbers without a fraction, truths as ``true`` and ``false``."""
    kind = family(array.type)
    if kind == "text":
        return array
    if kind == "other":
        return pa.nulls(len(array), pa.string())
    if pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
        wide = pc.cast(array, pa.float64(), safe=False)
        whole = pc.and_(pc.equal(pc.floor(wide), wide), pc.less(pc.abs(wide), 1e15))
        if pc.all(whole).as_py() is not False:
            return pc.cast(wide, pa.int64()).cast(pa.string())
        return wide.cast(pa.string())
    return array.cast(pa.string())


def moments(texts: Any) -> Floats | None:
    """Return texts that are ISO dates as numbers that grow with time; ``None`` where one of them is none."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        try:
            return numbers(texts.cast(kind))
        except pa.ArrowInvalid:
            continue
    return None


def turned_moments(texts: Any, order: str) -> Floats | None:
    """Return dates that end in the year as numbers that grow with time; ``None`` where one of them is none.

    Args:
        texts: The texts, such as ``"31.01.2025"`` or ``"31/01/2025 12:30"``.
        order: What comes first: ``"%d.%m"``, the day, or ``"%m.%d"``, the month.
    """
    if not pc.all(pc.match_substring_regex(texts, _TURNED)).as_py():
        return None
    texts = pc.replace_substring_regex(texts, "[/-]", ".")
    forms = (f"{order}.%Y", f"{order}.%Y %H:%M", f"{order}.%Y %H:%M:%S")
    found = pc.coalesce(*(pc.strptime(texts, format=form, unit="us", error_is_null=True) for form in forms))
    days = pc.list_element(pc.split_pattern(texts, "."), 0 if order.startswith("%d") else 1)
    there = pc.equal(pc.day(found), days.cast(pa.int64()))  # 31.02. would be a day in March
    return numbers(found) if pc.all(there).as_py() is not False and found.null_count == texts.null_count else None
