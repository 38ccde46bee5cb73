"""Who takes part in an exchange: drawn from the seed and the exchange's address, the same for every algorithm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput
from palmette.values import shown

_WAYS = "write all, 50% (or 0.5), 5 devices (or 5), or 'pass 5'"
_KINDS = {"device": "devices", "team": "teams", "node": "nodes"}


@dataclass(frozen=True)
class Participation:
    """Client sampling: how many of its children a node asks each time (in each exchange).

    Attributes:
        kind: ``"all"``; a ``"fraction"`` (rounded, at least one); a ``"count"`` (all where there are fewer); or a ``"pass"``:
            a count without repetition until every child has taken part once.
        amount: The fraction or the count.
    """

    kind: Literal["all", "fraction", "count", "pass"] = "all"
    amount: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("all", "fraction", "count", "pass"):
            raise BadInput(f"participation must be 'all', 'fraction', 'count' or 'pass', not {self.kind!r}")
        if self.kind == "fraction" and not 0 < self.amount <= 1:
            raise BadInput(f"participation: a fraction must be above 0 and at most 1, not {self.amount}")
        if self.kind in ("count", "pass") and self.amount > 2**31:
            raise BadInput(f"participation: a count may be at most {2**31}, not {shown(self.amount)}")
        if self.kind in ("count", "pass") and not (self.amount >= 1 and self.amount % 1 == 0):
            raise BadInput(f"participation: a count must be a whole number of at least 1, not {self.amount}")

    @staticmethod
    def parse(what: Any, of: str = "") -> Participation:
        """Read who takes part.

        It is written ``"all"``, ``0.5`` or ``"50%"`` (a fraction), ``5`` or ``"5 devices"`` (a count), or ``"pass 5"`` (five at
        a time, each once).

        Args:
            what: What a user wrote.
            of: Whom the link asks, such as ``"devices"``; a count of others is refused.
        """
        if isinstance(what, Participation):
            return what
        if isinstance(what, bool) or not isinstance(what, str | Real):
            raise BadInput(f"participation must be 'all', a fraction, a count or 'pass N', not {shown(what)}")
        if isinstance(what, Integral):
            return Participation("count", int(what))
        if not isinstance(what, str):
            return Participation("fraction", float(what))
        text = what.strip()
        if text == "all":
            return Participation()
        if found := re.fullmatch(r"([0-9]{1,20})(?:\s+(device|team|node)s?)?", text):
            if found[2] and of in _KINDS.values() and _KINDS[found[2]] not in (of, "nodes"):
                raise BadInput(f"participation.{of} = {what!r} counts {_KINDS[found[2]]}; write '{found[1]} {of}'")
            return Participation("count", int(found[1]))
        if re.fullmatch(r"[0-9]*\.[0-9]+|[0-9]+\.|[0-9]+(\.[0-9]+)?e-[0-9]+", text):
            return Participation("fraction", float(text))
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?\s*%", text):
            return Participation("fraction", float(text.rstrip("% ")) / 100)
        if found := re.fullmatch(r"pass[ :]\s*([0-9]{1,20})", text):
            return Participation("pass", int(found[1]))
        raise BadInput(f"cannot read participation {shown(what)}; {_WAYS}")

    @staticmethod
    def ambiguous(what: Any) -> bool:
        """Return whether a user wrote a bare one, which may mean one child or all of them."""
        return (isinstance(what, Integral) and what == 1) or (isinstance(what, str) and what.strip() == "1")

    def share(self, size: float) -> float:
        """Return the part of a parent's children that takes part, where it has so many.

        Args:
            size: How many children the parent has.
        """
        if self.kind == "all":
            return 1.0
        return self.amount if self.kind == "fraction" else min(1.0, self.amount / size)

    def words(self, children: str, whose: str) -> str:
        """Say who takes part.

        Args:
            children: Who they are, such as ``"devices"``.
            whose: Whose they are, such as ``"each team's"``; nothing for the server's.
        """
        if self.kind == "all" or (self.kind == "fraction" and self.amount == 1):
            return f"all {children}"
        count = int(self.amount)
        ones = children.removesuffix("s") if count == 1 and self.kind != "fraction" else children
        if self.kind == "fraction":
            return f"{100 * self.amount:.6g} % of {whose or 'the'} {ones}"
        told = f"{count} of {whose} {children}" if whose else f"{count} {ones}"
        return told if self.kind == "count" else f"{told} at a time until each had a turn"

    def __str__(self) -> str:
        if self.kind == "all":
            return "all"
        if self.kind == "fraction":
            return str(self.amount)
        return (
            f"pass {int(self.amount)}"
            if self.kind == "pass"
            else "1 node"
            if self.amount == 1
            else f"{self.amount:.0f}"
        )

    def draw(
        self, children: Tensor, parents: Tensor, *, seed: int, tier: int, round_: int, exchange: Tensor, turn: Tensor
    ) -> Tensor:
        """Return which children take part (bool).

        Args:
            children: Addresses of the children, parent by parent.
            parents: For each child, the position of its parent.
            seed: The run's seed.
            tier: The parents' tier.
            round_: The round.
            exchange: For each parent, the number of its exchange within the round.
            turn: For each parent, the number of its exchange within the run.
        """
        if self.kind == "all" or not len(children):
            return torch.ones(len(children), dtype=torch.bool)
        size = torch.bincount(parents, minlength=len(exchange))
        if self.kind == "fraction":
            low = torch.zeros_like(size)
            high = torch.round(self.amount * size.double()).to(torch.int64).clamp(min=1)
        else:
            low, high = torch.zeros_like(size), torch.full_like(size, int(self.amount))
        if self.kind == "pass":
            turns = torch.ceil(size / self.amount).to(torch.int64).clamp(min=1)
            low, high = turn % turns * high, (turn % turns + 1) * high
            where = address.mix(address.key(seed, "participation pass", tier), turn // turns)
        else:
            where = address.mix(address.key(seed, "participation", round_, tier), exchange)
        drawn = address.mix(where[parents], children)
        some = _first(drawn, parents, size, high)
        order = some[torch.argsort(drawn[some], stable=True)]
        order = order[torch.argsort(parents[order], stable=True)]
        above = parents[order]
        count = torch.bincount(above, minlength=len(size))
        rank = torch.arange(len(order)) - (torch.cumsum(count, 0) - count)[above]
        chosen = torch.zeros(len(children), dtype=torch.bool)
        chosen[order[(rank >= low[above]) & (rank < high[above])]] = True
        return chosen


def _first(drawn: Tensor, parents: Tensor, size: Tensor, high: Tensor) -> Tensor:
    """Return the positions of some children, every parent's ``high`` with the smallest draws among them.

    Sorting a million children to pick ten thousand would cost more than asking them. Draws are spread evenly, so nearly always
    those below a bound a little above the wanted share are enough; where they are not, all are returned.
    """
    share = (high / size + 6 * torch.sqrt(high.double()) / size + 8 / size).clamp(max=1.0)
    bound = ((share - 0.5) * 2.0**64).clamp(max=float(2**63 - 1024)).to(torch.int64)
    some = (drawn <= bound[parents]).nonzero().squeeze(1)
    enough = torch.bincount(parents[some], minlength=len(size)) >= torch.minimum(size, high)
    return some if bool(enough.all()) else torch.arange(len(drawn))


def described(links: Sequence[Participation]) -> str:
    """Say who takes part on every link, from the devices' up: ``50 % of each team's devices, all teams``."""
    told = []
    for tier, one in enumerate(links):
        children = ("devices", "teams")[tier] if tier < 2 else f"tier-{tier} nodes"
        top = tier == len(links) - 1
        told.append(one.words(children, "" if top else "each team's" if tier == 0 else f"each tier-{tier + 1} node's"))
    return ", ".join(told)
