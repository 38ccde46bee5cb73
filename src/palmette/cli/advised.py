"""An advice as a person reads it on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from palmette.guards.screen import Text
from palmette.runs.wording import many
from palmette.studies.advising.calibrating import FEWEST_STEPS, MOST_STEPS
from palmette.studies.advising.families import LOCAL_STEPS, STEPS
from palmette.studies.advising.recipes import finds_pulls
from palmette.studies.advising.telling import LABELS, not_first, percent

if TYPE_CHECKING:
    from palmette.studies.advising.advice import Advice, Choice

_BAR = 30  # letters of a whole bar
_NAMED = 8  # devices that are named
_OF_TEAMS = ("gamma", "share", "team_steps")  # settings that mean nothing without teams
_WHO = {"personal": "A model for every device", "team": "A model for every team", "global": "One model for everybody"}


def picture(found: Advice, tried: str | None = None) -> RenderableType:
    """Lay an advice out for a terminal.

    Args:
        found: The advice.
        tried: What was found on held-out samples, where it was tried.
    """
    shown: list[RenderableType] = [Text(_title(found)), Text(), *_shares(found), Text(), *_families(found)]
    for choice in (found.personal, found.team, found.everybody):
        if choice is not None:
            shown += [Text(), *_choice(choice, found)]
    shown += [Text(), Text("Better off alone", "bold"), _indented(_losers(found)), Text(), *_costs(found)]
    if tried is not None:
        shown += [Text(), Text("Tried", "bold"), _indented(tried)]
    if found.doubts:
        shown += [Text(), Text("Doubts", "bold"), *(_indented(doubt) for doubt in found.doubts)]
    return Group(*shown)


def _indented(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, 2))


def _title(found: Advice) -> str:
    people = found.population
    count = people.tree.size(1)
    teams = f" in {count} {'team' if count == 1 else 'teams'}" if people.tree.top > 1 else ""
    kind = "numbers to predict" if people.classes is None else f"{people.classes} classes"
    samples = int(found.components.counts[0].sum())
    return (
        f"{people.source}: {people.devices} devices{teams}, {samples:,} training samples, {kind}; model {found.model}"
    )


def _shares(found: Advice) -> list[RenderableType]:
    """Draw what the differences from one common model are made of."""
    shares = found.components.shares
    inner = len(shares) - 2
    names = ["devices of a team" if inner else "devices"]
    names += ["teams" if inner == 1 else f"nodes of tier {tier}" for tier in range(1, inner + 1)]
    names = [f"differences between {name}" for name in names]
    rows = [*zip(names[::-1], shares[-2::-1], strict=True), ("noise within a device", shares[-1])]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="cyan")
    table.add_column(justify="right")
    for name, share in rows:
        table.add_row(Text(f"  {name}"), Text("█" * round(_BAR * share) or "▏"), percent(share))
    return [Text("Why one common model errs:", "bold"), table]


def _families(found: Advice) -> list[RenderableType]:
    """Lay out what every family is predicted to score, or say why nothing is."""
    if found.unforeseen:
        order = ", ".join(LABELS[family] for family in found.ranked)
        like = f"With {STEPS} steps in {STEPS // LOCAL_STEPS} exchanges the order would be: {order}. --try measures it."
        return [Text(f"Predicted {found.score}", "bold"), _indented(found.unforeseen), _indented(like)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("  method", overflow="fold")
    table.add_column(found.score, justify="right")
    table.add_column("90 % interval", justify="right", no_wrap=True)
    table.add_column("")
    for family, one in sorted(found.predictions.items(), key=lambda item: -item[1].score):
        mark = "advised" if family == found.personal.family else ""
        table.add_row(Text(f"  {LABELS[family]}"), f"{one.score:.3f}", f"{one.low:.3f} to {one.high:.3f}", mark)
    about = (
        f"Predicted {found.score} on test samples, for {FEWEST_STEPS:,} to {MOST_STEPS:,} gradient steps on each device"
    )
    first = found.ranked[0] == found.personal.family
    return [Text(about, "bold"), table, *([] if first else [_indented(not_first(found.personal))])]


def _choice(choice: Choice, found: Advice) -> list[RenderableType]:
    one, made = choice.prediction, choice.recipe
    head = Text(f"{_WHO[choice.what]}: ", "bold").append(choice.label, "bold green")
    told = "" if one is None else f" Predicted {found.score}: {one.score:.3f} ({one.low:.3f} to {one.high:.3f})."
    settings = ", ".join(
        f"{key} {_short(value)}"
        for key, value in made.settings.items()
        if found.team is not None or key not in _OF_TEAMS
    )
    return [
        head,
        _indented(f"{choice.why}{told}"),
        _indented(f"{made.algorithm}, {many(made.rounds, 'round')}: {settings}"),
        _indented(f"Read its accuracy in the row {made.model}."),
    ]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{min(value.values()):.4g} to {max(value.values()):.4g} (by samples)"
    if isinstance(value, list | tuple):
        different = list(dict.fromkeys(map(_short, value)))
        return (
            different[0] if len(different) == 1 else ", ".join(different) + " (tier by tier, from the lowest teams up)"
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isinf(value):
        return "inf (the model above as it is)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _losers(found: Advice) -> str:
    if found.personal.family == "local":
        return "Every device trains by itself anyway."
    if not found.losers:
        return (
            "No device can be named that would do better alone; some may, by less than can be told from their samples."
        )
    some = ", ".join(found.losers[:_NAMED])
    more = f" and {len(found.losers) - _NAMED} more" if len(found.losers) > _NAMED else ""
    return f"{len(found.losers)} of {found.population.devices} devices are predicted to do better alone: {some}{more}."


def _costs(found: Advice) -> list[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("  models", overflow="fold")
    table.add_column("link")
    table.add_column("exchanges", justify="right")
    table.add_column("bytes", justify="right")
    for choice in (found.personal, found.team, found.everybody):
        if choice is None:
            continue
        for number, cost in enumerate(choice.costs):
            name = f"  {choice.what}" if number == 0 else ""
            table.add_row(name, Text(cost.link), f"{cost.exchanges:,}", _size(cost.bytes))
        if not choice.costs:
            table.add_row(f"  {choice.what}", "none", "0", _size(0))
    shown: list[RenderableType] = [Text("What it costs in all rounds, if everybody takes part", "bold"), table]
    if finds_pulls(found.personal.recipe) and found.components.directions is not None:
        shown.append(_indented("With the survey in the first round that finds the pulls (lam or gamma auto)."))
    return shown


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
        value /= 1000
    raise AssertionError
