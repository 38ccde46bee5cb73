"""The partitions by name, and the one that cuts another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from palmette.errors import BadInput, nearest
from palmette.population.partition.base import Partition, Parts, at_least
from palmette.population.partition.dirichlet import Dirichlet
from palmette.population.partition.iid import Iid
from palmette.population.partition.labels import Labels
from palmette.population.partition.per_class import PerClass
from palmette.population.partition.two_level import TwoLevel
from palmette.tree import Ints, Tree
from palmette.values import shown


@dataclass(frozen=True)
class Few(Partition):
    """Another partition, of which each device keeps only a few training samples and all test samples.

    Attributes:
        samples: How many training samples each device keeps.
        of: The other partition, by name; in Python also an object.
    """

    samples: int = 10
    of: Partition = field(default_factory=Labels)

    def __post_init__(self) -> None:
        at_least("samples", self.samples, 1)
        if not isinstance(self.of, Partition):
            object.__setattr__(self, "of", make_partition(self.of))
        if isinstance(self.of, Few):
            raise BadInput(
                "partition 'few' cannot be applied to itself; name another partition with data.of, such as labels or dirichlet"
            )
        if isinstance(self.of, PerClass):
            raise BadInput(
                "partition 'per-class' says itself how many samples a device has; lower train_per_class instead"
            )

    @property
    def train_limit(self) -> int | None:
        """How many training samples each device keeps."""
        return self.samples

    @property
    def knows_teams(self) -> bool:
        """As the partition that is cut."""
        return self.of.knows_teams

    @property
    def by_label(self) -> int | None:
        """As the partition that is cut."""
        return self.of.by_label

    def assign(self, y: Ints, tree: Tree, classes: int, seed: int, owned: Ints | None = None) -> Parts:
        """Return each unit's samples, uncut: the cut comes with the split."""
        return self.of.assign(y, tree, classes, seed, owned)


PARTITIONS: dict[str, type[Partition]] = {
    "labels": Labels,
    "dirichlet": Dirichlet,
    "two-level": TwoLevel,
    "iid": Iid,
    "per-class": PerClass,
    "few": Few,
}


def option_names(name: str) -> list[str]:
    """Return the names of a partition's own options."""
    if not isinstance(name, str) or name not in PARTITIONS:
        raise BadInput(f"there is no partition {shown(name)}{nearest(shown(name), PARTITIONS)}")
    return [entry.name for entry in fields(PARTITIONS[name])]  # type: ignore[arg-type]


def make_partition(name: str, options: Mapping[str, Any] | None = None) -> Partition:
    """Make a partition by name; ``few`` hands the options that are not its own to the partition it cuts."""
    given = dict(options or {})
    known = option_names(name)
    if name == "few" and not isinstance(given.get("of", "labels"), Partition):
        inner = {option: given.pop(option) for option in list(given) if option not in known}
        of = given.get("of", "labels")
        known += option_names(of)
        given["of"] = make_partition(of, _only(inner, known, f"few of {of}"))
    return PARTITIONS[name](**_only(given, known, name))


def _only(options: dict[str, Any], known: list[str], what: str) -> dict[str, Any]:
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "; it has none"
            raise BadInput(f"the partition {what} has no option {option!r}{hint}")
    return options
