"""The words of an advice: names of methods, reasons and doubts, for people who do not know the project."""

from __future__ import annotations

import math
from collections.abc import Mapping

from palmette.population import Population
from palmette.studies.advising.advice import Choice
from palmette.studies.advising.calibrating import Prediction
from palmette.studies.advising.families import FAMILIES, Kind
from palmette.studies.advising.predicting import DIRECTIONS, LADDER
from palmette.theory.components import Components

LABELS: Mapping[str, str] = {
    **{family.key: family.label for family in FAMILIES},
    LADDER: "Ladder",
    DIRECTIONS: "Ladder, a pull per direction",
}
"""What people call each family."""
_WIDE = 0.1  # a standard error of a score beyond which it says little


def why(reason: str, found: Components) -> str:
    """Return the reason for a choice, in a sentence.

    Args:
        reason: Its name.
        found: The variance components.
    """
    parts = dict(zip(("devices", "teams"), found.shares[:-1], strict=False))
    devices, teams, noise = parts.get("devices", 0.0), sum(found.shares[1:-1]), found.shares[-1]
    inner = len(found.ratios) > 1
    where = (
        f"{percent(teams)} lies between teams, {percent(devices)} between the devices of a team"
        if inner
        else f"{percent(devices)} lies between devices"
    )
    sure = not found.doubts
    begin = (
        "Of what a common model cannot explain"
        if sure
        else "As far as can be told here (see the doubts), of what a common model cannot explain"
    )
    mixed = f"{begin}, {where} and {percent(noise)} is noise; "
    middle = ", from it one per team, from that" if inner and not math.isinf(found.gamma) else ", and from it"
    ladder = f"Ladder trains one model for everybody{middle} one per device"
    ends = {
        "both": f"{ladder}, each held to the one above just as strongly as that asks for.",
        "by direction": f"{ladder}, each held to the one above, direction by direction of the features.",
        "all own": f"with their samples devices know {percent(found.own_df)} of their own model by themselves.",
        "nobody differs": "there is nothing that a model of one's own could gain."
        if sure
        else "so a model of one's own would gain little, unless devices differ more than these samples show.",
        "only teams differ": "devices of a team are alike, and teams have little in common.",
        "predicted": "on training samples that were left out it does better than models held to each other.",
    }
    others = {
        "teams": "One model for everybody, then one per team, held to the common one as strongly as the differences ask for.",
        "teams predicted": "On training samples that were left out, averaging in each team does better than a common model.",
        "teams alike": "Teams are alike, so the common model serves them best.",
        "common": "Averaging over all devices uses everybody's samples for the one model.",
    }
    return others[reason] if reason in others else mixed + ends[reason]


def percent(share: float) -> str:
    """Write a share."""
    return "less than 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def not_first(choice: Choice) -> str:
    """Say why the advised method is not the one with the best prediction.

    Args:
        choice: How to make personal models.
    """
    ends = {
        "both": "the predictions of the two differ by less than they may be wrong.",
        "by direction": "the predictions of the two differ by less than they may be wrong.",
        "predicted": "it is the simplest that is predicted to do better than Ladder.",
        "tried": "it did better in the trial.",
    }
    known = "it follows from the differences shown above alone."
    return f"The advised method is not the first in this table: {ends.get(choice.reason, known)}"


def doubts_of(
    population: Population, found: Components, kind: Kind, predictions: Mapping[str, Prediction], looked: int
) -> tuple[str, ...]:
    """Return sentences about what the advice does not know.

    Args:
        population: The population.
        found: Its variance components.
        kind: What is learned.
        predictions: What was predicted.
        looked: How many devices were looked at.
    """
    doubts = list(found.doubts)
    if looked < population.devices:
        doubts.append(
            f"{looked} of {population.devices:,} devices were looked at, drawn by the seed; others may differ, and only these "
            "can be named as better off alone."
        )
    if kind == "network":
        doubts.append(
            "The model is a network, but the advice looks at the inputs only, as a linear model sees them: scores are rough, "
            "and a network may find common ground that a linear model does not see."
        )
    if found.tree.top < 2:
        doubts.append("The tree has no teams; scores were checked on trees with one tier of teams only.")
    if found.tree.top > 2:
        doubts.append("The tree has several tiers of teams; scores were checked on trees with one tier of teams only.")
    best = max(one.score for one in predictions.values())
    if kind == "numbers" and best < 0:
        doubts.append(
            "Even the best method is predicted to do worse than the mean of all targets (R2 below 0). Where targets lie far "
            "from 0 and the model has no constant, as linear, take their mean off, or give every sample a feature that is 1."
        )
    wide = sorted({one.error for one in predictions.values()})
    if wide[len(wide) // 2] > _WIDE:
        doubts.append("There are too few samples for the predicted scores to say much; see their intervals.")
    if int(population.train.min()) < 2:
        alone = int((population.train < 2).sum())
        doubts.append(f"{alone} of {population.devices} devices have one training sample only.")
    return tuple(doubts)
