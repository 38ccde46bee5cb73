"""A stand-in for the donors of the Async-L2GD paper, whose data are not public: very many tiny clients.

A sample is a letter that asks for a donation, a client (device) is a ZIP code, a cluster (team) an income bracket.

Known from the paper: 29,490 ZIP codes with at least 5 letters each; 5 clusters, four brackets of household income and one
for ZIP codes whose income is not known; a label, 1 where a donation followed the letter; three features, an intercept, the
log of the days since the last donation (recency) and the log of the number of donations so far (frequency); and, from its
Tables 2 and 3, that one model for all has a test accuracy of 0.942 and a cross-entropy of 0.211, which is hardly more than
always saying no: about 6 letters of 100 succeed.

Chosen by us: how many letters a ZIP code has (log-normal), the clusters' shares, the distributions of recency and frequency,
and the truth, a logistic model with the coefficients of everybody plus normal deviations of the cluster and of the ZIP code,

logit = b0 + b1 (log recency - 5) + b2 (log frequency - 1), b_u = (-2.9, -0.25, 0.2) + 0.5 spread T_cluster + spread D_u.

The sizes were chosen so that the quartiles of one model for all come near those of the paper (docs/reference/datasets.md has
both).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from palmette import address
from palmette.datasets.dataset import Dataset
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.tree import Ints, Tree
from palmette.values import real, refuse_larger_than_memory, whole

CLUSTERS = ("poor-or-near-poor", "lower-middle", "middle", "upper-middle", "unknown")
_SHARES = (0.15, 0.30, 0.30, 0.15, 0.10)
_LEAST, _MOST = 5, 1000  # letters of a ZIP code
_WIDTH = 1.0  # standard deviation of the log of their number
_TRUTH = (-2.9, -0.25, 0.2)
_CENTRE = (5.0, 1.0)  # of log recency and log frequency in the truth
_DAYS = (5.0, 0.8)  # mean and standard deviation of the log of days
_AGAIN = 0.7  # chance that a donor with k donations has another
_BLOCK = 2048  # ZIP codes generated at once, to bound memory: every number has an address of its own


def donors(devices: int = 29_490, *, samples: int = 100, spread: float = 0.2, seed: int = 0) -> Pool:
    """Return a stand-in for the donors of the Async-L2GD paper: a device is a ZIP code, a team one of five income brackets.

    Features are an intercept, the log of the days since the last donation and the log of the number of donations so far; the
    label is 1 where a donation followed, in about 6 cases of 100. A ZIP code is the same in a population of any size.

    Args:
        devices: Number of devices (ZIP codes).
        samples: Median number of samples of a device; the least is 5, the most 1,000.
        spread: How far devices differ: the standard deviation of their coefficients around their team's. That of the teams'
            around those of everybody is half of it.
        seed: Decides everything.
    """
    devices, samples = whole("devices", devices, len(CLUSTERS)), whole("samples", samples, _LEAST, _MOST)
    if not 0 <= real("spread", spread) <= 100:
        raise BadInput(f"spread = {spread} must be from 0 to 100: it is a standard deviation")
    refuse_larger_than_memory(
        f"donors of {devices:,} devices", devices * samples * 2 * 20, "lower data.devices or data.samples"
    )
    zips = torch.arange(devices)
    drawn = _uniform(seed, "cluster", zips)
    cluster = torch.bucketize(drawn, torch.tensor(_SHARES, dtype=torch.float64).cumsum(0)[:-1], right=True)
    cluster[: len(CLUSTERS)] = torch.arange(len(CLUSTERS))  # so that there are five, of however few
    count = (samples * torch.exp(_WIDTH * _normal(seed, "size", zips))).long().clamp(_LEAST, _MOST)
    # By size within a team, because devices that are computed together are filled up to the largest of them.
    order = torch.argsort(cluster * (_MOST + 1) + count, stable=True)
    start: Ints = np.concatenate([[0], np.cumsum(count[order].numpy())]).astype(np.int64)
    coefficients = _coefficients(seed, zips, cluster, spread)
    x, y = np.empty((start[-1], 3), dtype=np.float32), np.empty(start[-1], dtype=np.int64)
    for first in range(0, devices, _BLOCK):
        some = order[first : first + _BLOCK]
        made = slice(start[first], start[first + len(some)])
        x[made], y[made] = _letters(seed, some, count[some], coefficients[some])
    width = len(str(devices - 1))
    names = tuple(f"zip-{number:0{max(width, 5)}d}" for number in order.tolist())
    above: Ints = np.zeros(len(CLUSTERS), dtype=np.int64)
    tree = Tree((cluster[order].numpy(), above), (names, CLUSTERS, None))
    return Pool(x, y, 2, None, start, "donors", tree=tree)


def _coefficients(seed: int, zips: Tensor, cluster: Tensor, spread: float) -> Tensor:
    """Return the three coefficients of every ZIP code."""
    own = _normal(seed, "zip", zips[:, None] * 3 + torch.arange(3))
    teams = _normal(seed, "team", torch.arange(3 * len(CLUSTERS)).reshape(-1, 3))
    return torch.tensor(_TRUTH, dtype=torch.float64) + spread * (0.5 * teams[cluster] + own)


def _letters(seed: int, zips: Tensor, count: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and labels of all letters to some ZIP codes."""
    owner = torch.arange(len(zips)).repeat_interleave(count)
    number = torch.arange(len(owner)) - (count.cumsum(0) - count)[owner]
    letter = zips[owner] * _MOST + number
    days = torch.exp(_DAYS[0] + _DAYS[1] * _normal(seed, "recency", letter)).floor().clamp(1, 3650)
    # A geometric number by its inverse: the chance of more than k donations is _AGAIN ** k.
    given = 1 + (torch.log1p(-_uniform(seed, "frequency", letter)) / math.log(_AGAIN)).floor().clamp(0, 99)
    log_days, log_given = days.log(), given.log()
    b = coefficients[owner]
    logit = b[:, 0] + b[:, 1] * (log_days - _CENTRE[0]) + b[:, 2] * (log_given - _CENTRE[1])
    label = _uniform(seed, "donation", letter) < torch.sigmoid(logit)
    return torch.stack([torch.ones_like(log_days), log_days, log_given], 1).float(), label.long()


def _uniform(seed: int, purpose: str, numbers: Tensor) -> Tensor:
    """Return one addressed number in [0, 1) for each."""
    return address.uniform(address.mix(address.key(seed, f"donors {purpose}"), numbers))


def _normal(seed: int, purpose: str, numbers: Tensor) -> Tensor:
    """Return one addressed normal number for each."""
    # Half a step up, so that zero, whose normal number is infinite, does not occur.
    normal: Tensor = torch.special.ndtri(_uniform(seed, purpose, numbers) + 2.0**-54)
    return normal


DONORS = Dataset(
    "Generated stand-in for the donors of the Async-L2GD paper: 29,490 ZIP codes as devices, 5 income brackets as teams",
    donors,
    natural=True,
    devices=29_490,
    model="logistic",
    options=(("least", _LEAST),),
    licence="generated here, no licence needed",
    origin="after B. Lyu, F. Hanzely and M. Kolar, Personalized Federated Learning with Multiple Known Clusters, section 6.2",
)
