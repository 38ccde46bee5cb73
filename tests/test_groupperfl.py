"""The GroupPerFL family: Adam at the server, passes, stages, the choice of rates, and what groups are worth."""

from __future__ import annotations

import dataclasses
import math
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from palmette.algorithms import algorithm
from palmette.algorithms.groupperfl import FL, GroupFL, GroupPerFL, PerFL, Staged
from palmette.blocks.passes import Cost, Plan
from palmette.blocks.server_optimisers import FedAdam
from palmette.engines.evaluation import evaluate
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.learner import Epochs
from palmette.links import Link
from palmette.population import Population, make_population
from palmette.population.partition import Dirichlet, Few
from palmette.protocol import Device
from palmette.task import make_task
from palmette.tree import Tree
from problems import quadratics, regression, simulate, task_of

FULL: dict[str, Any] = {"batch_size": "full", "alpha": 0.2, "server_lr": 0.05, "group_lr": 0.03}


# -- Adam at the server ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 1e-2])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-13), (torch.float32, 5e-7)])
def test_fedadam_as_in_flsim_is_torchs_adam_on_the_pseudo_gradient(
    decay: float, dtype: torch.dtype, near: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(2, 7, generator=generator, dtype=dtype)
    block, model = FedAdam(0.05, "flsim", decay), start
    moments = block.start(start)
    wanted = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([wanted], lr=0.05, weight_decay=decay)
    for _ in range(12):
        gradient = torch.randn(2, 7, generator=generator, dtype=dtype)
        model, moments = block.step(model, moments, gradient, torch.tensor([True, True]))
        wanted.grad = gradient
        optimiser.step()
    torch.testing.assert_close(model, wanted.detach(), atol=near, rtol=0)


def test_fedadam_as_in_reddi_by_hand() -> None:
    """m = 0.1 g, v = 0.99e-6 + 0.01 g^2, x - lr m / (sqrt v + 1e-3), and no bias correction."""
    block = FedAdam(0.1, "reddi")
    x = torch.tensor([[1.0]], dtype=torch.float64)
    moments = block.start(x)
    on = torch.tensor([True])
    m, v, expected = 0.0, 1e-6, 1.0
    for g in (0.5, -0.2, 0.1):
        x, moments = block.step(x, moments, torch.tensor([[g]], dtype=torch.float64), on)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        expected -= 0.1 * m / (math.sqrt(v) + 1e-3)
        assert x.item() == pytest.approx(expected, abs=1e-14)


def test_a_server_that_nobody_answered_takes_no_step() -> None:
    block = FedAdam(0.1)
    x = torch.ones(2, 3)
    model, moments = block.step(x, block.start(x), torch.ones(2, 3), torch.tensor([True, False]))
    assert not torch.equal(model[0], x[0])
    assert torch.equal(model[1], x[1])
    assert moments["steps"].tolist() == [[1.0], [0.0]]
    assert bool((moments["first"][1] == 0).all())


@pytest.mark.parametrize(("silent", "tier"), [(1, 2), (5, 1)], ids=["stage 1", "stage 2"])
def test_a_round_in_which_nobody_answers_moves_no_model_and_no_moment(silent: int, tier: int) -> None:
    population = regression([3, 2])
    gone = Link(absences=lambda round_, at, exchange, children: torch.full((len(children),), round_ == silent))
    method = GroupFL(passes=4, group_passes=3, batch_size="full", weight_decay=0.5)
    before, after = (simulate(method, population, 7, links={0: gone}, stop=stop) for stop in (silent, silent + 1))
    for name, rows in before.stores[tier].rows.items():
        assert torch.equal(rows, after.stores[tier].rows[name]), name
    assert bool((after.stores[tier].rows["steps"] > 0).all())


# -- by hand -----------------------------------------------------------------------------------------------------------


class ByHand:
    """Stages 1 and 2 with torch's Adam and plain loops: all clients, one full-batch step each."""

    def __init__(self, population: Population) -> None:
        self.forms = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in quadratics(population)]
        self.samples = population.train.double()

    def fit(self, x: Tensor, devices: list[int], rounds: int, lr: float) -> Tensor:
        model = torch.nn.Parameter(x.clone())
        optimiser = torch.optim.Adam([model], lr=lr, weight_decay=1e-5)
        for _ in range(rounds):
            moved = [0.2 * (a @ model.detach() - b) for a, b in (self.forms[j] for j in devices)]
            weight = self.samples[devices] / self.samples[devices].sum()
            model.grad = (weight[:, None] * torch.stack(moved)).sum(0)
            optimiser.step()
        return model.detach()


def test_stages_one_and_two_by_hand() -> None:
    population = regression([3, 2, 4], unequal=True)
    hand = ByHand(population)
    method = GroupFL(passes=4, group_passes=3, **FULL)
    assert method.plan(population.tree) == Plan(4, (3, 3, 3), 1, (1, 1, 1))
    simulation = simulate(method, population, 7, held_out=0.0)
    x = hand.fit(torch.zeros(3, dtype=torch.float64), list(range(9)), 4, 0.05)
    torch.testing.assert_close(simulation.model(), x, atol=1e-12, rtol=0)
    groups = [hand.fit(x, list(population.tree.children(1, i)), 3, 0.03) for i in range(3)]
    torch.testing.assert_close(simulation.team_models(), torch.stack(groups), atol=1e-12, rtol=0)


def test_the_first_stage_of_every_method_is_the_same_bit_for_bit() -> None:
    population = regression([3, 2, 4], unequal=True)
    given: dict[str, Any] = {"passes": 2, "group_passes": 1, "clients": 4, "batch_size": 5}
    first = FL(**given).plan(population.tree).first
    assert first == 6
    runs = []
    for kind in (FL, PerFL, GroupFL, GroupPerFL):
        method = kind(**given)
        total = method.plan(population.tree).rounds
        simulation = Simulation(method, population, task_of(population), rounds=total)
        for _ in range(total):
            simulation.step()
        runs.append(simulation.model())  # stage 2 leaves it alone
    assert all(torch.equal(runs[0], other) for other in runs[1:])


# -- passes ------------------------------------------------------------------------------------------------------------


def participants(method: FL | GroupFL, population: Population, rounds: int) -> list[list[int]]:
    """Return who took part in each round."""
    seen: dict[int, list[int]] = {}

    def note(round_: int, tier: int, exchange: Tensor, children: Tensor) -> Tensor:
        seen.setdefault(round_, []).extend(children.tolist())
        return torch.zeros(len(children), dtype=torch.bool)

    simulate(method, population, rounds, links={0: Link(absences=note)})
    return [sorted(seen.get(round_, [])) for round_ in range(rounds)]


def test_a_pass_draws_everybody_once_from_all_clients_and_not_team_by_team() -> None:
    population = regression([3, 2, 4, 6])
    method = FL(passes=3, clients=4, **FULL)
    rounds = method.plan(population.tree).rounds
    assert rounds == 3 * 4
    drawn = participants(method, population, rounds)
    passes = [drawn[i : i + 4] for i in range(0, 12, 4)]
    for one in passes:
        assert [len(some) for some in one] == [4, 4, 4, 3]
        assert sorted(chain(*one)) == list(range(15))
    assert passes[0] != passes[1] != passes[2]
    owner = population.tree.parents[0]
    shares = {tuple(sorted(owner[some].tolist())) for some in drawn}
    assert len(shares) > 4  # a draw team by team would always have the same shares


def test_group_passes_draw_every_client_of_a_group_once_and_small_groups_end_early() -> None:
    population = regression([2, 5])
    method = GroupFL(passes=1, group_passes=2, clients=2, **FULL)
    plan = method.plan(population.tree)
    assert (plan.first, plan.groups, plan.rounds) == (4, (2, 6), 10)
    drawn = participants(method, population, plan.rounds)[4:]
    assert [[j for j in some if j < 2] for some in drawn] == [[0, 1], [0, 1], [], [], [], []]
    big = [[j for j in some if j >= 2] for some in drawn]
    assert [len(some) for some in big] == [2, 2, 1, 2, 2, 1]
    assert sorted(chain(*big[:3])) == sorted(chain(*big[3:])) == [2, 3, 4, 5, 6]


def test_a_run_of_another_length_shares_its_rounds_between_the_stages() -> None:
    plan = Plan(20, (10, 4))
    assert plan.within(30) == plan
    assert plan.within(15) == Plan(10, (5, 2))
    assert plan.within(2) == Plan(1, (1, 1))
    assert plan.within(1) == Plan(1, (0, 0))  # no round is left for stage 2
    assert Plan(20, ()).within(7) == Plan(7, ())


def test_table_four_of_the_paper() -> None:
    """Its 3,990 model transfers have 93 rounds per group pass where 9,178 owners make 92: ours is 3,980."""
    tree = Tree.parse([9178, 5905, 103, 28, 12, 11, 6])
    made = [algorithm(name, preset="published") for name in ("fl", "perfl", "groupfl", "groupperfl")]
    costs = {method.name: method.cost(tree, 0) for method in made if isinstance(method, Staged)}
    assert costs == {
        "fl": Cost(3060, 20, 20),
        "perfl": Cost(3060, 20, 25),
        "groupfl": Cost(3980, 30, 30),
        "groupperfl": Cost(3980, 30, 35),
    }


# -- what crosses ------------------------------------------------------------------------------------------------------


def test_stage_two_crosses_the_upper_link_once_and_stage_three_crosses_nothing() -> None:
    population = regression([3, 2, 4])
    simulation = simulate(GroupPerFL(passes=2, group_passes=3, **FULL), population, 5, held_out=0.2)
    upper = {round_: entry for (round_, tier), entry in simulation.ledger.entries.items() if tier == 2}
    row = 3 * 8
    drawn = 9 * 8  # the addresses of the nine clients whose turn it is
    assert [upper[r].bytes_down for r in range(5)] == [3 * (row + drawn), 3 * (row + drawn), 3 * row, 0, 0]
    assert [upper[r].bytes_up for r in range(5)] == [3 * (row + 8), 3 * (row + 8), 0, 0, 0]
    before = list(simulation.ledger.rows())
    simulation.device_models(torch.arange(9))
    assert list(simulation.ledger.rows()) == before


def test_a_group_that_missed_the_global_model_gets_it_later_and_starts_from_it() -> None:
    population = regression([3, 3])
    lost = Link(absences=lambda round_, tier, exchange, children: (children == 1) & (round_ == 2))
    method = GroupFL(passes=2, group_passes=3, **FULL)
    cut = simulate(method, population, 5, links={1: lost}, held_out=0.0)
    x = cut.model()
    hand = ByHand(population)
    teams = cut.team_models()
    assert teams is not None
    torch.testing.assert_close(teams[0], hand.fit(x, [0, 1, 2], 3, 0.03), atol=1e-12, rtol=0)
    torch.testing.assert_close(teams[1], hand.fit(x, [3, 4, 5], 2, 0.03), atol=1e-12, rtol=0)


# -- stage three -------------------------------------------------------------------------------------------------------


def digits(samples: int = 8, seed: int = 0) -> Population:
    """Rotated digits: distinct groups, few samples on each device."""
    partition = Few(samples, Dirichlet(alpha=1.0, within="team"))
    return make_population("digits", tree="4x10", shift="rotate", partition=partition, seed=seed)


def test_each_client_keeps_the_rate_that_does_best_on_what_it_held_out() -> None:
    population = digits(16)
    method = GroupPerFL(passes=4, group_passes=4)
    task = make_task("mclr", population.shape, population.classes)
    simulation = simulate(method, population, 8, task, held_out=0.25, dtype=torch.float32)
    ids = torch.arange(40)
    chosen = simulation.device_models(ids)
    teams = simulation.team_models()
    assert teams is not None
    parents = teams[torch.from_numpy(population.tree.parents[0])]
    device = Device(simulation.learner, torch.full_like(ids, 1 << 40), simulation.tree, ids, **simulation._where())
    picks = [device.descend(parents, steps=Epochs(5), lr=rate) for rate in method.rates]
    loss = torch.stack([device.loss(rows, split="held-out") for rows in picks])
    best = loss.argmin(0)
    assert len(best.unique()) > 1  # clients do differ
    torch.testing.assert_close(chosen, torch.stack(picks)[best, ids])


def test_a_rate_that_diverges_is_never_chosen() -> None:
    population = regression([2, 2])
    method = PerFL(passes=1, rates=(1e300, 0.01), **FULL)
    for held_out in (0.0, 0.2):
        simulation = simulate(method, population, 1, held_out=held_out)
        assert bool(simulation.device_models(torch.arange(4)).isfinite().all())


def test_no_stage_looks_at_test_data() -> None:
    population = digits(16)
    task = make_task("mclr", population.shape, population.classes)
    poisoned = population.x.double().clone()
    for i in range(40):
        poisoned[int(population.start[i] + population.train[i]) : int(population.start[i + 1])] = math.nan
    clean = dataclasses.replace(population, x=population.x.double())
    dirty = dataclasses.replace(population, x=poisoned)
    models = []
    for people in (clean, dirty):
        simulation = simulate(GroupPerFL(passes=2, group_passes=2), people, 4, task, held_out=0.25)
        models.append(simulation.device_models(torch.arange(40)))
    assert torch.equal(*models)


def test_without_held_out_samples_the_training_loss_decides() -> None:
    population = regression([2, 2], dimension=2)
    method = PerFL(passes=1, rates=(1e-9, 0.3), tune_epochs=20, **FULL)
    simulation = simulate(method, population, 1, held_out=0.0)
    moved = simulation.device_models(torch.arange(4)) - simulation.model()
    assert bool((moved.norm(dim=1) > 0.01).all())


# -- what groups are worth ---------------------------------------------------------------------------------------------


def test_groups_help_where_they_differ_and_devices_have_few_samples() -> None:
    given: dict[str, Any] = {"passes": 60, "group_passes": 40, "clients": 20}
    population = digits(8)
    task = make_task("mclr", population.shape, population.classes)
    scores: dict[str, float] = {}
    for kind in (FL, PerFL, GroupFL, GroupPerFL):
        method = kind(**given)
        rounds = method.plan(population.tree).rounds
        simulation = Simulation(method, population, task, rounds=rounds, held_out=0.25, seed=0)
        for _ in range(rounds):
            simulation.step()
        scores[kind.name] = evaluate(simulation)["PM"].by_samples()
    assert scores["groupfl"] > scores["fl"] + 0.05, scores
    assert scores["groupperfl"] > scores["perfl"] + 0.05, scores


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["6", "2x2x2"])
def test_other_depths_are_refused(tree: str) -> None:
    population = regression(tree)
    with pytest.raises(BadInput, match="3 tiers"):
        Simulation(GroupPerFL(), population, task_of(population), rounds=1)


def test_the_published_preset_has_the_papers_numbers() -> None:
    method = algorithm("groupperfl", preset="published")
    assert isinstance(method, GroupPerFL)
    assert (method.passes, method.group_passes, method.clients, method.tune_epochs) == (20, 10, 100, 5)
    assert (method.alpha, method.server_lr, method.group_lr, method.batch_size) == (1.0, 0.001, 0.001, 8)
    assert method.rates == (0.001, 0.01, 0.1, 1.0)
