"""FedPer, FedRep, FedBABU and LG-FedAvg: what is whose, what crosses which link, and the same numbers as by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import palmette as pm
from palmette.algorithms import FedBABU, FedPer, FedRep, LGFedAvg
from palmette.algorithms.own_parts import OwnParts
from palmette.cli.app import app
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.links import Link
from palmette.population import Population
from palmette.task import Task, make_task
from palmette.testing import regression
from problems import Floats

ALPHA = 0.05
KINDS: dict[str, type[OwnParts]] = {kind.name: kind for kind in (FedPer, FedRep, FedBABU, LGFedAvg)}
STEPS: dict[str, dict[str, Any]] = {
    "fedrep": {"head_steps": 2, "local_steps": 1},
    "fedbabu": {"tune_steps": 2, "tune_alpha": ALPHA},
}


def made(name: str, **settings: Any) -> OwnParts:
    given: dict[str, Any] = {"local_steps": 3, "alpha": ALPHA, "batch_size": "full", **STEPS.get(name, {}), **settings}
    return KINDS[name](**given)


def chain(parts: dict[str, Any], layers: int = 2) -> Task:
    """Return layers without bias, of two numbers each and one at the end: easy to differentiate by hand."""
    sizes = [3, *([2] * (layers - 1)), 1]
    generator = torch.Generator().manual_seed(4)
    stack = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(sizes)]
    for layer in stack:
        layer.weight.data = 0.5 * torch.randn(layer.weight.shape, generator=generator)
    return Task(nn.Sequential(*stack), "squared", parts=parts)


def run(method: pm.Algorithm, people: Population, task: Task, rounds: int = 2, **options: Any) -> Simulation:
    simulation = Simulation(method, people, task, rounds=rounds, dtype=torch.float64, **options)
    for _ in range(rounds):
        simulation.step()
    return simulation


# -- by hand -----------------------------------------------------------------------------------------------------------

Weights = list[Floats]


def samples(people: Population, device: int) -> tuple[Floats, Floats]:
    low = int(people.start[device])
    high = low + int(people.train[device])
    return people.x[low:high].numpy(), people.y[low:high].numpy()


def descend(weights: Weights, data: tuple[Floats, Floats], steps: int, learned: list[int]) -> Weights:
    """Take full gradient steps on half the mean squared error, layer by layer."""
    x, y = data
    weights = [weight.copy() for weight in weights]
    for _ in range(steps):
        entering = [x]
        for weight in weights:
            entering.append(entering[-1] @ weight.T)
        slope = (entering[-1] - y[:, None]) / len(x)
        gradients = []
        for weight, before in zip(reversed(weights), reversed(entering[:-1]), strict=True):
            gradients.insert(0, slope.T @ before)
            slope = slope @ weight
        for layer in learned:
            weights[layer] = weights[layer] - ALPHA * gradients[layer]
    return weights


def initial(task: Task) -> Weights:
    return [value.detach().double().numpy() for value in task.module.parameters()]


def flat(weights: Weights) -> Floats:
    return np.concatenate([weight.ravel() for weight in weights])


def by_hand(name: str, people: Population, task: Task, rounds: int) -> tuple[list[Weights], Weights]:
    """Return every device's model and the server's after some rounds, with the last of two layers as the head."""
    own, shared = ([0], [1]) if name == "lg-fedavg" else ([1], [0])
    server = initial(task)
    mine = [initial(task) for _ in range(people.devices)]
    share = people.train.numpy() / people.train.sum().item()
    for _ in range(rounds):
        for device, model in enumerate(mine):
            model[shared[0]] = server[shared[0]]
            if name == "fedrep":
                model = descend(model, samples(people, device), 2, own)
                mine[device] = descend(model, samples(people, device), 1, shared)
            else:
                mine[device] = descend(model, samples(people, device), 3, shared if name == "fedbabu" else [0, 1])
        server[shared[0]] = sum(part * model[shared[0]] for part, model in zip(share, mine, strict=True))
    for device, model in enumerate(mine):
        model[shared[0]] = server[shared[0]]
        if name == "fedbabu":
            mine[device] = descend(server, samples(people, device), 2, [0, 1])
    return mine, server


@pytest.mark.parametrize("name", KINDS)
def test_two_rounds_are_those_done_by_hand(name: str) -> None:
    people, task = regression("3", samples=6, unequal=True), chain({"head": "last(1)"})
    mine, server = by_hand(name, people, task, 2)
    simulation = run(made(name), people, task)
    np.testing.assert_allclose(simulation.device_models(torch.arange(3)), [flat(one) for one in mine], rtol=1e-9)
    np.testing.assert_allclose(simulation.model(), flat(server), rtol=1e-9)


def test_a_neck_is_averaged_in_its_team_and_the_trunk_over_all() -> None:
    people = regression([2, 3], samples=6, unequal=True)
    task = chain({"neck": "1", "head": "last(1)"}, layers=3)
    simulation = run(made("fedper", team_steps=2), people, task)
    weight, teams = people.train.numpy().astype(float), [[0, 1], [2, 3, 4]]
    trunk, _, head = initial(task)
    necks, heads = [initial(task)[1] for _ in teams], [head for _ in range(5)]
    for _ in range(2):
        trunks = []
        for team, members in enumerate(teams):
            here, share = trunk, weight[members] / weight[members].sum()
            for _ in range(2):
                after = [descend([here, necks[team], heads[i]], samples(people, i), 3, [0, 1, 2]) for i in members]
                here, necks[team] = (sum(s * one[k] for s, one in zip(share, after, strict=True)) for k in (0, 1))
                for i, one in zip(members, after, strict=True):
                    heads[i] = one[2]
            trunks.append(here)
        parts = [weight[members].sum() / weight.sum() for members in teams]
        trunk = sum(part * one for part, one in zip(parts, trunks, strict=True))
    models = simulation.device_models(torch.arange(5))
    # A device is asked by its team: its model has the team's trunk, which the server's next message renews.
    expected = [flat([trunks[team], necks[team], heads[i]]) for team, members in enumerate(teams) for i in members]
    np.testing.assert_allclose(models, expected, rtol=1e-9)
    np.testing.assert_allclose(simulation.model()[: trunk.size], trunk.ravel(), rtol=1e-9)


# -- identities --------------------------------------------------------------------------------------------------------


def digits(tree: str = "2x3") -> Population:
    return pm.make_population("digits", tree=tree)


def network(people: Population, **parts: Any) -> Task:
    return make_task("dnn", people.shape, people.classes, hidden=(9, 5), parts=parts)


def both(one: pm.Algorithm, other: pm.Algorithm, people: Population, task: Task) -> tuple[Simulation, Simulation]:
    found = [Simulation(method, people, task, rounds=3) for method in (one, other)]
    for simulation in found:
        for _ in range(3):
            simulation.step()
    return found[0], found[1]


def test_fedper_without_an_own_part_is_fedavg() -> None:
    people = digits()
    one, other = both(FedPer(), pm.FedAvg(), people, network(people, head=[]))
    assert torch.equal(one.model(), other.model())
    assert list(one.ledger.rows()) == list(other.ledger.rows())


def test_fedper_with_everything_its_own_is_local_training() -> None:
    people = digits()
    one, other = both(FedPer(), pm.Local(), people, network(people, head="*"))
    ids = torch.arange(people.devices)
    assert torch.equal(one.device_models(ids), other.device_models(ids))
    assert {entry.bytes_up + entry.bytes_down for entry in one.ledger.entries.values()} == {0}


def test_lg_fedavg_is_fedper_with_the_parts_exchanged() -> None:
    people = digits()
    one = both(FedPer(), LGFedAvg(), people, network(people, head="last(1)"))[1]
    other = both(FedPer(), LGFedAvg(), people, network(people, head="first(2)"))[0]
    ids = torch.arange(people.devices)
    assert torch.equal(one.device_models(ids), other.device_models(ids))


def test_fedbabu_never_moves_its_head() -> None:
    people = digits()
    task = network(people, head="last(1)")
    simulation = both(FedBABU(), FedBABU(), people, task)[0]
    head, body = (task.layout.cut(simulation.model(), part) for part in ("head", "body"))
    assert torch.equal(head, task.layout.cut(task.initial(), "head"))
    assert not torch.equal(body, task.layout.cut(task.initial(), "body"))
    assert list(simulation.kinds) == ["PM", "GM"]
    ids = torch.arange(people.devices)
    tuned = Simulation(FedBABU(tune="head"), people, task, rounds=3)
    tuned.restore(simulation.state())
    for one, moved in ((simulation, True), (tuned, False)):
        bodies = task.layout.cut(one.device_models(ids), "body")
        assert torch.equal(bodies, body.expand_as(bodies)) != moved


# -- traffic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_only_the_shared_part_crosses_the_link(name: str) -> None:
    people = digits()
    task = network(people, head="last(1)")
    simulation = Simulation(KINDS[name](local_steps=12), people, task, rounds=1)
    simulation.step()
    width = task.layout.part("head" if name == "lg-fedavg" else "body").width
    (entry,) = simulation.ledger.entries.values()
    assert (entry.exchanges, entry.bytes_down, entry.bytes_up) == (1, 6 * 4 * width, 6 * 4 * width)


@pytest.mark.parametrize("name", KINDS)
def test_on_a_tree_the_neck_stays_below_the_team(name: str) -> None:
    people = digits("2x2x3")
    task = network(people, neck="3", head="last(1)")
    simulation = Simulation(KINDS[name](local_steps=12, team_steps=2), people, task, rounds=1)
    simulation.step()
    shared, neck = (task.layout.part(part).width for part in ("head" if name == "lg-fedavg" else "body", "neck"))
    found = {
        tier: (entry.exchanges, entry.bytes_down, entry.bytes_up)
        for (_, tier), entry in simulation.ledger.entries.items()
    }
    below = 2 * 2 * 12 * 4 * (shared + neck)  # every region and every team asks twice
    assert found == {1: (16, below, below), 2: (4, 32 * shared, 32 * shared), 3: (1, 8 * shared, 8 * shared)}


# -- who is absent, who is new -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg-fedavg"])
def test_an_absent_device_keeps_its_part_and_a_new_one_fits_the_initial_one(name: str) -> None:
    people = digits()
    task = network(people, head="last(1)")
    own, shared = ("body", "head") if name == "lg-fedavg" else ("head", "body")
    gone = Link(absences=lambda round_, tier, exchange, children: (children == 4) | ((children == 1) & (round_ > 0)))
    method = KINDS[name]()
    simulation = Simulation(method, people, task, rounds=3, links={0: gone})
    simulation.step()
    first = simulation.device_models(torch.arange(people.devices))
    assert simulation.adapt_steps == method.local_steps  # of the device that never trained
    for _ in range(2):
        simulation.step()
    last = simulation.device_models(torch.arange(people.devices))
    mine = task.layout.cut(first, own), task.layout.cut(last, own)
    assert torch.equal(mine[0][1], mine[1][1])
    assert not torch.equal(mine[0][0], mine[1][0])
    assert not torch.equal(mine[1][4], task.layout.cut(task.initial(), own))
    same = task.layout.cut(last, shared)
    assert torch.equal(same, task.layout.cut(simulation.model(), shared).expand_as(same))
    answered = sum(entry.bytes_up for (round_, _), entry in simulation.ledger.entries.items() if round_ == 2)
    assert answered == 4 * 4 * task.layout.part(shared).width


def test_tuning_fits_the_own_part_to_the_newest_body() -> None:
    people = digits()
    task = network(people, head="last(1)")
    plain, tuned = both(FedPer(), FedPer(tune_steps=5), people, task)
    ids = torch.arange(people.devices)
    one, other = plain.device_models(ids), tuned.device_models(ids)
    assert torch.equal(task.layout.cut(one, "body"), task.layout.cut(other, "body"))
    assert not torch.equal(task.layout.cut(one, "head"), task.layout.cut(other, "head"))
    assert (plain.adapt_steps, tuned.adapt_steps) == (0, 30)


# -- what is refused, and how it is used -------------------------------------------------------------------------------


def test_what_cannot_be_cut_in_parts_is_refused() -> None:
    people = digits()
    with pytest.raises(BadInput, match=r"of the model 'mclr' that is all there is to train.*model.parts.head='\*'"):
        pm.run("fedper", people, "mclr", rounds=1)
    with pytest.raises(
        BadInput, match=r"fedper: model.parts.neck names layers that belong to teams, and team_steps = 0"
    ):
        Simulation(FedPer(), people, network(people, neck="3"), rounds=1)
    with pytest.raises(
        BadInput, match=r"fedrep: team_steps = 2 asks for averages in teams, and this tree \(6\) has no"
    ):
        Simulation(FedRep(team_steps=2), digits("6"), network(people), rounds=1)


def test_the_command_line_takes_a_neck_and_says_what_does_not_fit(tmp_path: Path) -> None:
    tree = ["--data", "digits", "--tree", "2x3", "--rounds", "1", "--model", "dnn", "--set", "model.hidden=[8,6]"]
    neck = ["--set", "model.parts.neck=3", "--set", "team_steps=2", "--json", "--out", str(tmp_path / "a")]
    done = CliRunner().invoke(app, ["run", "fedper", *tree, *neck])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["models"]) == {"PM"}
    wrong = CliRunner().invoke(
        app, ["run", "fedper", *tree, "--set", "model.parts.head=[]", *neck[:2], "--out", str(tmp_path / "b")]
    )
    assert wrong.exit_code == 2
    assert "team_steps" in wrong.output


@pytest.mark.parametrize(("name", "momentum"), [("fedrep", 0.0), ("fedbabu", 0.9), ("lg-fedavg", 0.0)])
def test_averaged_statistics_go_where_their_layers_go(name: str, momentum: float) -> None:
    random = np.random.default_rng(3)
    x, y = random.normal(size=(4, 12, 3)).astype(np.float32) + 5, random.integers(0, 2, (4, 12))
    people = Population.from_arrays(list(x), list(y), tree="2x2", test=0.25, classes=2)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 2))
    task = Task(module, buffers="averaged")
    tune = {"tune_steps": 2} if name == "lg-fedavg" else {}
    after = run(made(name, **tune), people, task, optimiser=pm.Optimiser(momentum=momentum))
    before = task.initial(torch.float64)
    running = after.task.layout.cut(after.device_models(torch.arange(4)), "buffers")
    assert not torch.equal(running[0], after.task.layout.cut(before, "buffers"))
    assert (len(running.unique(dim=0)) == 1) == (name == "fedrep")
