"""The links and the clock of a run, as a config says them: codecs, faults, deadlines, who is away, how long all takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from palmette.errors import BadInput, nearest
from palmette.links import Faults, Link, Participation
from palmette.links.amounts import Amount
from palmette.links.away import Away
from palmette.links.clock import Line, Pace
from palmette.links.codecs import Codec
from palmette.links.record import Absences
from palmette.protocol.settings import NUMBER
from palmette.runs.sections import Part
from palmette.tree import Tree

ALL = "all"  # the name of the settings of all links
Chance = Annotated[float, Field(ge=0, lt=1), NUMBER]
Number = Annotated[float, NUMBER] | str | list[Any] | dict[str, Annotated[float, NUMBER]]
"""A number, or a text or a table that gives each node its own; see `Amount`."""
_CODECS = ("codec", "codec_down", "codec_up")
_FAULTS = ("lost", "late", "corrupt", "repeated", "deadline", "away", "away_unit", "on_bad_reply")
_STEP = 0.01  # seconds of a gradient step where a clock runs and nobody says how long one takes


class LinkConfig(Part):
    """One link, the connections between two tiers: how messages are encoded, how long they take, and what goes wrong.

    Attributes:
        codec: Compression (codec) of models on this link: none, or float16, bfloat16, int8 (with error feedback), "top 1%",
            mask, delta, zstd, joined by +, as in "delta+int8".
        codec_down: Compression of messages to the children, where it is another than codec.
        codec_up: Compression of replies, where it is another than codec.
        lost: Chance that a reply is lost on its way. As with all replies that do not enter, its sender goes on as if it had
            never been asked.
        late: Chance that a reply comes when its parent has gone on without it.
        corrupt: Chance that a reply arrives damaged; the checksum tells and it is dropped.
        repeated: Chance that a message and its reply arrive twice; the copies change nothing.
        deadline: Deadline in seconds of the simulated clock, after which a parent goes on without those that have not
            answered (stragglers); by default it waits for all.
        away: Availability trace: when nodes are away. "8/24" is 8 of every 24 rounds, each node at a time of its own, "8/24
            together" all at once, "night" is 8/24; or rows [node, from, to], or a CSV file with the columns node, from, to.
        away_unit: What away counts: "rounds" (from 1; "to" is the first round after it) or "seconds" of the clock.
        on_bad_reply: What to do with a reply that is not finite (NaN or infinite): "stop" the run, or "drop" the reply.
        latency: Seconds that a message takes at least, each way: a number, "lognormal MEDIAN SIGMA" or "uniform LOW HIGH"
            (drawn for each node; with "each" at the end anew in every exchange), a table of names and numbers, or a CSV file
            with the columns node, value and, where it changes, from (the first round, from 1). Nodes that a table leaves out
            have 0.
        bandwidth: Bytes a second, written in the same ways; 0 for no limit.
    """

    codec: str | None = None
    codec_down: str | None = None
    codec_up: str | None = None
    lost: Chance | None = None
    late: Chance | None = None
    corrupt: Chance | None = None
    repeated: Chance | None = None
    deadline: Annotated[float, Field(gt=0, lt=1e9), NUMBER] | None = None
    away: str | list[list[str | float]] | None = None
    away_unit: Literal["rounds", "seconds"] | None = None
    on_bad_reply: Literal["stop", "drop"] | None = None
    latency: Number | None = None
    bandwidth: Number | None = None

    @property
    def timed(self) -> bool:
        """Whether it asks for a clock."""
        given = (self.deadline, self.latency, self.bandwidth)
        return any(one is not None for one in given) or self.away_unit == "seconds"

    def over(self, other: LinkConfig) -> LinkConfig:
        """Return these settings, and another link's where these say nothing."""
        hidden = {"codec_down", "codec_up"} if self.codec is not None else set()  # both ways are said already
        return LinkConfig(**{word: value for word, value in _said(other).items() if word not in hidden} | _said(self))

    def make(self, name: str, participation: Participation, loss: float) -> Link:
        """Make the link.

        Args:
            name: How its settings begin, for errors.
            participation: Who is asked.
            loss: Chance that a node that was asked does not answer.
        """
        away = None if self.away is None else Away.parse(self.away, f"{name}.away", self.away_unit or "rounds")
        if self.away_unit is not None and away is None:
            raise BadInput(
                f"{name}.away_unit says what {name}.away counts, which is not there; set it, or leave both out"
            )
        given = {"lost": self.lost, "late": self.late, "corrupt": self.corrupt, "repeated": self.repeated}
        faults = Faults(
            **{word: chance or 0.0 for word, chance in given.items()},
            deadline=self.deadline,
            away=away,
            drop_bad=self.on_bad_reply == "drop",
        )
        line = Line(
            Amount.parse(0.0 if self.latency is None else self.latency, f"{name}.latency"),
            Amount.parse(0.0 if self.bandwidth is None else self.bandwidth, f"{name}.bandwidth"),
        )
        down, up = (self._codec(way, name) for way in ("codec_down", "codec_up"))
        return Link(participation, loss, faults=faults, down=down, up=up, line=line)

    def _codec(self, way: str, name: str) -> Codec:
        word = way if getattr(self, way) is not None else "codec"
        said = getattr(self, word)
        try:
            return Codec.parse("none" if said is None else said)
        except BadInput as error:
            raise BadInput(f"{name}.{word}: {error}") from None

    def written(self, name: str) -> LinkConfig:
        """Return the settings as a run keeps them: what stood in files is written out."""
        link = self.make(name, Participation(), 0.0)
        told: dict[str, Any] = {}
        if self.away is not None and link.faults.away is not None:
            told["away"] = link.faults.away.written
        for word, amount in (("latency", link.line.latency), ("bandwidth", link.line.bandwidth)):
            if getattr(self, word) is not None:
                told[word] = amount.written
        return self.model_copy(update=told)


class ClockConfig(Part):
    """A simulated clock, which tells how long a run would take on real devices and networks.

    Attributes:
        step: Seconds of one gradient step of a device of speed 1; 0.01 where another setting asks for a clock.
        speeds: Speed of the devices: a number, "lognormal 1 0.5", "uniform 0.5 2", a table of names and numbers, or a CSV
            file with the columns node and value; a device of speed 2 takes half the time.
        preset: Named set of a clock and links: "edge" has devices of different speeds and links to the teams that are ten
            times as fast as the link to the server (0.01 s and 10 MB a second against 0.1 s and 1 MB a second).
    """

    step: Annotated[float, Field(ge=0, lt=1e6), NUMBER] | None = None
    speeds: Number | None = None
    preset: Literal["edge"] | None = None

    def make(self, *, asked: bool) -> Pace | None:
        """Make the pace of the devices; nothing where nobody asks for a clock."""
        if not (asked or self.step is not None or self.speeds is not None or self.preset is not None):
            return None
        speeds = self.speeds if self.speeds is not None else "lognormal 1 0.5" if self.preset == "edge" else 1.0
        return Pace(_STEP if self.step is None else self.step, Amount.parse(speeds, "clock.speeds", least=1e-9))

    def written(self) -> ClockConfig:
        """Return the settings as a run keeps them: what stood in a file is written out."""
        pace = self.make(asked=False)
        if pace is None or self.speeds is None:
            return self
        return self.model_copy(update={"speeds": pace.speeds.written})


def _said(one: LinkConfig) -> dict[str, Any]:
    return {name: value for name, value in one if value is not None}


def link_names(tree: Tree) -> dict[str, int]:
    """Return what the links of a tree are called, after the nodes at their lower end, each with the tier of these."""
    names = {"devices": 0, "teams": 1} | {f"tier{tier}": tier for tier in range(2, tree.top)}
    return {name: tier for name, tier in names.items() if tier < tree.top}


def preset_links(tree: Tree, preset: str | None) -> dict[int, LinkConfig]:
    """Return what a preset of the clock says of the links of a tree."""
    if preset is None:
        return {}
    fast, slow = LinkConfig(latency=0.01, bandwidth=1e7), LinkConfig(latency=0.1, bandwidth=1e6)
    return {tier: slow if tier == tree.top - 1 else fast for tier in range(tree.top)}


def check_links(links: Mapping[str, LinkConfig], clock: ClockConfig) -> Iterator[str]:
    """Yield what is wrong with the settings of links that can be seen without a tree."""
    for name, link in links.items():
        try:
            link.make(f"links.{name}", Participation(), 0.0)
        except BadInput as error:
            yield str(error)
    try:
        clock.make(asked=False)
    except BadInput as error:
        yield str(error)


def make_links(
    tree: Tree,
    links: Mapping[str, LinkConfig],
    clock: ClockConfig,
    participation: Mapping[str, str | int | float],
    loss: float,
    absences: Absences | None = None,
    *,
    flat: bool = False,
) -> dict[int, Link]:
    """Make the links of a tree.

    The only link of a method without teams goes from the devices to the server: who is asked, faults and availability are
    those of the devices' link; latency, bandwidth and, where the devices' link has none, the codec those of the top one.

    Args:
        tree: The population's tree.
        links: Settings by the name of a link; those under ``all`` hold for every link that says nothing itself.
        clock: Its preset says something of links, too.
        participation: Who is asked, by the name of the link.
        loss: Chance that a node that was asked does not answer.
        absences: Who is absent, in place of all faults: for a run that repeats another.
        flat: Whether the method does without teams.
    """
    names = link_names(tree)
    for group, given in (("participation", participation), ("links", links)):
        for name in given:
            if name not in names and not (group == "links" and name == ALL):
                told = "to ask" if group == "participation" else "whose link could be set"
                raise BadInput(f"{group}: this tree ({tree}) has no {name!r} {told}{nearest(name, [*names, ALL])}")
    drawn = _participation(tree, names, participation, flat=flat)
    preset, every = preset_links(tree, clock.preset), links.get(ALL, LinkConfig())
    made = {}
    for name, tier in names.items():
        mine = links.get(name, LinkConfig()).over(every)
        settings = mine.over(preset.get(tier, LinkConfig()))
        if flat and tier == 0 and tree.top > 1:
            top = links.get(next(reversed(names)), LinkConfig()).over(every)
            far = top.over(preset.get(tree.top - 1, LinkConfig()))
            codecs = {word: getattr(mine if any(_said(mine).keys() & set(_CODECS)) else top, word) for word in _CODECS}
            line = {word: _of_devices(getattr(far, word), tree, f"links.{word}") for word in ("latency", "bandwidth")}
            settings = settings.model_copy(update={**line, **codecs})
        link = settings.make(f"links.{name}", drawn.get(tier, Participation()), loss)
        _check_nodes(link, tree.flat() if flat and tier == 0 else tree, tier, links.get(name, LinkConfig()), name)
        made[tier] = link if absences is None else _replayed(link, absences)
    return made


def _of_devices(number: Number | None, tree: Tree, name: str) -> Number | None:
    """Return numbers of the nodes below the server as those of the devices below each of them."""
    amount = Amount() if number is None else Amount.parse(number, name)
    if amount.kind != "table":
        return number
    tree.check_names(tree.top - 1, {node for node, _, _ in amount.rows}, name, every=False)
    above = tree.ancestors(tree.top - 1)
    return [
        [tree.name(0, int(device)), begin, value]
        for node, begin, value in amount.rows
        for device in np.flatnonzero(above == tree.find(tree.top - 1, node))
    ]


def _replayed(link: Link, absences: Absences) -> Link:
    """Return a link that loses those of a record and nobody else; what moves the clock stays."""
    timed = Faults(deadline=link.faults.deadline, away=link.faults.away)
    return replace(link, loss=0.0, absences=absences, faults=timed)


def unused(
    links: Mapping[str, LinkConfig], loss: float, names: Mapping[str, int], *, flat: bool, again: bool
) -> list[str]:
    """Return the settings of links that a run has no use for, by their names.

    Args:
        links: Settings by the name of a link.
        loss: Chance that a node that was asked does not answer.
        names: The links that there are, each with the tier at its lower end.
        flat: Whether the method does without teams, and so has one link.
        again: Whether the run repeats who was absent from another, and loses nobody by itself.
    """
    left = ["loss"] if again and loss else []
    top = max(names.values())
    for name, link in links.items():
        said, tier = {word for word, value in _said(link).items() if value != 0}, names.get(name)
        gone = said & (set(_FAULTS) - {"deadline"}) if again else set()
        if flat and top and tier is not None:
            # Of the devices' link who answers, of the top one how messages travel.
            hidden = set(_CODECS) if _said(links.get("devices", LinkConfig())).keys() & set(_CODECS) else set()
            above = said if tier < top else said & (set(_FAULTS) | hidden)
            gone |= said & {"latency", "bandwidth"} if tier == 0 else above
        left += [f"links.{name}.{word}" for word in link.__class__.model_fields if word in gone]
    return left


def named(given: Any) -> Any:
    """Refuse settings of a link that do not say of which one."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if name in LinkConfig.model_fields and not isinstance(value, Mapping):
            raise ValueError(f"given link by link: write links.{ALL}.{name} for every link, or links.devices.{name}")
    return given


def _check_nodes(link: Link, tree: Tree, tier: int, own: LinkConfig, name: str) -> None:
    """Refuse names that are not at the link's lower end, under the name that the user wrote them."""
    given = {"away": link.faults.away, "latency": link.line.latency, "bandwidth": link.line.bandwidth}
    for word, value in given.items():
        if value is not None:
            value.check(tree, tier, f"links.{ALL if getattr(own, word) is None else name}.{word}")


def _participation(
    tree: Tree, names: Mapping[str, int], given: Mapping[str, str | int | float], *, flat: bool
) -> dict[int, Participation]:
    for name, value in given.items():
        used = {"devices": tree.devices} if flat else {name: int(np.diff(tree.offsets[names[name]]).max())}
        if Participation.ambiguous(value) and used.get(name, 1) > 1:
            raise BadInput(
                f"participation.{name} = {value!r} may mean one of {used[name]} {name} or all of them; "
                f"write '1 {name.removesuffix('s') if names[name] < 2 else 'node'}' or '100%'"
            )
    return {names[name]: Participation.parse(value, name) for name, value in given.items()}
