"""Who takes part: the clients, samples and words of every group of a population, as the papers' tables of data tell them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palmette.errors import PalmetteWarning
from palmette.population import make_population


def statistics(options: Mapping[str, Any], methods: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Return, for every group and for ``all``: clients, training and test samples, training and test words.

    Words are the places of a sample that are predicted.

    Args:
        options: Under ``data`` the data set and its settings.
        methods: Not used.
        seed: Decides which clients are kept where not all are, and what is tested on.
    """
    given = dict(options["data"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PalmetteWarning)
        people = make_population(given.pop("name"), seed=given.pop("seed", seed), **given)
    team, names = people.tree.parents[0], people.tree.names(1)
    places = math.prod(people.y.shape[1:])
    train = people.train.numpy()
    test = people.start.diff().numpy() - train
    each = {
        "clients": np.ones(people.devices),
        "train": train,
        "train-words": train * places,
        "test": test,
        "test-words": test * places,
    }
    found = {}
    for kind, values in each.items():
        sums = np.bincount(team, weights=values, minlength=len(names))
        found[kind] = {**dict(zip(names, sums.tolist(), strict=True)), "all": float(values.sum())}
    return found
