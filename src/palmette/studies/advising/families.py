"""The classic families of methods, and the settings that a search tries of each.

Every device takes `STEPS` gradient steps with every one of them, fine-tuning counted, and talks to others after every
`LOCAL_STEPS`. The grid is data: learning rates and pulls are written relative to L, the largest curvature of the devices'
losses on the population at hand, so that one grid serves all populations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from palmette.protocol import ModelKind

STEPS = 400  # gradient steps of every device with every method, fine-tuning counted
LOCAL_STEPS = 10  # of them between two exchanges
BATCH = 20  # samples of a mini-batch
NETWORK = 1 / 0.3  # L of networks, whose curvature is known nowhere but where they begin

Kind = Literal["classes", "numbers", "network"]
"""What is learned: a linear model of classes, a linear model of numbers, or a network."""

RATES: Mapping[Kind, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "classes": ((1.0, 2.0, 5.0), (2.0, 5.0)),
    "numbers": ((0.25, 0.5, 1.0), (0.5, 1.0)),
    "network": ((0.03 * NETWORK, 0.1 * NETWORK, 0.3 * NETWORK), (0.1 * NETWORK, 0.3 * NETWORK)),
}
"""Learning rates times L: those of methods without pulls, and the fewer ones of methods with pulls. 5 / L, for ten classes, is
the rate that an advice names: where a softmax knows nothing it is a fifth as curved as it can be."""

TUNING = (10, 40, 160)
"""Gradient steps of fine-tuning."""

PULLS = (0.0007, 0.004, 0.025, 0.2)
"""Pulls of devices, divided by L."""

UPPER = (0.03, 0.5)
"""Pulls of teams, divided by those of devices."""


@dataclass(frozen=True)
class Family:
    """One family of methods.

    Attributes:
        key: Its name in files.
        label: What people call it.
        algorithm: Its algorithm.
        model: The model that it serves to every device.
        settings: What makes it this family.
        tried: The other settings that are tried, each with every learning rate. ``lam`` is relative to L and ``gamma`` to
            ``lam``; all others are as they stand.
        pulled: Whether it has pulls, and so the fewer learning rates.
    """

    key: str
    label: str
    algorithm: str
    model: ModelKind
    settings: Mapping[str, Any] = field(default_factory=dict)
    tried: tuple[Mapping[str, Any], ...] = ({},)
    pulled: bool = False


_TEAMS: Mapping[str, Any] = {"team_steps": 1, "global_every": 0}
_TUNED = tuple({"tune_steps": steps} for steps in TUNING)

FAMILIES: tuple[Family, ...] = (
    Family("local", "Local training", "local", "PM"),
    Family("fedavg", "FedAvg", "fedavg", "GM"),
    Family("fedavg-tuned", "FedAvg + fine-tuning", "fedavg", "PM", tried=_TUNED),
    Family("teams", "FedAvg in each team", "hierfavg", "TM", _TEAMS),
    Family("teams-tuned", "FedAvg in each team + fine-tuning", "hierfavg", "PM", _TEAMS, tried=_TUNED),
    Family(
        "hierfavg-tuned",
        "Hierarchical FedAvg + fine-tuning",
        *("hierfavg", "PM"),
        tried=tuple({"tune_steps": steps, "team_steps": teams} for steps, teams in zip(TUNING, (3, 4, 4), strict=True)),
    ),
    Family(
        "permfl",
        "PerMFL",
        *("permfl", "PM", {"team_steps": 4, "teams": "warm"}),
        tried=tuple({"lam": lam, "gamma": gamma} for lam in PULLS for gamma in UPPER),
        pulled=True,
    ),
    Family(
        "ditto",
        "Ditto",
        *("ditto", "PM", {"personal_steps": LOCAL_STEPS}),
        tried=tuple({"lam": lam} for lam in PULLS),
        pulled=True,
    ),
)
"""All families; where two score the same, the first of them counts as the better."""


@dataclass(frozen=True)
class Configuration:
    """One family with settings that can be run.

    Attributes:
        family: The family.
        settings: All its settings.
        rounds: Rounds that it runs for, so that devices take `STEPS` steps.
    """

    family: Family
    settings: Mapping[str, Any]
    rounds: int


def configurations(kind: Kind, smoothness: float) -> Iterator[Configuration]:
    """Return all that a search tries, family by family.

    Args:
        kind: What is learned.
        smoothness: L; of networks it is always `NETWORK`.
    """
    size = NETWORK if kind == "network" else smoothness
    for family in FAMILIES:
        for rate in RATES[kind][family.pulled]:
            for tried in family.tried:
                yield _configuration(family, rate / size, tried, size)


def _configuration(family: Family, alpha: float, tried: Mapping[str, Any], size: float) -> Configuration:
    """Return a family with one learning rate and one choice of its other settings, pulls made absolute."""
    own = {"local_steps": LOCAL_STEPS, "batch_size": BATCH, "alpha": alpha, **family.settings, **tried}
    if "lam" in own:
        own["lam"] *= size
    if "gamma" in own:
        own["gamma"] *= own["lam"]
    steps = LOCAL_STEPS * own.get("team_steps", 1) + own.get("personal_steps", 0)
    rounds, rest = divmod(STEPS - own.get("tune_steps", 0), steps)
    assert rest == 0, f"{family.key}: {own} does not come to {STEPS} steps"
    return Configuration(family, own, rounds)


CONFIGURATIONS = sum(len(family.tried) * len(RATES["classes"][family.pulled]) for family in FAMILIES)
"""How many configurations a search tries on a population."""
