"""Speed over populations: the same PerMFL rounds from tens of devices to a hundred thousand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from palmette.algorithms import PerMFL
from palmette.bench.engines import Lane
from palmette.bench.measure import Timing, measure, paired, rows
from palmette.bench.workloads import RATE, Case, Workload
from palmette.engines.simulate import Simulation
from palmette.links import Link, Participation
from palmette.protocol.settings import build

SAMPLES = 16  # training samples of each device
REFERENCE = 1_000  # the population that the others are compared with


@dataclass(frozen=True)
class Crowd:
    """A population and how many of it take part at once.

    Attributes:
        teams: Number of teams.
        each: Devices of each team.
        asked: Devices of each team that take part in an exchange.
    """

    teams: int
    each: int
    asked: int

    @property
    def devices(self) -> int:
        """All devices."""
        return self.teams * self.each

    @property
    def participants(self) -> int:
        """Devices that work in one exchange of all teams."""
        return self.teams * self.asked


CROWDS = (
    Crowd(4, 10, 10),
    Crowd(4, 100, 100),
    Crowd(10, 100, 100),
    Crowd(20, 200, 100),
    Crowd(100, 1_000, 20),
)


def scaling(
    crowds: tuple[Crowd, ...],
    timing: Timing,
    clock: Callable[[], float],
    tell: Callable[[Lane, int], None] = lambda lane, repeat: None,
    *,
    team_steps: int = 10,
) -> list[dict[str, Any]]:
    """Return the speed of mclr 60-10 on populations of growing size, on one thread.

    Args:
        crowds: The populations.
        timing: How long and how often to measure.
        clock: What measures time, in seconds.
        tell: As in `palmette.bench.measure.measure`.
        team_steps: Exchanges of every team per round.
    """
    lanes = [_lane(crowd, clock, team_steps) for crowd in crowds]
    trials = measure(lanes, timing, clock, tell)
    rates = [[trial.rate for trial in own] for own in trials]
    base = next((own for crowd, own in zip(crowds, rates, strict=True) if crowd.devices == REFERENCE), None)
    made = []
    for crowd, row, own in zip(crowds, rows("mclr 60-10", lanes, trials), rates, strict=True):
        made.append(
            {
                "devices": crowd.devices,
                "participants": crowd.participants,
                **{key: row[key] for key in ("threads", "device_steps_per_second", "low", "high", "spread", "repeats")},
                "time_ratio_to_1000": paired(base, own),
            }
        )
    return made


def _lane(crowd: Crowd, clock: Callable[[], float], team_steps: int) -> Lane:
    workload = Workload(
        f"{crowd.devices:,} devices", "mclr", (60,), tree=f"{crowd.teams}x{crowd.each}", samples=SAMPLES, tests=1
    )
    case = Case(workload, clock)
    link = Link() if crowd.asked == crowd.each else Link(Participation("count", crowd.asked))
    simulation = Simulation(
        build(PerMFL, "permfl", {"alpha": RATE, "team_steps": team_steps}),
        case.population,
        case.task,
        rounds=1 << 30,
        links={0: link},
        backend="fused",
        threads=1,
    )

    def unit() -> int:
        before = simulation.device_steps
        simulation.step()
        return simulation.device_steps - before

    return Lane(workload.name, 1, unit)
