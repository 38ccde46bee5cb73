"""Groups of like devices, by agglomerative clustering (scipy); the order in which devices are listed changes nothing.

Where distances tie, what is merged first depends on the order of the rows. So rows are put in the order of the devices'
addresses, which belong to the devices themselves.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.errors import Diverged


def halves(apart: Tensor, addresses: Tensor, linkage: str) -> Tensor:
    """Return which of some devices are in the second of two groups (bool); the device of lowest address is in the first.

    Args:
        apart: Distances between all pairs.
        addresses: The devices' own addresses.
        linkage: How far apart two groups are: as their nearest pair (``"single"``), as the farthest (``"complete"``), or on
            ``"average"``.
    """
    return groups(apart, addresses, linkage, 1)[0] > 0


def groups(apart: Tensor, addresses: Tensor, linkage: str, levels: int) -> list[Tensor]:
    """Return which group each device is in, at every level of a binary tree below its root, upper levels first.

    At each level every group of more than one device is the two halves it was merged of. Groups are numbered by the lowest
    address in them.

    Args:
        apart: Distances between all pairs.
        addresses: The devices' own addresses.
        linkage: As in `halves`.
        levels: How many levels.
    """
    # Imported here because it takes half a second, which every command would wait for.
    from scipy.cluster.hierarchy import linkage as merge
    from scipy.cluster.hierarchy import to_tree
    from scipy.spatial.distance import squareform

    order = np.argsort(addresses.cpu().numpy(), kind="stable")
    count = len(order)
    if count < 2:
        return [torch.zeros(count, dtype=torch.int64)] * levels
    matrix: NDArray[np.float64] = apart.detach().cpu().double().numpy()[np.ix_(order, order)]
    if not np.isfinite(matrix).all():
        raise Diverged(
            "the models of the devices are too large to be compared: the training diverged; lower the step sizes"
        )
    matrix = np.maximum((matrix + matrix.T) / 2, 0)
    np.fill_diagonal(matrix, 0)
    nodes = [to_tree(merge(squareform(matrix, checks=False), linkage))]
    found = []
    for _ in range(levels):
        nodes = [part for node in nodes for part in ([node] if node.is_leaf() else [node.left, node.right])]
        leaves = sorted(sorted(node.pre_order()) for node in nodes)
        label = torch.empty(count, dtype=torch.int64)
        for number, members in enumerate(leaves):
            label[order[members]] = number
        found.append(label)
    return found


def found(label: Tensor) -> dict[str, Tensor]:
    """Tell how many teams there are and how large the largest is, as a server's report.

    Args:
        label: The team of each device as a row of the server's state; below 0 for a device that is in none.
    """
    sizes = torch.bincount(label[0][label[0] >= 0].long().cpu(), minlength=1)
    return {"teams_found": (sizes > 0).sum()[None], "largest_team": sizes.max()[None]}
