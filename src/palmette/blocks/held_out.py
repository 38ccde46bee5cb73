"""What a device goes by when it chooses: the loss on the training samples it held out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from palmette.learner.scores import Split
from palmette.protocol import Device


def held_out_losses(node: Device, models: Sequence[Tensor]) -> Tensor:
    """Return the loss ``(models, devices)`` of several models of each device on the samples that it held out.

    A device that holds out none goes by its training samples. A model that diverged has an infinite loss.

    Args:
        node: The devices.
        models: Models to compare, each a stack with one row per device.
    """

    def losses(split: Split) -> Tensor:
        found = torch.stack([node.loss(rows, split=split) for rows in models])
        return found.nan_to_num(math.inf, math.inf)

    some = (node.held_out > 0).to(models[0].device)
    if not bool(some.any()):
        return losses("train")
    held = losses("held-out")
    return held if bool(some.all()) else torch.where(some, held, losses("train"))
