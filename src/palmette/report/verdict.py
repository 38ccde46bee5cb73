"""Sentences that say which method to use for a population, and why; they are made from the numbers, whoever won."""

from __future__ import annotations

from collections.abc import Sequence

from palmette.report.numbers import Comparison, Entry
from palmette.report.words import models, percent, points, size

_SAFE = 3  # models named as the safest


def verdict(comparison: Comparison) -> str:
    """Say which model did best on a population, which are not clearly worse, and why."""
    best, *near = comparison.level
    text = f"Best {'is' if best.kind == 'GM' else 'are'} the {models(best.kind)} of {best.name}"
    text += f", with {percent(best.mean)} of the test samples right"
    if near:
        text += f"; not clearly worse: {', '.join(_short(entry) for entry in near)}"
    elif len(comparison.entries) > 1:
        second = max((entry for entry in comparison.entries if entry is not best), key=lambda entry: entry.mean)
        text += f", {points(best.mean - second.mean)} above {_short(second)}"
    text += f". {best.why}"
    least = min([best, *near], key=lambda entry: entry.sent)
    if least.sent <= best.sent / 2:
        text += f" Of the best, {_short(least)} sends least to the server: {_sent(least)} instead of {_sent(best)}."
    return text


def safe_choice(comparisons: Sequence[Comparison]) -> str:
    """Say which models are never far behind the best of a population, and how far the others fall."""
    behind = []
    for line, entry in enumerate(comparisons[0].entries):
        worst = max(comparison.best.mean - comparison.entries[line].mean for comparison in comparisons)
        behind.append((worst, _short(entry)))
    behind.sort()
    told = ", ".join(f"{name} ({points(worst)} behind at most)" for worst, name in behind[:_SAFE])
    text = f"Never far behind the best on any of the {len(comparisons)} populations: {told}."
    if len(behind) > _SAFE:
        text += f" All others fall {points(behind[_SAFE][0])} or more behind somewhere."
    return text


def tally(comparisons: Sequence[Comparison], name: str) -> str:
    """Say on how many populations a method is among the best, and on how many it is clearly ahead of all others."""
    mine = [[entry for entry in one.level if entry.name == name] for one in comparisons]
    near = sum(bool(found) for found in mine)
    alone = sum(bool(found) and len(found) == len(one.level) for found, one in zip(mine, comparisons, strict=True))
    clear = "on none" if alone == 0 else f"on {alone}"
    return f"{name} is among the best on {near} of the {len(comparisons)} populations, and clearly ahead of all others {clear}."


def cost(comparisons: Sequence[Comparison]) -> str:
    """Say how much each method sent over the link to the server in one training, the most first."""
    most: dict[str, float] = {}
    for comparison in comparisons:
        for entry in comparison.entries:
            if " + " not in entry.name:  # fine-tuning changes next to nothing
                most[entry.name] = max(most.get(entry.name, 0.0), entry.sent)
    told = [
        f"{name} {'nothing' if value == 0 else size(round(value))}"
        for name, value in sorted(most.items(), key=lambda item: -item[1])
    ]
    return f"Sent over the link to the server in one training, both ways, at most: {', '.join(told)}."


def _short(entry: Entry) -> str:
    return f"{entry.name} {entry.kind}"


def _sent(entry: Entry) -> str:
    return "nothing" if entry.sent == 0 else size(round(entry.sent))
