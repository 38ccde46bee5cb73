"""What one node knows of a tree, and of everything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palmette.algorithms import L2GD, PerMFL
from palmette.engines.setup import setup_of
from palmette.engines.simulate import Simulation
from palmette.population.saved import load_population
from palmette.tree import Tree, view
from problems import regression, task_of

NAMED = {"north": {"a": ["d1", "d2"], "b": ["d3"]}, "south": {"c": ["d4", "d5", "d6"]}}


@pytest.mark.parametrize("what", ["2x3x4", "4x2", NAMED], ids=str)
def test_a_node_knows_those_above_it_and_its_children_by_name_and_address(what: object) -> None:
    tree = Tree.parse(what)
    for tier in range(tree.top):
        for node in range(tree.size(tier)):
            known = view(tree, tier, node)
            assert known.tiers == tree.tiers
            assert [known.size(above) for above in range(tier, tree.tiers)] == [1] * (tree.tiers - tier)
            at = node
            for above in range(tier, tree.tiers):
                assert known.name(above, 0) == tree.name(above, at)
                assert known.addresses[above][0] == tree.addresses[above][at]
                at = int(tree.parents[above][at]) if above < tree.top else 0
            children = list(tree.children(tier, node))
            if tier:
                assert known.names(tier - 1) == [tree.name(tier - 1, child) for child in children]
                assert np.array_equal(known.addresses[tier - 1], tree.addresses[tier - 1][children])


def test_a_node_knows_nobody_beside_it() -> None:
    tree = Tree.parse(NAMED)
    told = " ".join(name for tier in range(tree.tiers) for name in view(tree, 1, 0).names(tier))
    assert "d1" in told
    assert not {"b", "south", "c", "d3", "d4"} & set(told.split())
    assert view(tree, 0, 0).names(0) == ["d1"]


def test_the_server_knows_the_whole_tree() -> None:
    tree = Tree.parse("2x3")
    assert view(tree, 2, 0) is tree


def test_settings_by_name_are_those_of_known_nodes() -> None:
    people = regression({"a": ["d1", "d2"], "b": ["d3", "d4"]})
    method = L2GD(lam={"d1": 1.0, "d2": 2.0, "d3": 3.0, "d4": 4.0}, gamma={"a": 5.0, "b": 6.0})
    whole = Simulation(method, people, task_of(people), rounds=1)
    known = setup_of(whole, 1, 1).algorithm
    assert (known.lam, known.gamma) == ({"d3": 3.0, "d4": 4.0}, {"b": 6.0})
    assert setup_of(whole, 0, 2).algorithm.lam == {"d3": 3.0}


def test_a_device_has_its_own_samples_alone() -> None:
    people = regression([2, 3], unequal=True)
    whole = Simulation(PerMFL(), people, task_of(people), rounds=1)
    setup = setup_of(whole, 0, 3)
    assert setup.learner is not None
    begin, end = people.start[3:5].tolist()
    assert torch.equal(setup.learner.population.x, people.x[begin:end])
    assert [counts.tolist() for counts in setup.samples] == [
        [int(people.train[3])],
        [int(people.train[2:].sum())],
        [int(people.train.sum())],
    ]
    team = setup_of(whole, 1, 1)
    assert team.learner is None
    assert team.samples[0].tolist() == people.train[2:].tolist()
    assert team.below == ((1,), (1,), (1,))


def test_a_population_with_given_addresses_is_saved_with_them(tmp_path: object) -> None:
    from dataclasses import replace
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    people = regression("1x1")
    tree = view(Tree.parse("3x2"), 0, 4)
    replace(people, tree=tree).save(tmp_path / "saved")
    found = load_population(tmp_path / "saved").tree
    assert [one.tolist() for one in found.addresses] == [one.tolist() for one in tree.addresses]
    assert found.names(0) == ["device-4"]
