"""FedAvg, HierFAVG and local training: pinned numbers, plain numpy, who takes part, and what each exchange costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.algorithms import FedAvg, HierFAVG, Local, PerMFL, algorithm
from palmette.engines.evaluation import evaluate
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.links import Link, Participation
from palmette.links.ledger import Traffic
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.task import make_task
from palmette.tree import Tree
from problems import Floats, quadratics, regression, simulate


def points(devices: list[list[float]], sizes: list[int]) -> Population:
    """Devices whose loss is the mean of 1/2 (theta - y)^2 over their own y, in teams of these sizes."""
    counts = torch.tensor([len(ys) for ys in devices])
    y = torch.tensor([y for ys in devices for y in ys], dtype=torch.float64)
    return Population(
        tree=Tree.parse(sizes),
        x=torch.ones(len(y), 1, dtype=torch.float64),
        y=y,
        start=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        train=counts,
    )


# Means 1, 5 and 8; two steps of 0.5 take theta to 3/4 of the mean plus 1/4 of where it started.
BY_HAND = points([[1.0], [4.0, 5.0, 6.0], [7.0, 9.0]], [2, 1])
TWO_STEPS: dict[str, Any] = {"alpha": 0.5, "local_steps": 2, "batch_size": "full"}
EVERY_DEVICE = torch.arange(3)


def personal(simulation: Simulation) -> Floats:
    found: Floats = simulation.device_models(torch.arange(simulation.population.devices)).numpy()
    return found


# -- pinned by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "expected"), [(1, 4.0), (2, 5.0)])
def test_fedavg_by_hand(rounds: int, expected: float) -> None:
    # round 1: (0.75 + 3 * 3.75 + 2 * 6) / 6; every round after: a quarter of x, and 4
    simulation = simulate(FedAvg(**TWO_STEPS), BY_HAND, rounds)
    assert simulation.model().item() == pytest.approx(expected, abs=1e-14)


def test_the_personal_model_of_fedavg_is_the_global_one_fine_tuned() -> None:
    for tune, expected in ((1, [3.0, 5.0, 6.5]), (2, [2.0, 5.0, 7.25])):  # halfway from 5 to 1, 5, 8; then half again
        simulation = simulate(FedAvg(**TWO_STEPS, tune_steps=tune), BY_HAND, 2)
        np.testing.assert_allclose(personal(simulation)[:, 0], expected, atol=1e-14)


@pytest.mark.parametrize(
    ("weights", "teams", "expected"), [("samples", [3.75, 7.5], 5.0), ("equal", [2.8125, 7.5], 5.15625)]
)
def test_hierfavg_by_hand(weights: Any, teams: list[float], expected: float) -> None:
    # samples: team-0 goes 0 -> (0.75 + 3 * 3.75) / 4 = 3 -> 3.75, team-1 0 -> 6 -> 7.5; then (4 * 3.75 + 2 * 7.5) / 6
    simulation = simulate(HierFAVG(**TWO_STEPS, team_steps=2, weights=weights), BY_HAND, 1)
    found = simulation.team_models()
    assert found is not None
    np.testing.assert_allclose(found[:, 0], teams, atol=1e-14)
    assert simulation.model().item() == pytest.approx(expected, abs=1e-14)


def test_the_personal_model_of_hierfavg_is_the_teams_fine_tuned() -> None:
    simulation = simulate(HierFAVG(**TWO_STEPS, team_steps=2, tune_steps=1), BY_HAND, 1)
    np.testing.assert_allclose(personal(simulation)[:, 0], [2.375, 4.375, 7.75], atol=1e-14)


def test_local_by_hand() -> None:
    simulation = simulate(Local(**TWO_STEPS), BY_HAND, 2)
    np.testing.assert_allclose(personal(simulation)[:, 0], [15 / 16, 75 / 16, 7.5], atol=1e-14)
    assert simulation.model().item() == 0.0


# -- against plain numpy -----------------------------------------------------------------------------------------------


@dataclass
class PlainAveraging:
    """HierFAVG written down node by node, full batches only."""

    population: Population
    team_steps: list[int]
    local_steps: int = 3
    alpha: float = 0.1
    weighted: bool = True
    every: int = 1
    models: dict[tuple[int, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree, self.forms = self.population.tree, quadratics(self.population)
        self.size = [self.population.train.numpy().astype(float)]
        for tier in range(self.tree.top):
            self.size.append(np.bincount(self.tree.parents[tier], weights=self.size[-1]))
        self.x = np.zeros(len(self.forms[0][1]))

    def steps(self, device: int, row: Floats, steps: int) -> Floats:
        a, b = self.forms[device]
        for _ in range(steps):
            row = row - self.alpha * (a @ row - b)
        return row

    def mean(self, tier: int, node: int, rows: list[Floats]) -> Floats:
        weights = self.size[tier - 1][list(self.tree.children(tier, node))] if self.weighted else None
        found: Floats = np.average(np.stack(rows), axis=0, weights=weights)
        return found

    def answer(self, tier: int, node: int, row: Floats) -> Floats:
        if tier == 0:
            return self.steps(node, row, self.local_steps)
        for _ in range(self.team_steps[tier - 1]):
            row = self.mean(tier, node, [self.answer(tier - 1, i, row) for i in self.tree.children(tier, node)])
        self.models[tier, node] = row
        return row

    def run(self, rounds: int) -> PlainAveraging:
        below = self.tree.top - 1
        for round_ in range(rounds):
            begins = round_ == 0 or (self.every > 0 and round_ % self.every == 0)
            starts = [self.x if begins else self.models[below, i] for i in range(self.tree.size(below))]
            rows = [self.answer(below, i, start) for i, start in enumerate(starts)]
            if self.every and (round_ + 1) % self.every == 0:
                self.x = self.mean(self.tree.top, 0, rows)
        return self

    def tier(self, tier: int) -> Floats:
        return np.stack([self.models[tier, i] for i in range(self.tree.size(tier))])


def test_fedavg_agrees_with_numpy_over_rounds() -> None:
    population = regression([3, 1, 2], unequal=True)
    flat = replace(population, tree=population.tree.flat())
    plain = PlainAveraging(flat, [])
    for rounds in (1, 2, 5):
        plain.x = np.zeros(3)
        plain.run(rounds)
        simulation = simulate(FedAvg(alpha=0.1, local_steps=3, tune_steps=4, batch_size="full"), population, rounds)
        np.testing.assert_allclose(simulation.model().numpy(), plain.x, atol=1e-13)
        tuned = np.stack([plain.steps(i, plain.x, 4) for i in range(6)])
        np.testing.assert_allclose(personal(simulation), tuned, atol=1e-13)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("every", [0, 1, 2, 3])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_hierfavg_agrees_with_numpy_over_rounds(weights: Any, every: int, rounds: int) -> None:
    population = regression([3, 1, 2], unequal=True)
    plain = PlainAveraging(population, [4], weighted=weights == "samples", every=every).run(rounds)
    method = HierFAVG(
        alpha=0.1, local_steps=3, team_steps=4, tune_steps=2, weights=weights, global_every=every, batch_size="full"
    )
    simulation = simulate(method, population, rounds)
    np.testing.assert_allclose(simulation.model().numpy(), plain.x, atol=1e-13)
    np.testing.assert_allclose(simulation.stores[1].rows["model"].numpy(), plain.tier(1), atol=1e-13)
    tuned = np.stack(
        [plain.steps(i, plain.models[1, int(team)], 2) for i, team in enumerate(population.tree.parents[0])]
    )
    np.testing.assert_allclose(personal(simulation), tuned, atol=1e-13)


@pytest.mark.parametrize("every", [0, 1, 2])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_hierfavg_agrees_with_numpy_on_four_tiers(weights: Any, every: int) -> None:
    tree = Tree.parse({"north": {"a": ["1", "2", "3"], "b": ["4"]}, "south": {"c": ["5", "6"]}})
    population = regression(tree, unequal=True)
    plain = PlainAveraging(population, [3, 2], weighted=weights == "samples", every=every).run(3)
    method = HierFAVG(
        alpha=0.1, local_steps=3, team_steps=(3, 2), weights=weights, global_every=every, batch_size="full"
    )
    simulation = simulate(method, population, 3)
    np.testing.assert_allclose(simulation.model().numpy(), plain.x, atol=1e-13)
    for tier in (1, 2):
        np.testing.assert_allclose(simulation.stores[tier].rows["model"].numpy(), plain.tier(tier), atol=1e-13)


def test_one_number_of_team_steps_holds_for_every_inner_tier() -> None:
    population = regression("2x2x2", unequal=True)
    one, other = (simulate(HierFAVG(team_steps=steps), population, 1).model() for steps in (3, (3, 3)))
    assert torch.equal(one, other)
    assert not torch.equal(one, simulate(HierFAVG(team_steps=(3, 1)), population, 1).model())


def test_local_takes_rounds_times_steps_plain_steps() -> None:
    population = regression([3, 1, 2], unequal=True)
    plain = PlainAveraging(population, [])
    simulation = simulate(Local(alpha=0.1, local_steps=3, batch_size="full"), population, 4)
    expected = np.stack([plain.steps(i, np.zeros(3), 12) for i in range(6)])
    np.testing.assert_allclose(personal(simulation), expected, atol=1e-13)
    assert simulation.device_steps == 6 * 12


@pytest.mark.parametrize("kind", [FedAvg, HierFAVG, Local])
def test_step_sizes_may_differ_by_device(kind: type[Any]) -> None:
    population = regression("1x3")
    rates = dict(zip(population.tree.names(0), [0.1, 0.2, 0.3], strict=True))
    method = kind(alpha=rates, local_steps=1, batch_size="full", **({"team_steps": 1} if kind is HierFAVG else {}))
    simulation = simulate(method, population, 1)
    theta = np.stack([rate * b for rate, (_, b) in zip(rates.values(), quadratics(population), strict=True)])
    if kind is Local:
        np.testing.assert_allclose(personal(simulation), theta, atol=1e-14)
    else:
        np.testing.assert_allclose(simulation.model().numpy(), theta.mean(0), atol=1e-14)


# -- what is the same as what ------------------------------------------------------------------------------------------

STEPS = 3
# The deep tree, its team_steps, and which of its tiers the teams of 3x4 are.
ONE_CHILD = {
    "below every region": ("3x1x4", (STEPS, 1), [1, 2]),
    "below every region, asked often": ("3x1x4", (1, STEPS), [1, 2]),
    "above all teams": ("1x3x4", (STEPS, 1), [1]),
    "above every device": ("3x4x1", (1, STEPS), [2]),
}


@pytest.mark.parametrize(("tree", "steps", "teams"), ONE_CHILD.values(), ids=ONE_CHILD)
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_a_tier_of_only_children_changes_no_bit(
    tree: str, steps: tuple[int, int], teams: list[int], weights: Any
) -> None:
    short, deep = (regression(shape, dimension=50, unequal=True) for shape in ("3x4", tree))
    method = HierFAVG(team_steps=STEPS, local_steps=4, batch_size=5, weights=weights)
    one = simulate(method, short, 3, dtype=torch.float32)
    other = simulate(replace(method, team_steps=steps), deep, 3, dtype=torch.float32)
    assert torch.equal(one.model(), other.model())
    assert bool(one.model().any())
    for tier in teams:
        assert torch.equal(one.stores[1].rows["model"], other.stores[tier].rows["model"])
    if 1 in teams:  # where devices still hang under their team, they fine-tune the same model
        assert np.array_equal(personal(one), personal(other))


def test_a_global_average_now_and_then_is_the_highest_inner_tiers_affair() -> None:
    # One region above all teams averages them in every round whatever global_every says of the server.
    often = simulate(HierFAVG(team_steps=3, batch_size=5), regression("3x4", unequal=True), 4)
    rarely = HierFAVG(team_steps=(3, 1), batch_size=5, global_every=4)
    assert torch.equal(simulate(rarely, regression("1x3x4", unequal=True), 4).model(), often.model())


def test_hierfavg_with_one_team_and_one_team_step_is_fedavg_bit_for_bit() -> None:
    population = regression("1x6", unequal=True)
    one = simulate(FedAvg(batch_size=5), population, 3, dtype=torch.float32)
    other = simulate(HierFAVG(batch_size=5, team_steps=1), population, 3, dtype=torch.float32)
    assert torch.equal(one.model(), other.model())
    assert np.array_equal(personal(one), personal(other))


def test_teams_that_never_meet_run_fedavg_each_by_itself() -> None:
    population = regression([3, 2], unequal=True)
    settings: dict[str, Any] = {"alpha": 0.1, "local_steps": 2, "tune_steps": 3, "batch_size": "full"}
    alone = simulate(HierFAVG(**settings, team_steps=4, global_every=0), population, 3)
    teams = alone.team_models()
    assert teams is not None
    for team, members in enumerate(([0, 1, 2], [3, 4])):
        lo, hi = int(population.start[members[0]]), int(population.start[members[-1] + 1])
        mine = Population(
            tree=Tree.parse(f"{len(members)}"),
            x=population.x[lo:hi],
            y=population.y[lo:hi],
            start=population.start[members[0] : members[-1] + 2] - lo,
            train=population.train[members],
        )
        single = simulate(FedAvg(**settings), mine, 12)
        np.testing.assert_allclose(teams[team].numpy(), single.model().numpy(), atol=1e-13)
        np.testing.assert_allclose(personal(alone)[members], personal(single), atol=1e-13)


def test_each_method_is_measured_by_the_models_it_makes() -> None:
    population = regression("2x3")
    kinds = {
        "fedavg": {"PM", "GM"},
        "hierfavg": {"PM", "TM", "GM"},
        "local": {"PM"},
    }
    for name, expected in kinds.items():
        assert set(evaluate(simulate(algorithm(name), population, 1))) == expected
    assert set(evaluate(simulate(HierFAVG(global_every=0), population, 1))) == {"PM", "TM"}


@pytest.mark.parametrize(("tree", "steps", "words"), [("6", 2, "needs teams"), ("2x3", (1, 2), "team_steps has 2")])
def test_trees_that_do_not_fit_hierfavg_are_refused(tree: str, steps: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        simulate(HierFAVG(team_steps=steps), regression(tree), 1)


# -- what it costs -----------------------------------------------------------------------------------------------------

K, N, M, B = 10, 40, 4, 31_400


@pytest.fixture(scope="module")
def mnist_sized() -> Population:
    """Forty devices with a handful of random samples of MNIST's shape."""
    random = np.random.default_rng(0)
    x = [random.normal(size=(4, 784)).astype(np.float32) for _ in range(N)]
    y = [random.integers(0, 10, 4) for _ in range(N)]
    return Population.from_arrays(x, y, tree="4x10", classes=10)


def one_round(method: Algorithm, population: Population, **options: Any) -> Simulation:
    task = make_task("mclr", population.shape, population.classes)
    return simulate(method, population, 1, task, dtype=torch.float32, **options)


@pytest.mark.parametrize("name", ["permfl", "pfedmt", "hierfavg"])
def test_a_round_of_a_tiered_method_costs_what_the_worked_example_says(name: str, mnist_sized: Population) -> None:
    simulation = one_round(algorithm(name, team_steps=K, local_steps=1), mnist_sized)
    assert simulation.ledger.totals() == {
        1: Traffic(exchanges=M * K, bytes_down=K * N * B, bytes_up=K * N * B),
        2: Traffic(exchanges=1, bytes_down=M * B, bytes_up=M * B),
    }
    assert 2 * K * N * B == 25_120_000
    assert 2 * M * B == 251_200


def test_a_round_of_fedavg_puts_every_device_on_the_link_to_the_server(mnist_sized: Population) -> None:
    simulation = one_round(FedAvg(local_steps=1), mnist_sized)
    assert simulation.ledger.totals() == {2: Traffic(exchanges=1, bytes_down=N * B, bytes_up=N * B)}
    assert 2 * N * B == 2_512_000


def test_local_training_exchanges_nothing(mnist_sized: Population) -> None:
    simulation = one_round(Local(local_steps=1), mnist_sized)
    assert list(simulation.ledger.totals().values()) == [Traffic(0, 0, 0)]
    assert simulation.device_steps == N


@pytest.mark.parametrize(("tree", "tier"), [("6", 1), ("2x3", 2), ("2x3x1", 3)])
def test_the_link_of_a_flat_method_is_counted_under_the_servers_tier(tree: str, tier: int) -> None:
    simulation = simulate(FedAvg(), regression(tree), 1)
    assert simulation.ledger.totals() == {tier: Traffic(1, 6 * 3 * 8, 6 * 3 * 8)}


def test_four_tiers_pay_on_every_link() -> None:
    row = 3 * 8
    simulation = simulate(HierFAVG(team_steps=(5, 2)), regression("2x3x4"), 3)
    assert simulation.ledger.totals() == {
        1: Traffic(3 * 2 * 5 * 6, 3 * 2 * 5 * 24 * row, 3 * 2 * 5 * 24 * row),
        2: Traffic(3 * 2 * 2, 3 * 2 * 6 * row, 3 * 2 * 6 * row),
        3: Traffic(3, 3 * 2 * row, 3 * 2 * row),
    }


def test_a_rare_global_average_sends_models_down_at_its_beginning_and_up_at_its_end() -> None:
    simulation = simulate(HierFAVG(global_every=3, team_steps=1), regression("2x3"), 6)
    traffic = [simulation.ledger.at(round_, 2) for round_ in range(6)]
    both = 2 * 3 * 8
    assert [entry.bytes_down for entry in traffic] == [both, 0, 0, both, 0, 0]
    assert [entry.bytes_up for entry in traffic] == [0, 0, both, 0, 0, both]
    assert [entry.exchanges for entry in traffic] == [1, 0, 1, 1, 0, 1]


def test_teams_that_never_meet_hear_from_the_server_once() -> None:
    simulation = simulate(HierFAVG(global_every=0, team_steps=1), regression("2x3"), 4)
    assert simulation.ledger.totals()[2] == Traffic(exchanges=1, bytes_down=2 * 3 * 8, bytes_up=0)


STEPS_OF_A_ROUND = {
    "permfl": ({"team_steps": 3, "local_steps": 4}, 3 * 4),
    "pfedmt": ({"team_steps": 3, "local_steps": 4}, 3 * 4),
    "hierfavg": ({"team_steps": 3, "local_steps": 4}, 3 * 4),
    "fedavg": ({"local_steps": 4}, 4),
    "local": ({"local_steps": 4}, 4),
}


@pytest.mark.parametrize("name", STEPS_OF_A_ROUND)
def test_device_steps_are_those_of_training_and_not_of_looking(name: str) -> None:
    settings, each = STEPS_OF_A_ROUND[name]
    simulation = simulate(algorithm(name, **settings), regression([3, 2, 4]), 2)
    assert simulation.device_steps == 2 * 9 * each
    evaluate(simulation)
    assert simulation.device_steps == 2 * 9 * each


# -- who takes part ----------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Writes down who was asked in each exchange; loses nobody."""

    asked: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)

    def __call__(self, round_: int, tier: int, exchange: Tensor, children: Tensor) -> Tensor:
        for number, child in zip(exchange.tolist(), children.tolist(), strict=True):
            self.asked.setdefault((round_, tier, number), []).append(child)
        return torch.zeros(len(children), dtype=torch.bool)


# A participation as users write it, and how many of four teams and of six devices it takes.
REGIMES = {"all": (4, 6), "0.5": (2, 3), "2": (2, 2), "pass 2": (2, 2)}


@pytest.mark.parametrize(("teams", "devices"), list(product(REGIMES, REGIMES)))
@pytest.mark.parametrize("name", ["permfl", "hierfavg"])
def test_participation_decides_who_is_asked_and_what_it_costs(name: str, teams: str, devices: str) -> None:
    tree, steps, rounds, row = Tree.parse("4x6"), 3, 2, 3 * 8
    watch = Watch()
    links = {
        0: Link(Participation.parse(devices), absences=watch),
        1: Link(Participation.parse(teams), absences=watch),
    }
    method = algorithm(name, team_steps=steps, local_steps=2, batch_size="full")
    simulation = simulate(method, regression(tree, samples=5), rounds, links=links)
    m, n = REGIMES[teams][0], REGIMES[devices][1]

    assert simulation.ledger.totals() == {
        1: Traffic(rounds * m * steps, rounds * m * steps * n * row, rounds * m * steps * n * row),
        2: Traffic(rounds, rounds * m * row, rounds * m * row),
    }
    assert simulation.device_steps == rounds * m * steps * n * 2
    for round_ in range(rounds):
        chosen = watch.asked[round_, 2, 0]
        assert len(chosen) == m
        for exchange in range(steps):
            owners = tree.parents[0][watch.asked[round_, 1, exchange]].tolist()
            assert owners == [team for team in chosen for _ in range(n)]
    in_teams, in_devices = simulation.stores[1].last, simulation.stores[0].last
    for tier, last in ((2, in_teams), (1, in_devices)):
        for node in range(len(last)):
            rounds_of = [r for (r, t, _), children in watch.asked.items() if t == tier and node in children]
            assert last[node] == max(rounds_of, default=-1)
    if teams == "pass 2":
        assert bool((in_teams >= 0).all())
    if teams == devices == "pass 2":
        assert bool((in_devices >= 0).all())


def test_the_mean_is_over_those_who_took_part() -> None:
    watch = Watch()
    simulation = simulate(
        FedAvg(**TWO_STEPS), BY_HAND, 1, links={0: Link(Participation("count", 2), absences=watch)}, seed=1
    )
    replies, sizes = np.array([0.75, 3.75, 6.0]), np.array([1, 3, 2])
    who = watch.asked[0, 1, 0]
    assert len(who) == 2
    assert simulation.model().item() == pytest.approx(np.average(replies[who], weights=sizes[who]), abs=1e-14)


@pytest.mark.parametrize(("kind", "how_many"), [("fraction", 6), ("count", 5), ("pass", 5)])
def test_a_flat_method_draws_from_all_devices_by_their_own_link(kind: Any, how_many: int) -> None:
    watch = Watch()
    links = {
        0: Link(Participation(kind, 0.25 if kind == "fraction" else 5), absences=watch),
        1: Link(Participation("count", 1)),
    }
    simulation = simulate(FedAvg(local_steps=2), regression("4x6", samples=5), 5, links=links)
    asked = [watch.asked[round_, 1, 0] for round_ in range(5)]
    last = 24 - 4 * 5  # what a pass of 24 devices leaves for its fifth turn
    assert [len(who) for who in asked] == [how_many] * 4 + [last if kind == "pass" else how_many]
    assert simulation.device_steps == 2 * sum(map(len, asked))
    assert simulation.ledger.totals() == {2: Traffic(5, *[sum(map(len, asked)) * 3 * 8] * 2)}
    if kind == "pass":
        assert sorted(device for who in asked for device in who) == list(range(24))


def test_all_tiered_methods_meet_the_same_luck() -> None:
    links = {0: Participation("fraction", 0.5), 1: Participation("count", 2)}
    seen = []
    for name in ("permfl", "pfedmt", "hierfavg"):
        watch = Watch()
        method = algorithm(name, team_steps=2, local_steps=1)
        drawn = {tier: Link(participation, absences=watch) for tier, participation in links.items()}
        simulate(method, regression("4x6", samples=5), 3, links=drawn)
        seen.append(watch.asked)
    assert seen[0] == seen[1] == seen[2]


# -- who never took part -----------------------------------------------------------------------------------------------


def without(*numbers: int) -> Link:
    return Link(absences=lambda round_, tier, exchange, children: torch.isin(children, torch.tensor(numbers)))


@pytest.mark.parametrize("name", ["permfl", "hierfavg"])
def test_a_team_that_never_took_part_has_the_servers_model(name: str) -> None:
    simulation = simulate(algorithm(name, batch_size="full"), regression("3x2"), 2, links={1: without(1)})
    teams = simulation.team_models()
    assert teams is not None
    assert bool(simulation.model().abs().sum() > 0)
    assert [torch.equal(row, simulation.model()) for row in teams] == [False, True, False]


@pytest.mark.parametrize("name", ["permfl", "hierfavg"])
def test_a_team_that_never_took_part_has_its_regions_model_or_what_is_above_that(name: str) -> None:
    method = algorithm(name, team_steps=2, local_steps=5, batch_size="full")
    simulation = simulate(method, regression("3x3x2"), 2, links={1: without(1), 2: without(2)})
    teams, regions = simulation.team_models(1), simulation.team_models(2)
    assert teams is not None
    assert regions is not None
    assert torch.equal(teams[1], regions[0])
    assert not torch.equal(teams[1], simulation.model())
    assert torch.equal(regions[2], simulation.model())
    assert torch.equal(teams[6:], simulation.model().expand(3, -1))
    assert not torch.equal(teams[0], regions[0])


def test_a_device_that_never_took_part_adapts_its_teams_model() -> None:
    population = regression("2x3", unequal=True)
    forms = quadratics(population)
    for method, steps, pull in (
        (PerMFL(alpha=0.1, local_steps=4, lam=0.7, batch_size="full"), 4, 0.7),
        (HierFAVG(alpha=0.1, local_steps=4, tune_steps=6, batch_size="full"), 6, 0.0),
    ):
        # device-1 is lost in a team that works, device-4 with its whole team
        simulation = simulate(method, population, 2, links={0: without(1), 1: without(1)})
        teams = simulation.team_models()
        assert teams is not None
        for device, parent in ((1, teams[0]), (4, simulation.model())):
            theta = w = parent.numpy()
            for _ in range(steps):
                theta = theta - 0.1 * (forms[device][0] @ theta - forms[device][1] + pull * (theta - w))
            np.testing.assert_allclose(personal(simulation)[device], theta, atol=1e-13)


def test_a_device_that_kept_its_model_does_not_adapt() -> None:
    population = regression("2x3")
    simulation = simulate(PerMFL(batch_size="full"), population, 1, links={0: without(1)})
    kept = simulation.stores[0].rows["model"].numpy()
    assert np.array_equal(np.delete(personal(simulation), 1, 0), np.delete(kept, 1, 0))
    assert not np.array_equal(personal(simulation)[1], kept[1])


def test_a_device_that_never_took_part_in_local_training_has_the_start() -> None:
    simulation = simulate(Local(batch_size="full"), regression("2x3"), 2, links={0: without(1)})
    assert [bool(row.any()) for row in personal(simulation)] == [True, False, True, True, True, True]


@pytest.mark.parametrize("ids", [[2, 0, 1], [1, 1], []])
def test_personal_models_come_in_the_order_asked_for(ids: list[int]) -> None:
    for method in (FedAvg(**TWO_STEPS), Local(**TWO_STEPS)):
        simulation = simulate(method, BY_HAND, 1)
        some = simulation.device_models(torch.tensor(ids, dtype=torch.int64))
        assert torch.equal(some, simulation.device_models(EVERY_DEVICE)[ids])
