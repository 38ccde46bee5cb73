"""The contract that every algorithm of Palmette keeps, and what the method is at its two ends."""

import torch
from halfway import Halfway

import palmette as pm
from palmette.testing import contract, regression, simulate

SMALL = {"local_steps": 3, "alpha": 0.1, "batch_size": 5}


def test_it_keeps_the_contract():
    print(contract(Halfway(**SMALL, team_steps=2)))


def test_devices_that_never_move_towards_their_team_train_alone():
    people = regression("2x3")
    alone = simulate(Halfway(**SMALL, team_steps=1, device_mix=0), people, rounds=4)
    local = simulate(pm.Local(alpha=0.1, local_steps=3, batch_size=5), people, rounds=4)
    devices = torch.arange(people.devices)
    assert torch.equal(alone.device_models(devices), local.device_models(devices))


def test_nodes_that_take_over_their_parents_models_are_hierarchical_averaging():
    people = regression("2x3")
    all_the_way = simulate(Halfway(**SMALL, team_steps=2, device_mix=1, team_mix=1), people, rounds=4)
    hierfavg = simulate(pm.HierFAVG(alpha=0.1, local_steps=3, team_steps=2, batch_size=5), people, rounds=4)
    assert torch.equal(all_the_way.models_of(2, torch.arange(1)), hierfavg.models_of(2, torch.arange(1)))
