"""What did not enter did not happen: lost, late, damaged and bad replies, nodes that are away, and the record of it all."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from palmette.algorithms import L2GD, FedAvg, Local, PerMFL
from palmette.engines.separate import Separate, ordered
from palmette.engines.simulate import Simulation
from palmette.errors import Diverged
from palmette.links import Faults, Link
from palmette.links.away import Away
from palmette.links.record import REASONS, replay
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Server, State
from palmette.protocol.settings import settings
from palmette.testing import regression, simulate, task_of
from palmette.testing.compared import same_as_separate, same_bits


@settings
class Counting(Algorithm):
    """Every node counts the messages it worked on: the server asks three times in a round, a team twice for each message."""

    name: ClassVar[str] = "counting"
    batch_size: int = 5

    def keeps(self, node: Node, initial: Tensor) -> State:
        return {"model": initial, "seen": initial.new_zeros(1)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        node.gradient(message)
        return message + 1, {"model": message, "seen": state["seen"] + 1}

    def team(self, node: Node, message: Any, state: State) -> Inner:
        for _ in range(2):
            got = yield Ask(message, otherwise=message)
        return got.rows, {"model": message, "seen": state["seen"] + 1}

    def server(self, node: Node, state: State) -> Server:
        for _ in range(3):
            got = yield Ask(state["model"], otherwise=state["model"])
        return {"model": got.rows, "seen": state["seen"] + 1}


TREE = [3, 2, 4]
TROUBLE = {0: Link(faults=Faults(lost=0.2, late=0.1, corrupt=0.1)), 1: Link(faults=Faults(lost=0.3, late=0.1))}


def counts(simulation: Simulation, tier: int) -> list[int]:
    store = simulation.stores[tier]
    ids = torch.arange(store.size)
    return [int(number) for number in store.rows_of("seen", ids).flatten()]


def test_every_node_counts_the_messages_whose_replies_entered_and_those_above_too() -> None:
    rounds, simulation = 6, simulate(Counting(), regression(TREE), 6, links=TROUBLE)
    absent = {tuple(row[:4]) for row in simulation.record.table().tolist()}
    teams, devices = Counter[int](), Counter[int]()
    first = [0, 3, 5, 9]
    for round_ in range(rounds):
        for team in range(3):
            exchange = 0  # of the team: messages of the server that did not enter did not happen
            for asked in range(3):
                if (round_, 2, asked, team) in absent:
                    continue
                teams[team] += 1
                for _ in range(2):
                    for device in range(first[team], first[team + 1]):
                        devices[device] += (round_, 1, exchange, device) not in absent
                    exchange += 1
    assert counts(simulation, 1) == [teams[team] for team in range(3)]
    assert counts(simulation, 0) == [devices[device] for device in range(9)]
    assert sum(teams.values()) < rounds * 3 * 3
    assert counts(simulation, 2) == [rounds]


def test_the_ledger_counts_all_that_did_not_enter_also_below_a_team_that_went_back() -> None:
    simulation = simulate(Counting(), regression(TREE), 6, links=TROUBLE)
    missing = simulation.ledger.totals()[1].missing
    recorded = Counter(REASONS[row[4]] for row in simulation.record.table().tolist() if row[1] == 1)
    assert set(missing) == set(recorded) == {"lost", "late", "corrupt"}
    assert all(missing[reason] > recorded[reason] for reason in recorded)
    upper = Counter(REASONS[row[4]] for row in simulation.record.table().tolist() if row[1] == 2)
    assert simulation.ledger.totals()[2].missing == dict(upper)


def test_steps_of_replies_that_did_not_enter_are_counted_as_wasted() -> None:
    simulation = simulate(Counting(), regression(TREE), 6, links=TROUBLE)
    assert simulation.device_steps == 6 * 3 * 2 * 9
    assert simulation.device_steps - simulation.wasted_steps == sum(counts(simulation, 0))
    assert simulate(Counting(), regression(TREE), 2).wasted_steps == 0


def test_a_run_goes_on_from_a_state_with_its_record_and_its_wasted_steps() -> None:
    whole = simulate(Counting(), regression(TREE), 6, links=TROUBLE)
    stopped = simulate(Counting(), regression(TREE), 6, links=TROUBLE, stop=3)
    resumed = simulate(Counting(), regression(TREE), 6, links=TROUBLE, stop=0)
    resumed.restore(stopped.state())
    for _ in range(3):
        resumed.step()
    same_bits(whole, resumed)
    assert torch.equal(whole.record.table(), resumed.record.table())
    assert whole.wasted_steps == resumed.wasted_steps > 0


@pytest.mark.parametrize("tree", ["2x2x3", pytest.param("2x2x2x2", marks=pytest.mark.slow)])
def test_nodes_of_deep_trees_go_back_with_those_above_them(tree: str) -> None:
    people = regression(tree)
    links = {tier: TROUBLE[min(tier, 1)] for tier in range(people.tree.top)}
    stacked = simulate(Counting(), people, 3, links=links, dtype=torch.float32, chunk=1)
    with Separate(Simulation(Counting(), people, task_of(people), rounds=3, links=links)) as federation:
        for _ in range(3):
            federation.step()
    federation.settle()
    same_as_separate(federation.machines, stacked)
    record = ordered(stacked.record.table())
    assert torch.equal(record, federation.record)
    again = {tier: Link(absences=replay(record)) for tier in links}
    other = simulate(Counting(), people, 3, links=again, dtype=torch.float32, chunk=1)
    assert [counts(other, tier) for tier in range(3)] == [counts(stacked, tier) for tier in range(3)]


def test_l2gd_with_lost_replies_is_l2gd_in_which_they_were_never_asked() -> None:
    method, people = L2GD(iterations=30, lam=0.5, gamma=0.2), regression([3, 3], unequal=True)
    lossy = simulate(method, people, 4, links=TROUBLE, chunk=1)
    again = {tier: Link(absences=replay(lossy.record.table())) for tier in (0, 1)}
    other = simulate(method, people, 4, links=again, chunk=1)
    assert len(lossy.record.table()) > 4
    for one, two in zip(lossy.stores, other.stores, strict=True):
        assert all(torch.equal(one.rows[name], two.rows[name]) for name in one.initial)
    assert not torch.equal(lossy.model(), simulate(method, people, 4).model())


# -- bad replies ---------------------------------------------------------------------------------------------------------


def poisoned(device: int) -> Any:
    """Least squares in which one device has a sample that is no number."""
    people = regression("2x2")
    people.x[int(people.start[device])] = float("nan")
    return people


METHOD = PerMFL(team_steps=2, local_steps=2, batch_size="full")


def test_the_first_reply_that_is_not_finite_ends_the_run_and_names_its_device() -> None:
    with pytest.raises(Diverged, match="'device-2'"):
        simulate(METHOD, poisoned(2), 1)
    with pytest.raises(Diverged, match="'device-2'"), Separate(_untrained(METHOD, poisoned(2))) as federation:
        federation.step()


def _untrained(method: Algorithm, people: Any, **options: Any) -> Simulation:
    return Simulation(method, people, task_of(people), rounds=2, **options)


def test_bad_replies_are_dropped_where_the_user_wants_that() -> None:
    links = {0: Link(faults=Faults(drop_bad=True))}
    simulation = simulate(METHOD, poisoned(2), 2, links=links)
    assert simulation.ledger.totals()[1].missing == {"not finite": 4}
    assert simulation.stores[0].last.tolist() == [1, 1, -1, 1]
    without = simulate(METHOD, poisoned(2), 2, links={0: Link(absences=lambda *where: where[3] == 2)})
    assert torch.equal(simulation.model(), without.model())


def test_a_device_that_replies_nothing_and_keeps_no_numbers_is_dropped_too() -> None:
    people, links = poisoned(1), {0: Link(faults=Faults(drop_bad=True))}
    stacked = simulate(Local(local_steps=2, batch_size="full"), people, 2, links=links, dtype=torch.float32, chunk=1)
    assert stacked.stores[0].last.tolist() == [1, -1, 1, 1]
    method = Local(local_steps=2, batch_size="full")
    with Separate(_untrained(method, people, links=links)) as federation:
        for _ in range(2):
            federation.step()
    federation.settle()
    same_as_separate(federation.machines, stacked)
    with pytest.raises(Diverged, match="'device-1'"):
        simulate(method, people, 1)


@settings
class Spoilt(FedAvg):
    """Keeps no number in the second device, whose reply is one."""

    name: ClassVar[str] = "spoilt"

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        second = torch.tensor([node.tree.name(0, number) == "device-1" for number in node.ids.tolist()])
        bad = torch.where(second[:, None], torch.nan, message)
        return message, {"model": bad}

    def keeps(self, node: Node, initial: Tensor) -> State:
        return {"model": initial}


def test_what_a_device_keeps_must_be_finite_too() -> None:
    with pytest.raises(Diverged, match=r"'device-1' .* is no longer finite in round 1"):
        simulate(Spoilt(), regression("3"), 1)
    links = {0: Link(faults=Faults(drop_bad=True))}
    people = regression("3")
    stacked = simulate(Spoilt(), people, 2, links=links, dtype=torch.float32, chunk=1)
    assert stacked.stores[0].last.tolist() == [1, -1, 1]
    assert stacked.ledger.totals()[1].missing == {"not finite": 2}
    with Separate(_untrained(Spoilt(), people, links=links)) as federation:
        for _ in range(2):
            federation.step()
    federation.settle()
    same_as_separate(federation.machines, stacked)


def test_nobody_sees_a_bad_reply_that_is_lost() -> None:
    gone = Link(faults=Faults(lost=0.999999))
    simulate(METHOD, poisoned(2), 1, links={0: gone})


# -- who is away ---------------------------------------------------------------------------------------------------------


def test_nodes_of_a_table_are_away_in_its_rounds() -> None:
    away = Away.parse([["device-1", 2, 4], ["device-3", 1, 2]], "away")
    simulation = simulate(FedAvg(local_steps=1), regression("4"), 5, links={0: Link(faults=Faults(away=away))})
    rows = [(row[0] + 1, row[3], REASONS[row[4]]) for row in simulation.record.table().tolist()]
    assert rows == [(1, 3, "away"), (2, 1, "away"), (3, 1, "away")]


def test_periods_are_each_nodes_own_or_all_the_same() -> None:
    people = regression("40")
    own = Link(faults=Faults(away=Away.parse("2/6", "away")))
    record = simulate(FedAvg(local_steps=1), people, 12, links={0: own}).record.table()
    assert Counter(record[:, 3].tolist()) == dict.fromkeys(range(40), 4)
    assert len(set(Counter(record[:, 0].tolist()).values())) > 1
    together = Link(faults=Faults(away=Away.parse("2/6 together", "away")))
    record = simulate(FedAvg(local_steps=1), people, 12, links={0: together}).record.table()
    assert Counter(record[:, 0].tolist()) == {0: 40, 1: 40, 6: 40, 7: 40}


def test_a_team_that_is_away_takes_its_devices_along() -> None:
    away = Link(faults=Faults(away=Away.parse([["team-1", 1, 3]], "away")))
    simulation = simulate(METHOD, regression([2, 2]), 3, links={1: away}, stop=2)
    assert simulation.stores[0].last.tolist() == [1, 1, -1, -1]
    simulation.step()
    assert simulation.stores[0].last.tolist() == [2, 2, 2, 2]


def test_chances_have_their_rates_and_do_not_follow_each_other() -> None:
    link = Link(faults=Faults(lost=0.3, late=0.2))
    record = simulate(FedAvg(local_steps=1), regression("400"), 5, links={0: link}).record.table()
    share = Counter(REASONS[reason] for reason in record[:, 4].tolist())
    assert share["lost"] / 2000 == pytest.approx(0.3, abs=0.04)
    assert share["late"] / 2000 == pytest.approx(0.2 * 0.7, abs=0.03)


def test_replies_that_come_twice_are_counted_and_change_nothing() -> None:
    people, twice = regression("8"), {0: Link(faults=Faults(repeated=0.5))}
    simulation = simulate(FedAvg(local_steps=1), people, 5, links=twice)
    assert 5 < simulation.ledger.totals()[1].repeated < 35
    assert torch.equal(simulation.model(), simulate(FedAvg(local_steps=1), people, 5).model())
    assert len(simulation.record.table()) == 0


def test_a_damaged_reply_is_told_by_its_checksum_on_separate_nodes() -> None:
    people = regression("4")
    with Separate(_untrained(FedAvg(local_steps=1), people)) as federation:
        child = federation.workers[2]
        good = child.parent.put
        broken = lambda mail: good((mail[0], mail[1][:-1] + b"?"))  # noqa: E731
        child.parent = type("Broken", (), {"put": staticmethod(broken)})()  # type: ignore[assignment]
        federation.step()
        child.parent = federation.server.children.returns
        federation.step()
    assert federation.server.ledger.entries[0, 1].missing == {"corrupt": 1}
    assert federation.server.ledger.entries[1, 1].missing == {}
    assert child.machine.took_part


def test_what_nobody_asked_for_takes_nobodys_place() -> None:
    people = regression(TREE)
    stacked = simulate(Counting(), people, 1, dtype=torch.float32, chunk=1)
    with Separate(_untrained(Counting(), people)) as federation:
        for machine in federation.machines[1]:
            machine.children.returns.put((99, b"no message"))
        federation.step()
    federation.settle()
    same_as_separate(federation.machines, stacked)
