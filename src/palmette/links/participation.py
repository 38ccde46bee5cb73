"""Who takes part in an exchange: drawn from the seed and the exchange's address, the same for every algorithm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from palmette import address
from palmette.errors import BadInput


@dataclass(frozen=True)
class Participation:
    """How many of a parent's children take part in each of its exchanges.

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
            raise BadInput(f"participation: a count may be at most {2**31}, not {self.amount:g}")
        if self.kind in ("count", "pass") and not (self.amount >= 1 and self.amount % 1 == 0):
            raise BadInput(f"participation: a count must be a whole number of at least 1, not {self.amount}")

    @staticmethod
    def parse(what: Participation | str | int | float) -> Participation:
        """Read ``"all"``, ``0.5`` or ``"50%"`` (a fraction), ``5`` (a count), ``"pass 5"`` (five at a time, each once)."""
        if isinstance(what, Participation):
            return what
        if isinstance(what, bool) or not isinstance(what, (str, int, float)):
            raise BadInput(f"participation must be 'all', a fraction, a count or 'pass N', not {what!r}")
        if isinstance(what, int):
            return Participation("count", what)
        if isinstance(what, float):
            return Participation("fraction", what)
        text = what.strip()
        if text == "all":
            return Participation()
        if re.fullmatch(r"\d+", text):
            return Participation("count", int(text))
        if re.fullmatch(r"\d*\.\d+|\d+\.|\d+(\.\d+)?e-\d+", text):
            return Participation("fraction", float(text))
        if re.fullmatch(r"\d+(\.\d+)?\s*%", text):
            return Participation("fraction", float(text.rstrip("% ")) / 100)
        if found := re.fullmatch(r"pass[ :]\s*(\d+)", text):
            return Participation("pass", int(found[1]))
        raise BadInput(f"cannot read participation {what!r}; write all, 0.5, 50%, 5 or 'pass 5'")

    def __str__(self) -> str:
        if self.kind == "all":
            return "all"
        return str(self.amount) if self.kind == "fraction" else f"{'pass ' * (self.kind == 'pass')}{int(self.amount)}"

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
