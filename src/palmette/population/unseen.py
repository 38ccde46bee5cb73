"""Devices that are kept out of training, to see how models do on devices that were not there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.tree import Tree


def keep_out(tree: Tree, fraction: float, seed: int) -> Tensor | None:
    """Choose a part of the devices to keep out of training (bool); every team keeps at least one that trains.

    Args:
        tree: The tree.
        fraction: The part of all devices; ``None`` is returned for 0.
        seed: Decides which.
    """
    if not fraction:
        return None
    wanted = max(1, round(fraction * tree.devices))
    drawn = address.mix(address.key(seed, "unseen"), torch.from_numpy(tree.addresses[0]))
    team = tree.parents[0]
    left = np.bincount(team)
    unseen = torch.zeros(tree.devices, dtype=torch.bool)
    for number in torch.argsort(drawn, stable=True).tolist():
        if wanted and left[team[number]] > 1:
            unseen[number] = True
            left[team[number]] -= 1
            wanted -= 1
    if not bool(unseen.any()):
        raise BadInput(
            f"unseen = {fraction} keeps devices out of training, but every team of the tree {tree} has only one device"
        )
    return unseen
