"""How fast runs come near the optimum, beside the bound of their theorem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.permfl import MoreauTree
from palmette.algorithms.sfedhp import SFedHP
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.theory.conditions import Check
from palmette.theory.objectives import Mixed, Sparse, objective_of
from palmette.theory.optimum import check_solvable, minimiser, start_of
from palmette.theory.sparse import Sparsified, outside
from palmette.theory.watches import Accelerated, Coined, Top, Watch


@dataclass(frozen=True)
class Measured:
    """What a theorem bounds, as it was measured after each round, beside the bound.

    Attributes:
        quantity: What was measured.
        first: The round of the first value: 0 where the start counts.
        values: The mean over the runs, round by round.
        runs: The values of each run.
        bound: What the theorem promises, where it does.
        ball: The level that the bound falls to and no further.
        distance: The squared distance to the optimum from the start on, whatever the theorem is about.
        iterations: How many of the theorem's iterations a round has.
        remarks: Why there is no bound, and what to know when reading it.
    """

    quantity: str
    first: int
    values: list[float]
    runs: list[list[float]]
    bound: list[float] | None
    ball: float | None
    distance: list[float]
    iterations: int
    remarks: tuple[str, ...]

    @property
    def rounds(self) -> range:
        """The rounds of the values."""
        return range(self.first, self.first + len(self.values))

    def sentences(self) -> list[str]:
        """Say in words how it went, and what to know."""
        first, last, bound = self.values[0], self.values[-1], self.bound
        said = f"{self.quantity}: {first:.4g} in round {self.first}, {last:.4g} in round {self.rounds[-1]}"
        if bound is not None:
            worst = max(value / limit if limit > 0 else 0.0 for value, limit in zip(self.values, bound, strict=True))
            said += (
                f"; the bound allows {bound[-1]:.4g}, and the measured one is at most {worst:.3g} of it in any round"
            )
            if bound[-1] >= first:
                said += "; the bound is not below the start: so far it promises nothing"
        if self.distance != self.values:
            said += f"; squared distance to the optimum {self.distance[0]:.4g} at the start, {self.distance[-1]:.4g} at the end"
        return [said, *self.remarks]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as ``palmette check --measure --json`` prints it."""
        return {**asdict(self), "rounds": list(self.rounds)}


def measure(simulation: Simulation, checked: Check, *, others: Iterable[Simulation] = ()) -> Measured:
    """Run a simulation to its end and record how near its models come to the optimum.

    Args:
        simulation: A fresh simulation in float64 of an algorithm with a theorem and a convex model.
        checked: What `check` said of it.
        others: The same with other seeds: where luck plays a part, theorems are about the mean, and that of all is taken.
    """
    check_solvable(simulation)
    if checked.constants["mu_f"] <= 0:
        raise BadInput(
            "there may be many optima, or none at a finite distance, as the losses are not strongly convex (mu_f = 0); "
            "an l2 term makes them so, as in --set model.l2=0.1"
        )
    reasons = _outside(simulation, checked)
    watch = _watch(simulation, checked, promised=not reasons)
    lucky = _lucky(simulation)
    runs = [watch.follow(one) for one in chain([simulation], others if lucky else ())]
    values, bounds, distances = ([run[part] for run in runs] for part in range(3))
    method, remarks = simulation.algorithm, list(watch.remarks)
    if lucky:
        over = f"the mean over {len(runs)} seeds" if len(runs) > 1 else "one seed only"
        remarks.append(f"measured: {over}; theorems about luck are about the mean")
    if reasons:
        remarks.append(f"no bound, as the theorem {'; '.join(reasons)}")
    return Measured(
        quantity=watch.quantity,
        first=watch.first,
        values=_mean(values),
        runs=values,
        bound=None if reasons else _mean(bounds),
        ball=watch.ball,
        distance=_mean(distances),
        iterations=method.iterations if isinstance(method, CoinTree | AL2SGD) else 1,
        remarks=tuple(remarks),
    )


def _watch(simulation: Simulation, checked: Check, promised: bool) -> Watch:
    """Choose what is looked at, by what the theorem is about."""
    objective = objective_of(simulation)
    best = minimiser(objective, start_of(simulation, objective))
    if isinstance(objective, Sparse):
        return Sparsified(objective, best, checked, promised)
    if isinstance(objective, Mixed):
        kind = Accelerated if isinstance(simulation.algorithm, AL2SGD) else Coined
        return kind(objective, best, checked, promised)
    return Top(objective, best, checked, promised)


def _lucky(simulation: Simulation) -> bool:
    """Return whether two seeds give two different runs."""
    method = simulation.algorithm
    if isinstance(method, CoinTree | AL2SGD) or method.batch_size != "full":
        return True
    return not _everybody(simulation) or (isinstance(method, SFedHP) and method.edges != "all")


def _everybody(simulation: Simulation) -> bool:
    return all(
        link.participation.kind == "all" and not link.loss and link.absences is None
        for link in simulation.links.values()
    )


def _outside(simulation: Simulation, checked: Check) -> list[str]:
    """Return why the theorem says nothing of these runs: sentences that go on from "the theorem"."""
    method, reasons = simulation.algorithm, []
    if broken := [one for one in checked.conditions if one.theorem and not one.holds]:
        reasons.append("asks for " + ", ".join(f"{one.what} {one.allowed}" for one in broken))
    if not _everybody(simulation):
        reasons.append("has every node take part (participation=all, loss=0)")
    if method.batch_size != "full" and isinstance(method, MoreauTree | CoinTree):
        reasons.append(f"has full gradients (batch_size=full, not {method.batch_size})")
    if isinstance(method, AL2SGD) and method.as_published:
        reasons.append("needs an unbiased estimator (as_published=[])")
    if isinstance(method, SFedHP):
        reasons += outside(method)
    return reasons


def _mean(rows: list[list[float]]) -> list[float]:
    mean: list[float] = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
    return mean
