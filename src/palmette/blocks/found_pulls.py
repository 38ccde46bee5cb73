"""Pulls that a survey finds, for methods that have one number for each tier: ``lam = "auto"``, ``gamma = "auto"``.

The numbers are the server's to know. It finds them in its first round (`palmette.blocks.survey`), keeps them as the row
``pulls``, the devices' first, and sends them along with its model.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from palmette.blocks.survey import Survey
from palmette.blocks.surveyed import bare
from palmette.protocol import Algorithm, Device, Node, Replies, State
from palmette.tree import Tree

ROW = "pulls"


class FindsPulls(Algorithm):
    """A method whose settings ``lam`` and ``gamma`` may be ``"auto"``, and ``survey`` says what leaves a device then."""

    @property
    def surveys(self) -> bool:
        """Whether pulls are found by a survey."""
        return "auto" in (vars(self)["lam"], vars(self)["gamma"])

    @property
    def asking(self) -> Survey:
        """The survey that finds them."""
        return Survey(vars(self)["survey"])

    def outline(self, tree: Tree, rounds: int) -> dict[str, Any]:
        """Tell what a survey costs, where there is one."""
        return self.asking.outline(tree) if self.surveys else {}


def keeps(survey: Survey, node: Node, initial: Tensor) -> dict[str, Tensor]:
    """Return what nodes keep besides: the pulls, and devices what they answer a survey from."""
    row = {ROW: initial.new_zeros(node.tree.top)}
    return {**row, **survey.keeps(node, initial)} if node.tier == 0 else row


def known(state: State) -> bool:
    """Return whether the pulls were found already."""
    return bool(state[ROW].any())


def find(survey: Survey, node: Node, model: Tensor) -> Generator[Any, Replies, list[float] | None]:
    """Find the pulls at the server, for nodes with the mean number of samples of their tier; ``None`` if nobody answered."""
    found = yield from survey.ask(node, model)
    if found is None:
        return None
    samples = float(node.child_samples.sum())
    return [float(pull) * node.tree.size(tier) / samples for tier, pull in enumerate(found.pulls)]


def sent(model: Tensor, pulls: Tensor | None) -> Any:
    """Return a message with a model, and the pulls where there are any."""
    return model if pulls is None else {"model": model, ROW: bare(pulls)}


def read(message: Any) -> tuple[Any, Tensor | None]:
    """Undo `sent`."""
    if isinstance(message, Mapping) and ROW in message:
        return message["model"], message[ROW][:, 0]
    return message, None


def adapted(node: Device, parent: Tensor, state: State, tune: Any) -> Tensor:
    """Make personal models with the pull that devices were told; those that never were take their parent's model as it is.

    Args:
        node: The devices.
        parent: Their parents' models.
        state: What they keep.
        tune: Makes a personal model from a pull.
    """
    pull = state[ROW][:, 0]
    if not bool(pull.any()):
        return parent
    return torch.where((pull > 0)[:, None], tune(float(pull.max())), parent)
