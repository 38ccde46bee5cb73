"""What each theorem bounds: a quantity that is looked at after every round, and the bound itself.

Where a theorem says nothing of a run, the squared distance to the optimum is what is looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.blocks.mixing import Pulls
from palmette.engines.simulate import Simulation, one_thread_inside
from palmette.errors import BadInput, Diverged
from palmette.theory.coins import Lyapunov, step_of
from palmette.theory.conditions import Check
from palmette.theory.objectives import Mixed, Objective

Looks = Sequence[tuple[float, ...]]
"""What was seen at the start and after each round: the squared distance to the optimum first, then what else is needed."""

_ROUND = 1e-28  # what rounding leaves of a squared number, relatively


class Watch(ABC):
    """Follows runs, and holds them against the minimiser of their objective.

    Args:
        objective: What is minimised.
        best: Its minimiser.
        checked: What was said of the settings.
        promised: Whether the theorem applies.

    Attributes:
        quantity: What is looked at where the theorem applies.
        first: The round of its first value.
        resolution: How far the minimiser may be from where it is said to be, squared.
        ball: The level that the bound falls to and no further, once a run was followed.
        remarks: What to know when reading it, once a run was followed.
    """

    quantity: str
    whose = "device models"
    first = 0

    def __init__(self, objective: Objective, best: Tensor, checked: Check, promised: bool) -> None:
        self.best, self.checked, self.promised = best, checked, promised
        self.ball: float | None = None
        gradient, mu = objective(best)[1][: objective.devices], checked.constants["mu_f"]
        off = float((gradient.square() / objective.weight).sum()) / mu**2  # by strong convexity
        self.resolution = off + _ROUND * float(best.square().sum())
        self.remarks: tuple[str, ...] = ()
        if not promised:
            self.quantity, self.first = f"squared distance of the {self.whose} to the optimum", 0

    def follow(
        self, simulation: Simulation, tell: Callable[[str], None] = lambda text: None
    ) -> tuple[list[float], list[float], list[float]]:
        """Run a simulation to its end; return the quantity, its bound, and the squared distance.

        Args:
            simulation: The run.
            tell: Is given a sentence after every round.
        """
        looks = [self._now(simulation)]
        while simulation.round < simulation.rounds:
            try:
                simulation.step()
            except Diverged as error:
                raise BadInput(f"there is nothing to measure: {error}") from None
            looks.append(self._now(simulation))
            tell(f"seed {simulation.seed}: round {simulation.round:,} of {simulation.rounds:,}")
        distance = [look[0] for look in looks]
        if not self.promised:
            return distance, distance, distance
        with one_thread_inside(), torch.no_grad():
            values = self.values(simulation, looks)
            return values, self.bound(simulation, looks), distance

    def _now(self, simulation: Simulation) -> tuple[float, ...]:
        with one_thread_inside(), torch.no_grad():
            return self.look(simulation)

    @abstractmethod
    def look(self, simulation: Simulation) -> tuple[float, ...]:
        """Return the squared distance to the optimum, and what else the quantity is made of."""

    def values(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return the quantity round by round."""
        return [look[0] for look in looks]

    @abstractmethod
    def bound(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return the theorem's bound round by round."""


class Top(Watch):
    """PerMFL: the squared distance of the global model."""

    quantity = "squared distance of the global model to the optimum"
    whose = "global model"

    def __init__(self, objective: Objective, best: Tensor, checked: Check, promised: bool) -> None:
        super().__init__(objective, best, checked, promised)
        self.x = objective.top(best)

    def look(self, simulation: Simulation) -> tuple[float, ...]:
        """Return ``|x - x*|^2``."""
        return (float((simulation.model() - self.x).square().sum()),)

    def bound(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return ``2 rate^T |x^0 - x*|^2``."""
        assert self.checked.rate is not None
        return [2 * self.checked.rate**done * looks[0][0] for done in range(len(looks))]


class Coined(Watch):
    """Async-L2GD: the squared distance of all device models together."""

    quantity = "squared distance of the device models to the optimum"

    def __init__(self, objective: Mixed, best: Tensor, checked: Check, promised: bool) -> None:
        super().__init__(objective, best, checked, promised)
        self.objective = objective

    def look(self, simulation: Simulation) -> tuple[float, ...]:
        """Return ``|theta - theta^|^2``."""
        return (float((kept(simulation, "model") - self.best).square().sum()),)

    def bound(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return the theorem's bound; with a decreasing step its one-step inequality, taken as often as there are steps."""
        method, mu = simulation.algorithm, self.checked.constants["mu_f"]
        assert isinstance(method, CoinTree)
        smooth = float(simulation.stores[2].rows["smoothness"][0, 0])
        eta, noise = step_of(method, simulation.tree, smooth), self.noise(simulation, method, smooth)
        start, many = looks[0][0], method.iterations
        if not method.decrease:
            ball = self.ball = 2 * eta * noise / mu
            self.remarks = (
                f"the bound falls to a noise ball of 2 eta sigma^2 / mu = {ball:.4g}; sigma^2 = {noise:.4g}",
            )
            return [(1 - eta * mu) ** (done * many) * start + ball for done in range(len(looks))]
        self.remarks = ("the step decreases: the bound is the theorem's one-step inequality, step by step",)
        bound = [start]
        for done in range(len(looks) - 1):
            step = eta / (1 + method.decrease * done)
            left = (1 - step * mu) ** many
            bound.append(left * bound[-1] + (1 - left) * 2 * step * noise / mu)
        return bound

    def noise(self, simulation: Simulation, method: CoinTree, smooth: float) -> float:
        """Return sigma^2 of (3.4): how much the coins' gradients differ at the optimum."""
        pulls = Pulls.on(simulation.tree, method.lam, method.gamma)
        coins = method.coins(simulation.tree, pulls, smooth)
        p, q = coins.between, torch.from_numpy(coins.within)[self.objective.team][:, None]
        (own, common), slope = self.objective.apart(self.best), self.objective.losses(self.best)[1]
        c, a = self.objective.c, self.objective.a
        total = ((1 - a) * c * own).square() * 2 / (p + 2 * (1 - p) * q) + slope.square() / ((1 - p) * (1 - q))
        shared = 2 / p * (a * c * common).square() if p else torch.zeros_like(total)
        return float((total + shared).sum())


class Accelerated(Watch):
    """Async-AL2SGD+: the Lyapunov function of its proof."""

    quantity = "Lyapunov function Psi of the device models"

    def __init__(self, objective: Mixed, best: Tensor, checked: Check, promised: bool) -> None:
        super().__init__(objective, best, checked, promised)
        self.objective = objective
        self.least = float(objective(best)[0])

    def look(self, simulation: Simulation) -> tuple[float, ...]:
        """Return ``|y - theta^|^2`` and the parts of Psi, whose weights a run knows after its first round only."""
        y, z, ref = (kept(simulation, name) for name in ("model", "z", "ref"))
        gaps = (max(0.0, float(self.objective(rows)[0]) - self.least) for rows in (y, ref))
        return float((y - self.best).square().sum()), float((z - self.best).square().sum()), *gaps

    def values(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return Psi after every round."""
        found = lyapunov(simulation)
        return [z + found.own * own + found.ref * ref for _, z, own, ref in looks]

    def bound(self, simulation: Simulation, looks: Looks) -> list[float]:
        """Return ``rate^t Psi^0``."""
        method, found = simulation.algorithm, lyapunov(simulation)
        assert isinstance(method, AL2SGD)
        start = self.values(simulation, looks)[0]
        self.remarks = (
            f"Psi = |z - theta^|^2 + A (F(y) - F*) + B (F(ref) - F*) with A = {found.own:.4g}, B = {found.ref:.4g}, "
            f"shrinking by {found.rate:.6g} an iteration",
        )
        return [found.rate ** (done * method.iterations) * start for done in range(len(looks))]


def kept(simulation: Simulation, name: str) -> Tensor:
    """Return a row of every device."""
    return simulation.stores[0].read(torch.arange(simulation.tree.devices))[name]


def lyapunov(simulation: Simulation) -> Lyapunov:
    """Return the Lyapunov function for the constants that a run works with."""
    method = simulation.algorithm
    assert isinstance(method, AL2SGD)
    smooth, inverse = simulation.stores[2].rows["constants"][0].tolist()
    return Lyapunov.of(method, simulation.tree, smooth, 1 / inverse)
