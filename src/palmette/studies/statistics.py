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
    clusters: list[list[npt.NDArray[np.float64]]] = []  # by seed, by team, the differences of its devices
    for seed, each in gaps(one, other, lower=lower).items():
        by_team: dict[str, list[float]] = {}
        for device, gap in each.items():
            by_team.setdefault(teams[seed][device], []).append(gap)
        clusters.append([np.array(team) for team in by_team.values()])
    count = sum(len(team) for seed_ in clusters for team in seed_)
    if not count:
        return Difference(np.nan, np.nan, np.nan, 0, 0)
    mean = float(np.mean([np.concatenate(seed_).mean() for seed_ in clusters]))
    if count == 1:
        return Difference(mean, np.nan, np.nan, 1, 1)
    draws = _bootstrap(clusters)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(mean, float(low), float(high), count, len(clusters))


def _bootstrap(clusters: list[list[npt.NDArray[np.float64]]]) -> npt.NDArray[np.float64]:
    """Return the mean of every bootstrap sample: of seeds, of teams within them, of devices within those."""
    drawn = address.numpy_generator(0, "bootstrap")
    # The mean of a team's devices, drawn anew, for every bootstrap sample; then these are put together.
    total, weight = [], []
    for teams in clusters:
        sums = np.stack([_sums(team, drawn) for team in teams], 1)
        sizes = np.array([len(team) for team in teams])
        chosen = drawn.integers(len(teams), size=(DRAWS, len(teams)))
        total.append(np.take_along_axis(sums, chosen, 1).sum(1))
        weight.append(sizes[chosen].sum(1))
    means = np.stack(total, 1) / np.stack(weight, 1)
    chosen = drawn.integers(len(clusters), size=(DRAWS, len(clusters)))
    result: npt.NDArray[np.float64] = np.take_along_axis(means, chosen, 1).mean(1)
    return result


def _sums(team: npt.NDArray[np.float64], drawn: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the sum of a team's devices, drawn anew, for every bootstrap sample; of very many devices it is normal."""
    if len(team) > _MANY:
        result = drawn.normal(team.sum(), team.std() * np.sqrt(len(team)), size=DRAWS)
    else:
        result = team[drawn.integers(len(team), size=(DRAWS, len(team)))].sum(1)
    return result


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
