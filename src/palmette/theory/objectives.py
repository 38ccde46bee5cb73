"""The objectives of the algorithms with theorems, each as one function of the devices' models.

An objective is ``sum_ij weight_ij f_ij(theta_ij) + coupling(theta)``. The models above the devices are not variables: where
they are quadratic they are eliminated, which makes them means; sFedHP's global model has a sparsity term and is the last row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.permfl import MoreauTree
from palmette.algorithms.sfedhp import SFedHP
from palmette.blocks import logcosh
from palmette.blocks.mixing import Pulls
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import LocalWork


def objective_of(simulation: Simulation) -> Objective:
    """Return what an algorithm with a theorem minimises on a population."""
    method = simulation.algorithm
    if simulation.tree.tiers != 3 or not isinstance(method, MoreauTree | CoinTree | AL2SGD | SFedHP):
        raise BadInput(
            "the direct solver is for permfl, pfedmt, l2gd, l2gd-coin, al2sgd and sfedhp on trees of three tiers"
        )
    if isinstance(method, MoreauTree):
        return Nested(simulation, method.pull(0), method.pull(1), weighted=method.reduce == "samples")
    return Sparse(simulation, method) if isinstance(method, SFedHP) else Mixed(simulation, method)


class Objective(ABC):
    """A function of rows: the devices' models, and whatever cannot be eliminated after them.

    Attributes:
        extra: Rows after those of the devices.
        weight: ``(devices, 1)``, how much each device's loss counts.
    """

    extra = 0

    def __init__(self, simulation: Simulation, weight: Tensor) -> None:
        self.learner, self.weight = simulation.learner, weight
        self.team = torch.from_numpy(simulation.tree.parents[0])
        self.devices, self.teams = simulation.tree.devices, simulation.tree.size(1)

    @abstractmethod
    def coupling(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ties the rows together, and its gradient."""

    @abstractmethod
    def top(self, rows: Tensor) -> Tensor:
        """Return the best global model for these rows."""

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and the gradient at some rows."""
        loss, slope = self.losses(rows[: self.devices])
        value, gradient = self.coupling(rows)
        gradient[: self.devices] += self.weight * slope
        return value + (self.weight[:, 0] * loss).sum(), gradient

    def losses(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return every device's training loss and its gradient, a chunk of devices at a time."""
        parts = []
        for ids in torch.arange(self.devices).split(self.learner.chunk(self.devices)):
            work = LocalWork(self.learner, ids, 0, torch.zeros_like(ids))
            rows = theta[ids].to(self.learner.device, self.learner.dtype)
            parts.append((work.loss(rows), work.gradient(rows)))
        loss, slope = zip(*parts, strict=True)
        return torch.cat(loss).to(theta), torch.cat(slope).to(theta)

    def means(self, theta: Tensor, share: Tensor) -> Tensor:
        """Return the sums of a team's rows, each times its share."""
        return theta.new_zeros(self.teams, theta.shape[1]).index_add_(0, self.team, share[:, None] * theta)


class Nested(Objective):
    """PerMFL's and pFedMT's: ``mean_i [mean_j f_ij + lam/2 |theta_ij - w_i|^2] + gamma/2 |w_i - x|^2``."""

    def __init__(self, simulation: Simulation, lam: float, gamma: float, *, weighted: bool) -> None:
        self.share, self.of_team = shares(simulation, weighted=weighted)
        self.lam, self.gamma = lam, gamma
        if not self.lam and not self.gamma:
            raise BadInput("without any pull there is no global optimum; set lam or gamma above 0")
        team = torch.from_numpy(simulation.tree.parents[0])
        super().__init__(simulation, (self.share * self.of_team[team])[:, None])

    def top(self, rows: Tensor) -> Tensor:
        """Return the mean of the teams' means."""
        return (self.of_team[:, None] * self.means(rows, self.share)).sum(0)

    def coupling(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pulls to the best team models and of these to the best global one."""
        x = self.top(rows)
        w = (self.lam * self.means(rows, self.share) + self.gamma * x) / (self.lam + self.gamma)
        apart = rows - w[self.team]
        value = self.lam / 2 * (self.weight * apart.square()).sum()
        value = value + self.gamma / 2 * (self.of_team * (w - x).square().sum(1)).sum()
        return value, self.weight * self.lam * apart


class Mixed(Objective):
    """(2.1) of Async-L2GD: a sum over the devices, each pulled to its team's mean and to the mean of all.

    Attributes:
        c: Pull of every device ``(devices, 1)``.
        a: Mixing weight of every device's team ``(devices, 1)``.
    """

    def __init__(self, simulation: Simulation, method: CoinTree | AL2SGD) -> None:
        super().__init__(simulation, torch.ones(simulation.tree.devices, 1, dtype=torch.float64))
        pulls = Pulls.on(simulation.tree, method.lam, method.gamma)
        self.c = torch.from_numpy(pulls.device)[:, None]
        self.a = torch.from_numpy(pulls.mix)[self.team][:, None]
        self._share = self.c[:, 0] / torch.from_numpy(pulls.total)[self.team]
        self._joint = pulls.weights / pulls.weights.sum()

    def top(self, rows: Tensor) -> Tensor:
        """Return the mean of all, ``tb``."""
        return (self._joint[:, None] * self.means(rows, self._share)).sum(0)

    def coupling(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pulls to both means."""
        own, common = self.apart(rows)
        value = ((1 - self.a) * self.c * own.square() + self.a * self.c * common.square()).sum() / 2
        return value, self.c * ((1 - self.a) * own + self.a * common)

    def apart(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``theta - tb_i`` and ``theta - tb``."""
        return rows - self.means(rows, self._share)[self.team], rows - self.top(rows)


class Sparse(Objective):
    """sFedHP's, with one phi for every device (its equation 3) or, as Algorithm 1 has it, one for every edge.

    The sparsity weights are those of the start: what a schedule makes of them later is another objective.
    """

    extra = 1

    def __init__(self, simulation: Simulation, method: SFedHP) -> None:
        self.share, self.of_team = shares(simulation, weighted=False)
        self.method = method
        team = torch.from_numpy(simulation.tree.parents[0])
        super().__init__(simulation, (self.share * self.of_team[team])[:, None])

    def top(self, rows: Tensor) -> Tensor:
        """Return the last row."""
        return rows[-1]

    def coupling(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pulls and the sparsity terms."""
        method, theta, x = self.method, rows[:-1], rows[-1]
        apart, above = self.apart(theta, x)
        value = (self.weight * (method.lam_1 * apart.square() + method.lam_2 * above.square())).sum() / 2
        value = value + method.gamma_1 * (self.weight[:, 0] * logcosh.value(theta, method.rho)).sum()
        value = value + method.gamma_2 * logcosh.value(x[None], method.rho)[0]
        devices = self.weight * (method.lam_1 * apart + method.gamma_1 * logcosh.gradient(theta, method.rho))
        top = method.gamma_2 * logcosh.gradient(x, method.rho) - method.lam_2 * (self.weight * above).sum(0)
        return value, torch.cat([devices, top[None]])

    def apart(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``theta - phi`` and ``phi - x``, phi being where both pulls are in balance."""
        method = self.method
        near = theta if method.centre == "device" else self.means(theta, self.share)[self.team]
        phi = (method.lam_1 * near + method.lam_2 * x) / (method.lam_1 + method.lam_2)
        return theta - phi, phi - x

    def slopes(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return ``grad F_ij(x)`` of every device, where theta are the minimisers for this x."""
        method = self.method
        return method.gamma_2 * logcosh.gradient(x, method.rho) - method.lam_2 * self.apart(theta, x)[1]


def shares(simulation: Simulation, *, weighted: bool) -> tuple[Tensor, Tensor]:
    """Return each device's share of its team and each team's of all, by samples or equal."""
    samples = [count.double() if weighted else torch.ones(len(count)).double() for count in simulation.samples]
    team = torch.from_numpy(simulation.tree.parents[0])
    of_device = samples[0] / torch.zeros_like(samples[1]).index_add_(0, team, samples[0])[team]
    return of_device, samples[1] / samples[1].sum()
