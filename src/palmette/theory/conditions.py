"""What a theorem asks of a setting, what the user has, and whether it holds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

import numpy as np

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.permfl import MoreauTree
from palmette.engines.simulate import Simulation
from palmette.links.codecs import Codec

_ROUND = 1e-9  # what rounding may change, relatively


@dataclass(frozen=True)
class Condition:
    """One condition of a theorem, on a number or on a word.

    Attributes:
        what: The quantity, in the letters of the settings.
        value: What it is now.
        low: It must be above this ...
        least: ... at least this ...
        high: ... and at most this.
        word: What it must be, where it is a word.
        source: Where the condition stands.
        diverges: The value from which divergence must be expected, where the condition guards a step size.
        diverges_below: The same where too small a value is the danger.
        theorem: Whether the theorem asks for it; a guard of common sense otherwise.
        unknown: Why the limit could not be worked out; such a condition does not hold.
    """

    what: str
    value: float | str
    low: float = -math.inf
    least: float = -math.inf
    high: float = math.inf
    word: str = ""
    source: str = ""
    diverges: float = math.inf
    diverges_below: float = -math.inf
    theorem: bool = True
    unknown: str = ""

    @property
    def divergent(self) -> bool:
        """Whether divergence must be expected."""
        return not isinstance(self.value, str) and (self.value > self.diverges or self.value < self.diverges_below)

    @property
    def holds(self) -> bool:
        """Whether the value lies in the allowed range."""
        if self.unknown:
            return False
        if isinstance(self.value, str):
            return self.value == self.word
        return self.low < self.value and self.least * (1 - _ROUND) <= self.value <= self.high * (1 + _ROUND)

    @property
    def yours(self) -> str:
        """The value in words, rounded so that it stands on the same side of the printed limit as of the limit itself."""
        if isinstance(self.value, str):
            return self.value
        texts = [f"{self.value:.4g}", down(self.value), up(self.value), f"{self.value:.6g}"]
        if self.unknown:
            return texts[0]
        low, high = float(self._low), float(down(self.high))
        return next((text for text in texts if (low <= float(text) <= high) == self.holds), texts[-1])

    @property
    def wish(self) -> str:
        """The condition in words, such as ``eta at most 0.1``."""
        if self.unknown:
            return f"{self.what} large enough"
        return f"{self.what} = {self.word}" if isinstance(self.value, str) else f"{self.what} {self.allowed}"

    @property
    def _low(self) -> str:
        """The smallest allowed value, in words."""
        return up(self.least) if self.least > self.low else up(self.low, strict=True)

    @property
    def allowed(self) -> str:
        """The allowed range in words, rounded inwards: a number that is printed here is allowed."""
        if self.unknown:
            return self.unknown
        if isinstance(self.value, str):
            return self.word
        if self.high < math.inf:
            return f"at most {down(self.high)}"
        return "above 0" if self.low == 0 else f"at least {self._low}"


def down(number: float, digits: int = 4) -> str:
    """Write a number with a few digits, none of which makes it larger."""
    return _rounded(number, digits, ROUND_FLOOR)


def up(number: float, digits: int = 4, *, strict: bool = False) -> str:
    """Write a number with a few digits that make it no smaller; larger, where the limit itself is not allowed."""
    said = _rounded(number, digits, ROUND_CEILING)
    if strict and math.isfinite(number) and float(said) <= number:
        said = _rounded(number + abs(number) * 10.0 ** (1 - digits), digits, ROUND_CEILING)
    return said


def _rounded(number: float, digits: int, rounding: str) -> str:
    if not math.isfinite(number):
        return f"{number}"
    if number == round(number) and abs(number) < 1e15:
        return f"{number:.0f}"  # a whole number stands as it is
    return f"{Context(prec=digits, rounding=rounding).create_decimal(repr(float(number))).normalize():g}"


@dataclass(frozen=True)
class Check:
    """A setting held against the theorems of its paper.

    Attributes:
        algorithm: The algorithm's name.
        theorem: The theorem that applies.
        constants: L_f, mu_f and what follows from them.
        conditions: What the theorem asks.
        promise: What the theorem promises where they hold.
        rate: The factor by which it bounds the squared error from round to round, where it promises one and all hold.
        largest: The largest allowed value of every step size.
        wanted: Numbers of rounds or iterations that follow, where all hold.
        notes: What to know when reading the rest.
    """

    algorithm: str
    theorem: str
    constants: dict[str, float]
    conditions: tuple[Condition, ...]
    promise: str = ""
    rate: float | None = None
    largest: dict[str, float] = field(default_factory=dict)
    wanted: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all conditions hold."""
        return all(condition.holds for condition in self.conditions)

    @property
    def promises(self) -> bool:
        """Whether all that the theorem itself asks for holds."""
        return all(condition.holds for condition in self.conditions if condition.theorem)

    def settled(self) -> Check:
        """Return the same without a rate, and without what follows from one, while a condition of the theorem fails."""
        return self if self.promises else replace(self, rate=None, wanted={})

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as ``palmette check --json`` prints it; infinite bounds are left out."""
        rest = {name: value for name, value in asdict(self).items() if name != "conditions"}
        return {**rest, "conditions": [_row(one) for one in self.conditions], "holds": self.holds}


def _row(one: Condition) -> dict[str, Any]:
    limits = {"above": one.low, "at_least": one.least, "at_most": one.high}
    row: dict[str, Any] = {"what": one.what, "value": one.value}
    row |= {name: limit for name, limit in limits.items() if math.isfinite(limit)}
    row |= {name: text for name, text in (("must_be", one.word), ("unknown", one.unknown)) if text}
    return row | {"holds": one.holds, "diverges": one.divergent, "source": one.source}


def of_the_run(simulation: Simulation, *, batches: bool) -> tuple[Condition, ...]:
    """Return what a theorem asks of a run besides numbers: who takes part, whole gradients, the program of the paper.

    Args:
        simulation: The run.
        batches: Whether the theorem is about mini-batches too.
    """
    method, found = simulation.algorithm, []
    lost = max((link.loss for link in simulation.links.values()), default=0.0)
    if not batches and method.batch_size != "full":
        found.append(Condition("batch_size", f"{method.batch_size}", word="full", source="full-batch gradients"))
    if not everybody(simulation):
        found.append(Condition("participation", "some", word="all", source="every node takes part"))
    if lost:
        found.append(Condition("loss", lost, high=0.0, source="every node takes part"))
    codecs = dict.fromkeys(str(codec) for link in simulation.links.values() for codec in (link.down, link.up))
    asis = str(Codec())
    found += [Condition("codec", one, word=asis, source="messages arrive as sent") for one in codecs if one != asis]
    published = method.as_published if isinstance(method, MoreauTree | AL2SGD) else ()
    if published:
        told = ", ".join(published)
        found.append(Condition("as_published", told, word="[]", source="the theorem is about the corrected program"))
    return tuple(found)


def everybody(simulation: Simulation) -> bool:
    """Return whether every node is asked whenever its parent asks; messages may still be lost."""
    for tier, link in simulation.links.items():
        asked, family = link.participation, int(np.diff(simulation.tree.offsets[tier]).max())
        enough = {"all": True, "fraction": asked.amount == 1}.get(asked.kind, asked.amount >= family)
        if not enough or link.absences is not None or link.faults.drops or link.faults.away is not None:
            return False
    return True
