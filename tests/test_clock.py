"""The simulated clock: pinned times on trees small enough to do by hand, deadlines, and asynchronous averaging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from palmette.algorithms import FedAvg, FedBuff, HierFAVG, PerMFL
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError
from palmette.links import Faults, Link, Participation
from palmette.links.amounts import Amount
from palmette.links.away import Away
from palmette.links.clock import Line, Pace
from palmette.links.record import replay
from palmette.testing import regression, simulate

ROW = 3 * 8  # bytes of a model of three numbers in double precision


def line(latency: Any = 0.0, bandwidth: Any = 0.0) -> Line:
    return Line(Amount.parse(latency, "latency"), Amount.parse(bandwidth, "bandwidth"))


def pace(step: float, speeds: Any = 1.0) -> Pace:
    return Pace(step, Amount.parse(speeds, "speeds"))


UNEQUAL = {"device-0": 1.0, "device-1": 2.0}
LINES = {0: Link(line=line(0.5, ROW)), 1: Link(line=line(1.0))}
METHOD = PerMFL(team_steps=1, local_steps=3, batch_size="full")


def test_a_round_takes_the_slowest_devices_steps_and_every_way_there_and_back() -> None:
    simulation = simulate(METHOD, regression("1x2"), 1, links=LINES, pace=pace(0.1, UNEQUAL))
    # 1 s to the team, 1.5 s to the devices, 0.3 s for the slower one's three steps, and the same ways back
    assert simulation.time == pytest.approx(1 + 1.5 + 0.3 + 1.5 + 1, abs=1e-9)
    assert simulation.counters[0].time.tolist() == [2_800_000_000, 2_650_000_000]
    assert simulation.counters[1].time.tolist() == [4_300_000_000]
    assert [row["time"] for row in simulation.ledger.rows()] == [4_300_000_000, 5_300_000_000]


def test_rounds_follow_each_other_on_the_clock() -> None:
    simulation = simulate(METHOD, regression("1x2"), 3, links=LINES, pace=pace(0.1, UNEQUAL))
    assert simulation.time == pytest.approx(3 * 5.3, abs=1e-9)


def test_after_a_deadline_a_parent_goes_on_without_those_that_have_not_answered() -> None:
    links = {0: Link(line=line(0.5, ROW), faults=Faults(deadline=3.2)), 1: Link(line=line(1.0))}
    simulation = simulate(METHOD, regression("1x2"), 1, links=links, pace=pace(0.1, UNEQUAL))
    # The slower device would be there after 3.3 s, the faster one after 3.15 s.
    assert simulation.stores[0].last.tolist() == [-1, 0]
    assert simulation.counters[1].time.tolist() == [1_000_000_000 + 3_200_000_000]
    assert simulation.ledger.totals()[1].missing == {"late": 1}
    alone = simulate(METHOD, regression("1x2"), 1, links={0: Link(absences=lambda *where: where[3] == 0)})
    assert torch.equal(simulation.model(), alone.model())


def test_a_deadline_that_all_meet_costs_nothing() -> None:
    links = {0: Link(line=line(0.5, ROW), faults=Faults(deadline=3.4)), 1: Link(line=line(1.0))}
    simulation = simulate(METHOD, regression("1x2"), 1, links=links, pace=pace(0.1, UNEQUAL))
    assert simulation.time == pytest.approx(5.3, abs=1e-9)


def test_teams_have_times_of_their_own_between_two_messages_of_the_server() -> None:
    method = HierFAVG(team_steps=2, local_steps=1, batch_size="full")
    simulation = simulate(method, regression([1, 1]), 1, pace=pace(1.0, {"device-0": 1.0, "device-1": 4.0}))
    assert simulation.counters[1].time.tolist() == [2_000_000_000, 500_000_000]
    assert simulation.time == 2.0


def test_time_changes_no_model() -> None:
    clocked = simulate(METHOD, regression([2, 3]), 3, links=LINES, pace=pace(0.1, "lognormal 1 1"))
    assert torch.equal(clocked.model(), simulate(METHOD, regression([2, 3]), 3).model())


def test_work_without_a_message_takes_no_time_on_the_link() -> None:
    method = HierFAVG(team_steps=1, local_steps=2, batch_size="full", global_every=0)
    simulation = simulate(method, regression("1x1"), 2, links={1: Link(line=line(5.0))}, pace=pace(1.0))
    # The model goes down in the first round alone, and nothing ever comes up.
    assert simulation.time == 5.0 + 2.0 + 2.0


@pytest.mark.parametrize("each", ["", " each"])
def test_speeds_are_a_nodes_own_and_drawn_anew_where_that_is_wanted(each: str) -> None:
    simulation = simulate(FedAvg(local_steps=1), regression("4"), 1, pace=pace(1.0, f"lognormal 1 0.5{each}"), seed=3)
    first = simulation.counters[0].time.clone()
    simulation.step()
    second = simulation.counters[0].time - int(simulation.ledger.entries[0, 1].time)
    assert len(set(first.tolist())) == 4
    assert torch.equal(first, second) == (each == "")


# -- asynchronous averaging --------------------------------------------------------------------------------------------

ASYNC = {"local_steps": 1, "alpha": 0.1, "batch_size": "full"}


def gradient(simulation: Simulation, device: int, row: NDArray[np.float64]) -> NDArray[np.float64]:
    """The gradient of a device's loss, by hand."""
    people = simulation.population
    first = int(people.start[device])
    some = slice(first, first + int(people.train[device]))
    x, y = people.x[some].numpy(), people.y[some].numpy()
    return x.T @ (x @ row - y) / len(y)


def test_fedbuff_moves_by_whoever_ends_first_and_scales_down_what_is_old() -> None:
    people = regression("2")
    simulation = simulate(
        FedBuff(buffer=1, **ASYNC), people, 4, pace=pace(1.0, {"device-0": 1.0, "device-1": 3.0}), stop=0
    )
    expected = simulation.model().numpy().copy()
    begun = expected.copy()  # device 0 works on the first model for one second
    for _ in range(3):  # device 1 comes round three times in that second
        simulation.step()
        expected = expected - 0.1 * gradient(simulation, 1, expected)
        np.testing.assert_allclose(simulation.model(), expected, rtol=1e-12)
    assert simulation.time == pytest.approx(0.999999999, abs=1e-12)
    simulation.step()  # three moves since: its update counts a half
    np.testing.assert_allclose(
        simulation.model(), expected - 0.1 * gradient(simulation, 0, begun) / np.sqrt(1 + 3), rtol=1e-12
    )
    assert simulation.time == 1.0
    assert simulation.counters[0].due.gt(0).tolist() == [False, True]


def test_fedbuff_that_waits_for_everybody_is_hierarchical_averaging_with_equal_weights() -> None:
    people = regression([3, 2, 4], unequal=True)
    given: dict[str, Any] = {"team_steps": 3, "local_steps": 4, "batch_size": "full"}
    one = simulate(FedBuff(buffer=9, team_buffer=9, **given), people, 4)
    other = simulate(HierFAVG(weights="equal", **given), people, 4)
    torch.testing.assert_close(one.model(), other.model(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.team_models(), other.team_models(), rtol=1e-12, atol=1e-12)


def test_those_at_work_are_not_asked_again() -> None:
    people, slow = regression("3"), {"device-0": 0.01, "device-1": 1.0, "device-2": 1.0}
    simulation = simulate(FedBuff(buffer=2, **ASYNC), people, 5, pace=pace(1.0, slow))
    assert simulation.stores[0].last.tolist() == [0, 4, 4]
    assert simulation.device_steps == 1 + 5 * 2
    assert simulation.time == 5.0


def test_without_a_clock_chance_decides_who_ends_first() -> None:
    counts = torch.zeros(6)
    simulation = simulate(FedBuff(buffer=1, **ASYNC), regression("6"), 40, stop=0)
    for _ in range(40):
        before = simulation.counters[0].due.clone()
        simulation.step()
        counts += ((simulation.counters[0].due == 0) & (before >= 0)).float()
    assert simulation.time == 0.0
    assert counts.min() >= 1


def test_an_update_that_is_lost_on_its_way_is_fetched_again() -> None:
    lost = Link(absences=lambda round_, tier, exchange, children: (exchange % 2 == 1) & (children == 0) & (round_ == 0))
    simulation = simulate(FedBuff(buffer=2, **ASYNC), regression("2"), 2, links={0: lost}, stop=1)
    assert simulation.counters[0].due.tolist() == [1, 0]
    waiting = simulation.stores[0].rows["update"][0].clone()
    assert waiting.abs().max() > 0
    simulation.step()
    assert torch.equal(simulation.stores[0].rows["update"][0], waiting)
    assert simulation.counters[0].due.tolist() == [0, 0]


def test_participation_draws_among_those_that_are_not_at_work() -> None:
    links = {0: Link(Participation("count", 1))}
    slow = {f"device-{number}": 1.0 for number in range(4)}
    simulation = simulate(FedBuff(buffer=1, **ASYNC), regression("4"), 6, links=links, pace=pace(1.0, slow))
    assert simulation.device_steps == 6
    assert simulation.time == 6.0


# -- who is away, and how far the clock goes -----------------------------------------------------------------------------


def away(*rows: tuple[str, float, float]) -> Faults:
    return Faults(away=Away(rows=rows, unit="seconds"))


def test_where_all_are_away_time_moves_on_to_the_first_that_is_back() -> None:
    links = {0: Link(faults=away(("device-0", 0, 5), ("device-1", 0, 7)))}
    simulation = simulate(METHOD, regression("1x2"), 3, links=links, pace=pace(0.1))
    assert simulation.stores[0].last.tolist() == [2, -1]
    # Nobody in the first round; then the first device alone, three steps a round, from the fifth second on.
    assert simulation.time == pytest.approx(5 + 2 * 0.3, abs=1e-6)
    again = {0: Link(absences=replay(simulation.record.table()), faults=links[0].faults)}
    assert simulate(METHOD, regression("1x2"), 3, links=again, pace=pace(0.1)).time == simulation.time


def test_periods_by_the_clock_end_too() -> None:
    night = Faults(away=Away(off=2.0, period=10.0, together=True, unit="seconds"))
    simulation = simulate(METHOD, regression("1x2"), 2, links={0: Link(faults=night)}, pace=pace(0.1))
    assert simulation.time == pytest.approx(2.3, abs=1e-6)


def test_one_who_does_not_wait_has_no_deadline() -> None:
    links = {0: Link(faults=Faults(deadline=0.25)), 1: Link(faults=Faults(deadline=1.0))}
    method = FedBuff(team_steps=2, local_steps=3, buffer=2, team_buffer=1, batch_size="full")
    simulation = simulate(method, regression("1x2"), 3, links=links, pace=pace(0.1))
    # Three steps take 0.3 s: the first fetch of every update ends 0.05 s too early, the second waits for these.
    assert simulation.ledger.totals()[1].missing == {"late": 2 * 3}
    assert simulation.time == pytest.approx(3 * 0.3, abs=1e-6)
    assert simulation.stores[0].last.tolist() == [2, 2]


@pytest.mark.parametrize("seconds", [1e9, 1e10, 1e300])
def test_a_clock_that_cannot_count_further_says_so(seconds: float) -> None:
    with pytest.raises(PalmetteError, match="a century has passed on the simulated clock"):
        simulate(METHOD, regression("1x2"), 40, links={0: Link(line=line(seconds))}, pace=pace(0.1))
