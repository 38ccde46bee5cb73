"""PerMFL and pFedMT: pinned numbers, closed forms, and the exact minimiser of their objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.algorithms import PerMFL, PFedMT, algorithm
from palmette.errors import BadInput
from palmette.links import Link, Participation
from palmette.population import Population
from palmette.protocol import Device, State
from palmette.protocol.settings import settings
from palmette.tree import Tree
from problems import quadratics, regression, simulate, task_of, tree_minimiser


def one_sample_each(targets: list[float], sizes: list[int]) -> Population:
    """Devices whose loss is 1/2 (theta - target)^2, in teams of these sizes."""
    return Population(
        tree=Tree.parse(sizes),
        x=torch.ones(len(targets), 1, dtype=torch.float64),
        y=torch.tensor(targets, dtype=torch.float64),
        start=torch.arange(len(targets) + 1),
        train=torch.ones(len(targets), dtype=torch.int64),
    )


@pytest.fixture
def by_hand() -> Population:
    return one_sample_each([1.0, 3.0, 8.0], [2, 1])


def test_one_round_by_hand(by_hand: Population) -> None:
    # theta <- theta - 0.5 (theta - y + 0.5 (theta - w)), twice; w <- 0.7 w + 0.1 * 0.5 x + ... with eta 0.5
    method = PerMFL(alpha=0.5, lam=0.5, gamma=0.1, eta=0.5, beta=5.0, local_steps=2, team_steps=2, batch_size="full")
    x = 0.0
    w = {0: x, 1: x}
    theta = {}
    for _ in range(2):
        for team, members in ((0, (1.0, 3.0)), (1, (8.0,))):
            for y in members:
                t = w[team]
                for _ in range(2):
                    t = t - 0.5 * (t - y) - 0.5 * 0.5 * (t - w[team])
                theta[y] = t
            mean = np.mean([theta[y] for y in members])
            w[team] = (1 - 0.5 * 0.6) * w[team] + 0.5 * 0.1 * x + 0.5 * 0.5 * mean
    x = 0.5 * x + 0.5 * (w[0] + w[1]) / 2
    simulation = simulate(method, by_hand, 1)
    assert simulation.model().item() == pytest.approx(x, abs=1e-14)
    assert x == pytest.approx(0.70068359375, abs=1e-12)  # pinned
    np.testing.assert_allclose(
        simulation.stores[0].rows["model"].flatten(), [theta[1.0], theta[3.0], theta[8.0]], atol=1e-14
    )


@pytest.mark.parametrize(("teams", "pinned"), [("warm", 0.734375), ("restart", 0.60546875)])
def test_two_rounds_by_hand(by_hand: Population, teams: Any, pinned: float) -> None:
    # One device step and one team step a round: theta = w + 0.5 (y - w), w <- 0.7 w + 0.05 x + 0.25 mean theta.
    method = PerMFL(
        **{"alpha": 0.5, "lam": 0.5, "gamma": 0.1, "eta": 0.5, "beta": 5.0, "teams": teams},
        **{"local_steps": 1, "team_steps": 1, "batch_size": "full"},
    )
    x, w = 0.0, [0.0, 0.0]
    for _ in range(2):
        begin = w if teams == "warm" else [x, x]
        w = [0.7 * v + 0.05 * x + 0.25 * (v + 0.5 * (y - v)) for v, y in zip(begin, (2.0, 8.0), strict=True)]
        x = 0.5 * x + 0.5 * (w[0] + w[1]) / 2
    simulation = simulate(method, by_hand, 2)
    assert simulation.model().item() == pytest.approx(x, abs=1e-14)
    np.testing.assert_allclose(simulation.stores[1].rows["model"].flatten(), w, atol=1e-14)
    assert x == pytest.approx(pinned, abs=1e-12)


@pytest.mark.parametrize("tree", [[2, 5, 1], "2x2x3"], ids=["unequal teams", "four tiers"])
def test_warm_teams_reach_the_exact_minimiser_with_one_step_a_round(tree: Any) -> None:
    population = regression(tree, unequal=True)
    pulls = [1.0, 0.8, 0.6][: population.tree.top]
    exact = tree_minimiser(population, pulls)
    gamma: Any = pulls[1:] if len(pulls) > 2 else pulls[1]
    off = {}
    for teams in ("warm", "restart"):
        method = algorithm("permfl", gamma=gamma, team_steps=1, teams=teams, **{**SOLVER, "local_steps": 15})
        simulation = simulate(method, population, 45)
        found = [simulation.stores[tier].rows["model"].numpy() for tier in range(population.tree.tiers)]
        off[teams] = max(float(np.abs(rows - best).max()) for rows, best in zip(found, exact, strict=True))
    assert off["warm"] < 1e-4
    assert off["restart"] > 0.01  # it goes to another point, however many rounds there are


def test_a_warm_team_begins_with_the_model_above_when_it_first_takes_part(by_hand: Population) -> None:
    given: dict[str, Any] = {"alpha": 0.5, "local_steps": 1, "team_steps": 1, "batch_size": "full"}
    links = {1: Link(Participation("count", 1))}
    seen = 0
    for seed in range(6):
        simulation = simulate(PerMFL(**given), by_hand, 2, links=links, seed=seed)
        other = simulate(PerMFL(**given, teams="restart"), by_hand, 2, links=links, seed=seed)
        last = simulation.stores[1].last.tolist()
        assert (simulation.stores[1].rows["began"][:, 0] > 0).tolist() == [one >= 0 for one in last]
        if -1 not in last:  # each was asked once, so neither had a model of its own to begin with
            seen += 1
            assert torch.equal(simulation.stores[1].rows["model"], other.stores[1].rows["model"])
    assert seen


def test_pfedmt_weights_children_by_samples() -> None:
    population = regression([2, 3], unequal=True)
    method = {
        "alpha": 0.1,
        "lam": 0.5,
        "gamma": 0.4,
        "eta": 0.7,
        "beta": 1.5,
        "local_steps": 3,
        "team_steps": 2,
        "batch_size": "full",
        "teams": "restart",
    }
    simulation = simulate(algorithm("pfedmt", **method), population, 2)
    forms, n, team = quadratics(population), population.train.numpy().astype(float), population.tree.parents[0]
    x = np.zeros(3)
    for _ in range(2):
        w = np.repeat(x[None], 2, 0)
        for _ in range(2):
            theta = w[team]
            for _ in range(3):
                gradients = np.stack([a @ t - b for (a, b), t in zip(forms, theta, strict=True)])
                theta = theta - 0.1 * (gradients + 0.5 * (theta - w[team]))
            mean = np.stack([np.average(theta[team == i], axis=0, weights=n[team == i]) for i in range(2)])
            w = (1 - 0.7 * 0.9) * w + 0.7 * 0.4 * x + 0.7 * 0.5 * mean
        x = (1 - 1.5 * 0.4) * x + 1.5 * 0.4 * np.average(w, axis=0, weights=[n[team == i].sum() for i in range(2)])
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-13)
    other = simulate(algorithm("permfl", **method), population, 2)
    assert not np.allclose(other.model().numpy(), x, atol=1e-6)


def test_pfedmt_with_equal_samples_is_permfl_bit_for_bit() -> None:
    population = regression("2x3")
    same = [
        simulate(kind(batch_size=4), population, 2, dtype=torch.float32).stores[0].rows["model"]
        for kind in (PerMFL, PFedMT)
    ]
    assert torch.equal(*same)


# Pulls that fall tenfold from tier to tier contract fast: a few rounds reach the optimum.
SOLVER: dict[str, Any] = {"lam": 1.0, "alpha": 0.45, "local_steps": 10, "batch_size": "full"}


@pytest.mark.parametrize("tree", ["3x4", [2, 5, 1]], ids=["equal teams", "unequal teams"])
@pytest.mark.parametrize("name", ["permfl", "pfedmt"])
def test_many_steps_reach_the_exact_minimiser(tree: Any, name: str) -> None:
    population = regression(tree, unequal=True)
    exact = tree_minimiser(population, [1.0, 0.1], weighted=name == "pfedmt")
    simulation = simulate(algorithm(name, gamma=0.1, team_steps=20, **SOLVER), population, 10)
    for tier in range(3):
        np.testing.assert_allclose(simulation.stores[tier].rows["model"].numpy(), exact[tier], atol=1e-6)


def test_many_steps_reach_the_exact_minimiser_on_four_tiers() -> None:
    population = regression("2x2x5", unequal=True)
    exact = tree_minimiser(population, [1.0, 0.1, 0.01])
    method = algorithm("permfl", gamma=[0.1, 0.01], team_steps=[20, 8], **SOLVER)
    simulation = simulate(method, population, 8)
    for tier in range(4):
        np.testing.assert_allclose(simulation.stores[tier].rows["model"].numpy(), exact[tier], atol=1e-6)


def test_two_pulls_in_series_act_as_one() -> None:
    flat, deep = regression("3x4"), regression("3x1x4")
    g1, g2 = 0.1, 0.01
    single = tree_minimiser(flat, [1.0, g1 * g2 / (g1 + g2)])
    double = tree_minimiser(deep, [1.0, g1, g2])
    np.testing.assert_allclose(double[0], single[0], atol=1e-12)
    np.testing.assert_allclose(double[3], single[2], atol=1e-12)
    method = algorithm("permfl", gamma=[g1, g2], team_steps=[20, 8], **SOLVER)
    simulation = simulate(method, deep, 8)
    np.testing.assert_allclose(simulation.model().numpy(), single[2][0], atol=1e-6)
    np.testing.assert_allclose(simulation.stores[0].rows["model"].numpy(), single[0], atol=1e-6)


@settings
class Constant(PerMFL):
    """PerMFL whose devices always answer the same, for the one-round closed form."""

    name: ClassVar[str] = "constant"

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        return (node.ids[:, None] + torch.arange(3)[None]).to(parent)


@pytest.mark.parametrize(("eta", "beta", "steps"), [(0.3, 0.6, 4), ("auto", "auto", 1), (0.9, 1.1, 7)])
def test_one_round_with_constant_replies_has_the_closed_form(eta: Any, beta: Any, steps: int) -> None:
    population = regression([2, 4])
    lam, gamma = 0.7, 0.4
    simulation = simulate(Constant(lam=lam, gamma=gamma, eta=eta, beta=beta, team_steps=steps), population, 1)
    step, rate = (1 / (lam + gamma), 1 / gamma) if eta == "auto" else (eta, beta)
    s = rate * gamma * lam / (lam + gamma) * (1 - (1 - step * (lam + gamma)) ** steps)
    mean = ((0 + 1) / 2 + (2 + 3 + 4 + 5) / 4) / 2 + np.arange(3)
    np.testing.assert_allclose(simulation.model().numpy(), s * mean, atol=1e-14)


def test_without_a_pull_from_devices_the_server_never_moves() -> None:
    population = regression("2x3")
    simulation = simulate(PerMFL(lam=0, gamma=0.3, alpha=0.1, local_steps=5, batch_size="full"), population, 3)
    assert torch.equal(simulation.model(), torch.zeros(3, dtype=torch.float64))
    a, b = quadratics(population)[0]
    theta = np.zeros(3)
    for _ in range(5):
        theta = theta - 0.1 * (a @ theta - b)
    np.testing.assert_allclose(simulation.stores[0].rows["model"][0].numpy(), theta, atol=1e-14)


def test_without_a_pull_to_the_server_teams_restart_from_the_start() -> None:
    population = regression("2x3")
    method = PerMFL(gamma=0, teams="restart", batch_size="full")
    once, often = (simulate(method, population, rounds) for rounds in (1, 3))
    assert torch.equal(often.model(), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(once.stores[1].rows["model"], often.stores[1].rows["model"])


def test_steps_may_differ_by_device_and_by_team() -> None:
    population = regression("2x2")
    names = population.tree.names(0)
    rates = dict(zip(names, [0.1, 0.2, 0.3, 0.4], strict=True))
    simulation = simulate(
        PerMFL(
            alpha=rates,
            eta={"team-0": 0.5, "team-1": 0.25},
            local_steps=1,
            team_steps=1,
            lam=1,
            gamma=1,
            batch_size="full",
        ),
        population,
        1,
    )
    theta = np.stack([rate * b for rate, (_, b) in zip(rates.values(), quadratics(population), strict=True)])
    np.testing.assert_allclose(simulation.stores[0].rows["model"].numpy(), theta, atol=1e-14)
    w = np.stack([0.5 * theta[:2].mean(0), 0.25 * theta[2:].mean(0)])
    np.testing.assert_allclose(simulation.stores[1].rows["model"].numpy(), w, atol=1e-14)


def test_line_12_as_published_makes_a_consensus_grow_by_beta(by_hand: Population) -> None:
    base = PFedMT(alpha=0.5, lam=15, gamma=0.1, beta=1.0, eta=0.03, local_steps=1, team_steps=1, batch_size="full")
    right = simulate(base, by_hand, 1).model().item()
    printed = simulate(replace(base, as_published=("line-12",)), by_hand, 1).model().item()
    assert printed == pytest.approx(right * 10)  # from x = 0: beta * w against beta * gamma * w


def test_device_pull_as_published_is_the_number_of_local_steps(by_hand: Population) -> None:
    base = PerMFL(alpha=0.01, lam=0.5, local_steps=20, batch_size="full")
    published = simulate(replace(base, as_published=("device-pull",)), by_hand, 1)
    w = theta = 0.0
    for _ in range(10):
        theta = w
        for _ in range(20):
            theta = theta - 0.01 * ((theta - 8.0) + 20 * (theta - w))
        w = 0.5 / 0.51 * theta  # x = 0 and eta auto
    assert published.stores[0].rows["model"][2].item() == pytest.approx(theta)


def test_stale_teams_as_published_count_with_their_last_model() -> None:
    population = regression("3x2")
    one = {1: Link(Participation("count", 1))}
    base = PerMFL(batch_size="full", as_published=("stale-teams",))
    stale = simulate(base, population, 4, links=one)
    w = stale.stores[1].rows["model"]
    assert 1 < int((stale.stores[1].last >= 0).sum()) < 4
    assert torch.allclose(stale.model(), w.mean(0), atol=1e-14)  # teams never asked still count with the start, zero
    fresh = simulate(replace(base, as_published=()), population, 4, links=one)
    latest = fresh.stores[1].last.argmax()
    assert torch.equal(fresh.model(), fresh.stores[1].rows["model"][latest])


def test_stale_teams_of_pfedmt_count_by_their_samples() -> None:
    population = regression([1, 3, 2])  # teams of one, three and two times as many samples
    gone = Link(absences=lambda round_, tier, exchange, children: (children == 1) & (round_ == 1))
    method = algorithm("pfedmt", batch_size="full", as_published=["stale-teams"])
    simulation = simulate(method, population, 2, links={1: gone})
    w = simulation.stores[1].rows["model"]
    assert simulation.stores[1].last.tolist() == [1, 0, 1]
    expected = (w * torch.tensor([[1.0], [3.0], [2.0]]).double()).sum(0) / 6
    torch.testing.assert_close(simulation.model(), expected, atol=1e-14, rtol=0)
    assert not torch.allclose(simulation.model(), w.mean(0), atol=1e-3)


def test_published_preset_and_what_overrides_it() -> None:
    assert algorithm("pfedmt", preset="published").teams == "restart"
    method = algorithm("permfl", preset="published", lam=2.0)
    assert method.teams == "restart"
    assert (method.alpha, method.eta, method.beta, method.gamma, method.lam) == (0.01, 0.03, 0.6, 1.5, 2.0)


@pytest.mark.parametrize(
    ("tree", "given", "words"),
    [
        ("6", {}, "needs teams"),
        ("2x3", {"gamma": [0.1, 0.2]}, "gamma has 2 entries"),
        ("2x2x2", {"team_steps": [1]}, "team_steps has 1 entry"),
        ("2x2x2", {"eta": {"team-0": 0.1}}, "one tier of teams"),
    ],
)
def test_trees_that_do_not_fit_are_refused(tree: str, given: dict[str, Any], words: str) -> None:
    population = regression(tree)
    with pytest.raises(BadInput, match=words):
        simulate(algorithm("permfl", **given), population, 1, task_of(population))


def test_a_setting_by_name_must_cover_every_node() -> None:
    with pytest.raises(BadInput, match="leaves out 'device-1'"):
        simulate(PerMFL(alpha={"device-0": 0.1}), regression("1x2"), 1)
    with pytest.raises(BadInput, match="no node 'devic-0'"):
        simulate(PerMFL(alpha={"devic-0": 0.1}), regression("1x2"), 1)
