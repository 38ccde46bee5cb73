"""The demo's study: the same methods on four small populations, each device taking as many gradient steps with each of them.

Which method is best depends on how much devices and teams have in common, and on how many samples a device has. The populations
are chosen so that one sees it: on each of them other methods come first. `CASES` and `CONTESTANTS` say who meets whom,
`demo_plan` makes a study of them, and `comparisons` reads what came out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palmette.protocol import ModelKind
from palmette.report.numbers import Comparison, Method
from palmette.runs import RunConfig, make_config
from palmette.studies.plan import Arm, Plan
from palmette.studies.study import Study

STEPS = 400  # gradient steps of every device with every method, fine-tuning counted
LOCAL_STEPS = 10  # of them between two exchanges
SEEDS = (0, 1, 2)
TREE = "4x10"
HERO = "PerMFL"  # the method whose tally is told at the end
HERO_NOTE = "One training of it gives personal, team and global models, with no fine-tuning afterwards."


@dataclass(frozen=True)
class Contestant:
    """One method.

    Attributes:
        key: Its name in folders and in `Case.chosen`.
        label: What people call it.
        algorithm: Its algorithm.
        why: Why a model of it is the best where it is, for each of its models that are shown; the first is the one it is
            known for, and its settings are chosen for that one.
        settings: What makes it this method.
        tuned: Whether the models shown are fine-tuned, which then is part of its steps.
    """

    key: str
    label: str
    algorithm: str
    why: Mapping[ModelKind, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuned: bool = False

    @property
    def main(self) -> ModelKind:
        """The model the method is known for."""
        return next(iter(self.why))


_ONE = "One model serves everybody, and every sample helps to train it."
_APART = "Samples of other teams would only disturb: share within a team, not between teams."
_TIERS = (
    "Teams and devices differ, but not much: a team begins with everybody's model and a device with its team's, so a few "
    "samples go a long way."
)
_START = "A common beginning and some steps on a device's own samples are enough."
_ALONE = "A device's own samples are enough, and nothing needs to be sent to anybody."

CONTESTANTS = (
    Contestant("local", "Local training", "local", {"PM": _ALONE}),
    Contestant("fedavg", "FedAvg", "fedavg", {"GM": _ONE}),
    Contestant("fedavg-tuned", "  + fine-tuning", "fedavg", {"PM": _START}, tuned=True),
    Contestant(
        "teams", "FedAvg in each team", "hierfavg", {"TM": _APART}, settings={"team_steps": 1, "global_every": 0}
    ),
    Contestant(
        "teams-tuned",
        "  + fine-tuning",
        "hierfavg",
        {"PM": _APART},
        settings={"team_steps": 1, "global_every": 0},
        tuned=True,
    ),
    Contestant("hierfavg", "Hierarchical FedAvg", "hierfavg", {"TM": _TIERS, "GM": _ONE}),
    Contestant("hierfavg-tuned", "  + fine-tuning", "hierfavg", {"PM": _TIERS}, tuned=True),
    Contestant("permfl", "PerMFL", "permfl", {"PM": _TIERS, "TM": _TIERS, "GM": _ONE}),
)


@dataclass(frozen=True)
class Case:
    """One population, with the settings each method was given on it.

    Attributes:
        key: Its folder.
        title: What people call it, in two or three words.
        about: Who the devices are, in a sentence.
        data: The samples, as a config writes them.
        chosen: Every contestant's settings, chosen on other seeds than `SEEDS`; see ``proofs/demo.py``.
    """

    key: str
    title: str
    about: str
    data: Mapping[str, Any]
    chosen: Mapping[str, Mapping[str, Any]]


CASES = (
    Case(
        "alike",
        "all alike",
        "Handwritten digits dealt out at random, 33 to 34 for training on each device.",
        {"name": "digits", "partition": "iid"},
        {
            "local": {"alpha": 0.3},
            "fedavg": {"alpha": 0.3},
            "fedavg-tuned": {"alpha": 0.3, "tune_steps": 10},
            "teams": {"alpha": 0.3},
            "teams-tuned": {"alpha": 0.3, "tune_steps": 10},
            "hierfavg": {"alpha": 0.3, "team_steps": 4},
            "hierfavg-tuned": {"alpha": 0.3, "tune_steps": 10, "team_steps": 3},
            "permfl": {"alpha": 0.3, "team_steps": 4, "lam": 0.1, "gamma": 0.003, "teams": "restart"},
        },
    ),
    Case(
        "apart",
        "teams apart",
        "Digits again, but each team's camera is turned by another quarter: teams have nothing in common.",
        {"name": "digits", "shift": "rotate", "partition": "dirichlet", "alpha": 1.0, "within": "team"},
        {
            "local": {"alpha": 0.3},
            "fedavg": {"alpha": 0.3},
            "fedavg-tuned": {"alpha": 0.3, "tune_steps": 40},
            "teams": {"alpha": 0.3},
            "teams-tuned": {"alpha": 0.3, "tune_steps": 10},
            "hierfavg": {"alpha": 0.3, "team_steps": 20},
            "hierfavg-tuned": {"alpha": 0.3, "tune_steps": 10, "team_steps": 13},
            "permfl": {"alpha": 0.3, "team_steps": 4, "lam": 0.01, "gamma": 0.0003, "teams": "warm"},
        },
    ),
    Case(
        "related",
        "related teams",
        "Generated data: what is true for a device is what is true for everybody, plus something of its team, plus "
        "something of its own. 16 training samples on each device.",
        {"name": "crowd", "samples": 16, "test_samples": 200, "spread": 0.5},
        {
            "local": {"alpha": 0.3},
            "fedavg": {"alpha": 1.0},
            "fedavg-tuned": {"alpha": 1.0, "tune_steps": 10},
            "teams": {"alpha": 1.0},
            "teams-tuned": {"alpha": 1.0, "tune_steps": 10},
            "hierfavg": {"alpha": 1.0, "team_steps": 4},
            "hierfavg-tuned": {"alpha": 1.0, "tune_steps": 10, "team_steps": 3},
            "permfl": {"alpha": 1.0, "team_steps": 4, "lam": 0.03, "gamma": 0.0009, "teams": "restart"},
        },
    ),
    Case(
        "own",
        "own task each",
        "Every device knows two of the ten digits only.",
        {"name": "digits", "partition": "labels", "classes_per_device": 2},
        {
            "local": {"alpha": 0.1},
            "fedavg": {"alpha": 0.3},
            "fedavg-tuned": {"alpha": 0.1, "tune_steps": 40},
            "teams": {"alpha": 0.3},
            "teams-tuned": {"alpha": 0.3, "tune_steps": 200},
            "hierfavg": {"alpha": 0.3, "team_steps": 4},
            "hierfavg-tuned": {"alpha": 0.1, "tune_steps": 40, "team_steps": 6},
            "permfl": {"alpha": 0.3, "team_steps": 4, "lam": 0.01, "gamma": 0.0003, "teams": "restart"},
        },
    ),
)


def config_of(case: Case, contestant: Contestant, settings: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the config of a method on a population; its rounds are as many as the steps allow.

    Args:
        case: The population.
        contestant: The method.
        settings: Other settings than those chosen.
    """
    chosen = case.chosen[contestant.key] if settings is None else settings
    own = {"local_steps": LOCAL_STEPS, **contestant.settings, **chosen}
    tuning = own["tune_steps"] if contestant.tuned else 0
    rounds, rest = divmod(STEPS - tuning, LOCAL_STEPS * own.get("team_steps", 1))
    assert rest == 0, f"{contestant.key} on {case.key}: {own} does not come to {STEPS} steps"
    values = {"algorithm": contestant.algorithm, "settings": own, "rounds": rounds}
    return make_config({**values, "tree": TREE, "data": dict(case.data), "evaluate_every": rounds})


def demo_plan(
    cases: Sequence[Case] = CASES,
    contestants: Sequence[Contestant] = CONTESTANTS,
    seeds: Sequence[int] = SEEDS,
) -> Plan:
    """Return the study: every method on every population with every seed, on the same samples.

    Args:
        cases: The populations.
        contestants: The methods.
        seeds: The seeds; each is another draw of the population and of all else.
    """
    arms = [Arm(f"{case.key}/{one.key}", config_of(case, one)) for case in cases for one in contestants]
    return Plan("demo", tuple(arms), tuple(seeds), "palmette demo", STEPS)


def comparisons(study: Study, contestants: Sequence[Contestant] = CONTESTANTS) -> list[Comparison]:
    """Return how the methods compare on each population, as far as their runs are there.

    Args:
        study: The demo as it came out.
        contestants: The methods.
    """
    found = []
    names = {arm.name for arm in study.plan.arms}
    for case in CASES:
        methods = []
        for one in contestants:
            name = f"{case.key}/{one.key}"
            results = [study.run(name, seed) for seed in study.plan.seeds] if name in names else []
            there = [result for result in results if result is not None]
            if there:
                methods.append(Method(one.label, tuple(there), one.why))
        if methods:
            found.append(Comparison(case.title, case.about, tuple(methods)))
    return found
