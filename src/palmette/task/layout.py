"""The correspondence between the named tensors of a model and its flat row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from palmette.errors import BadInput, nearest
from palmette.task.parts import BODY, layer_of

Which = str | Sequence[str]
"""One part by its name, or several."""


class Layer(NamedTuple):
    """One layer of a model, as its row holds it.

    Attributes:
        name: Name of the layer in the module; empty for a module that is one layer.
        part: The part of the model it belongs to; several are joined by commas.
        shapes: Shape of each of its tensors, by their own names.
    """

    name: str
    part: str
    shapes: dict[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(map(math.prod, self.shapes.values()))


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a module lies in a flat row, and which part of the model it belongs to.

    Attributes:
        names: Names of the tensors in a row: the parameters that are learned, in the module's own order, then the buffers
            that are averaged.
        shapes: Their shapes.
        parts: Names of each part's tensors, in the same order. The parts cover the row and do not overlap.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "parts", {BODY: self.names})

    @cached_property
    def sizes(self) -> list[int]:
        """Number of entries of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def width(self) -> int:
        """Length of a flat row."""
        return sum(self.sizes)

    def __add__(self, other: Layout) -> Layout:
        """Return the layout of rows that have another's columns after these."""
        return Layout(self.names + other.names, self.shapes + other.shapes, {**self.parts, **other.parts})

    @cached_property
    def layers(self) -> list[Layer]:
        """The layers that have tensors in the row, in the model's order."""
        part_of = {name: part for part, names in self.parts.items() for name in names}
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        parts: dict[str, dict[str, None]] = {}
        for name, shape in zip(self.names, self.shapes, strict=True):
            layer = layer_of(name)
            shapes.setdefault(layer, {})[name.rpartition(".")[2]] = tuple(shape)
            parts.setdefault(layer, {})[part_of[name]] = None
        return [Layer(name, ",".join(parts[name]), shapes[name]) for name in shapes]

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """View a row ``(d,)`` or a stack ``(n, d)`` as named tensors, without copying."""
        if rows.shape[-1] != self.width:
            raise BadInput(f"a row of {rows.shape[-1]} numbers does not fit a model of {self.width}")
        parts = rows.split(self.sizes, dim=-1)
        lead = rows.shape[:-1]
        return {
            name: part.unflatten(-1, tuple(shape)) if shape else part.reshape(lead)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors (with or without a leading stack dimension) into rows."""
        lead = tensors[self.names[0]].dim() - len(self.shapes[0])
        return torch.cat([tensors[name].reshape(*tensors[name].shape[:lead], -1) for name in self.names], dim=-1)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def part(self, which: Which) -> Layout:
        """Return the layout of some parts alone: their tensors in the model's order."""
        wanted = self.members(which)
        kept = {name: shape for name, shape in zip(self.names, self.shapes, strict=True) if name in wanted}
        parts = {part: names for part, names in self.parts.items() if wanted.issuperset(names)}
        return Layout(tuple(kept), tuple(kept.values()), parts)

    def members(self, which: Which) -> frozenset[str]:
        """Return the names of the tensors of some parts."""
        words = (which,) if isinstance(which, str) else tuple(which)
        for word in words:
            if word not in self.parts:
                layers = ", ".join(layer.name or "the only one" for layer in self.layers)
                raise BadInput(
                    f"the model has no part {word!r}{nearest(str(word), self.parts)}. Name it as in pm.Task(..., "
                    f"parts={{{word!r}: 'last(1)'}}) or --set model.parts.{word}='last(1)'; its layers are: {layers}"
                )
        if not words or len(set(words)) != len(words):
            raise BadInput(f"name each part once, not {words!r}")
        return frozenset(name for word in words for name in self.parts[word])

    def cut(self, rows: Tensor, which: Which) -> Tensor:
        """Return the columns of some parts of rows ``(..., d)``, in the model's order, as rows of their own."""
        self._check(rows, self.width, "a model")
        low, high, index = _columns(self, _key(which))
        if index is None:
            return rows[..., low:high].contiguous()
        return rows.index_select(-1, index.to(rows.device))

    def put(self, rows: Tensor, which: Which, values: Tensor) -> Tensor:
        """Return whole rows with other numbers in the columns of some parts."""
        low, high, index = _columns(self, _key(which))
        self._check(rows, self.width, "a model")
        self._check(values, high - low if index is None else len(index), f"the part {which!r}")
        result = rows.clone()
        if index is None:
            result[..., low:high] = values
        else:
            result[..., index.to(rows.device)] = values
        return result

    def joined(self, base: Tensor | None, parts: Mapping[str, Tensor]) -> Tensor:
        """Return whole rows from those of all parts; parts that are not named are those of ``base``."""
        missing = [part for part in self.parts if part not in parts]
        if base is None and missing:
            raise BadInput(
                f"join needs every part of the model, and {', '.join(missing)} is missing; or give whole rows first"
            )
        some = next(iter(parts.values()), base)
        assert some is not None
        rows = some.new_empty((*some.shape[:-1], self.width)) if base is None else base
        for part, values in parts.items():
            rows = self.put(rows, part, values)
        return rows

    def mask(self, which: Which, like: Tensor) -> Tensor:
        """Return a one for each column of some parts and a zero for the others."""
        low, high, index = _columns(self, _key(which))
        mask = like.new_zeros(self.width)
        mask[slice(low, high) if index is None else index.to(mask.device)] = 1
        return mask

    @staticmethod
    def _check(rows: Tensor, width: int, what: str) -> None:
        if rows.shape[-1] != width:
            raise BadInput(f"rows of {rows.shape[-1]} numbers do not fit {what}, which has {width}")


def _key(which: Which) -> tuple[str, ...]:
    return (which,) if isinstance(which, str) else tuple(which)


@cache
def _columns(layout: Layout, which: tuple[str, ...]) -> tuple[int, int, Tensor | None]:
    """Return the columns of some parts: the first and the one after the last where they lie together, else all of them."""
    wanted = layout.members(which)
    spans, at = list[tuple[int, int]](), 0
    for name, size in zip(layout.names, layout.sizes, strict=True):
        if name in wanted:
            spans.append((at, at + size))
        at += size
    if not spans:
        return 0, 0, None
    low, high = spans[0][0], spans[-1][1]
    if high - low == sum(end - begin for begin, end in spans):
        return low, high, None
    return low, high, torch.cat([torch.arange(begin, end) for begin, end in spans])
