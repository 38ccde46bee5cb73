"""Sizes of values in the trace of a module: nodes that read them, or compute with them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from palmette.learner.links import NotFused

_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv)

Size = Callable[[Sequence[torch.Size]], int]


def is_size(node: Any) -> bool:
    """Decide whether a node only reads sizes of values, or computes with them."""
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op == "call_function" and node.target is getattr:
        return bool(node.args[1] == "shape")
    if node.target in _ARITHMETIC:
        return any(map(is_size, node.args)) and all(isinstance(one, int) or is_size(one) for one in node.args)
    return node.target is operator.getitem and is_size(node.args[0])


def _read(node: fx.Node) -> tuple[Any, Any]:
    """Return the value and the dimension whose size a node reads; the dimension is ``None`` for all."""
    if node.target is operator.getitem:
        return node.args[0].args[0], node.args[1]  # type: ignore[union-attr]
    return node.args[0], node.args[1] if node.target == "size" and len(node.args) > 1 else None


def is_batch(node: Any) -> bool:
    """Decide whether a node is the number of samples in the batch."""
    return is_size(node) and node.target not in _ARITHMETIC and _read(node)[1] == 0


def size_of(node: Any, sources: list[Any], where: str) -> Size:
    """Return how a size follows from those of the sources, to which the values that it is read from are added."""
    if isinstance(node, int):
        return lambda shapes: node
    if not is_size(node):
        raise NotFused(f"{where} has sizes that are not numbers or sizes of values")
    if node.target in _ARITHMETIC:
        one, other = (size_of(part, sources, where) for part in node.args)
        return lambda shapes: node.target(one(shapes), other(shapes))
    source, dim = _read(node)
    if not isinstance(dim, int):
        raise NotFused(f"{where} has sizes that are not numbers or sizes of values")
    if source not in sources:
        sources.append(source)
    at = sources.index(source)
    return lambda shapes: shapes[at][dim]


def title(node: fx.Node) -> str:
    """Return what a node calls, by name."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
