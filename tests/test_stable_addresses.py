"""Nodes come and go, and the others notice nothing: random numbers are addressed by a node's own name or place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from palmette.algorithms import algorithm
from palmette.engines.simulate import Simulation
from palmette.links import Link, Participation
from palmette.population import Population
from palmette.task import make_task
from palmette.tree import Tree


def people(teams: dict[str, list[str]] | list[int]) -> Population:
    """A population whose devices' samples depend on their names, or on their place in their team."""
    tree, xs, ys = Tree.parse(teams), [], []
    for device in range(tree.devices):
        own = int(tree.addresses[0][device]) & 0xFFFFFFFF
        generator = np.random.default_rng(own)
        xs.append(generator.normal(size=(17, 3)))
        ys.append(generator.normal(size=17))
    return Population.from_arrays(xs, ys, tree=tree)


def run(population: Population, participation: str) -> Simulation:
    """FedAvg inside each team, with some devices left out, some lost and dropout in the model."""
    links = {0: Link(Participation.parse(participation), loss=0.2)}
    method = algorithm("hierfavg", global_every=0, team_steps=3, local_steps=4, batch_size=5)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, 0.3)
    task = make_task(module, (3,), None)
    simulation = Simulation(method, population, task, rounds=3, seed=1, links=links, chunk=1)
    for _ in range(3):
        simulation.step()
    return simulation


GROWN: list[tuple[Any, Any, list[int], list[int]]] = [
    # before, after; the devices of the team that stays, before and after
    ({"a": ["a1", "a2"], "b": list("wxyz")}, {"a": ["a1", "new", "a2"], "b": list("wxyz")}, [2, 3, 4, 5], [3, 4, 5, 6]),
    ({"a": ["a1", "a2"], "b": list("wxyz")}, {"new": ["n"], "b": list("wxyz")}, [2, 3, 4, 5], [1, 2, 3, 4]),
    ([3, 5, 2], [4, 5, 2], [3, 4, 5, 6, 7], [4, 5, 6, 7, 8]),
]


@pytest.mark.parametrize("participation", ["0.5", "2", "pass 2"])
@pytest.mark.parametrize(("before", "after", "old", "new"), GROWN)
def test_a_device_more_in_one_team_changes_nothing_in_another(
    before: Any, after: Any, old: list[int], new: list[int], participation: str
) -> None:
    one, other = run(people(before), participation), run(people(after), participation)
    assert one.stores[0].last[old].tolist() == other.stores[0].last[new].tolist()
    assert torch.equal(one.stores[1].rows["model"][1], other.stores[1].rows["model"][1])


def test_a_named_device_keeps_its_split_when_others_come() -> None:
    x, y = np.arange(40.0)[:, None], np.arange(40) + 0.5
    alone = Population.from_arrays(x[20:], y[20:], device=np.repeat("mine", 20))
    among = Population.from_arrays(x, y, device=np.repeat(["other", "mine"], 20))
    assert torch.equal(alone.x[: int(alone.train[0])], among.x[20 : 20 + int(among.train[1])])


def test_flat_methods_meet_the_luck_of_tiered_ones() -> None:
    tree = Tree.parse({"a": ["d1", "d2"], "b": ["d3"]})
    assert np.array_equal(tree.addresses[0], tree.flat().addresses[0])
    numbered = Tree.parse([3, 5])
    assert np.array_equal(numbered.addresses[0], numbered.flat().addresses[0])


@pytest.mark.parametrize("spec", ["4x10", [3, 5, 2], "2x3x4", 7, {"a": ["d1", "d2"], "b": ["d3"]}])
def test_addresses_differ_within_a_tier(spec: Any) -> None:
    tree = Tree.parse(spec)
    for tier in range(tree.tiers):
        assert len(np.unique(tree.addresses[tier])) == tree.size(tier)


def test_addresses_are_pinned_because_changing_them_would_change_every_run() -> None:
    first = [-6411193824288604561, -5511663747979980962, 5095610196844313600, 3982070227906906278]
    assert Tree.parse("2x2").addresses[0].tolist() == first
    assert Tree.parse(["oslo", "lima"]).addresses[0].tolist() == [-7847428591599638242, 4647299146530414209]
