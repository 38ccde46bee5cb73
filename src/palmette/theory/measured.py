"""How fast runs come near the optimum, beside the bound of their theorem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch

from palmette.algorithms.al2sgd import AL2SGD
from palmette.algorithms.l2gd import CoinTree
from palmette.algorithms.sfedhp import SFedHP
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.theory.conditions import Check, everybody
from palmette.theory.objectives import Mixed, Sparse, objective_of
from palmette.theory.optimum import check_solvable, minimiser, start_of
from palmette.theory.sparse import Sparsified, no_bound
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
        resolution: How far the optimum that distances are taken to may itself be off, squared: less cannot be told.
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
    resolution: float
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
            pairs = zip(self.values, bound, strict=True)
            worst = max((value / limit for value, limit in pairs if limit > self.resolution), default=0.0)
            said += (
                f"; the bound allows {bound[-1]:.4g}, and the measured one is at most {worst:.3g} of it in any round"
            )
            if bound[-1] <= self.resolution:
                said += f" where it is above {self.resolution:.1e}, the accuracy to which the optimum is known"
            if bound[-1] >= first:
                said += "; so far the bound is not below the value at the start, so it promises nothing yet"
        if self.distance != self.values:
            said += f"; squared distance to the optimum {self.distance[0]:.4g} at the start, {self.distance[-1]:.4g} at the end"
        return [said, *self.remarks]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as ``palmette check --measure --json`` prints it."""
        return {**asdict(self), "rounds": list(self.rounds)}


def measure(
    simulation: Simulation,
    checked: Check,
    *,
    others: Iterable[Simulation] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Run a simulation to its end and record how near its models come to the optimum.

    Args:
        simulation: A fresh simulation in float64 of an algorithm with a theorem and a convex model.
        checked: What `check` said of it.
        others: The same with other seeds: where a run is random the theorem bounds the average, and that of all is taken.
        tell: Is given sentences on how far it is.
    """
    check_solvable(simulation)
    if checked.constants["mu_f"] <= 0:
        raise BadInput(
            "there may be many optima, or none at a finite distance, as the losses are not strongly convex (mu_f = 0); "
            "an l2 term makes them so, as in --set model.l2=0.1"
        )
    broken = [one for one in checked.conditions if one.theorem and not one.holds]
    method, lucky = simulation.algorithm, _lucky(simulation)
    unknown = no_bound(method, checked.constants) if isinstance(method, SFedHP) and not broken else ""
    promised = not broken and not unknown
    watch = _watch(simulation, checked, promised, tell)
    runs = [watch.follow(one, tell) for one in chain([simulation], others if lucky else ())]
    values, bounds, distances = ([run[part] for run in runs] for part in range(3))
    remarks = list(watch.remarks)
    if lucky:
        over = f"the mean over {len(runs)} seeds" if len(runs) > 1 else "one seed only"
        remarks.append(f"measured: {over}; the theorem bounds the average over random runs")
    if broken:
        remarks.append(f"there is no bound, as the theorem needs {', '.join(one.wish for one in broken)}")
    if unknown:
        remarks.append(f"the bound cannot be computed: {unknown}")
    return Measured(
        quantity=watch.quantity,
        first=watch.first,
        values=_mean(values),
        runs=values,
        bound=_mean(bounds) if promised else None,
        ball=watch.ball,
        distance=_mean(distances),
        iterations=method.iterations if isinstance(method, CoinTree | AL2SGD) else 1,
        resolution=watch.resolution,
        remarks=tuple(remarks),
    )


def _watch(simulation: Simulation, checked: Check, promised: bool, tell: Callable[[str], None]) -> Watch:
    """Choose what is looked at, by what the theorem is about."""
    objective = objective_of(simulation)
    best = minimiser(objective, start_of(simulation, objective), tell=tell)
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
    if not everybody(simulation) or any(link.loss for link in simulation.links.values()):
        return True
    return isinstance(method, SFedHP) and method.edges != "all"


def _mean(rows: list[list[float]]) -> list[float]:
    mean: list[float] = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
    return mean
