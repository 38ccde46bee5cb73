"""How partition units come to stand in teams."""

from __future__ import annotations

import numpy as np

from palmette import address
from palmette.errors import BadInput, nearest
from palmette.population.partition import Partition
from palmette.tree import Ints, Tree
from palmette.values import shown

FORMATIONS = {
    "random": "devices are put into teams at random",
    "given": "devices are put into teams in their order: the first ones into the first team, and so on",
    "worst": "no two teams have a label in common: each team gets a block of labels of its own",
    "average": "neighbouring teams share labels: each has a block of its own and 40 % as many of the next",
    "found": "devices whose training samples are alike are put together, after all else; see data.found_by",
}


def check_formation(formation: str, partition: Partition | None) -> None:
    """Refuse a formation that does not exist or does not go with the partition."""
    if not isinstance(formation, str) or formation not in FORMATIONS:
        raise BadInput(f"there is no team formation {shown(formation)}{nearest(shown(formation), FORMATIONS)}")
    if formation == "found":
        raise BadInput("given_teams = 'found' does not say how teams are formed before others are found; leave it out")
    if formation in ("worst", "average") and (partition is None or partition.by_label is None):
        raise BadInput(f"teams = {formation!r} says which labels a team owns and needs the partition 'labels'")


def owned_labels(formation: str, tree: Tree, classes: int, each: int) -> Ints | None:
    """Return the labels of every device, ``(devices, each)``, or ``None`` where the partition decides.

    ``worst`` cuts the labels into one contiguous block per team ({0..4} and {5..9} for two teams of ten classes);
    ``average`` adds the next 40 % as many labels, in a circle ({0..6} and {5..9, 0, 1}). Device j of a team with the
    labels s owns s[(j + q) mod len(s)], q = 0..each-1.
    """
    if formation not in ("worst", "average"):
        return None
    teams = tree.size(1)
    if tree.top < 2 or teams > classes:
        raise BadInput(
            f"teams = {formation!r} needs 1 to {classes} teams, as many as classes at most; check tree = {tree}"
        )
    owned = np.empty((tree.devices, each), dtype=np.int64)
    for team, block in enumerate(np.array_split(np.arange(classes), teams)):
        more = min(round(0.4 * len(block)), classes - len(block)) if formation == "average" else 0
        labels = (block[0] + np.arange(len(block) + more)) % classes
        if len(labels) < each:
            raise BadInput(
                f"team {tree.name(1, team)!r} has only the labels {labels.tolist()}, fewer than "
                f"classes_per_device = {each}; use fewer teams or lower classes_per_device"
            )
        children = tree.children(1, team)
        place = np.arange(len(children))[:, None] + np.arange(each)
        owned[children.start : children.stop] = labels[place % len(labels)]
    return owned


def leaf_of_unit(formation: str, tree: Tree, seed: int, partition: Partition | None) -> Ints:
    """Return the leaf every unit is put on.

    Only ``random`` moves units, and not those of a partition that dealt them to teams itself.
    """
    if formation == "random" and not (partition is not None and partition.knows_teams):
        return address.numpy_generator(seed, "teams").permutation(tree.devices)
    return np.arange(tree.devices, dtype=np.int64)
