"""The contract every algorithm keeps, one row each: add an algorithm, add a row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from palmette.algorithms import ALGORITHMS, algorithm
from palmette.protocol import Algorithm
from palmette.testing import CHECKS, LOSSY
from palmette.testing.compared import same_as_separate as assert_separate_is_stacked  # noqa: F401 - for other tests
from palmette.testing.compared import same_bits as assert_same  # noqa: F401
from problems import regression, simulate
from programs import AsyncL2GD, TwoStages

SMALL: dict[str, dict[str, Any]] = {
    "permfl": {"team_steps": 3, "local_steps": 4, "batch_size": 5},
    "pfedmt": {"team_steps": 3, "local_steps": 4, "batch_size": 5},
    "ladder": {"team_steps": 2, "local_steps": 4, "tune_steps": 3, "batch_size": 5},
    "hierfavg": {"team_steps": 3, "local_steps": 4, "batch_size": 5, "global_every": 2},
    "sfedhp": {"team_steps": 3, "local_steps": 4, "batch_size": 5, "zero_tol": 0.02},
    "fl": {"batch_size": 5},
    "perfl": {"batch_size": 5, "rates": (0.01, 0.1)},
    "groupfl": {"batch_size": 5},
    "groupperfl": {"batch_size": 5, "rates": (0.01, 0.1)},
    "l2gd": {"iterations": 12},
    "l2gd-coin": {"iterations": 12},
    "al2sgd": {"iterations": 6, "refresh": 0.3},
    "fedavg": {"local_steps": 4, "batch_size": 5},
    "local": {"local_steps": 4, "batch_size": 5},
    "fedamp": {"local_steps": 4, "batch_size": 5},
    "heurfedamp": {"local_steps": 4, "batch_size": 5},
    "fedfomo": {"local_steps": 4, "batch_size": 5, "others": 3},
    "fedala": {"local_steps": 4, "batch_size": 5, "first_weight_steps": 5, "weight_steps": 2},
    "ifca": {"local_steps": 4, "batch_size": 5, "clusters": 3},
    "cfl": {"local_steps": 4, "batch_size": 5, "clusters": 3, "eps1": 2.0, "eps2": 0.1, "wait": 1},
    "demlearn": {"local_steps": 4, "batch_size": 5, "levels": 2},
    "edge-mixing": {"team_steps": 3, "local_steps": 4, "batch_size": 5},
    "fedper": {"local_steps": 4, "batch_size": 5, "team_steps": 2},
    "fedrep": {"local_steps": 2, "head_steps": 2, "batch_size": 5, "tune_steps": 2},
    "fedbabu": {"local_steps": 4, "batch_size": 5, "tune_steps": 3},
    "lg-fedavg": {"local_steps": 4, "batch_size": 5},
    "fedprox": {"local_steps": 4, "batch_size": 5},
    "scaffold": {"local_steps": 4, "batch_size": 5},
    "fedavgm": {"local_steps": 4, "batch_size": 5},
    "fedadagrad": {"local_steps": 4, "batch_size": 5},
    "fedadam": {"local_steps": 4, "batch_size": 5},
    "fedyogi": {"local_steps": 4, "batch_size": 5},
    "fedbuff": {"team_steps": 2, "local_steps": 4, "batch_size": 5, "buffer": 9, "team_buffer": 3},
    "mtgc": {"team_steps": 3, "local_steps": 4, "batch_size": 5},
    "ditto": {"local_steps": 4, "personal_steps": 3, "batch_size": 5},
    "pfedme": {"local_steps": 2, "prox_steps": 3, "batch_size": 5},
    "apfl": {"local_steps": 4, "batch_size": 5},
    "per-fedavg": {"local_steps": 4, "batch_size": 5},
    "pfedgp": {"local_steps": 4, "batch_size": 6, "context": 12},
    "pfedbayes": {"local_steps": 4, "batch_size": 5, "alpha": 0.01, "eta": 0.01},
}
TABLE: dict[str, Algorithm] = {name: algorithm(name, **given) for name, given in SMALL.items()}
# Pulls by numbers, and pulls that are found in other ways.
LADDERS = {
    "numbers": {"lam": 0.3, "gamma": 0.1, "share": 0.4},
    "directions": {"directions": True, "survey": "sums"},
}
AUTO = {"lam": "auto", "gamma": "auto"}
TABLE |= {f"{name}-auto": algorithm(name, **SMALL[name], **AUTO) for name in ("permfl", "l2gd")}
TABLE |= {f"ladder-{name}": algorithm("ladder", **SMALL["ladder"], **given) for name, given in LADDERS.items()}
# Programs of other shapes keep the same contract: coins and masks, stages.
TABLE |= {kind.name: kind() for kind in (AsyncL2GD, TwoStages)}
# The plain L2GD program wants every device at every average and says nothing of what to take otherwise.
LEFT_OUT = {AsyncL2GD.name: LOSSY}

# Algorithms that keep different things; make prove-kills kills runs of all.
UNLIKE = (
    *("permfl", "sfedhp", "groupperfl", "l2gd-coin", "al2sgd", "fedamp", "fedfomo", "fedala", "cfl", "demlearn"),
    *(
        "edge-mixing",
        "fedrep",
        "scaffold",
        "fedadam",
        "fedbuff",
        "mtgc",
        "apfl",
        "pfedgp",
        "pfedbayes",
        "ladder",
        "async-l2gd",
    ),
)


def unlike_first(names: Iterable[str]) -> list[Any]:
    """Parameters of a costly test: algorithms that keep different things, and with ``make slow-tests`` all others."""
    return [pytest.param(name, marks=() if name in UNLIKE else pytest.mark.slow, id=name) for name in names]


every_algorithm = pytest.mark.parametrize("method", TABLE.values(), ids=TABLE)


def test_every_algorithm_has_a_row() -> None:
    assert set(ALGORITHMS) <= set(TABLE)


@every_algorithm
def test_everybody_takes_part_in_every_round_when_nobody_is_lost(method: Algorithm) -> None:
    assert simulate(method, regression([3, 2, 4]), 2).stores[0].last.tolist() == [1] * 9


def often(name: str, check: str) -> bool:
    """Return whether what a costly check would find is mostly found by another one, so that it is a slow test.

    Whoever is the same under a storm on separate nodes is so without one, and all backends serve all methods alike.
    """
    return (check == "separate-nodes" and name not in LEFT_OUT) or (check == "backends-agree" and name not in UNLIKE)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=pytest.mark.slow if often(name, check) else ())
        for name in TABLE
        for check in CHECKS
        if check not in LEFT_OUT.get(name, ())
    ],
)
def test_every_algorithm_keeps_every_part_of_the_contract(name: str, check: str) -> None:
    CHECKS[check](TABLE[name])
