"""How a tree comes out of what a user wrote: sizes, nested names or links become arrays of parents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import BadInput

Ints = NDArray[np.int64]
Parents = tuple[Ints, ...]
Labels = tuple[tuple[str, ...] | None, ...]

_MOST = 10**8  # devices of a tree; far more than a machine can hold


def refuse_huge(devices: int) -> None:
    """Refuse more devices than a machine can hold."""
    if devices > _MOST:
        raise BadInput(f"a tree of {devices:.3g} devices is too large; the most is {_MOST:.0e}")


def from_factors(factors: Sequence[int]) -> Parents:
    """Return the parents of a tree whose nodes have so many children each, from the top."""
    if min(factors) < 1:
        raise BadInput(f"every number of a tree must be at least 1, not {'x'.join(map(str, factors))}")
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
        if isinstance(value, Mapping):
            children = [(str(name), child) for name, child in value.items()]
        elif isinstance(value, int):
            children = [(f"{path[-1]}/{number}", None) for number in range(value)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            children = [(str(name), None) for name in value]
        else:
            raise BadInput(
                f"{path[-1]!r} must hold teams (a mapping), device names (a list) or a number, not {value!r}"
            )
        if not children:
            raise BadInput(f"{path[-1] if path else 'the tree'!r} has no children")
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
