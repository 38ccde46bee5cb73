"""The thirty populations of the study, in two halves that were named before anybody looked at a result.

Whatever constants the advice has are fixed on one half and judged on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from palmette.population import Population
from palmette.studies.advising import making

Half = Literal["fixed", "judged"]


@dataclass(frozen=True)
class Case:
    """One population of the study.

    Attributes:
        name: Its name in files.
        title: What people call it, in two to five words.
        about: Who the devices are, in a sentence.
        half: ``"fixed"`` where constants are fixed, ``"judged"`` where they are judged.
        model: The model that is trained on it.
        make: Makes the population of a seed.
        options: Settings of the model.
    """

    name: str
    title: str
    about: str
    half: Half
    model: str
    make: Callable[[int], Population]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def network(self) -> bool:
        """Whether the model is a network; these are reported apart."""
        return self.model not in ("mclr", "linear")


_turned = partial(making.dealt, source="digits", shift="rotate", alpha=1.0, within="team")
_mnist = partial(making.dealt, source="mnist", partition="few", of="labels", test=100)
_fashion = partial(making.dealt, source="fashion-mnist", partition="few", of="two-level", samples=40, test=100)
_DIRECTIONS = ((3.0,) * 3 + (0.01,) * 7, (0.01,) * 3 + (2.0,) * 3 + (0.01,) * 4)  # of teams, of devices in a team

_DIGITS = (
    Case(
        "digits-alike",
        "all alike",
        "Handwritten digits dealt out at random.",
        *("fixed", "mclr", partial(making.dealt, source="digits", partition="iid")),
    ),
    Case(
        "digits-mixed",
        "mixed labels",
        "Digits whose labels are shared out over all devices in drawn proportions (Dirichlet 0.5).",
        *("judged", "mclr", partial(making.dealt, source="digits", partition="dirichlet", alpha=0.5)),
    ),
    Case(
        "digits-turned",
        "turned teams",
        "Digits of which each team sees another quarter turn, with drawn proportions of labels on its devices.",
        *("fixed", "mclr", partial(_turned, partition="dirichlet")),
    ),
    Case(
        "digits-turned-few",
        "turned teams, few samples",
        "The same digits turned by team, with 12 training samples on each device.",
        *("judged", "mclr", partial(_turned, partition="few", of="dirichlet", samples=12, least=16)),
    ),
    Case(
        "digits-own",
        "own task each",
        "Every device knows two of the ten digits only.",
        *("fixed", "mclr", partial(making.dealt, source="digits", partition="labels", classes_per_device=2)),
    ),
    Case(
        "digits-few",
        "alike, few samples",
        "Digits dealt out at random, 8 training samples on each device.",
        *("judged", "mclr", partial(making.dealt, source="digits", partition="few", of="iid", samples=8)),
    ),
    Case(
        "digits-offset",
        "shifted pixels",
        "Digits dealt out at random, to whose pixels every team and every device adds numbers of its own.",
        "fixed",
        "mclr",
        partial(making.dealt, source="digits", partition="iid", shift="offset", shift_teams=0.3, shift_devices=0.3),
    ),
    Case(
        "digits-tilted",
        "tilted devices",
        "Digits dealt out at random, turned on every device by an angle of its own of about 20 degrees.",
        *("judged", "mclr", making.tilted),
    ),
)
_IMAGES = (
    Case(
        "mnist-classes",
        "two digits each",
        "MNIST with two of the ten digits and 40 training samples on each device.",
        *("fixed", "mclr", partial(_mnist, classes_per_device=2, samples=40)),
    ),
    Case(
        "mnist-classes-5",
        "five digits each",
        "MNIST with five of the ten digits and 60 training samples on each device.",
        *("judged", "mclr", partial(_mnist, classes_per_device=5, samples=60)),
    ),
    Case(
        "mnist-writers",
        "writers",
        "Thirty people of each of two groups, each with the digits of MNIST that they wrote themselves.",
        *("fixed", "mclr", making.writers),
    ),
    Case(
        "mnist-writers-few",
        "writers, few samples",
        "Other thirty people of each group, with 15 training digits each.",
        *("judged", "mclr", partial(making.writers, train=15, others=True)),
    ),
    Case(
        "fashion-low",
        "clothes, nearly alike",
        "Fashion-MNIST with labels that differ a little between teams and within them, 40 training samples each.",
        *("fixed", "mclr", partial(_fashion, between_teams=10.0, within_teams=10.0)),
    ),
    Case(
        "fashion-high",
        "clothes, far apart",
        "Fashion-MNIST with labels that differ much between teams and within them, 40 training samples each.",
        *("judged", "mclr", partial(_fashion, between_teams=0.3, within_teams=0.3)),
    ),
)
_GENERATED = (
    Case(
        "synthetic",
        "synthetic",
        "The generated data of FedProx with its usual settings: a different linear model on every device, no teams in truth.",
        *("fixed", "mclr", partial(making.dealt, source="synthetic", train=200, test=100)),
    ),
    Case(
        "synthetic-far",
        "synthetic, far apart",
        "The same generated data with features that lie further apart (alpha = beta = 1).",
        *("judged", "mclr", partial(making.dealt, source="synthetic", train=200, test=100, alpha=1.0, beta=1.0)),
    ),
    Case(
        "crowd",
        "related teams",
        "Generated data: what is true for everybody, plus something of the team, plus something of the device; 16 samples.",
        *("fixed", "mclr", partial(making.dealt, source="crowd", samples=16, test_samples=200, spread=0.5)),
    ),
    Case(
        "crowd-near",
        "closely related teams",
        "The same generated data with teams and devices that differ less, 30 training samples each.",
        *("judged", "mclr", partial(making.dealt, source="crowd", samples=30, test_samples=200, spread=0.2)),
    ),
)


def _linear(name: str, title: str, about: str, half: Half, spread: Mapping[str, Any]) -> Case:
    """Return the case of a draw of the hierarchical linear model."""
    return Case(name, title, about, half, "linear", partial(making.linear, name=name, **spread))


_LINEAR = (
    _linear(
        "linear-noise",
        "much noise",
        "Linear models that hardly differ, seen through much noise, 10 samples each.",
        "fixed",
        {"centres": 0.05, "devices": 0.05, "noise": 4.0, "train": 10},
    ),
    _linear(
        "linear-teams",
        "teams differ",
        "Linear models that differ by team and hardly within one, 8 samples each.",
        "judged",
        {"centres": 1.0, "devices": 0.05, "noise": 2.0, "train": 8},
    ),
    _linear(
        "linear-devices",
        "devices differ",
        "Linear models that differ by device and little by team, 15 samples each.",
        "fixed",
        {"centres": 0.1, "devices": 1.0, "noise": 1.0, "train": 15},
    ),
    _linear(
        "linear-own",
        "enough samples each",
        "Linear models that differ much by device, with 50 samples each and little noise.",
        "judged",
        {"centres": 1.0, "devices": 3.0, "noise": 0.5, "train": 50},
    ),
    _linear(
        "linear-mixed",
        "both differ, few samples",
        "Linear models of 20 features that differ by team and by device, 10 samples each and much noise.",
        "fixed",
        {"centres": 1.0, "devices": 1.0, "noise": 4.0, "train": 10, "dimension": 20},
    ),
    _linear(
        "linear-directions",
        "different directions",
        "Linear models whose teams differ in three directions and whose devices differ in three others, 10 samples each.",
        "judged",
        {"centres": _DIRECTIONS[0], "devices": _DIRECTIONS[1], "noise": 2.0, "train": 10},
    ),
)
_TABLES = (
    Case(
        "school-maths",
        "mathematics in schools",
        "160 American schools of two sectors, with the mathematics scores of their pupils.",
        *("fixed", "linear", partial(making.table, source="hsb82")),
    ),
    Case(
        "school-chemistry",
        "chemistry in schools",
        "All schools of twenty English education authorities, with the chemistry scores of their pupils.",
        *("judged", "linear", making.schools),
    ),
    Case(
        "radon",
        "radon in houses",
        "82 counties of Minnesota in three groups by the uranium in their soil, with the radon measured in houses.",
        *("fixed", "linear", partial(making.table, source="radon")),
    ),
    Case(
        "lectures",
        "ratings of lectures",
        "Twelve lecturers of each of 14 departments, with the ratings that students gave them.",
        *("judged", "linear", partial(making.lectures, train=60)),
    ),
)
_SMALL = {"hidden": [50]}
_NETWORKS = tuple(
    Case(f"{one.name}-dnn", f"{one.title}, a network", one.about, one.half, "dnn", one.make, _SMALL)
    for one in (*_DIGITS, *_IMAGES)
    if one.name in ("digits-turned", "fashion-high")
)

CASES: tuple[Case, ...] = (*_DIGITS, *_IMAGES, *_GENERATED, *_LINEAR, *_TABLES, *_NETWORKS)
"""All populations, in a fixed order."""


def case_of(name: str) -> Case:
    """Return the population of a name.

    Args:
        name: The name; one that no population has is a `KeyError`.
    """
    return {case.name: case for case in CASES}[name]
