"""How many team steps and local steps PerMFL's theorems need: their K and L with all constants.

The paper asks for K and L "large enough" (eqs 58 and 61; 85 and 88 without strong convexity). Its constants cannot be used:
they are taken at models of the run, and one of them, ``F~_i(x^t) - F~_i(x*)``, may be negative, as x* minimises the mean of the
F~_i and not each of them. What follows is our own; it is sufficient, and takes its constants at the start x^0. The Hessians of
the losses lie between mu and L (mu may be negative). A Moreau envelope with pull p turns a curvature h into
``e(p, h) = p h / (p + h)``. So:

- f~_ij, and with it F_i, is curved between ``m = e(lam, mu)`` and ``M = e(lam, L)``, phi between e(gamma, m) and e(gamma, M);
- L local steps leave ``r = max |1 - alpha (lam + h)|^L`` of a device's distance to its prox;
- a team step multiplies the distance a of w_i to prox_i(x^t) by ``1 - eta (gamma + m)`` and adds ``eta lam r (H + c a)``, where
  H is the devices' mean distance to their proxes there and ``c = max |e(lam, h)| / lam``. So after K of them
  ``a <= q^K a_0 + zeta r H`` with ``d = gamma + m - lam r c``, ``q = 1 - eta d`` and ``zeta = lam / d``;
- where x^t moves, a_0 and H move by at most ``max |e(gamma, h)| / gamma`` and ``c gamma / (gamma + m)`` times as far. So on
  average over the teams the error is ``err_t <= A + B |x^t - x^0|``, with A and B small where K and L are large.

Strongly convex: ``|x^{t+1} - x*| <= (1 - beta mu~) |x^t - x*| + beta gamma err_t``, where
``err_t <= A + B |x^0 - x*| + B |x^t - x*|``. K and L are enough if this recursion stays below
``sqrt(2 (1 - beta mu~ / 2)^t) |x^0 - x*|`` in every round, which is eq. (62). Of ``|x^0 - x*|`` all that is needed is that it
is at least ``|grad phi(x^0)|`` over the smoothness of phi.

Otherwise: ``phi(x^{t+1}) <= phi(x^t) - beta/2 |grad phi|^2 - beta/2 (1 - beta gamma) |g|^2 + beta/2 gamma^2 err_t^2``. Let
every err_t be at most ``sqrt(2 D / (beta T)) / gamma`` with ``D = phi(x^0) - phi*``. Then the mean of ``|grad phi|^2`` is at
most ``4 D / (beta T)``, which is eq. (89), and x has gone no further than ``W = sqrt(4 beta D T / (1 - beta gamma))``. So K and
L are enough if ``A + B W`` is not above that. D is at least ``|grad phi(x^0)|^2`` over twice the smoothness of phi, and at most
phi(x^0), as losses are not negative.

Warm teams (``teams="warm"``) begin where they ended, not at x^t. Then a_0 is no longer how far x^t is from prox_i(x^t), which
stays as large as the teams are different, but at most ``err_{t-1} + gamma / (gamma + m) |x^t - x^{t-1}|``, and x moves by
``|x^t - x^{t-1}| <= beta |grad phi(x^{t-1})| + beta gamma err_{t-1}``. Only the first round is as before. The rest of the
proof looks at err_t alone, so the theorems hold for warm teams with the K and L of this recursion. It goes to zero with
x - x* where devices solve exactly: K need not grow with the number of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from palmette.engines.simulate import one_thread_inside
from palmette.theory.objectives import Nested

_CLOSE = 1e-4  # how far the models at the start are solved for, relative to where they began
_STEPS = 60  # gradient steps that takes at most
_MOST = 10**7  # team or local steps beyond which none are enough
LONGEST = 100_000  # rounds up to which warm teams are followed


@dataclass(frozen=True)
class Begin:
    """What the proof needs to know of the start x^0, as bounds.

    Attributes:
        apart: At least the mean distance of x^0 to the teams' proxes.
        spread: At least the mean distance of those to their devices' proxes.
        slope: At most the length of grad phi(x^0).
        value: At least phi(x^0).
    """

    apart: float
    spread: float
    slope: float
    value: float


def begin(objective: Nested, start: Tensor, smooth: float, convex: float) -> Begin:
    """Solve for the best models around the start; gradient steps do, as pulls beyond the curvature make it a round problem.

    Args:
        objective: PerMFL's, with its weights.
        start: The model that a run starts from.
        smooth: L.
        convex: mu, negative where losses bend down.
    """
    lam, gamma, weight = objective.lam, objective.gamma, objective.weight
    low, high = convex + lam * gamma / (lam + gamma), smooth + lam
    theta, first, left = start.repeat(objective.devices, 1), 0.0, math.inf
    with one_thread_inside(), torch.no_grad():
        for _ in range(_STEPS):
            loss, slope = objective.losses(theta)
            w = (lam * objective.means(theta, objective.share) + gamma * start) / (lam + gamma)
            pulled = theta - w[objective.team]
            gradient = slope + lam * pulled
            left = float((weight * gradient.square()).sum()) ** 0.5 / low  # no further from the solution, on average
            first = first or left
            if left <= _CLOSE * first:
                break
            theta = theta - 2 / (low + high) * gradient
        near = (objective.of_team[:, None] * (start - w)).sum(0)
        value = (weight[:, 0] * loss).sum() + lam / 2 * (weight * pulled.square()).sum()
        value = value + gamma / 2 * (objective.of_team * (w - start).square().sum(1)).sum()
        apart = float((objective.of_team * (w - start).norm(dim=1)).sum())
        spread = float((weight[:, 0] * pulled.norm(dim=1)).sum())
    slack = lam / (lam + gamma) * left
    return Begin(apart + slack, spread + 2 * left, max(0.0, gamma * (float(near.norm()) - slack)), float(value))


@dataclass(frozen=True)
class Levels:
    """The three tiers of PerMFL with their curvatures, pulls and steps.

    Attributes:
        convex: mu_f; negative where losses bend down.
        smooth: L_f.
        lam: Pull of devices.
        gamma: Pull of teams.
        alpha: Smallest and largest step of the devices.
        eta: Smallest and largest step of the teams.
        beta: Step of the server.
        rounds: T.
        at: What is known of the start.
        warm: Whether teams begin a round where they ended the last.
    """

    convex: float
    smooth: float
    lam: float
    gamma: float
    alpha: tuple[float, float]
    eta: tuple[float, float]
    beta: float
    rounds: int
    at: Begin
    warm: bool = False

    @property
    def device(self) -> float:
        """What a local step leaves of the distance to the prox."""
        return max(abs(1 - alpha * (self.lam + h)) for alpha in self.alpha for h in (self.convex, self.smooth))

    def team_steps(self) -> float:
        """Return the fewest team steps that are enough where devices solve exactly; infinity where none are."""
        return _fewest(lambda steps: self.enough(steps, 0.0))

    def local_steps(self, team_steps: int) -> float:
        """Return the fewest local steps that are enough for so many team steps; infinity where none are."""
        factor = self.device
        return math.inf if factor >= 1 else _fewest(lambda steps: self.enough(team_steps, factor**steps))

    def enough(self, team_steps: int, left: float) -> bool:
        """Decide whether so many team steps, with devices that come so near their proxes, are enough."""
        error = self._error(team_steps, left)
        if error is None or not self.at.slope:
            return False
        if self.warm:
            return self._contracts_warm(error) if self.convex > 0 else self._descends_warm(error)
        return self._contracts(error) if self.convex > 0 else self._descends(error)

    def _error(self, team_steps: int, left: float) -> _Error | None:
        """Return what makes up the teams' error; ``None`` where it is not bounded."""
        low, high = (_envelope(self.lam, h) for h in (self.convex, self.smooth))
        change = max(abs(low), abs(high)) / self.lam
        drop = self.gamma + low - self.lam * left * change
        if drop <= 0:
            return None
        stays, per, follows = (
            (1 - self.eta[0] * drop) ** team_steps,
            self.lam / drop * left,
            self.gamma / (self.gamma + low),
        )
        steep = max(abs(_envelope(self.gamma, h)) for h in (low, high)) / self.gamma
        return _Error(
            stays, stays * self.at.apart, per * self.at.spread, stays * steep, per * change * follows, follows
        )

    @property
    def _top(self) -> tuple[float, float]:
        """The curvature of phi."""
        low, high = (_envelope(self.gamma, _envelope(self.lam, h)) for h in (self.convex, self.smooth))
        return low, max(abs(low), abs(high))

    def _contracts(self, error: _Error) -> bool:
        fixed, moving = error.first, error.apart_moves + error.spread_moves
        mu, steep = self._top
        factor = 1 - self.beta * mu + self.beta * self.gamma * moving
        if factor >= 1:
            return False
        level = self.beta * self.gamma * (fixed * steep / self.at.slope + moving) / (1 - factor)
        fall, shrink = math.log1p(-self.beta * mu / 2) / 2, math.log(factor) if factor > 0 else -math.inf
        rounds = {1, self.rounds}
        if level < 1 and -math.inf < shrink != fall < 0:
            # Allowed less reached has one stationary point at most: where it is smallest, if not at an end.
            turn = math.log((1 - level) * shrink / (math.sqrt(2) * fall)) / (fall - shrink)
            rounds |= {t for t in (math.floor(turn), math.ceil(turn)) if 1 < t < self.rounds}
        return all(level + (1 - level) * factor**t <= math.sqrt(2) * math.exp(fall * t) for t in rounds)

    def _contracts_warm(self, made: _Error) -> bool:
        """Follow the distance of x to x*, in units of that at the start, and the teams' error, round by round."""
        (mu, steep), beta, gamma = self._top, self.beta, self.gamma
        unit = steep / self.at.slope
        keeps = made.stays * (1 + made.follows * beta * gamma) + made.spread_moves * beta * gamma
        gets = made.stays * made.follows * beta * steep + made.spread_moves * (1 - beta * mu)
        if keeps >= 1 or mu * (1 - keeps) <= gamma * gets:
            return False  # together they do not shrink, whatever a few rounds look like
        distance, error = 1.0, made.first * unit
        fall = math.sqrt(1 - beta * mu / 2)
        allowed = math.sqrt(2)
        for _ in range(self.rounds):
            further, moved = (
                (1 - beta * mu) * distance + beta * gamma * error,
                beta * (steep * distance + gamma * error),
            )
            allowed *= fall
            if further > allowed:
                return False
            begins = error + made.follows * moved
            distance, error = further, made.stays * begins + made.spread * unit + made.spread_moves * (1 + further)
        return True

    def _descends(self, error: _Error) -> bool:
        way, allowed = self._way
        return error.first + (error.apart_moves + error.spread_moves) * way <= allowed

    def _descends_warm(self, made: _Error) -> bool:
        way, allowed = self._way
        begins = allowed + made.follows * way / math.sqrt(self.rounds)
        return max(made.first, made.stays * begins + made.spread + made.spread_moves * way) <= allowed

    @property
    def _way(self) -> tuple[float, float]:
        """How far x can go in all rounds, W, and what the teams' error may be in each."""
        steep = self._top[1]
        least, most = self.at.slope**2 / (2 * steep), self.at.value
        way = math.sqrt(4 * self.beta * most * self.rounds / (1 - self.beta * self.gamma))
        return way, math.sqrt(2 * least / (self.beta * self.rounds)) / self.gamma


class _Error(NamedTuple):
    """What the teams' error at the end of a round is made of.

    Attributes:
        stays: What K team steps leave of the distance a team begins with.
        apart: What they leave of the teams' distance to x^0.
        spread: What devices that solve inexactly add.
        apart_moves: By how much `apart` grows where x moves by one.
        spread_moves: By how much `spread` does.
        follows: How far a team's prox moves where x moves by one.
    """

    stays: float
    apart: float
    spread: float
    apart_moves: float
    spread_moves: float
    follows: float

    @property
    def first(self) -> float:
        """The error of the first round."""
        return self.apart + self.spread


def _envelope(pull: float, bend: float) -> float:
    return pull * bend / (pull + bend)


def _fewest(enough: Callable[[int], bool]) -> float:
    """Return the smallest number that is enough; any larger one is."""
    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
