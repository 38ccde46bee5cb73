"""How teams and devices may see the world differently: shifts of the features, by two separate knobs.

All shifts but the turn of images have a size for teams and one for devices, counted in standard deviations of all features
together. What a node adds or multiplies is drawn from the seed and its address, so it stays when other nodes come and go. The
features keep their type: bytes are rounded and kept within the range that the data had before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput, nearest
from palmette.tree import Tree
from palmette.values import plain, real, shown

SHIFTS = {
    "rotate": "the images of team i are turned by i * 90 degrees",
    "offset": "every team and every device adds normal numbers of its own, one for each feature",
    "scale": "every team and every device multiplies its features by a number of its own; of images, the contrast",
    "noise": "normal noise is added to every sample; how strong it is differs by team and by device",
}
_KNOBS = ("shift_teams", "shift_devices")
_LARGEST = 5.0  # of a size; larger ones make scales that no model can use
_NUMBERS = 1 << 22  # features that are shifted at once


@dataclass(frozen=True)
class Shift:
    """A shift of the features that differs by team and by device.

    Attributes:
        kind: One of `SHIFTS`.
        teams: Its size between teams.
        devices: Its size between the devices of a team.
    """

    kind: str
    teams: float = 1.0
    devices: float = 0.0

    @property
    def values(self) -> dict[str, str | float]:
        """What a config says of it."""
        sizes = {} if self.kind == "rotate" else {"shift_teams": self.teams, "shift_devices": self.devices}
        return {"shift": self.kind, **sizes}

    def apply(self, x: Tensor, start: Tensor, tree: Tree, seed: int) -> Tensor:
        """Return packed features, shifted; the old ones stay as they are.

        Args:
            x: Features, device after device.
            start: Where each device's begin.
            tree: The tree; teams are its tier 1.
            seed: Decides what is added.
        """
        if self.kind == "rotate":
            return _rotate(x, start, tree)
        unit, high = _spread(x)
        shifted = torch.empty_like(x)
        flat, out = x.reshape(len(x), -1), shifted.view(len(x), -1)
        nodes = [torch.from_numpy(tree.addresses[0])]
        nodes += [torch.from_numpy(tree.addresses[1][tree.parents[0]])] if tree.top > 1 else []
        sizes = (self.devices, self.teams)
        width = flat.shape[1] if self.kind == "offset" else 1
        for begin in range(0, len(x), max(1, _NUMBERS // flat.shape[1])):
            rows = torch.arange(begin, min(begin + max(1, _NUMBERS // flat.shape[1]), len(x)))
            owner = torch.searchsorted(start, rows, right=True) - 1
            here = slice(int(owner[0]), int(owner[-1]) + 1)
            drawn = torch.zeros(here.stop - here.start, width)
            for tier, (node, size) in enumerate(zip(nodes, sizes, strict=False)):
                if size:
                    more = size * address.normal_rows(address.mix(address.key(seed, "shift", tier), node[here]), width)
                    drawn += more.abs() if self.kind == "noise" else more
            part, own = flat[rows].to(torch.float32), drawn[owner - here.start]
            if self.kind == "scale":
                part = part * own.exp()
            elif self.kind == "offset":
                part = part + unit * own
            else:
                base = address.mix(address.mix(address.key(seed, "shift noise"), nodes[0][owner]), rows - start[owner])
                part = part + unit * own * address.normal_rows(base, flat.shape[1])
            out[rows] = part.round().clamp(0, high).to(x.dtype) if x.dtype == torch.uint8 else part.to(x.dtype)
        return shifted


def make_shift(
    kind: str | None, teams: float | None, devices: float | None, tree: Tree, shape: tuple[int, ...], tokens: bool
) -> Shift | None:
    """Make a shift of what a user gave, or refuse what does not go together with these samples and this tree.

    Args:
        kind: One of `SHIFTS`, or ``None`` for none.
        teams: Its size between teams.
        devices: Its size between the devices of a team.
        tree: The tree.
        shape: The shape of one sample.
        tokens: Whether samples are tokens.
    """
    given = {name: value for name, value in zip(_KNOBS, (teams, devices), strict=True) if value is not None}
    if kind is not None and (not isinstance(kind, str) or kind not in SHIFTS):
        raise BadInput(f"there is no shift {shown(kind)}{nearest(shown(kind), SHIFTS)}")
    for name, value in given.items():
        if kind is None or kind == "rotate":
            others = ", ".join(word for word in SHIFTS if word != "rotate")
            raise BadInput(
                f"{name} = {shown(value)} is the size of a shift; set shift to one of {others}, or leave it out"
            )
        if not 0 <= real(name, plain(value)) <= _LARGEST:
            raise BadInput(f"{name} = {shown(value)} must be from 0 to {_LARGEST:g}")
    if kind is None:
        return None
    if kind == "rotate":
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise BadInput(f"shift = 'rotate' turns square images; these samples have the shape {shape}")
        if tree.top < 2:
            raise BadInput(f"shift = 'rotate' turns each team's images by its own angle; tree = {tree} has no teams")
        return Shift("rotate")
    if tokens:
        raise BadInput(f"shift = {kind!r} changes amounts, and these samples are tokens, which are names; leave it out")
    if tree.top < 2 and given.get("shift_teams") != 0:
        raise BadInput(
            f"shift = {kind!r} differs by team, and tree = {tree} has no teams; set shift_teams = 0 and shift_devices"
        )
    made = Shift(kind, float(given.get("shift_teams", 1.0)), float(given.get("shift_devices", 0.0)))
    if not made.teams and not made.devices:
        raise BadInput("shift_teams and shift_devices are both 0, so nothing is shifted; leave shift out")
    return made


def _rotate(x: Tensor, start: Tensor, tree: Tree) -> Tensor:
    """Return packed images with those of team i (of tier 1) turned by i * 90 degrees."""
    quarter = torch.from_numpy(tree.ancestors(1) % 4).repeat_interleave(start.diff())
    turned = x.clone()
    for turns in (1, 2, 3):
        mask = quarter == turns
        turned[mask] = torch.rot90(x[mask], turns, (-2, -1))
    return turned


def _spread(x: Tensor) -> tuple[float, int]:
    """Return the standard deviation of all features together, added up in a fixed order, and the largest of bytes."""
    flat = x.reshape(-1).numpy()
    total, squares = 0.0, 0.0
    for begin in range(0, len(flat), _NUMBERS):
        part = flat[begin : begin + _NUMBERS].astype(np.float64)
        total, squares = total + float(part.sum()), squares + float((part**2).sum())
    mean = total / len(flat)
    return max(squares / len(flat) - mean**2, 0.0) ** 0.5, int(x.max()) if x.dtype == torch.uint8 else 0
