"""FedALA: FedAvg whose devices begin each round between their own model and the global one, number by number.

In every round a device takes the lower layers of the global model x as they are. In the higher layers it begins from

    theta' = theta + W * (x - theta),    0 <= W <= 1,

where theta is the model it trained last and W has a number for every parameter. W is learned before the model is, by ``W
<- clip(W - eta grad f(theta') * (x - theta), 0, 1)``, and kept: much at first, a little in every later round. Then the
device trains from theta' and replies with its model, and the server averages by samples. In its first round a device
begins from x.

The higher layers are the part ``higher`` of the model, by default the last layer; ``--set model.parts.higher='last(2)'``
takes more. In a model of one layer everything is higher. The paper learns W on a random 80 % of the device's samples: the
first time until the loss stands still, then in one pass. Here both are numbers of mini-batch steps, so that they can be
counted and compared with those of other methods.

Jianqing Zhang, Yang Hua, Hao Wang, Tao Song, Zhengui Xue, Ruhui Ma, Haibing Guan: FedALA: Adaptive Local Aggregation for
Personalized Federated Learning, AAAI 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from palmette.protocol import Algorithm, Ask, Device, Node, Server, State, inverse
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, Positive, Rate, settings

Whole = Annotated[int, Field(ge=0), NUMBER]


@settings
class FedALA(Algorithm):
    """Adaptive local aggregation: a device learns how much of each parameter of the global model to take over.

    Attributes:
        local_steps: Gradient steps of a device in every round.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        first_weight_steps: Steps in which a device learns its weights for the first time, in its second round.
        weight_steps: Steps in which it learns them in every later round.
        weight_lr: Learning rate of the weights (eta in the paper).
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "fedala"
    paper: ClassVar[str] = (
        "Zhang et al.: FedALA: Adaptive Local Aggregation for Personalized Federated Learning (AAAI 2023)"
    )
    absent: ClassVar[str] = (
        "A device that is left out keeps its model and weights; the average is over those that answered, by their samples."
    )
    flat: ClassVar[bool] = True
    parts: ClassVar[Mapping[str, str]] = {"higher": "last(1)"}
    whole_part: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "weight_lr": Between(0.1, 10.0)}

    local_steps: Count = 20
    alpha: Rate = 0.05
    first_weight_steps: Whole = 50
    weight_steps: Whole = 5
    weight_lr: Positive = 1.0
    batch_size: BatchSize = 20

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Devices keep their model, their weights and in how many rounds they took part; the server the global model."""
        if node.tier:
            return {"model": initial}
        weights = torch.ones_like(node.part(initial, "higher"))
        return {"model": initial, "weights": weights, "turns": initial.new_zeros(1)}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Learn the weights, begin between the device's own model and the global one, and train."""
        turns = state["turns"]
        batches = node.stream()  # those of FedAvg, however many steps the weights take
        weights = self._weights(node, message, state)
        mixed = self._between(node, message, state["model"], weights)
        start = torch.where(turns > 0, mixed, message)
        theta = node.descend(start, steps=self.local_steps, lr=node.own(self.alpha, start), batch=batches)
        return theta, {"model": theta, "weights": weights, "turns": turns + 1}

    def _between(self, node: Device, x: Tensor, own: Tensor, weights: Tensor) -> Tensor:
        higher = torch.lerp(node.part(own, "higher"), node.part(x, "higher"), weights)
        return node.join(x, higher=higher)

    def _weights(self, node: Device, x: Tensor, state: State) -> Tensor:
        """Take steps on the weights. Devices in different rounds of their own take part in as many of them as is theirs."""
        own, weights, turns = state["model"], state["weights"], state["turns"][:, 0]
        wanted = torch.where(turns == 1, self.first_weight_steps, self.weight_steps) * (turns > 0)
        away = node.part(x - own, "higher")
        for step in range(int(wanted.max())):
            gradient = node.oracle("next", where=(wanted > step).cpu(), only="higher")
            slope = node.part(gradient(self._between(node, x, own, weights)), "higher")
            weights = (weights - self.weight_lr * slope * away).clamp(0, 1)
        return weights

    def server(self, node: Node, state: State) -> Server:
        """Average what comes back, by samples."""
        replies = yield Ask(state["model"], reduce="samples", otherwise=state["model"])
        return {"model": replies.rows}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Let a device that never took part do what it would do in its first round."""
        return node.descend(parent, steps=self.local_steps, lr=node.own(self.alpha, parent))
