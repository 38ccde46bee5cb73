"""What a theorem asks of a setting, what the user has, and whether it holds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Condition:
    """One condition of a theorem.

    Attributes:
        what: The quantity, in the letters of the settings.
        value: What it is now.
        low: It must be above this ...
        high: ... and at most this.
        source: Where the condition stands.
        diverges: The value from which divergence must be expected, where the condition guards a step size.
        diverges_below: The same where too small a value is the danger.
        theorem: Whether the theorem asks for it; a guard of common sense otherwise.
    """

    what: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    source: str = ""
    diverges: float = math.inf
    diverges_below: float = -math.inf
    theorem: bool = True

    @property
    def divergent(self) -> bool:
        """Whether divergence must be expected."""
        return self.value > self.diverges or self.value < self.diverges_below

    @property
    def holds(self) -> bool:
        """Whether the value lies in the allowed range."""
        return self.low < self.value <= self.high * (1 + 1e-12)

    @property
    def allowed(self) -> str:
        """The allowed range in words."""
        if math.isinf(self.high):
            return f"above {self.low:.4g}"
        return f"at most {self.high:.4g}"


@dataclass(frozen=True)
class Check:
    """A setting held against the theorems of its paper.

    Attributes:
        algorithm: The algorithm's name.
        theorem: The theorem that applies.
        constants: L_f, mu_f and what follows from them.
        conditions: What the theorem asks.
        promise: What the theorem promises where they hold.
        rate: The factor by which it bounds the squared error from round to round, where it promises one.
        largest: The largest allowed value of every step size.
        wanted: Numbers of steps the theorem asks for.
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as ``palmette check --json`` prints it; infinite bounds are left out."""
        rows = [
            {
                "what": one.what,
                "value": one.value,
                **{side: bound for side, bound in (("above", one.low), ("at_most", one.high)) if math.isfinite(bound)},
                "holds": one.holds,
                "diverges": one.divergent,
                "source": one.source,
            }
            for one in self.conditions
        ]
        rest = {name: value for name, value in asdict(self).items() if name != "conditions"}
        return {**rest, "conditions": rows, "holds": self.holds}
