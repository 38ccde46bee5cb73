"""Methods with settings that follow from variance components, and what they cost on every link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from palmette.blocks.survey import Survey
from palmette.blocks.turns import turns
from palmette.protocol import ModelKind
from palmette.studies.advising.families import BATCH
from palmette.task.layout import Layout
from palmette.theory.components import Components
from palmette.tree import Tree

_OWN = 0.1  # the least share of its steps that a device spends on its own model
_ALIKE = 1.1  # numbers of samples that differ by less get one pull
_BYTES = 4  # of a number


@dataclass(frozen=True)
class Recipe:
    """A method that can be run.

    Attributes:
        algorithm: Its name, as ``palmette run`` takes it.
        model: The model that it serves.
        settings: Its settings.
        rounds: Its rounds.
    """

    algorithm: str
    model: ModelKind
    settings: Mapping[str, Any]
    rounds: int


def recipe(
    family: str, found: Components, *, alpha: float, steps: int, local_steps: int, model: ModelKind = "PM"
) -> Recipe:
    """Return a family with settings that follow from variance components.

    Args:
        family: A family of the study, ``"ladder"`` or ``"ladder-directions"``.
        found: The variance components.
        alpha: The learning rate.
        steps: Gradient steps of every device, fine-tuning counted.
        local_steps: Gradient steps between two averages.
        model: The model that is to be served, of ladder.
    """
    own = _own_steps(found, steps, local_steps)
    base: dict[str, Any] = {"local_steps": local_steps, "alpha": alpha, "batch_size": BATCH}
    if family == "local":
        return Recipe("local", "PM", base, steps // local_steps)
    if family in ("fedavg", "fedavg-tuned"):
        tuned = own if family == "fedavg-tuned" else 0
        more = {"tune_steps": tuned} if tuned else {}
        return Recipe("fedavg", "PM" if tuned else "GM", base | more, (steps - tuned) // local_steps)
    if family in ("teams", "teams-tuned"):
        tuned = own if family == "teams-tuned" else 0
        more = {"team_steps": 1, "global_every": 0} | ({"tune_steps": tuned} if tuned else {})
        return Recipe("hierfavg", "PM" if tuned else "TM", base | more, (steps - tuned) // local_steps)
    return _ladder(found, base, steps, own if model == "PM" else 0, model, directions=family != "ladder")


def _own_steps(found: Components, steps: int, local_steps: int) -> int:
    """Return how many of its steps a device spends on its own model: the more of it is its own, the more."""
    wanted = round(steps * max(_OWN, found.own_df) / local_steps) * local_steps
    return min(max(wanted, local_steps), steps - local_steps)


def _ladder(
    found: Components, base: dict[str, Any], steps: int, own: int, model: ModelKind, *, directions: bool
) -> Recipe:
    """Return ladder with the pulls that the components mean."""
    own = 0 if math.isinf(found.lam) else own
    made = {**base, "share": min(max(found.share, 0.001), 0.999), "team_steps": 1, "tune_steps": max(own, 1)}
    if found.tree.top < 2:
        made = {key: value for key, value in made.items() if key not in ("share", "team_steps")}
    if directions:
        made |= {"lam": "auto", "gamma": "auto", "directions": True}
    else:
        made["lam"] = _pulls(found, 0)
        tiers = found.tree.top
        made["gamma"] = _pulls(found, 1) if tiers < 3 else [found.pull(tier) for tier in range(1, tiers)]
    return Recipe("ladder", model, made, (steps - own) // base["local_steps"])


def _pulls(found: Components, tier: int) -> float | dict[str, float]:
    """Return the pull of the nodes of a tier: one number where they have about as many samples, else one for each by name."""
    if tier >= len(found.ratios):
        return math.inf
    counts = found.counts[tier].clamp(min=1.0)
    if math.isinf(found.pull(tier)) or float(counts.max() / counts.min()) < _ALIKE:
        return rounded(found.pull(tier))
    pulls = found.pulls(tier).tolist()
    return {name: rounded(pull) for name, pull in zip(found.tree.names(tier), pulls, strict=True)}


def rounded(value: float) -> float:
    """Return a number with four digits, as people can copy it."""
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class Cost:
    """What a method costs on one link.

    Attributes:
        link: Between whom.
        exchanges: How often a parent asks its children and takes their answers, in all rounds.
        bytes: What is carried, both ways.
    """

    link: str
    exchanges: int
    bytes: int


def finds_pulls(made: Recipe) -> bool:
    """Return whether a method finds its pulls by a survey: where they are ``"auto"``, or by name, for which that is short."""
    return made.algorithm == "ladder" and any(
        one == "auto" or isinstance(one, Mapping) for one in made.settings.values()
    )


def costs(made: Recipe, tree: Tree, layout: Layout) -> list[Cost]:
    """Return what a method costs on every link of a tree, everybody taking part.

    A survey is counted where the command that runs the method has one (`finds_pulls`, for linear models).

    Args:
        made: The method.
        tree: The tree.
        layout: The model's.
    """
    found = _of_rounds(made, tree, layout.width)
    if not finds_pulls(made) or len(layout.layers) > 1:
        return found
    asked = Survey(turned=bool(made.settings.get("directions"))).carried(tree, layout)
    return [
        replace(cost, exchanges=cost.exchanges + often, bytes=cost.bytes + carried)
        for cost, (often, carried) in zip(found, asked, strict=True)
    ]


def _of_rounds(made: Recipe, tree: Tree, width: int) -> list[Cost]:
    """Return what the rounds of a method cost."""
    if made.algorithm == "local":
        return []
    size, rounds = width * _BYTES, made.rounds
    if made.algorithm == "fedavg" or tree.top == 1:
        return [Cost("devices - server", rounds, 2 * rounds * tree.devices * size)]
    found = []
    for tier in range(tree.top):
        often, each = rounds * tree.size(tier + 1), 2 * rounds
        if made.algorithm == "ladder":
            often, each = _of_ladder(made, tree, tier)
        elif tier == tree.top - 1:
            often = each = 1  # teams begin with the same model and never hear of each other again
        link = f"{_called(tier, tree)} - {_called(tier + 1, tree)}"
        found.append(Cost(link, often, each * tree.size(tier) * size))
    return found


def _of_ladder(made: Recipe, tree: Tree, tier: int) -> tuple[int, int]:
    """Return the exchanges of ladder between a tier and its parents, and how many models each node of it gets or sends.

    In the global model's turn one goes down and one up in every round, in the turn of an inner tier also the one above it; and
    one goes down to every inner tier when its turn begins, or at the end where it has none.
    """
    pulls = made.settings["gamma"]
    skipped = {inner: _endless(pulls[inner - 1] if isinstance(pulls, list) else pulls) for inner in range(1, tree.top)}
    each = turns(tree, made.rounds, float(made.settings["share"]), skipped)
    handed = 1 if tier else 0
    rounds = sum(count for turn, count in each.items() if turn > tier)
    models = sum((2 if turn == tree.top else 3) * count for turn, count in each.items() if turn > tier)
    return (rounds + handed) * tree.size(tier + 1), models + handed


def _called(tier: int, tree: Tree) -> str:
    return "server" if tier == tree.top else ("devices", "teams")[tier] if tier < 2 else f"tier {tier}"


def _endless(pull: Any) -> bool:
    return isinstance(pull, float) and math.isinf(pull)
