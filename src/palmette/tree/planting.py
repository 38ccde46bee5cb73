"""How a tree comes out of what a user wrote: sizes, nested names or links become arrays of parents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import BadInput
from palmette.values import refuse_larger_than_memory, rough, shown, whole

Ints = NDArray[np.int64]
Parents = tuple[Ints, ...]
Labels = tuple[tuple[str, ...] | None, ...]

_MOST = 10**8  # devices of a tree; far more than a machine can hold
_EACH = 500  # bytes that one device takes in a run's tree, counters and tables, whatever its model
_NAMED = 10**7  # of those, named ones: each name takes a hundred times as much
_TIERS = 64  # far deeper than any federation; a run's table counts tiers in a byte


def refuse_huge(devices: int, *, named: bool = False) -> None:
    """Refuse more devices than a machine can hold."""
    if devices > (_NAMED if named else _MOST):
        most = f"{_NAMED:.0e} where they have names" if named else f"{_MOST:.0e}"
        raise BadInput(f"a tree of {rough(devices)} devices is too large; the most is {most}")
    refuse_larger_than_memory(f"a tree of {rough(devices)} devices", _EACH * devices, "use fewer devices")


def refuse_deep(tiers: int) -> None:
    """Refuse a tree of more tiers than anybody has."""
    if tiers > _TIERS:
        raise BadInput(f"a tree may have at most {_TIERS} tiers, servers and devices included; this one has more")


def from_factors(factors: Sequence[int]) -> Parents:
    """Return the parents of a tree whose nodes have so many children each, from the top."""
    if min(factors) < 1:
        raise BadInput(f"every number of a tree must be at least 1, not {'x'.join(map(str, factors))}")
    refuse_deep(len(factors) + 1)
    refuse_huge(math.prod(factors))
    parents: list[Ints] = []
    size = 1
    for factor in factors:
        parents.append(np.repeat(np.arange(size, dtype=np.int64), factor))
        size *= factor
    return tuple(reversed(parents))


def from_mapping(nested: Mapping[str, Any]) -> tuple[Parents, Labels]:
    """Return the parents and names of a tree of nested names."""
    links: dict[tuple[str, ...], tuple[str, ...] | None] = {}
    depths: dict[int, str] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        refuse_deep(len(path) + 2)
        if isinstance(value, Mapping):
            children = [(str(name), child) for name, child in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            children = [(str(name), None) for name in value]
        elif isinstance(value, Integral) and not isinstance(value, bool):
            count = whole(f"the number of devices of {path[-1]!r}", value, 1)
            refuse_huge(len(links) + count, named=True)
            children = [(f"{path[-1]}/{number}", None) for number in range(count)]
        else:
            raise BadInput(
                f"{path[-1]!r} must hold teams (a mapping), device names (a list) or a number, not {shown(value)}"
            )
        if not children:
            raise BadInput(f"{path[-1] if path else 'the tree'!r} has no children; give it some or take it out")
        for name, child in children:
            here = (*path, name)
            if here in links:
                raise BadInput(f"the name {name!r} stands twice under {path[-1] if path else 'the server'!r}")
            links[here] = path or None
            if child is None:
                depths.setdefault(len(here), name)
            else:
                walk(child, here)

    walk(nested, ())
    if len(depths) > 1:
        (low, one), (high, other) = sorted(depths.items())[:2]
        raise BadInput(f"device {one!r} lies {low} below the server and {other!r} lies {high}; depths must be equal")
    deepest = next(iter(depths))
    return from_links(links, deepest, lambda path: path[-1], lambda path: deepest - len(path))


def from_links(parent: Mapping[Any, Any], tiers: int, name: Any, tier_of: Any) -> tuple[Parents, Labels]:
    """Number the nodes tier by tier from the top, children of one parent together, in order of appearance."""
    by_tier: list[list[Any]] = [[] for _ in range(tiers)]
    for node in parent:
        by_tier[tier_of(node)].append(node)
    number: dict[Any, int] = {None: 0}
    parents: list[Ints] = [np.zeros(0, dtype=np.int64)] * tiers
    labels: list[tuple[str, ...] | None] = [None] * (tiers + 1)
    for tier in range(tiers - 1, -1, -1):
        ordered = sorted(by_tier[tier], key=lambda node: number[parent[node]])
        parents[tier] = np.array([number[parent[node]] for node in ordered], dtype=np.int64)
        labels[tier] = tuple(name(node) for node in ordered)
        number.update({node: index for index, node in enumerate(ordered)})
    return tuple(parents), tuple(labels)
