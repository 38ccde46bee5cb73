"""sFedHP: numbers by hand, identities of its equations, both readings of its schedule, what crosses the links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.algorithms import algorithm
from palmette.algorithms.sfedhp import SFedHP
from palmette.blocks.nesterov import Nesterov, momentum
from palmette.engines.evaluation import measure
from palmette.engines.separate import run_separately
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged
from palmette.links import Link
from palmette.links.sparse import prune
from palmette.runs import run
from problems import quadratics, regression, simulate, task_of
from test_averaging import personal, without
from test_contract import assert_separate_is_stacked

DENSE: dict[str, Any] = {"gamma_1": 0.0, "gamma_2": 0.0, "batch_size": "full"}


def by_hand(
    population: Any, given: dict[str, Any], rounds: int, x: np.ndarray[Any, Any] | None = None
) -> tuple[Any, Any, Any]:
    """Algorithm 1 as it is printed, device by device, on least squares with all samples in every batch."""
    method = SFedHP(**given)
    assert method.alpha != "auto"
    forms, tree = quadratics(population), population.tree
    dimension = len(forms[0][1])
    x = np.zeros(dimension) if x is None else x
    cut = (lambda v: np.where(np.abs(v) <= method.zero_tol, 0, v)) if method.sparse else (lambda v: v)
    theta = np.zeros((len(forms), dimension))
    team = np.zeros((tree.size(1), dimension))
    for _ in range(rounds):
        for i in range(tree.size(1)):
            devices = list(tree.children(1, i))
            w, phi = cut(x), cut(x)
            own = {j: cut(x) for j in devices}
            theta[devices] = cut(x)
            for _ in range(method.team_steps):
                for j in devices:
                    a, b = forms[j]
                    centre = cut(phi) if method.centre == "edge" else own[j]
                    for _ in range(method.local_steps):
                        slope = a @ theta[j] - b + method.lam_1 * (theta[j] - centre)
                        slope = slope + method.gamma_1 * np.tanh(theta[j] / method.rho)
                        theta[j] = theta[j] - method.alpha * slope
                    theta[j] = cut(theta[j])
                    if method.centre == "device":
                        own[j] = (method.lam_1 * theta[j] + method.lam_2 * cut(w)) / (method.lam_1 + method.lam_2)
                each = [(method.lam_1 * theta[j] + method.lam_2 * w) / (method.lam_1 + method.lam_2) for j in devices]
                phi = np.mean(each, axis=0)
                w = w - method.eta * (method.lam_2 * (w - phi) + method.gamma_2 * np.tanh(w / method.rho))
            team[i] = cut(w)
        x = cut((1 - method.beta) * x + method.beta * team.mean(0))
    return theta, team, x


@pytest.mark.parametrize("centre", ["edge", "device"])
@pytest.mark.parametrize(
    "sparsity",
    [
        {"gamma_1": 0.0, "gamma_2": 0.0},
        {"gamma_1": 0.3, "gamma_2": 0.2, "rho": 0.05, "zero_tol": 0.01, "schedule": "none"},
        {"gamma_1": 0.3, "gamma_2": 0.0, "rho": 0.05, "zero_tol": 0.05, "schedule": "none"},
    ],
)
def test_rounds_done_by_hand(centre: str, sparsity: dict[str, Any]) -> None:
    population = regression([2, 3], dimension=6)
    given = {"centre": centre, "team_steps": 4, "local_steps": 3, "alpha": 0.1, "eta": 0.15, "beta": 0.7} | sparsity
    given |= {"lam_1": 3.0, "lam_2": 2.0, "batch_size": "full"}
    simulation = simulate(SFedHP(**given), population, 2)
    theta, team, x = by_hand(population, given, 2)
    np.testing.assert_allclose(simulation.stores[0].rows["model"].numpy(), theta, atol=1e-12, rtol=0)
    np.testing.assert_allclose(simulation.team_models(), team, atol=1e-12, rtol=0)
    np.testing.assert_allclose(simulation.model().numpy(), x, atol=1e-12, rtol=0)
    if given["gamma_1"] and given["gamma_2"]:
        assert 0 < float(measure(simulation)[1]["density"]["PM"].mean()) < 1  # the case is not trivial


def test_one_step_by_hand_in_one_dimension() -> None:
    """A = 1, b = 2, all from 0: theta = 0.1*2 = 0.2; phi = (1*0.2 + 3*0)/4 = 0.05; w = 0 + 0.5*3*0.05 = 0.075."""
    population = regression("1x1", dimension=1, samples=2)
    population.x[:], population.y[:] = 1.0, 2.0
    given = {"team_steps": 1, "local_steps": 1, "alpha": 0.1, "eta": 0.5, "lam_1": 1.0, "lam_2": 3.0, "beta": 0.5}
    simulation = simulate(SFedHP(**given, **DENSE), population, 1)
    assert simulation.stores[0].rows["model"].item() == pytest.approx(0.2)
    assert float(simulation.team_models()) == pytest.approx(0.075)  # type: ignore[arg-type]
    assert simulation.model().item() == pytest.approx(0.0375)


@pytest.mark.parametrize("schedule", ["none", "each"])
def test_a_device_that_never_took_part_adapts_with_its_full_sparsity(schedule: str) -> None:
    """It has no density yet that could let its sparsity go."""
    population = regression("1x3", dimension=6)
    given = {"gamma_1": 0.3, "gamma_2": 0.0, "rho": 0.05, "zero_tol": 0.01, "schedule": schedule, "alpha": 0.1}
    given |= {"team_steps": 2, "local_steps": 3, "lam_1": 3.0, "lam_2": 2.0, "batch_size": "full"}
    simulation = simulate(SFedHP(**given), population, 2, links={0: without(1)})
    (a, b), teams = quadratics(population)[1], simulation.team_models()
    assert teams is not None
    theta = w = teams[0].numpy()
    for _ in range(3):
        theta = theta - 0.1 * (a @ theta - b + 3.0 * (theta - w) + 0.3 * np.tanh(theta / 0.05))
    theta = np.where(np.abs(theta) <= 0.01, 0, theta)
    np.testing.assert_allclose(personal(simulation)[1], theta, atol=1e-13)


# -- identities --------------------------------------------------------------------------------------------------------


def test_an_edge_step_is_a_pfedme_step_with_the_pulls_in_series() -> None:
    """w - phi = lam_1/(lam_1+lam_2) (w - mean theta), so w moves by eta * lam_bar * (w - mean theta)."""
    population = regression([4], dimension=5, seed=2)
    lam_1, lam_2, eta = 3.0, 5.0, 0.07
    for centre in ("edge", "device"):
        given = {"team_steps": 1, "lam_1": lam_1, "lam_2": lam_2, "eta": eta, "alpha": 0.05, "centre": centre}
        method = SFedHP(**given, **DENSE)
        task = task_of(population)
        simulation = Simulation(method, population, task, rounds=2, dtype=torch.float64)
        simulation.step()
        w, phi_of = simulation.model().clone(), method._between
        simulation.step()
        theta = simulation.stores[0].rows["model"].mean(0)
        torch.testing.assert_close(w - phi_of(theta, w), lam_1 / (lam_1 + lam_2) * (w - theta))
        lam_bar = lam_1 * lam_2 / (lam_1 + lam_2)
        torch.testing.assert_close(simulation.model(), w - eta * lam_bar * (w - theta), atol=1e-14, rtol=0)


def test_with_the_device_centre_theta_settles_at_pfedmes_prox_and_with_the_edge_centre_it_does_not() -> None:
    population = regression([3], dimension=4, seed=1)
    lam_1, lam_2 = 2.0, 3.0
    lam_bar = lam_1 * lam_2 / (lam_1 + lam_2)
    given: dict[str, Any] = {"team_steps": 60, "local_steps": 40, "alpha": 0.2, "eta": 1e-300} | DENSE
    start = simulate(SFedHP(centre="device", lam_1=lam_1, lam_2=lam_2, **given), population, 1)
    x = start.model().numpy()  # w_i stands still, so this is where it began
    prox = np.stack([np.linalg.solve(a + lam_bar * np.eye(4), b + lam_bar * x) for a, b in quadratics(population)])
    np.testing.assert_allclose(start.stores[0].rows["model"].numpy(), prox, atol=1e-9, rtol=0)
    edge = simulate(SFedHP(centre="edge", lam_1=lam_1, lam_2=lam_2, **given), population, 1)
    assert float((edge.stores[0].rows["model"] - torch.from_numpy(prox)).abs().max()) > 1e-2


# -- inner solver ------------------------------------------------------------------------------------------------------


def nesterov_by_hand(a: Tensor, b: Tensor, start: Tensor, lr: float, factor: float, steps: int, stop: float) -> Tensor:
    theta = y = start
    for _ in range(steps):
        slope = y @ a - b
        new = y - lr * slope
        theta, y = new, new + factor * (new - theta)
        if float(slope.square().sum()) <= stop:
            break
    return theta


@pytest.mark.parametrize("stop", [0.0, 0.5])
def test_accelerated_descent_is_nesterovs_scheme_row_by_row_with_its_stop(stop: float) -> None:
    generator = torch.Generator().manual_seed(4)
    root = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
    a, b = root @ root.mT / 6, torch.randn(3, 6, generator=generator, dtype=torch.float64)
    start = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    solver = Nesterov(start, lr=0.1, factor=0.6, stop=stop)
    y = start.clone()
    for _ in range(25):  # what `descend` does, in place
        y -= solver.rate * (torch.einsum("nij,nj->ni", a, y) - b + solver.extra(y))
    got = solver.result(y)
    for i in range(3):
        torch.testing.assert_close(got[i], nesterov_by_hand(a[i], b[i], start[i], 0.1, 0.6, 25, stop))


def test_nesterov_solves_the_inner_problem_better_in_the_same_number_of_steps() -> None:
    population = regression([2], dimension=20, samples=25, seed=3)
    given: dict[str, Any] = {"team_steps": 1, "local_steps": 30, "lam_1": 0.05, "lam_2": 1.0, "alpha": 0.2, "nu": 0.0}
    exact = np.stack([np.linalg.solve(a + 0.05 * np.eye(20), b) for a, b in quadratics(population)])
    gap = {}
    for inner in ("descent", "nesterov"):
        theta = simulate(SFedHP(inner=inner, **given, **DENSE), population, 1).stores[0].rows["model"].numpy()
        gap[inner] = float(np.abs(theta - exact).max())
    assert gap["nesterov"] < 0.5 * gap["descent"]


def test_the_momentum_is_that_of_a_step_of_one_over_l() -> None:
    assert momentum(0.01, 1.0) == pytest.approx((10 - 1) / (10 + 1))
    assert momentum(0.05, 25.0) == 0  # the published steps leave no room for it


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_each_weight_is_let_go_by_its_own_condition_or_both_by_both() -> None:
    filled = torch.tensor([0.1, 0.3])
    on, off = 0.001, 1e-6
    weights = {
        schedule: [
            [getattr(SFedHP(schedule=schedule, tiny=off), which)(round_, filled).tolist() for round_ in (99, 100)]
            for which in ("weight_device", "weight_edge")
        ]
        for schedule in ("none", "each", "both")
    }
    steady = [[pytest.approx([on, on])] * 2] * 2
    assert weights["none"] == steady
    assert weights["each"][0] == [pytest.approx([off, on])] * 2
    assert weights["each"][1] == [pytest.approx([on, on]), pytest.approx([off, off])]
    assert weights["both"][0] == [pytest.approx([on, on]), pytest.approx([off, on])]
    assert weights["both"][1] == [pytest.approx([on, on]), pytest.approx([off, on])]


@pytest.mark.parametrize("schedule", ["each", "both"])
def test_a_schedule_changes_nothing_before_its_conditions_hold_and_something_after(schedule: str) -> None:
    population = regression([2, 2], dimension=12)
    given: dict[str, Any] = {
        "gamma_1": 0.02,
        "gamma_2": 0.02,
        "rho": 0.01,
        "zero_tol": 0.01,
        "lam_1": 1.0,
        "lam_2": 1.0,
    }
    given |= {
        "alpha": 0.2,
        "eta": 0.3,
        "batch_size": "full",
        "team_steps": 5,
        "floor": 2.0 if schedule == "both" else 0.0,
        "sparse_rounds": 3,
    }
    steady, other = SFedHP(schedule="none", **given), SFedHP(schedule=schedule, **given)
    at = {rounds: [simulate(method, population, rounds).model() for method in (steady, other)] for rounds in (3, 4)}
    assert torch.equal(*at[3])
    assert not torch.equal(*at[4])
    assert float(at[4][1].abs().sum()) > float(at[4][0].abs().sum()) > 0  # less is shrunk


def test_devices_under_the_floor_train_without_sparsity_while_others_keep_it() -> None:
    method = SFedHP(schedule="each", floor=0.2, gamma_1=0.5)
    assert method.weight_device(0, torch.tensor([0.19, 0.2, 1.0])).tolist() == [0.0, 0.5, 0.5]


# -- which edges are aggregated ----------------------------------------------------------------------------------------


def test_all_edges_train_but_only_some_are_aggregated_and_sent_up() -> None:
    population = regression([2, 2, 2, 2], dimension=8, seed=5)
    given: dict[str, Any] = {"edges": 2, "team_steps": 2, **DENSE}
    simulation = simulate(SFedHP(**given), population, 1)
    teams = simulation.team_models()
    assert teams is not None
    assert simulation.stores[1].last.tolist() == [0, 0, 0, 0]
    means = {(i, j): (teams[i] + teams[j]) / 2 for i in range(4) for j in range(i)}
    near = [pair for pair, mean in means.items() if torch.allclose(mean, simulation.model(), atol=1e-14)]
    assert len(near) == 1
    upper, row = simulation.ledger.at(0, 2), 8 * 8
    assert upper.bytes_up == 2 * row
    assert upper.bytes_down == 4 * row + 2 * 8  # the model to all, a number to those that are to send
    drawn = {
        frozenset(pair)
        for seed in range(12)
        for s in [simulate(SFedHP(**given), population, 1, seed=seed)]
        for rows in [s.team_models()]
        if rows is not None
        for pair in means
        if torch.allclose((rows[pair[0]] + rows[pair[1]]) / 2, s.model(), atol=1e-14)
    }
    assert len(drawn) >= 4


def test_an_edge_that_was_lost_is_not_among_those_aggregated() -> None:
    population = regression([2, 2, 2])
    lost = Link(absences=lambda round_, tier, exchange, children: (exchange == 0) & (children == 1))
    simulation = simulate(SFedHP(edges=3, team_steps=1, **DENSE), population, 1, links={1: lost})
    rows = simulation.stores[1].rows["model"]
    torch.testing.assert_close(simulation.model(), (rows[0] + rows[2]) / 2)


VARIANTS: list[dict[str, Any]] = [
    {"edges": 2},
    {"schedule": "both", "sparse_rounds": 1},
    {"centre": "device", "inner": "nesterov"},
    {"gamma_1": 0.0, "gamma_2": 0.0},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_is_the_same_on_separate_nodes(variant: dict[str, Any]) -> None:
    population = regression([3, 2, 4], unequal=True, dimension=9)
    method = SFedHP(**{"team_steps": 2, "gamma_1": 0.1, "gamma_2": 0.1, "zero_tol": 0.05, "batch_size": 5} | variant)
    for links in ({}, {0: Link(loss=0.3), 1: Link(loss=0.2)}):
        stacked = simulate(method, population, 3, dtype=torch.float32, chunk=1, links=links)
        other = Simulation(method, population, task_of(population), rounds=3, links=links)
        assert_separate_is_stacked(run_separately(other, 3), stacked)


# -- what crosses, and what is measured --------------------------------------------------------------------------------


def test_the_ledger_counts_the_masks_and_values_of_what_crossed() -> None:
    population = regression([2, 3], dimension=40, samples=80)
    given: dict[str, Any] = {
        "gamma_1": 0.05,
        "gamma_2": 0.05,
        "rho": 0.01,
        "zero_tol": 0.05,
        "lam_1": 2.0,
        "lam_2": 2.0,
    }
    given |= {"alpha": 0.2, "eta": 0.3}
    simulation = simulate(SFedHP(team_steps=6, **given), population, 5, dtype=torch.float32)
    x = simulation.model()
    assert 0 < int(x.count_nonzero()) < 40
    simulation.step()
    teams, upper = simulation.team_models(), simulation.ledger.at(5, 2)
    assert teams is not None
    assert upper.bytes_down == 2 * (5 + 4 * int(x.count_nonzero()))
    assert upper.bytes_up == 2 * 5 + 4 * int(teams.count_nonzero())
    assert upper.bytes_down + upper.bytes_up < 0.75 * 4 * 40 * 4
    for store in simulation.stores:  # what is kept is what crossed
        assert torch.equal(store.rows["model"], prune(store.rows["model"], 0.05))


def test_without_sparsity_rows_cross_dense_and_untouched() -> None:
    population = regression([2, 3], dimension=40)
    simulation = simulate(SFedHP(team_steps=2, zero_tol=1e9, **DENSE), population, 1)
    assert simulation.ledger.at(0, 2).bytes_up == 2 * 40 * 8
    assert bool((simulation.model() != 0).all())


SPARSE: dict[str, Any] = {"gamma_1": 0.3, "gamma_2": 0.3, "rho": 0.01, "zero_tol": 0.05, "team_steps": 3}


def test_densities_and_bytes_are_in_the_table_and_in_the_summary_tier_by_tier(tmp_path: Path) -> None:
    population = regression([2, 3], dimension=40)
    result = run(
        "sfedhp", population, task_of(population), rounds=4, settings=SPARSE, out=tmp_path / "run", evaluate_every=2
    )
    models = {kind: next(iter(result.tensors(kind).values())).flatten(1) for kind in ("PM", "TM", "GM")}
    told = result.summary()["extra"]["metrics"]
    for kind, rows in models.items():
        filled = (rows.abs() > 0.05).double().sum(1)
        assert told["density"][kind] == pytest.approx(float(filled.mean()) / 40)
        assert told["encoded_bytes"][kind] == pytest.approx(5 + 4 * float(filled.mean()))
        assert told["paper_bytes"][kind] == pytest.approx(
            (64 * float(filled.mean()) + (40 - float(filled.mean())) + 40) / 8
        )
    assert 0 < told["density"]["PM"] < 1
    assert set(told["phi_density"]) == {"TM"}
    assert list(result.curve("PM", "density")) == [0, 1, 2, 4]
    each = [result.last("PM", "density", node=name) for name in population.tree.names(0)]
    assert sum(each) / 5 == pytest.approx(result.last("PM", "density"))


def test_phi_of_an_edge_is_between_its_devices_and_its_model() -> None:
    """With one exchange w is still x when phi is formed: phi = (lam_1 mean theta + lam_2 x) / (lam_1 + lam_2)."""
    population = regression([2, 3], dimension=6)
    simulation = simulate(SFedHP(team_steps=1, lam_1=3.0, lam_2=1.0, **DENSE), population, 1)
    theta = population.tree.mean(1, simulation.stores[0].rows["model"])
    x = simulation.learner.initial()
    torch.testing.assert_close(simulation.stores[1].rows["phi"], (3 * theta + x) / 4)


def test_reported_bytes_are_those_of_the_next_messages() -> None:
    population = regression([2, 3], dimension=40)
    simulation = Simulation(SFedHP(**SPARSE), population, task_of(population), rounds=6)
    for _ in range(5):
        simulation.step()
    server = float(measure(simulation)[1]["encoded_bytes"]["GM"].sum())
    simulation.step()
    told = measure(simulation)[1]["encoded_bytes"]
    upper = simulation.ledger.at(5, 2)
    assert upper.bytes_down == 2 * server
    assert upper.bytes_up == float(told["TM"].sum())


def test_dense_models_are_weighed_as_they_are_sent() -> None:
    population = regression([2, 3], dimension=40)
    told = measure(simulate(SFedHP(team_steps=2, **DENSE), population, 1))[1]
    assert told["encoded_bytes"]["GM"].tolist() == [40 * 8]
    assert told["paper_bytes"]["TM"].tolist() == [40 * 8, 40 * 8]  # the paper's dense numbers have 64 bits too


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["6", "2x2x2"])
def test_other_depths_are_refused(tree: str) -> None:
    population = regression(tree)
    with pytest.raises(BadInput, match="3 tiers"):
        Simulation(SFedHP(), population, task_of(population), rounds=1)


def test_the_published_preset_has_the_papers_numbers() -> None:
    method = algorithm("sfedhp", preset="published", schedule="both")
    assert isinstance(method, SFedHP)
    assert (method.lam_1, method.lam_2, method.alpha, method.eta, method.rho) == (25, 25, 0.05, 0.05, 6e-5)
    assert (method.team_steps, method.local_steps, method.batch_size, method.schedule) == (20, 5, 20, "both")


def test_the_automatic_step_is_one_over_curvature_and_pull() -> None:
    population = regression([2, 2])
    simulation = Simulation(SFedHP(alpha="auto"), population, task_of(population), rounds=1, dtype=torch.float64)
    worst = max(float(np.linalg.eigvalsh(a)[-1]) for a, _ in quadratics(population))
    assert isinstance(simulation.algorithm, SFedHP)
    assert simulation.algorithm.alpha == pytest.approx(1 / (worst + 25), rel=0.02)


def test_divergence_is_noticed_although_rows_cross_encoded() -> None:
    population = regression([2, 2])
    with pytest.raises(Diverged, match="diverged"):
        simulate(SFedHP(alpha=1e6, team_steps=20, local_steps=40), population, 3, dtype=torch.float32)
