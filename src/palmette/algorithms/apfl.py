"""APFL: every device predicts with a mixture of a model of its own and the global one, and learns how to mix them.

A device keeps a model v and a mixing weight a. Each of its local steps is, on one batch,

    u = a v + (1 - a) w          w = w - alpha g(w)          v = v - alpha a g(u)

where w began at the global model and goes back to be averaged by samples. The a before g(u) is the chain rule: v is trained for
the mixture's loss. Once per round, at its first step, ``a = a - alpha <v - w, g(u)>``, kept between 0 and 1. The personal
model (PM) is ``a v + (1 - a) x`` with the newest global model x. With ``mixing = 1``, not learned, it is local training's: both
gradients meet the same batches, those of FedAvg and of local training.

Published code to beware of: the authors' own (FedTorch) mixes outputs in place of weights, takes w after its step for u, and
adds 0.02 a to the gradient of a. That a is learned once per round is from there; the paper's own text could not be read again,
the update is as it is known. Here a device begins with v at the global model of the first round that it takes part in, and is
measured by the global model until then.

Yuyang Deng, Mohammad Mahdi Kamani, Mehrdad Mahdavi: Adaptive Personalized Federated Learning, 2020 (arXiv 2003.13461).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from palmette.blocks.statistics import weights_of, with_statistics
from palmette.learner import Mix, Move, Routine
from palmette.protocol import Algorithm, Ask, Device, Node, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, Rate, Share, settings

_NOT_BEGUN = -1.0


@settings
class APFL(Algorithm):
    """Adaptive personalized federated learning (APFL): a device's own model is mixed with the global one.

    Attributes:
        local_steps: Steps of a device in every round, each with one gradient for the global and one for the mixed model
            (tau in the paper).
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta in the paper).
        mixing: Weight of a device's own model in the mixture, at the beginning (alpha in the paper).
        learned: Whether every device learns its mixing weight; without, it stays what it is at the beginning.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning (2020)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its own model and mixing weight; the average is over those that answered, by samples."
    )
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "mixing": Between(0.1, 1.0)}

    local_steps: Count = 20
    alpha: Rate = 0.05
    mixing: Share = 0.5
    learned: bool = True
    batch_size: BatchSize = 20

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep a model of their own and its weight, the server the global model."""
        if node.tier:
            return {"model": initial}
        return {"own": torch.zeros_like(initial), "mixing": initial.new_full((1,), _NOT_BEGUN)}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the global model, and the device's own for the mixture of both."""
        began = state["mixing"] >= 0
        w, v = message, torch.where(began, state["own"], message)
        mixing = torch.where(began, state["mixing"], torch.full_like(state["mixing"], self.mixing))
        rate, steps, forward = node.own(self.alpha, message), self.local_steps, node.stream()
        again = forward.again()
        if self.learned:
            u = torch.lerp(w, v, mixing)
            moved = node.descend(u, steps=1, lr=rate, batch=again)
            along = weights_of(node.layout, (v - w) * (u - moved)).sum(1, keepdim=True)
            v = with_statistics(node.layout, v + mixing * (moved - u), moved)
            w, after = node.descend(w, steps=1, lr=rate, batch=forward), (mixing - along).clamp(0, 1)
            mixing, steps = after, steps - 1
        # A weight that all devices share and that stays is a number, with which steps are exactly those of local training.
        share: float | Tensor = mixing if self.learned else self.mixing
        routine: Routine = [
            Mix("mixed", "own", "global", share),
            Move("own", share * rate, again, at="mixed"),
            Move("global", rate, forward),
        ]
        rows = node.iterate({"global": w, "own": v, "mixed": w}, routine, steps)
        return rows["global"], {"own": rows["own"], "mixing": mixing}

    def server(self, node: Node, state: State) -> Server:
        """Average what comes back, by samples."""
        replies = yield Ask(state["model"], reduce="samples", otherwise=state["model"])
        return {"model": replies.rows}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Mix the device's own model with the newest global one."""
        mixing = state["mixing"].clamp(min=0)
        return mixing * state["own"] + (1 - mixing) * parent

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell how much of each device's model is its own."""
        return {} if node.tier else {"mixing": state["mixing"][:, 0].clamp(min=0)}
