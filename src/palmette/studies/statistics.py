"""How methods differ device by device: paired differences with bootstrap intervals, and whom a method hurts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from palmette import address

DRAWS = 2000  # bootstrap samples
LEVEL = 0.95  # of the intervals
_MANY = 1000  # devices of one team from which the sum over a draw of them is as good as normal

Values = Mapping[int, Mapping[str, float]]
"""By seed and by the name of a device: a number, NaN where there is none."""
Teams = Mapping[int, Mapping[str, str]]
"""By seed and by the name of a device: the name of its team."""
_Team = npt.NDArray[np.float64]  # of the devices of a team: their numbers, and what each counts


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another on the same device of the same seed.

    Attributes:
        mean: The mean over devices, each counting the same, and over seeds; positive is better.
        low: The lower end of the bootstrap interval; NaN where there is one device only.
        high: The upper end.
        devices: How many pairs it is the mean of.
        seeds: How many seeds they are from.
    """

    mean: float
    low: float
    high: float
    devices: int
    seeds: int


def gaps(one: Values, other: Values, *, lower: bool = False) -> dict[int, dict[str, float]]:
    """Return how much better every device fares with one method than with another, by seed and device.

    Only seeds and devices are there that both have a number of.

    Args:
        one: The numbers of the method in question.
        other: Those of the method it is compared with.
        lower: Whether lower numbers are better, as of a loss.
    """
    found = {}
    for seed in sorted(set(one) & set(other)):
        both = {device: value - other[seed].get(device, np.nan) for device, value in one[seed].items()}
        each = {device: float(-gap if lower else gap) for device, gap in both.items() if not np.isnan(gap)}
        if each:
            found[seed] = each
    return found


def difference(one: Values, other: Values, teams: Teams, *, lower: bool = False) -> Difference:
    """Return the paired difference of two methods with its bootstrap interval.

    The bootstrap follows how the numbers came about: it draws seeds with replacement, in each of them teams, and in each
    team devices, so that devices that share a seed or a team do not count as independent. The draws are addressed: the same
    for every pair of methods and on every machine.

    Args:
        one: The numbers of the method in question.
        other: Those of the method it is compared with; only seeds and devices that both have are used.
        teams: Who is in which team.
        lower: Whether lower numbers are better, as of a loss.
    """
    found = gaps(one, other, lower=lower)
    low_high = interval(found, teams)
    return Difference(*low_high, sum(map(len, found.values())), len(found))


def interval(found: Values, teams: Teams, weights: Values | None = None) -> tuple[float, float, float]:
    """Return the mean over the devices of each seed, then over seeds, and the ends of its bootstrap interval.

    The ends are NaN where there is one number only, and the mean where there is none.

    Args:
        found: The numbers.
        teams: Who is in which team.
        weights: What every device counts; all the same by default.
    """
    clusters: list[list[_Team]] = []  # by seed, by team, the numbers of its devices and what they count
    for seed, each in found.items():
        by_team: dict[str, list[tuple[float, float]]] = {}
        for device, value in each.items():
            weight = 1.0 if weights is None else weights[seed][device]
            by_team.setdefault(teams[seed][device], []).append((value, weight))
        clusters.append([np.array(team).T for team in by_team.values()])
    count = sum(team.shape[1] for seed_ in clusters for team in seed_)
    if not count:
        return np.nan, np.nan, np.nan
    whole = [np.concatenate(seed_, 1) for seed_ in clusters]
    mean = float(np.mean([np.average(values, weights=counts) for values, counts in whole]))
    if count == 1:
        return mean, np.nan, np.nan
    low, high = np.quantile(_bootstrap(clusters), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return mean, float(low), float(high)


def _bootstrap(clusters: list[list[_Team]]) -> npt.NDArray[np.float64]:
    """Return the mean of every bootstrap sample: of seeds, of teams within them, of devices within those."""
    drawn = address.numpy_generator(0, "bootstrap")
    # The sum over a team's devices, drawn anew, for every bootstrap sample; then these are put together.
    total, weight = [], []
    for teams in clusters:
        sums = np.stack([_sums(team, drawn) for team in teams], 2)
        chosen = drawn.integers(len(teams), size=(DRAWS, len(teams)))
        total.append(np.take_along_axis(sums[0], chosen, 1).sum(1))
        weight.append(np.take_along_axis(sums[1], chosen, 1).sum(1))
    means = np.stack(total, 1) / np.stack(weight, 1)
    chosen = drawn.integers(len(clusters), size=(DRAWS, len(clusters)))
    result: npt.NDArray[np.float64] = np.take_along_axis(means, chosen, 1).mean(1)
    return result


def _sums(team: _Team, drawn: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the sums of a team's devices, drawn anew, for every bootstrap sample: of their numbers, and of what they count.

    Of very many devices they are normal.
    """
    values, counts = team
    both = np.stack([values * counts, counts])
    size = len(values)
    if size <= _MANY:
        drawn_sums: npt.NDArray[np.float64] = both[:, drawn.integers(size, size=(DRAWS, size))].sum(2)
        return drawn_sums
    if np.ptp(counts) == 0:
        sums = drawn.normal(both[0].sum(), both[0].std() * np.sqrt(size), size=DRAWS)
        return np.stack([sums, np.full(DRAWS, both[1].sum())])
    return drawn.multivariate_normal(both.sum(1), size * np.cov(both, ddof=0), size=DRAWS, method="eigh").T


def hurt(one: Values, other: Values, *, lower: bool = False) -> float:
    """Return the share of devices that fare worse with one method than with another; ties do not count as worse.

    It is the mean over the seeds; NaN where the two have no device in common.

    Args:
        one: The numbers of the method in question.
        other: Those it is held against.
        lower: Whether lower numbers are better.
    """
    shares = [float(np.mean([gap < 0 for gap in each.values()])) for each in gaps(one, other, lower=lower).values()]
    return float(np.mean(shares)) if shares else float("nan")
