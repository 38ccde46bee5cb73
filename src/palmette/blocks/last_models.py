"""What a server last heard of every device: one model each, kept until a newer one comes.

Methods that compare devices with each other need all their models in one place. The server then keeps as many models as there
are devices, in the order of the devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.protocol import Node, Replies, State
from palmette.values import refuse_larger_than_memory


@dataclass(frozen=True, eq=False)
class LastModels:
    """The last model of every device.

    Attributes:
        rows: One model per device; the initial one where the device never answered, which is also the one it has.
        known: Which devices have ever answered (bool).
    """

    rows: Tensor
    known: Tensor

    @staticmethod
    def keeps(node: Node, initial: Tensor) -> dict[str, Tensor]:
        """Return what the server declares to keep for it."""
        devices = len(node.child_ids)
        fits(devices * initial.numel(), initial, f"the last models of {devices:,} devices")
        return {"all": initial.repeat(devices), "known": initial.new_zeros(devices)}

    @classmethod
    def of(cls, state: State) -> LastModels:
        """Read it from what the server keeps."""
        known = state["known"][0] > 0
        return cls(state["all"].view(len(known), -1), known)

    def after(self, replies: Replies, name: str = "") -> LastModels:
        """Return it with the models of those that answered; replies come as a stack."""
        if not len(replies.positions):
            return self
        if len(replies.positions) == len(self.rows):  # everybody's, in the order of the devices: nothing is copied
            return LastModels(replies[name], torch.ones_like(self.known))
        place = replies.positions.to(self.rows.device)
        rows, known = self.rows.clone(), self.known.clone()
        rows[place], known[place] = replies[name], True
        return LastModels(rows, known)

    @property
    def others(self) -> Tensor:
        """For every device (a line), which other devices have ever answered (bool)."""
        return self.known & ~torch.eye(len(self.known), dtype=torch.bool, device=self.known.device)

    @property
    def heard(self) -> Tensor:
        """The models of the devices that have ever answered."""
        return self.rows if bool(self.known.all()) else self.rows[self.known]

    @property
    def mean(self) -> Tensor:
        """The mean of all models that are known, as one row; the initial model before anybody answered."""
        return (self.heard if bool(self.known.any()) else self.rows).mean(0, keepdim=True)

    def state(self) -> dict[str, Tensor]:
        """Return the rows to keep."""
        return {"all": self.rows.reshape(1, -1), "known": self.known.to(self.rows)[None]}


def fits(numbers: int, like: Tensor, what: str) -> None:
    """Refuse what a server would have to keep beyond its memory, before it is made.

    Args:
        numbers: How many numbers it is.
        like: Their type.
        what: What it is, for the sentence.
    """
    needed = 3 * numbers * like.element_size()  # before, after, and what came back
    refuse_larger_than_memory(
        f"a server that compares devices keeps {what}, which", needed, "take fewer devices or a smaller model"
    )


def squared_distances(rows: Tensor) -> Tensor:
    """Return ``|row_i - row_j|^2`` for all pairs of rows (float64)."""
    centred = rows - rows.mean(0)  # of like models the common part would drown the difference
    product = (centred @ centred.T).double()
    norm = product.diagonal()
    apart: Tensor = norm[:, None] + norm - 2 * product
    return apart.clamp(min=0)


def cosines(rows: Tensor) -> Tensor:
    """Return the cosine of the angle between all pairs of rows (float64); 0 for a row of zeros."""
    product = (rows @ rows.T).double()
    norm = product.diagonal().sqrt().clamp(min=torch.finfo(product.dtype).tiny ** 0.5)
    angle: Tensor = product / (norm[:, None] * norm)
    return angle
