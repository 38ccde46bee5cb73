"""Losses that are no accident: a run whose loss has grown beyond all bounds is ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from palmette.engines.evaluation import Scores
from palmette.engines.simulate import Simulation
from palmette.errors import Diverged
from palmette.runs.wording import many

_BLOW_UP = 1e4  # a loss so many times the initial one is no accident


class Bounds:
    """The bounds of the losses of a run.

    Args:
        simulation: What runs.
        warn: Says something to the user.

    Attributes:
        initial: The loss that was measured first; ``None`` before it was.
    """

    def __init__(self, simulation: Simulation, warn: Callable[[str], None]) -> None:
        self._simulation, self._warn = simulation, warn
        self.initial: float | None = None
        self._drops = any(link.faults.drop_bad for link in simulation.links.values())
        self._told = False

    def check(self, scores: Iterable[Scores]) -> None:
        """Refuse losses beyond all bounds; the first ones set the bounds."""
        most = math.inf if self.initial is None else _BLOW_UP * max(1.0, self.initial)
        losses = [self._loss(score, most) for score in scores if float(score.count.sum())]
        if self.initial is None:
            # Of the kind that fares best: one that is adapted by steps far too large is beyond all bounds from the first.
            self.initial = min(losses, default=0.0)
        for loss in losses if self._simulation.round else ():
            if not loss <= most:
                raise Diverged(f"the loss grew to {loss:.3g} after round {self._simulation.round}")

    def _loss(self, score: Scores, most: float) -> float:
        """Return the mean loss; where bad replies are dropped, without single devices that are beyond all bounds."""
        if not self._drops:
            return score.by_samples("loss")
        each = score.per_device("loss")
        if most == math.inf:  # before the first round nobody knows the bounds
            return float(each.nan_to_num(math.inf)[score.count > 0].median())
        fine = each <= most
        bad = (~fine & (score.count > 0)).nonzero().squeeze(1).tolist()
        if not bad or not bool(fine.any()):
            return score.by_samples("loss")
        if not self._told:
            self._told, others = True, f" and {many(len(bad) - 1, 'other')}" if len(bad) > 1 else ""
            self._warn(
                f"the loss of {self._simulation.tree.name(0, bad[0])!r}{others} is beyond all bounds after round "
                f"{self._simulation.round}; the run goes on, because bad replies are dropped, and means of the loss over all "
                "devices have it in them"
            )
        return score.only(fine).by_samples("loss")
