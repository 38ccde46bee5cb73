"""Parts of a model: which parameters belong together, by patterns on their names.

A pattern is a parameter's name with ``*`` and ``?`` (``"4.*"``), the name of a layer, which stands for all its parameters
(``"4"``), or ``"last(2)"`` and ``"first(2)"`` for the last and first two layers that have parameters. What no pattern names is
the part `BODY`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from palmette.errors import BadInput
from palmette.values import shown

BODY = "body"
"""The part that holds what no other part names."""
BUFFERS = "buffers"
"""The part that holds averaged buffers."""

Patterns = str | Sequence[str]

_ENDS = re.compile(r"(last|first)\((\d{1,9})\)")


def last(layers: int = 1) -> str:
    """Return the pattern of the last layers that have parameters.

    Args:
        layers: How many.
    """
    return f"last({layers})"


def first(layers: int = 1) -> str:
    """Return the pattern of the first layers that have parameters.

    Args:
        layers: How many.
    """
    return f"first({layers})"


def layer_of(name: str) -> str:
    """Return the name of the layer that a parameter belongs to; it is empty for a module that is one layer.

    Args:
        name: The parameter's name, such as ``0.weight``.
    """
    return name.rpartition(".")[0]


def named_by(patterns: Any, names: Sequence[str], what: str) -> set[str]:
    """Return the parameters that some patterns name; each pattern must name one.

    Args:
        patterns: A pattern, or several, or an empty list for no parameter.
        names: The parameters there are, in the model's order.
        what: What the patterns are for, as in ``"parts.head"``.
    """
    given = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(given, Sequence) or not all(isinstance(pattern, str) for pattern in given):
        raise BadInput(f"{what} must be a pattern of parameter names or a list of them, not {shown(patterns)}")
    found: set[str] = set()
    for pattern in given:
        mine = _matches(pattern, names)
        if not mine:
            layers = ", ".join(dict.fromkeys(layer_of(name) or name for name in names))
            raise BadInput(
                f"{what} = {pattern!r} names no parameter of the model. Its layers are: {layers}. Write a layer's name, a "
                "pattern such as '4.*', or 'last(1)'"
            )
        found |= mine
    return found


def _matches(pattern: str, names: Sequence[str]) -> set[str]:
    layers = list(dict.fromkeys(map(layer_of, names)))
    if end := _ENDS.fullmatch(pattern):
        count = int(end[2])
        chosen = set(layers[:count] if end[1] == "first" else layers[max(0, len(layers) - count) :])
        return {name for name in names if layer_of(name) in chosen}
    return {name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}


def split(parts: Mapping[str, Any], names: Sequence[str], frozen: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return every part with its parameters in the model's order, the body first; it may be empty.

    Every parameter belongs to one part.

    Args:
        parts: Patterns by the name of the part.
        names: All parameters, in the model's order, by which layers are counted in ``last(1)``.
        frozen: Those of them that are not learned, which belong to no part.
    """
    if not isinstance(parts, Mapping):
        raise BadInput(f"parts must be patterns by name, as in {{'head': 'last(1)'}}, not {shown(parts)}")
    owner: dict[str, str] = {}
    learned = [name for name in names if name not in frozen]
    for part, patterns in parts.items():
        if not isinstance(part, str) or not part.isidentifier() or part in (BODY, BUFFERS):
            taken = f"; {part!r} is a name that Palmette gives" if part in (BODY, BUFFERS) else ""
            raise BadInput(
                f"a part's name must be a plain word, as in parts={{'head': 'last(1)'}}, not {part!r}{taken}"
            )
        mine = named_by(patterns, names, f"parts.{part}")
        if mine and mine.issubset(frozen):
            raise BadInput(f"parts.{part} = {shown(patterns)} names frozen parameters only, which belong to no part")
        for name in (name for name in learned if name in mine):
            if owner.setdefault(name, part) != part:
                raise BadInput(f"the parameter {name!r} is in two parts, {owner[name]!r} and {part!r}; name it in one")
    return {part: tuple(name for name in learned if owner.get(name, BODY) == part) for part in (BODY, *parts)}
