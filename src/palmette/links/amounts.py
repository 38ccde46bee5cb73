"""A number for every node: one for all, drawn for each by its own address, or listed by name and round."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.tree import Tree
from palmette.values import real, shown

Kind = Literal["constant", "lognormal", "uniform", "table"]
Row = tuple[str, float, float]
"""A node's name, the round (from 1) from which its number holds, and the number."""

_MOST = 1 << 26  # bytes of a file with a table
_WAYS = (
    "write a number, 'lognormal MEDIAN SIGMA', 'uniform LOW HIGH' (with 'each' at the end for a new draw in every exchange), "
    "a table of names and numbers, or the path of a CSV file with the columns node, value and, if it changes, from (the round, "
    "from 1)"
)


@dataclass(frozen=True)
class Amount:
    """A number for every node of a tier.

    Attributes:
        kind: Whether it is one number, drawn by one of two distributions, or listed.
        one: The number; the median, or the lower end.
        two: The spread of the logarithm, or the upper end.
        each: Whether a number is drawn anew in every exchange, in place of once for each node.
        rows: The list: name, first round (from 1), number.
    """

    kind: Kind = "constant"
    one: float = 0.0
    two: float = 0.0
    each: bool = False
    rows: tuple[Row, ...] = ()

    @staticmethod
    def parse(what: Any, name: str, *, least: float = 0.0) -> Amount:
        """Read an amount as a user writes it.

        Args:
            what: A number, a text, a table, or the path of a file with one.
            name: What it is, for errors.
            least: No number may be below it.
        """
        if isinstance(what, Amount):
            return what
        made = _read(what, name)
        numbers = [row[2] for row in made.rows] if made.kind == "table" else [made.one]
        for number in numbers:
            if not math.isfinite(number) or number < least:
                raise BadInput(f"{name} = {shown(what)}: numbers must be finite and at least {least:g}, not {number:g}")
        if made.kind == "lognormal" and not (0 <= made.two < 20 and made.one > 0):
            raise BadInput(f"{name} = {shown(what)}: the median must be above 0 and the spread from 0 to below 20")
        if made.kind == "uniform" and not (math.isfinite(made.two) and made.two >= made.one):
            raise BadInput(f"{name} = {shown(what)}: the upper end must be at least the lower one")
        return made

    @property
    def written(self) -> float | str | list[list[str | float]]:
        """The amount as a config holds it, complete: a file's table is written out."""
        if self.kind == "constant":
            return self.one
        if self.kind == "table":
            return [[name, begin, number] for name, begin, number in self.rows]
        return f"{self.kind} {self.one!r} {self.two!r}{' each' if self.each else ''}"

    def check(self, tree: Tree, tier: int, name: str) -> None:
        """Refuse names that are not in a tree."""
        tree.check_names(tier, {node for node, _, _ in self.rows}, name, every=False)

    def of(
        self, tree: Tree, tier: int, ids: Tensor, otherwise: float, where: int, exchange: Tensor, round_: int
    ) -> Tensor:
        """Return the numbers of some nodes (float64).

        Args:
            tree: The tree.
            tier: The nodes' tier.
            ids: Their numbers within it.
            otherwise: The number of nodes that a table does not name.
            where: Address under which numbers are drawn.
            exchange: For each node, the number of the exchange, where they are drawn anew each time.
            round_: The round.
        """
        if self.kind == "constant":
            return torch.full(ids.shape, self.one, dtype=torch.float64)
        if self.kind == "table":
            return torch.from_numpy(_listed(tree, tier, self.rows, otherwise, round_))[ids]
        base: int | Tensor = where
        if self.each:
            base = address.mix(address.key(where, "each", round_), exchange)
        drawn = address.uniform(address.mix(base, torch.from_numpy(tree.addresses[tier])[ids]))
        if self.kind == "uniform":
            return self.one + (self.two - self.one) * drawn
        return self.one * torch.exp(self.two * torch.special.ndtri(drawn + 2.0**-54))


@lru_cache(maxsize=64)
def _listed(tree: Tree, tier: int, rows: tuple[Row, ...], otherwise: float, round_: int) -> NDArray[np.float64]:
    """Return the numbers of all nodes of a tier in a round; a later row of a node takes the place of an earlier one.

    The table may name nodes that are not in the tree: a separate node knows few of them.
    """
    values = np.full(tree.size(tier), otherwise)
    for name, begin, number in sorted(rows, key=lambda row: row[1]):
        if begin <= round_ + 1 and (node := tree.known(tier, name)) is not None:
            values[node] = number
    return values


def _read(what: Any, name: str) -> Amount:
    if isinstance(what, Mapping):
        return Amount("table", rows=tuple((str(node), 0.0, real(name, number)) for node, number in what.items()))
    if isinstance(what, Sequence) and not isinstance(what, str):
        return Amount("table", rows=tuple(_row(one, what, name) for one in what))
    if not isinstance(what, str):
        return Amount(one=real(name, what))
    words = what.split()
    if words and words[0] in ("lognormal", "uniform"):
        each = words[-1] == "each"
        try:
            one, two = (float(word) for word in words[1 : len(words) - each])
        except ValueError:
            raise BadInput(f"cannot read {name} = {shown(what)}; {_WAYS}") from None
        return Amount("lognormal" if words[0] == "lognormal" else "uniform", one, two, each)
    if re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", what.strip(), re.IGNORECASE):
        try:
            return Amount(one=float(what))
        except ValueError:
            raise BadInput(f"cannot read {name} = {shown(what)}; {_WAYS}") from None
    if not what.endswith(".csv"):
        raise BadInput(f"cannot read {name} = {shown(what)}; {_WAYS}")
    return Amount("table", rows=tuple((node, *_numbers(rest, name)) for node, rest in read_rows(what, name)))


def _row(one: Any, what: Any, name: str) -> Row:
    if not isinstance(one, Sequence) or isinstance(one, str) or len(one) not in (2, 3):
        raise BadInput(f"{name} = {shown(what)}: rows are [node, number] or [node, round, number]; {_WAYS}")
    node, *numbers = one
    begin, number = ([0, *numbers])[-2:]
    return str(node), real(name, begin), real(name, number)


def _numbers(row: Mapping[str, str], name: str) -> tuple[float, float]:
    try:
        return float(row.get("from") or 0), float(row["value"])
    except (KeyError, ValueError):
        raise BadInput(f"{name}: the file needs the columns node and value, with numbers; it has {dict(row)}") from None


def read_rows(path: str, name: str) -> list[tuple[str, dict[str, str]]]:
    """Read a CSV file with a column ``node`` and others: for each line the node's name and the rest."""
    try:
        with open(Path(path).expanduser(), newline="", encoding="utf-8-sig") as file:
            if os.fstat(file.fileno()).st_size > _MOST:
                raise BadInput(f"{name}: the file {shown(path)} is larger than {_MOST >> 20} MiB")
            lines = csv.DictReader(file)
            rows = [{str(key): str(value) for key, value in row.items()} for row in lines]
            columns = ", ".join(lines.fieldnames or ()) or "nothing"
    except OSError as error:
        raise BadInput(f"{name}: cannot read the file {shown(path)}: {error.strerror}") from None
    except BadInput:
        raise
    except (ValueError, csv.Error) as error:
        raise BadInput(f"{name}: the file {shown(path)} is no CSV file: {error}") from None
    if not rows or "node" not in rows[0]:
        raise BadInput(
            f"{name}: the file {shown(path)} needs a line of column names, node among them and separated by commas, and lines "
            f"below it; its first line has {shown(columns)}"
        )
    return [(row.pop("node"), row) for row in rows]
