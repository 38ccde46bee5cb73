"""What the methods with coins share: pulls, mixing weights, probabilities, and how curved the losses are.

All of them minimise (2.1) of the paper below. With ``c_ij`` the pull of a device and ``a_i`` the mixing weight of a team,

    sum_ij f_ij(theta_ij) + (1 - a_i) c_ij / 2 |theta_ij - tb_i|^2 + a_i c_ij / 2 |theta_ij - tb|^2,

where ``tb_i`` is the mean of a team's devices weighted by ``c_ij`` and ``tb`` that of all devices weighted by ``a_i c_ij``. It
has the minimiser of PerMFL's objective with the same ``lam`` and ``gamma`` where teams are of one size: ``c_ij = lam``, a
team pulls with ``m_i = N_i gamma``, ``a_i = m_i / (m_i + sum_j c_ij)``, and then ``x = tb`` and
``w_i = a_i tb + (1 - a_i) tb_i``.

Boxiang Lyu, Filip Hanzely, Mladen Kolar: Personalized Federated Learning with Multiple Known Clusters.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.learner import power
from palmette.protocol import Ask, Device, Node, Replies, Setting, State
from palmette.tree import Tree

Floats = NDArray[np.float64]
Chance = Literal["auto"] | float | dict[str, float]

PAPER = "Lyu, Hanzely, Kolar: Personalized Federated Learning with Multiple Known Clusters"
_SURE = 1 - 1e-9  # the largest chance of an average
_DRAWS = 8  # batches whose curvature a device looks at
_FLAT = 1e-4  # the strong convexity assumed where there is none, as a part of the smoothness
_NONE = 1e-30  # a strong convexity that single precision cannot tell from none
KINDS = ("raw", "coalesced")
COUNTS = 3  # numbers in a row of counts: raw, coalesced, and how the last coin fell


@dataclass(frozen=True, eq=False)
class Pulls:
    """Who pulls how strongly.

    Attributes:
        device: ``c_ij`` of every device.
        mix: ``a_i`` of every team.
        total: ``sum_j c_ij`` of every team.
        strongest: ``max_j c_ij`` of every team.
    """

    device: Floats
    mix: Floats
    total: Floats
    strongest: Floats

    @staticmethod
    def on(tree: Tree, lam: Setting, gamma: Setting) -> Pulls:
        """Read the pulls of a tree off the settings: ``lam`` of devices to teams, ``gamma`` of teams to the server."""
        first = tree.offsets[0][:-1]
        device = _by_node(tree, 0, lam)
        total = np.add.reduceat(device, first)
        strength = _by_node(tree, 1, gamma) * np.diff(tree.offsets[0])
        return Pulls(device, strength / (strength + total), total, np.maximum.reduceat(device, first))

    @property
    def weights(self) -> Tensor:
        """The weights of the teams' means in ``tb``; of the teams themselves where nothing draws them together."""
        joint = self.mix * self.total
        return torch.from_numpy(joint if joint.any() else self.total)


def _by_node(tree: Tree, tier: int, setting: Setting) -> Floats:
    if not isinstance(setting, Mapping):
        return np.full(tree.size(tier), float(setting))
    tree.check_names(tier, setting)
    return np.array([setting[name] for name in tree.names(tier)], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Coins:
    """How likely averaging is, and how between and within rounds share the pull to the teams' means.

    Attributes:
        between: ``p_0``, the chance of an average over all teams.
        within: ``p_i``, the chance of an average in a team when there is none over all.
        tau: ``tau_i``, the part of the pull to the team's mean that is left to the averages over all.
    """

    between: float
    within: Floats
    tau: Floats

    @staticmethod
    def fair(tree: Tree, pulls: Pulls, smoothness: float, between: Chance = "auto", within: Chance = "auto") -> Coins:
        """Choose by Corollary 3.6 what is not given; tau follows by Proposition 3.3.

        Args:
            tree: The tree.
            pulls: Who pulls how strongly.
            smoothness: ``L`` of the devices' losses (of single samples where the method samples).
            between: ``p_0``.
            within: ``p_i``, also by the name of the team.
        """
        c1, c2 = float((pulls.mix * pulls.strongest).max()), float(((1 - pulls.mix) * pulls.strongest).max())
        joint = _chance(2 * c1, max(0.0, c2 - c1) + smoothness) if isinstance(between, str) else between
        apart = _chance(max(0.0, c2 - c1), smoothness) if isinstance(within, str) else within
        assert not isinstance(joint, dict)
        chance = _by_node(tree, 1, apart)
        either = joint + 2 * (1 - joint) * chance
        # Without any averaging in a team its mean is drawn upon by the averages over all teams alone.
        tau = np.where(chance > 0, joint / np.where(either > 0, either, 1.0), 1.0)
        if (joint == 0 and pulls.mix.any()) or (either == 0).any():
            raise BadInput(
                "with between = 0 teams never average with each other, so gamma has no effect; "
                "set between above 0, or gamma = 0 and within"
            )
        if joint >= 1 or (chance >= 1).any():
            raise BadInput("lam and gamma are so large that there would be almost no local steps; lower lam and gamma")
        return Coins(joint, chance, tau)

    def terms(self, pulls: Pulls, smoothness: float) -> tuple[float, float, float]:
        """Return the three terms whose largest is the expected smoothness of Theorem 3.5 (``Lc``)."""
        shared = 2 / self.between * (pulls.mix * pulls.strongest).max() if self.between else 0.0
        own = 2 * (1 - pulls.mix) * pulls.strongest / (self.between + 2 * (1 - self.between) * self.within)
        local = smoothness / (1 - self.between) / (1 - self.within)
        return float(shared), float(own.max()), float(local.max())

    def step(self, pulls: Pulls, smoothness: float) -> float:
        """Return the largest step of Theorem 3.5."""
        return 0.5 / max(self.terms(pulls, smoothness))

    def gains(self, pulls: Pulls, printed: bool = False) -> dict[str, Floats]:
        """Return how far one iteration of each kind moves, for a step and a pull of one.

        ``joint`` is the step of an average over all teams, ``share`` the part of its centre that is the mean of all (the
        rest is the team's), ``apart`` the step of an average within the team, ``local`` that of a local iteration.

        Args:
            pulls: Who pulls how strongly.
            printed: Leave out the pull to the team's mean in averages over all, as (4.1) is printed: a biased estimator.
        """
        rest = 1 - pulls.mix
        joint = pulls.mix + (0 if printed else self.tau) * rest
        return {
            "joint": joint / self.between if self.between else np.zeros_like(joint),
            "share": pulls.mix / np.where(joint > 0, joint, 1.0),
            "apart": (1 - self.tau) * rest / np.where(self.within > 0, (1 - self.between) * self.within, np.inf),
            "local": 1 / ((1 - self.between) * (1 - self.within)),
        }


def _chance(one: float, other: float) -> float:
    """Return the part of ``one`` in both; where a loss is flat (``other`` is 0) a little less than all of it."""
    part = one / (one + other) if one else 0.0
    return part if other else min(part, _SURE)


def largest(message: Any, like: Tensor) -> Generator[Any, Replies, Tensor]:
    """Ask the children and return the largest answer per node and column; ``like`` where nobody answered."""
    got = yield Ask(message, reduce="stack")
    if not len(got.positions):
        return like
    where = got.parents[:, None].to(like.device).expand_as(got.rows)
    return like.scatter_reduce(0, where, got.rows, "amax", include_self=False)


def smoothness(node: Device, at: Tensor) -> Tensor:
    """Return the L ``(n, 1)`` of each device's own loss: the closed form of a linear model, else an estimate at some rows."""
    if node.spectrum is not None:
        return _above(node.spectrum.smoothness(node.ids), at)
    return power(node.oracle("full"), at, 20)


def convexity(node: Device, at: Tensor, most: Tensor) -> Tensor:
    """Return the strong convexity ``(n, 1)`` that each device takes steps for.

    It is the true mu of a linear model's loss, or an estimate. Steps need one above 0: where there is none, or none that an
    estimate shows, a small part of the smoothness ``most`` stands for it, and no theorem applies.
    """
    least = (_FLAT * most).clamp(min=1e-12)
    if node.spectrum is None:
        return torch.maximum(most - power(node.oracle("full"), at, 50, shift=most), least)
    mu = node.spectrum.convexity(node.ids)
    return torch.where(mu[:, None] > _NONE, 1 / _above(1 / mu.clamp(min=_NONE), at), least)


def batch_smoothness(node: Device, at: Tensor, whole: Tensor, size: int | str) -> Tensor:
    """Return the largest L ``(n, 1)`` of each device's loss on single batches.

    For a linear model no batch is above it. Otherwise it is estimated on a few batches: with g a batch's gradient and H its
    Hessian, the gradients a step ``r g`` and a step ``2 r g`` down the slope differ by ``r H g``; all three together make g to
    the second order.

    Args:
        node: Where.
        at: The rows.
        whole: The L of the devices' whole losses, which no largest batch is below.
        size: Samples in a batch.
    """
    if node.spectrum is not None:
        return _above(node.spectrum.batch_smoothness(node.ids, size), at)
    step, most = 0.1 / whole.clamp(min=1e-12), whole
    for _ in range(_DRAWS):
        gradient = node.oracle("next")
        here = gradient(at)
        near, far = gradient(at - step * here), gradient(at - 2 * step * here)
        bend, size_ = (near - far) / step, (here / 2 + near - far / 2).norm(dim=1, keepdim=True)
        most = torch.maximum(most, torch.where(size_ > 0, bend.norm(dim=1, keepdim=True) / size_, 0.0))
    return most


def _above(numbers: Tensor, like: Tensor) -> Tensor:
    """Return numbers as a column of another type, rounded up."""
    return (numbers * (1 + 2 * torch.finfo(like.dtype).eps)).to(like)[:, None]


def flips(node: Node, purpose: str, chance: Tensor | float, first: int, last: int) -> Tensor:
    """Flip a coin of every node at the iterations ``first .. last - 1``: return how they fell ``(iterations, n)``."""
    base = address.key(node.seed, purpose, node.round, node.tier)
    drawn = address.mix(
        address.mix(base, torch.arange(first, last))[:, None], node.addresses
    )  # all of `Node.uniform` at once
    return address.uniform(drawn) < chance


def count(counts: Tensor, fell: Tensor) -> Tensor:
    """Count the coins ``(iterations, n)`` that fell: all, and those not preceded by one of their kind (Proposition 3.2)."""
    if not len(fell):
        return counts
    raw, coalesced, last = counts.unbind(1)
    before = torch.cat([last[None].bool(), fell[:-1]])
    return torch.stack([raw + fell.sum(0), coalesced + (fell & ~before).sum(0), fell[-1].long()], 1)


def told_counts(node: Node, state: State) -> dict[str, Tensor]:
    """Return what a node reports of the averages it asked for; devices ask for none.

    Raw counts every average; coalesced leaves out those that follow another of their kind, when the mean is still known. What
    really crossed the links is in the ledger.
    """
    if node.tier == 0:
        return {}
    name = "between" if node.tier == node.tree.top else "within"
    return {f"{name}_{kind}": state["counts"][:, k] for k, kind in enumerate(KINDS)}


def no_counts() -> Tensor:
    """Return a row of counts before anything happened."""
    return torch.zeros(COUNTS, dtype=torch.int64)


def settled(message: Any, state: State) -> State:
    """Return a team's state at the end of a round, when the mean of all has come: its model lies between the two means."""
    mix = message["mix"].to(state["mean"])[:, None]
    return {**state, "model": mix * message["mean"] + (1 - mix) * state["mean"]}


def weights_of(node: Node, pull: Setting, like: Tensor) -> Tensor | None:
    """Return the weights of a stack's children in its mean: their own pulls; none where all are equal."""
    chosen = node.theirs(pull, like)
    return chosen.flatten() if isinstance(chosen, Tensor) else None
