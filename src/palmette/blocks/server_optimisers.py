"""Adam at a server: the mean of what its clients moved by is taken for a gradient.

Two forms are in use. FLSim runs torch's Adam on the pseudo-gradient ``x - mean theta``: bias correction, epsilon 1e-8,
weight decay 1e-5 added to the gradient. Reddi et al. (Adaptive Federated Optimization, ICLR 2021) have no bias correction, a
second moment that starts at ``tau**2``, and ``tau`` = 1e-3 beside the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Form = Literal["flsim", "reddi"]


@dataclass(frozen=True)
class FedAdam:
    """One server step on a stack of models, each with its own moments.

    Attributes:
        lr: Step size.
        form: ``"flsim"`` or ``"reddi"``.
        weight_decay: l2 term added to the pseudo-gradient; FLSim's default is 1e-5.
    """

    lr: float
    form: Form = "flsim"
    weight_decay: float = 0.0

    @property
    def betas(self) -> tuple[float, float]:
        """The decay of the two moments."""
        return (0.9, 0.999) if self.form == "flsim" else (0.9, 0.99)

    @property
    def epsilon(self) -> float:
        """What is added to the root of the second moment (tau in Reddi et al.)."""
        return 1e-8 if self.form == "flsim" else 1e-3

    def start(self, model: Tensor) -> dict[str, Tensor]:
        """Return fresh moments and a step count of zero for one row or a stack of rows."""
        second = 0.0 if self.form == "flsim" else self.epsilon**2
        lines = model.shape[:-1]
        return {
            "first": torch.zeros_like(model),
            "second": torch.full_like(model, second),
            "steps": model.new_zeros((*lines, 1)),
        }

    def step(
        self, model: Tensor, moments: Mapping[str, Tensor], gradient: Tensor, active: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the models and moments after one step; rows that are not ``active`` stay as they are.

        Args:
            model: Rows ``(n, d)``.
            moments: What `start` or the last step returned.
            gradient: The pseudo-gradient ``x - mean theta`` of each row.
            active: Which rows take the step (bool).
        """
        one, two = self.betas
        g = gradient + self.weight_decay * model if self.weight_decay else gradient
        first = one * moments["first"] + (1 - one) * g
        second = two * moments["second"] + (1 - two) * g.square()
        steps = moments["steps"] + 1
        if self.form == "flsim":
            # In double precision, because 1 - 0.999 loses half the digits of a float.
            bias_one, bias_two = (1 - beta ** steps.double() for beta in self.betas)
            root = (second / bias_two.to(second)).sqrt() + self.epsilon
            new = model - self.lr * (first / bias_one.to(first)) / root
        else:
            new = model - self.lr * first / (second.sqrt() + self.epsilon)
        on = active.to(model.device)[:, None]
        moved = {"first": first, "second": second, "steps": steps}
        return torch.where(on, new, model), {name: torch.where(on, row, moments[name]) for name, row in moved.items()}
