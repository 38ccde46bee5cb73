"""Optimisers of a server: what its clients moved by, on average, is taken for a gradient ``g = x - mean theta``.

Reddi et al. (Adaptive Federated Optimization, ICLR 2021) have, with m the first moment and v the second,

    m = beta_1 m + (1 - beta_1) g        x = x - lr m / (sqrt(v) + tau)
    v = v + g^2                                  (adagrad)
    v = beta_2 v + (1 - beta_2) g^2              (adam)
    v = v - (1 - beta_2) g^2 sign(v - g^2)       (yogi)

without bias correction; v starts at ``tau**2``. Hsu et al. (FedAvgM, 2019) have only ``m = beta m + g`` and ``x = x - lr m``.
FLSim runs torch's Adam on the pseudo-gradient: bias correction, epsilon 1e-8, weight decay 1e-5 added to the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Form = Literal["flsim", "reddi"]
Rule = Literal["adagrad", "adam", "yogi"]
Moments = dict[str, Tensor]


@dataclass(frozen=True)
class ServerOptimiser(ABC):
    """One server step on a stack of models, each with its own moments.

    Attributes:
        lr: Step size.
    """

    lr: float

    @abstractmethod
    def start(self, model: Tensor) -> Moments:
        """Return fresh moments for one row or a stack of rows."""

    @abstractmethod
    def moved(self, model: Tensor, moments: Mapping[str, Tensor], gradient: Tensor) -> tuple[Tensor, Moments]:
        """Return all models and their moments after one step."""

    def step(
        self, model: Tensor, moments: Mapping[str, Tensor], gradient: Tensor, active: Tensor
    ) -> tuple[Tensor, Moments]:
        """Return the models and moments after one step; rows that are not ``active`` stay as they are.

        Args:
            model: Rows ``(n, d)``.
            moments: What `start` or the last step returned.
            gradient: The pseudo-gradient ``x - mean theta`` of each row.
            active: Which rows take the step (bool).
        """
        new, after = self.moved(model, moments, gradient)
        on = active.to(model.device)[:, None]
        return torch.where(on, new, model), {name: torch.where(on, row, moments[name]) for name, row in after.items()}


@dataclass(frozen=True)
class Momentum(ServerOptimiser):
    """Gradient descent with momentum; without momentum and with a step of 1 the new model is the clients' mean.

    Attributes:
        momentum: What is kept of the last step.
    """

    momentum: float = 0.0

    def start(self, model: Tensor) -> Moments:
        """Return a first moment of zero."""
        return {"first": torch.zeros_like(model)}

    def moved(self, model: Tensor, moments: Mapping[str, Tensor], gradient: Tensor) -> tuple[Tensor, Moments]:
        """Return all models and their momentum after one step."""
        first = self.momentum * moments["first"] + gradient
        return model - self.lr * first, {"first": first}


@dataclass(frozen=True)
class Adaptive(ServerOptimiser):
    """A step of its own size for every parameter, as Reddi et al. have it.

    Attributes:
        rule: What becomes of the second moment.
        betas: The decay of the two moments; adagrad has no second one.
        tau: What is added to the root of the second moment.
    """

    rule: Rule = "adam"
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3

    def start(self, model: Tensor) -> Moments:
        """Return a first moment of zero and a second one of ``tau**2``."""
        return {"first": torch.zeros_like(model), "second": torch.full_like(model, self.tau**2)}

    def moved(self, model: Tensor, moments: Mapping[str, Tensor], gradient: Tensor) -> tuple[Tensor, Moments]:
        """Return all models and their moments after one step."""
        one, two = self.betas
        first = one * moments["first"] + (1 - one) * gradient
        before, square = moments["second"], gradient.square()
        if self.rule == "adagrad":
            second = before + square
        elif self.rule == "adam":
            second = two * before + (1 - two) * square
        else:
            second = before - (1 - two) * square * (before - square).sign()
        return model - self.lr * first / (second.sqrt() + self.tau), {"first": first, "second": second}


@dataclass(frozen=True)
class FedAdam(ServerOptimiser):
    """Adam in either form.

    Attributes:
        form: ``"flsim"`` or ``"reddi"``.
        weight_decay: l2 term added to the pseudo-gradient; FLSim's default is 1e-5.
    """

    form: Form = "flsim"
    weight_decay: float = 0.0

    _BETAS = (0.9, 0.999)
    _EPSILON = 1e-8

    def start(self, model: Tensor) -> Moments:
        """Return fresh moments and a step count of zero."""
        none = torch.zeros_like(model)
        begun = {"first": none, "second": none} if self.form == "flsim" else Adaptive(self.lr).start(model)
        return {**begun, "steps": model.new_zeros((*model.shape[:-1], 1))}

    def moved(self, model: Tensor, moments: Mapping[str, Tensor], gradient: Tensor) -> tuple[Tensor, Moments]:
        """Return all models, their moments and step counts after one step."""
        g = gradient + self.weight_decay * model if self.weight_decay else gradient
        steps = moments["steps"] + 1
        if self.form == "reddi":
            new, after = Adaptive(self.lr).moved(model, moments, g)
            return new, {**after, "steps": steps}
        one, two = self._BETAS
        first = one * moments["first"] + (1 - one) * g
        second = two * moments["second"] + (1 - two) * g.square()
        # In double precision, because 1 - 0.999 loses half the digits of a float.
        bias_one, bias_two = (1 - beta ** steps.double() for beta in self._BETAS)
        root = (second / bias_two.to(second)).sqrt() + self._EPSILON
        new = model - self.lr * (first / bias_one.to(first)) / root
        return new, {"first": first, "second": second, "steps": steps}
