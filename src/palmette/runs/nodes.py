"""Whose model is meant: nodes of a run by their name, and devices of a table by their path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from palmette.errors import BadInput, nearest
from palmette.protocol import ModelKind, model_kind
from palmette.runs.result import Result
from palmette.tree import Tree

Path = tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """One model of a run.

    Attributes:
        kind: ``"PM"``, ``"TM"``, ``"TM2"`` ... or ``"GM"``.
        node: Whose it is.
    """

    kind: ModelKind
    node: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.node}"


class Nodes:
    """The models of a run, to be found by name or by path.

    Args:
        result: The run; it must be finished.
    """

    def __init__(self, result: Result) -> None:
        self._result = result
        self._names = {kind: result.names(kind) for kind in result.kinds}

    def named(self, name: str, kind: ModelKind | None = None) -> Chosen:
        """Return the model of the node of this name.

        Args:
            name: The node's name; of a kind that has one node alone, such as ``GM``, also the kind itself.
            kind: Of which kind, where nodes of two kinds share the name.
        """
        if kind is not None and kind not in self._names:
            raise BadInput(f"the run has no models of the kind {kind}; it has {', '.join(self._names)}")
        found = [one for one, names in self._names.items() if name in names and kind in (None, one)]
        if name == "GM" and not found and "GM" in self._names:
            return self.everybody
        if not found:
            known = [one for names in self._names.values() for one in names][:1000]
            raise BadInput(f"the run in {self._result.folder} has no model of {name!r}{nearest(name, known)}")
        if len(found) > 1:
            raise BadInput(f"{name!r} is the name of nodes with models {' and '.join(found)}; say which with --kind")
        return Chosen(found[0], name)

    def all(self) -> list[Chosen]:
        """Return every model there is, from the devices up."""
        return [Chosen(kind, name) for kind, names in self._names.items() for name in names]

    @property
    def everybody(self) -> Chosen:
        """The global model."""
        if "GM" not in self._names:
            config = self._result.config
            raise BadInput(f"{config.title} has no global model for devices that did not train; name one with --node")
        return Chosen("GM", self._names["GM"][0])

    def at(self, path: Path) -> Chosen:
        """Return the model for a device with this path: its own, else of the lowest team that has one, else the global one.

        Args:
            path: The names of its teams, from the top down, and its own.
        """
        for size in range(len(path), 0, -1):
            tier, number = self._places.get(path[:size], (-1, -1))
            if tier < 0 or (size < len(path)) != (tier > 0):
                continue
            kind = model_kind(tier, self._tree.top)
            name = self._tree.name(tier, number)
            if name in self._known.get(kind, ()):
                return Chosen(kind, name)
        return self.everybody

    @cached_property
    def _known(self) -> dict[ModelKind, set[str]]:
        return {kind: set(names) for kind, names in self._names.items()}

    @cached_property
    def _tree(self) -> Tree:
        return self._result.config.make_tree()

    @cached_property
    def _places(self) -> dict[Path, tuple[int, int]]:
        """The tier and number of every node by its path of plain names."""
        tiers = plain_paths(self._tree)
        return {path: (tier, number) for tier, paths in enumerate(tiers) for number, path in enumerate(paths)}

    def name_of(self, tier: int, path: Path) -> str | None:
        """Return the name of the team at a path; ``None`` where the run has none there."""
        found = self._places.get(path)
        return None if found is None or found[0] != tier else self._tree.name(*found)


def plain_paths(tree: Tree) -> list[list[Path]]:
    """Return the path of every node below the server, tier by tier, by the names that a table has."""
    tiers: list[list[Path]] = []
    above: list[Path] = [()]
    for tier in range(tree.top - 1, -1, -1):
        here: list[Path] = []
        for number, parent in enumerate(tree.parents[tier].tolist()):
            # A name that stands at two places was made different by its path.
            joined, name = "/".join(above[parent]), tree.name(tier, number)
            here.append((*above[parent], name.removeprefix(f"{joined}/") if joined else name))
        tiers.insert(0, here)
        above = here
    return tiers
