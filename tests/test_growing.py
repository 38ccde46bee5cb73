"""A training to which a device is added: what each machine is told, and a simulation that goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.algorithms import CFL, MTGC, FedAvg, GroupPerFL, PerMFL
from palmette.engines.growing import check_plan, grown, grown_state
from palmette.engines.setup import Setup, setup_of
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.links import Link
from palmette.links.codecs import Codec
from palmette.links.participation import Participation
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.tree import Tree
from palmette.tree.joining import joined, places
from problems import regression, task_of

DEEP = {"north": {"a": ["d1", "d2"], "b": ["d3"]}, "south": {"c": ["d4", "d5", "d6"]}}
TEAMS = {"a": ["d1", "d2"], "b": ["d3", "d4"]}


def pair(spec: Any, parent: str) -> tuple[Population, Population]:
    """A population, and the same one with one more device."""
    small = Tree.parse(spec)
    tree = joined(small, small.find(1, parent), "new")
    whole = regression([tree.devices], unequal=True)
    whole = replace(whole, tree=tree)
    keep = [number for number in range(tree.devices) if tree.name(0, number) != "new"]
    bounds = [whole.start[number : number + 2].tolist() for number in keep]
    some = [torch.cat([rows[low:high] for low, high in bounds]) for rows in (whole.x, whole.y)]
    start = torch.tensor([0, *np.cumsum([high - low for low, high in bounds])])
    return Population(small, *some, start, whole.train[keep], classes=whole.classes), whole


def simulation(method: Algorithm, people: Population, **more: Any) -> Simulation:
    return Simulation(method, people, task_of(people), rounds=4, chunk=1, dtype=torch.float32, **more)


@pytest.mark.parametrize(
    ("spec", "parent", "method"),
    [(TEAMS, "a", PerMFL()), (DEEP, "b", PerMFL(gamma=[1.5, 1.5])), (["x", "y"], "server", FedAvg())],
)
def test_what_machines_know_after_a_device_came_is_what_they_would_have_been_told(
    spec: Any, parent: str, method: Algorithm
) -> None:
    small, whole = (simulation(method, people) for people in pair(spec, parent))
    before, after, at = small.tree, whole.tree, places(small.tree, whole.tree)
    new = after.find(0, "new")
    samples = int(whole.learner.samples[new])
    path = [int(after.ancestors(tier)[new]) for tier in range(after.tiers)]
    for tier in range(1, before.tiers):
        node = at[tier].index(path[tier])
        children = after.children(tier, path[tier])
        child = None if tier == 1 else path[tier - 1] - children.start
        found: Setup = grown(setup_of(small, tier, node), "new", parent, child, samples)
        wanted = setup_of(whole, tier, path[tier])
        assert found.below == wanted.below
        assert [found.tree.names(one) for one in range(after.tiers)] == [
            wanted.tree.names(one) for one in range(after.tiers)
        ]
        for mine, theirs in ((found.tree.parents, wanted.tree.parents), (found.tree.addresses, wanted.tree.addresses)):
            assert all(np.array_equal(*both) for both in zip(mine, theirs, strict=True))
        assert [counts.tolist() for counts in found.samples] == [counts.tolist() for counts in wanted.samples]


class Away:
    """Lets a device answer from some round on."""

    def __init__(self, number: int, until: int) -> None:
        self.number, self.until = number, until

    def __call__(self, round_: int, tier: int, exchange: Tensor, children: Tensor) -> Tensor:
        return (children == self.number) & (tier == 1) & (round_ < self.until)


@pytest.mark.parametrize("codec", [None, Codec.parse("delta+int8")], ids=["plain", "codecs that remember"])
def test_a_simulation_that_grows_ends_as_one_whose_device_did_not_answer_before(codec: Codec | None) -> None:
    people, more = pair(TEAMS, "a")
    coded = {} if codec is None else {"down": codec, "up": codec}
    given = {"team_steps": 2, "local_steps": 3, "batch_size": 4}  # its means count every reply once, whoever is missing
    links = {0: Link(**coded), 1: Link(**coded)}
    whole = simulation(
        PerMFL(**given), more, links={**links, 0: Link(absences=Away(more.tree.find(0, "new"), 2), **coded)}
    )
    small = simulation(PerMFL(**given), people, links=links)
    for _ in range(2):
        small.step()
    after = simulation(PerMFL(**given), more, links=links)
    after.restore(grown_state(small.state(), small.tree, after.tree))
    for _ in range(2):
        after.step()
    for _ in range(4):
        whole.step()
    for tier, (one, two) in enumerate(zip(whole.stores, after.stores, strict=True)):
        assert torch.equal(one.last, two.last)
        for name in one.rows:
            assert torch.equal(one.rows[name], two.rows[name]), (tier, name)
    assert after.device_steps == whole.device_steps


def test_counts_and_absences_keep_their_nodes() -> None:
    people, more = pair(TEAMS, "a")
    links = {0: Link(participation=Participation("count", 1), loss=0.5)}
    small = simulation(PerMFL(team_steps=3), people, links=links)
    for _ in range(3):
        small.step()
    after = simulation(PerMFL(team_steps=3), more, links=links)
    after.restore(grown_state(small.state(), small.tree, after.tree))
    at = places(small.tree, after.tree)
    for tier, (one, two) in enumerate(zip(small.counters, after.counters, strict=True)):
        assert torch.equal(one.table[1:], two.table[1:, at[tier]])
    table, found = small.record.table(), after.record.table()
    assert len(table) > 2
    names = [
        [tree.name(int(row[1]) - 1, int(row[3])) for row in rows]
        for tree, rows in ((small.tree, table), (after.tree, found))
    ]
    assert names[0] == names[1]
    assert "d3" in names[0] or "d4" in names[0]  # behind the newcomer


@pytest.mark.parametrize(("method", "spec", "parent"), [(CFL(), ["x", "y"], "server")])
def test_methods_that_keep_something_for_each_child_do_not_grow(method: Algorithm, spec: Any, parent: str) -> None:
    people, _ = pair(spec, parent)
    with pytest.raises(
        BadInput, match=f"{method.name} keeps something for each child of a node, so no device can be added"
    ):
        grown(setup_of(simulation(method, people), 1, 0), "new", parent, None, 5)


def test_methods_that_plan_by_the_number_of_devices_do_not_grow() -> None:
    people, _ = pair(TEAMS, "a")
    server = setup_of(simulation(GroupPerFL(clients=1, passes=1, group_passes=1), people), 2, 0)
    after = grown(server, "new", "a", 0, 5)
    with pytest.raises(BadInput, match="groupperfl plans its stages by the number of devices"):
        check_plan(server, after, 30)
    mtgc = setup_of(simulation(MTGC(), people), 2, 0)
    check_plan(mtgc, grown(mtgc, "new", "a", 0, 5), 12)
