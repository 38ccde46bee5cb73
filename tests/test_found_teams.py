"""Methods that find teams by themselves, IFCA, CFL and DemLearn, and teams that learn how much to take from the others."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from palmette import address
from palmette.algorithms import algorithm
from palmette.algorithms.cfl import CFL
from palmette.algorithms.demlearn import DemLearn
from palmette.algorithms.edge_mixing import EdgeMixing
from palmette.algorithms.ifca import IFCA
from palmette.blocks.clustering import groups, halves
from palmette.engines.evaluation import measure
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged
from palmette.links import Link, Participation
from palmette.population import Population, make_population
from palmette.protocol import Algorithm
from palmette.task import make_task
from problems import Floats, quadratics, regression, simulate

FULL: dict[str, Any] = {"local_steps": 2, "alpha": 0.1, "batch_size": "full"}
ABSENT = {0: Link(absences=lambda round_, tier, exchange, children: (children == 1) & (round_ != 1))}
"""Device 1 takes part in round 1 alone."""


def steps(population: Population, i: int, row: Floats, pull: float = 0.0, centre: Floats | None = None) -> Floats:
    """Two full gradient steps of one device, by its normal equations."""
    a, b = quadratics(population)[i]
    for _ in range(2):
        row = row - 0.1 * (a @ row - b + (0 if centre is None else pull * (row - centre)))
    return row


def kept(simulation: Simulation, name: str = "model", tier: int = 0) -> Floats:
    rows: Floats = simulation.stores[tier].rows[name].numpy().copy()
    return rows


def samples(population: Population) -> Floats:
    counts: Floats = population.train.numpy().astype(float)
    return counts


def there(t: int, devices: int) -> list[int]:
    """Who takes part in a round of a run with `ABSENT`."""
    return [i for i in range(devices) if i != 1 or t == 1]


def turned_digits(method: Algorithm, rounds: int) -> Simulation:
    """Digits of four teams, each of which sees them turned by another quarter; the method is not told."""
    population = make_population("digits", tree="4x10", shift="rotate", seed=2)
    return simulate(method, population, rounds, make_task("mclr", population.shape, 10), dtype=torch.float32)


def found(simulation: Simulation, name: str) -> bool:
    """Whether the teams found are the four there are."""
    teams = simulation.stores[1].rows[name][0].view(4, 10)
    return len(teams.unique()) == 4 and all(len(team.unique()) == 1 for team in teams)


def bytes_of(simulation: Simulation, round_: int, tier: int = 2) -> tuple[int, int]:
    """Bytes down and up in a round on a link."""
    entry = simulation.ledger.entries[round_, tier]
    return entry.bytes_down, entry.bytes_up


# -- IFCA -------------------------------------------------------------------------------------------------------------------


def training_loss(population: Population, i: int, row: Floats) -> float:
    a, b = quadratics(population)[i]
    return float(row @ a @ row / 2 - b @ row)  # but for a number that no model changes


def first_models(count: int, width: int, spread: float, seed: int = 0) -> Floats:
    base = address.mix(address.key(seed, "ifca"), torch.arange(count))[:, None]
    numbers: Floats = address.uniform(address.mix(base, torch.arange(width))).numpy()
    return spread * (numbers - 0.5) * 12**0.5


@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_every_device_trains_the_model_that_fits_it_best(averaging: str) -> None:
    """Three rounds by hand, with a device that is mostly absent."""
    population = regression("2x3", unequal=True)
    method = algorithm("ifca", clusters=2, spread=0.8, averaging=averaging, **FULL)
    simulation = simulate(method, population, 3, links=ABSENT)
    models, chosen, own = first_models(2, 3, 0.8), np.full(6, -1), np.zeros((6, 3))
    n = samples(population)
    for t in range(3):
        here, total = there(t, 6), n[there(t, 6)].sum()
        new = models.copy()
        for i in here:
            chosen[i] = int(np.argmin([training_loss(population, i, row) for row in models]))
        for i in here:
            a, b = quadratics(population)[i]
            start = models[chosen[i]]
            own[i] = steps(population, i, start) if averaging == "models" else start - 0.1 * (a @ start - b)
        for j in {chosen[i] for i in here}:
            mine = [i for i in here if chosen[i] == j]
            if averaging == "models":
                new[j] = np.average(own[mine], axis=0, weights=n[mine])
            else:
                new[j] = models[j] + sum(n[i] / total * (own[i] - models[j]) for i in mine)
        models = new
    assert len(set(chosen)) == 2  # both models are in use
    np.testing.assert_allclose(simulation.stores[1].rows["all"].numpy().reshape(2, 3), models, atol=1e-12)
    np.testing.assert_allclose(kept(simulation), own, atol=1e-12)
    assert simulation.stores[1].rows["chosen"][0].tolist() == chosen.tolist()
    largest = int(np.bincount(chosen).argmax())
    np.testing.assert_allclose(simulation.model(), models[largest], atol=1e-12)


def test_a_model_that_nobody_chose_stays_and_equal_weights_count_devices() -> None:
    population = regression("3", unequal=True)
    simulation = simulate(algorithm("ifca", clusters=2, spread=50.0, weights="equal", **FULL), population, 1)
    first, after = first_models(2, 3, 50.0), simulation.stores[1].rows["all"].numpy().reshape(2, 3)
    chosen = simulation.stores[1].rows["chosen"][0].int().tolist()
    assert len(set(chosen)) == 1
    np.testing.assert_allclose(after[1 - chosen[0]], first[1 - chosen[0]], rtol=1e-14)
    wanted = np.mean([steps(population, i, first[chosen[0]]) for i in range(3)], 0)
    np.testing.assert_allclose(after[chosen[0]], wanted, atol=1e-10)


def test_ifca_with_one_model_is_fedavg() -> None:
    population = regression([3, 2], unequal=True)
    given = {"local_steps": 5, "alpha": 0.1, "batch_size": 4}
    one = simulate(algorithm("ifca", clusters=1, **given), population, 3, dtype=torch.float32)
    other = simulate(algorithm("fedavg", **given), population, 3, dtype=torch.float32)
    assert torch.equal(one.model(), other.model())
    assert tuple(one.kinds) == ("PM", "GM")


def test_ifca_sends_all_models_down_and_one_with_its_number_up() -> None:
    simulation = simulate(IFCA(clusters=3), regression("2x3"), 2, dtype=torch.float32)
    assert [bytes_of(simulation, t) for t in range(2)] == [(6 * 3 * 3 * 4, 6 * (3 * 4 + 1))] * 2


def test_ifca_finds_the_teams_whose_images_are_turned() -> None:
    simulation = turned_digits(IFCA(alpha=0.3), 6)
    assert found(simulation, "chosen")
    reports = measure(simulation)[1]
    assert int(reports["teams_found"]["GM"]) == 4
    assert int(reports["largest_team"]["GM"]) == 10


# -- CFL --------------------------------------------------------------------------------------------------------------------


def test_halves_do_not_depend_on_the_order_of_the_devices_even_where_distances_tie() -> None:
    apart = torch.ones(6, 6) - torch.eye(6)  # all pairs tie
    addresses = torch.tensor([40, 10, 60, 20, 50, 30])
    first = halves(apart, addresses, "complete")
    assert not bool(first[1])  # the lowest address is in the first half
    order = torch.tensor([5, 3, 1, 0, 2, 4])
    assert torch.equal(halves(apart, addresses[order], "complete"), first[order])


def test_groups_are_the_levels_of_a_binary_tree() -> None:
    place = torch.tensor([0.0, 1.0, 10.0, 12.0, 100.0], dtype=torch.float64)
    upper, lower = groups((place[:, None] - place).abs(), torch.arange(5), "average", 2)
    assert upper.tolist() == [0, 0, 0, 0, 1]
    assert lower.tolist() == [0, 0, 1, 1, 2]  # a group of one stays whole


def test_distances_beyond_the_range_of_numbers_end_in_a_sentence() -> None:
    with pytest.raises(Diverged, match="too large to be compared"):
        halves(torch.tensor([[0.0, torch.inf], [torch.inf, 0.0]]), torch.arange(2), "complete")


def best_bipartition(updates: Floats) -> list[int]:
    """The second half of the bipartition whose largest cosine between the halves is smallest, by trying all."""
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    cosine, everybody = unit @ unit.T, range(len(updates))
    tried = [list(part) for size in range(1, len(updates)) for part in combinations(everybody[1:], size)]
    return min(tried, key=lambda part: max(cosine[i, j] for i in part for j in everybody if j not in part))


def test_a_team_that_cannot_agree_is_split_by_the_papers_rule() -> None:
    """Six rounds by hand: FedAvg in every team, and the best split of all where the mean update is small beside the largest."""
    population = regression("6", unequal=True)
    names = population.tree.addresses[0]
    order = np.argsort(names)
    method = algorithm("cfl", clusters=3, eps1=0.8, eps2=0.9, wait=1, linkage="single", **FULL)
    simulation = simulate(method, population, 6)
    n, team, born, parent = samples(population), np.zeros(6, int), [0, -1, -1], [-1, -1, -1]
    models, longest = np.zeros((3, 3)), 0.0
    for t in range(6):
        theta = np.stack([steps(population, i, models[team[i]]) for i in range(6)])
        new, before = models.copy(), team.copy()
        for j in set(before):
            new[j] = np.average(theta[before == j], axis=0, weights=n[before == j])
            longest = max(longest, float(np.linalg.norm(new[j] - models[j])))
        for j in sorted(set(before)):
            mine = [i for i in order if before[i] == j]
            updates = theta[mine] - models[j]
            small = np.linalg.norm(new[j] - models[j]) < 0.8 * longest
            large = np.linalg.norm(updates, axis=1).max() > 0.9 * longest
            if small and large and len(mine) >= 3 and t - born[j] >= 1 and -1 in born:
                free = born.index(-1)
                born[j] = born[free] = t + 1
                parent[free], new[free] = j, new[j]
                team[[mine[place] for place in best_bipartition(updates)]] = free
        models = new
    assert -1 not in born  # there were splits
    server = {name: rows.numpy()[0] for name, rows in simulation.stores[1].rows.items()}
    assert (server["team"] == team).all()
    assert server["born"].tolist() == born
    assert server["parent"].tolist() == parent
    np.testing.assert_allclose(server["all"].reshape(3, 3), models, atol=1e-12)
    np.testing.assert_allclose(kept(simulation), theta, atol=1e-12)


def test_cfl_with_one_team_is_fedavg() -> None:
    population = regression([3, 2], unequal=True)
    given = {"local_steps": 5, "alpha": 0.1, "batch_size": 4}
    one = simulate(algorithm("cfl", clusters=1, **given), population, 3, dtype=torch.float32)
    other = simulate(algorithm("fedavg", **given), population, 3, dtype=torch.float32)
    assert torch.equal(one.model(), other.model())


def test_a_team_is_not_split_in_a_round_in_which_one_of_its_devices_is_absent() -> None:
    method = algorithm("cfl", clusters=2, eps1=5.0, eps2=0.01, wait=2, **FULL)
    for links, teams in (({}, 2), (ABSENT, 1)):  # device 1 is known from round 1 on, and is absent ever after
        simulation = simulate(method, regression("5"), 4, links=links)
        assert len(simulation.stores[1].rows["team"][0].unique()) == teams
    assert kept(simulation, "team", 1)[0].tolist() == [0] * 5


def test_cfl_sends_a_model_down_and_one_up() -> None:
    simulation = simulate(CFL(), regression("2x3"), 2, dtype=torch.float32)
    assert [bytes_of(simulation, t) for t in range(2)] == [(6 * 3 * 4, 6 * 3 * 4)] * 2


def test_cfl_finds_the_teams_whose_images_are_turned() -> None:
    assert found(turned_digits(CFL(alpha=0.3), 16), "team")


# -- DemLearn ---------------------------------------------------------------------------------------------------------------


Nested = int | tuple["Nested", "Nested"]


def members(node: Nested) -> list[int]:
    return [node] if isinstance(node, int) else members(node[0]) + members(node[1])


def merged(theta: Floats, known: list[int]) -> Nested:
    """Merge the two groups that are nearest on average, until one is left."""
    found: list[Nested] = list(known)
    while len(found) > 1:

        def apart(pair: tuple[Nested, Nested]) -> float:
            return float(
                np.mean([np.linalg.norm(theta[i] - theta[j]) for i in members(pair[0]) for j in members(pair[1])])
            )

        one, other = min(combinations(found, 2), key=apart)
        found = [node for node in found if node not in (one, other)] + [(one, other)]
    return found[0]


def raised(node: Nested, level: int, theta: Floats, factor: float) -> Floats:
    """A node's model on the way up: a mean counted by devices, amplified where it is a mean of several."""
    if isinstance(node, int):
        return theta[node]
    if level == 0:
        return factor * theta[members(node)].mean(0)
    parts = [raised(part, level - 1, theta, factor) for part in node]
    return factor * np.average(parts, axis=0, weights=[len(members(part)) for part in node])


def lowered(
    node: Nested, level: int, above: Floats | None, theta: Floats, factor: float, a: float
) -> dict[int, Floats]:
    """Every device's group's model on the way down."""
    own = raised(node, level, theta, factor)
    model = own if above is None else (1 - a) * own + a * above
    if level == 0:
        return dict.fromkeys(members(node), model)
    parts = [node] if isinstance(node, int) else list(node)
    return {i: row for part in parts for i, row in lowered(part, level - 1, model, theta, factor, a).items()}


def test_groups_are_found_anew_in_every_round_and_models_mix_along_their_tree() -> None:
    """Four rounds by hand, amplified in two; the device that is mostly absent counts from its first answer on."""
    population = regression("6", unequal=True)
    method = algorithm("demlearn", levels=2, mixing=0.4, lam=0.3, amplification=1.2, amplified_rounds=2, **FULL)
    simulation = simulate(method, population, 4, links=ABSENT)
    theta, known = np.zeros((6, 3)), list[int]()
    sent, root = dict[int, Floats](), np.zeros(3)
    for t in range(4):
        for i in there(t, 6):
            group = sent.get(i, root)
            start = 0.6 * theta[i] + 0.4 * group if i in known else group
            theta[i] = steps(population, i, start, 0.3 if t else 0.0, group)
        known = sorted({*known, *there(t, 6)})
        tree, factor = merged(theta, known), 1.2 if t < 2 else 1.0
        sent, root = lowered(tree, 2, None, theta, factor, 0.4), raised(tree, 2, theta, factor)
    np.testing.assert_allclose(kept(simulation), theta, atol=1e-12)
    np.testing.assert_allclose(simulation.model(), root, atol=1e-12)
    group = kept(simulation, "group", 1)[0].astype(int)
    models = kept(simulation, "groups", 1).reshape(4, 3)
    np.testing.assert_allclose([models[j] for j in group], [sent[i] for i in range(6)], atol=1e-12)


def test_demlearn_with_the_root_alone_is_fedavg_on_devices_of_equal_size() -> None:
    population = regression([3, 2])
    given = {"local_steps": 5, "alpha": 0.1, "batch_size": 4}
    alone = algorithm("demlearn", levels=0, mixing=1.0, lam=0.0, amplification=1.0, **given)
    one = simulate(alone, population, 3, dtype=torch.float32)
    other = simulate(algorithm("fedavg", **given), population, 3, dtype=torch.float32)
    assert torch.equal(one.model(), other.model())


def test_demlearn_sends_a_groups_model_down_and_one_up() -> None:
    simulation = simulate(DemLearn(), regression("2x3"), 2, dtype=torch.float32)
    assert [bytes_of(simulation, t) for t in range(2)] == [(6 * 3 * 4, 6 * 3 * 4)] * 2


def test_demlearns_groups_are_the_teams_whose_images_are_turned() -> None:
    simulation = turned_digits(DemLearn(alpha=0.3, levels=2), 8)
    assert found(simulation, "group")
    assert int(measure(simulation)[1]["teams_found"]["GM"]) == 4


# -- edge mixing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", ["search", "ratio"])
def test_a_team_learns_on_held_out_samples_how_much_to_take_from_the_others(mixing: str) -> None:
    """Three rounds by hand, with a device that is mostly absent, also when mixes are judged."""
    population = regression([2, 2, 1], unequal=True, seed=1)
    simulation = simulate(algorithm("edge-mixing", team_steps=2, mixing=mixing, **FULL), population, 3, links=ABSENT)
    held, team = population.held_out(0.2).tolist(), population.tree.parents[0]
    parts = []
    for i in range(5):
        lo, end = int(population.start[i]), int(population.start[i]) + int(population.train[i])
        parts.append((population.x[lo:end].numpy(), population.y[lo:end].numpy(), end - lo - held[i]))
    n = np.array([count for _, _, count in parts], float)

    def step(i: int, row: Floats) -> Floats:
        x, y, count = parts[i]
        return row - 0.1 * x[:count].T @ (x[:count] @ row - y[:count]) / count

    def loss(some: list[int], row: Floats) -> float:
        """The mean loss of some devices on what they hold out, by their training samples."""
        each = [((parts[i][0][parts[i][2] :] @ row - parts[i][1][parts[i][2] :]) ** 2).mean() / 2 for i in some]
        return float(np.average(each, weights=n[some]))

    v, shares, total = np.zeros((3, 3)), np.ones(3), np.bincount(team, weights=n)
    for t in range(3):
        w = v.copy()
        mine = [[i for i in there(t, 5) if team[i] == j] for j in range(3)]
        for j in range(3):
            for _ in range(2):
                w[j] = np.average([step(i, step(i, w[j])) for i in mine[j]], axis=0, weights=n[mine[j]])
        x = np.average(w, axis=0, weights=total)
        for j in range(3):
            others = np.average(np.delete(w, j, 0), axis=0, weights=np.delete(total, j))
            losses = [loss(mine[j], a * w[j] + (1 - a) * others) for a in np.arange(11) / 10]
            shares[j] = np.argmin(losses) / 10 if mixing == "search" else 1 / (1 + np.exp(losses[10] - losses[0]))
            v[j] = shares[j] * w[j] + (1 - shares[j]) * others
    assert ((shares > 0) & (shares < 1)).any()
    np.testing.assert_allclose(kept(simulation, "model", 1), v, atol=1e-12)
    np.testing.assert_allclose(simulation.model(), x, atol=1e-12)
    np.testing.assert_allclose(kept(simulation, "share", 1)[:, 0], shares, atol=1e-12)
    np.testing.assert_allclose(measure(simulation)[1]["own_share"]["TM"], shares, atol=1e-12)


def test_a_team_whose_mixes_nobody_judged_keeps_its_share() -> None:
    """In round 1 nobody answers after the two averages."""
    quiet = Link(absences=lambda round_, tier, exchange, children: (exchange == 2) & (round_ == 1))
    population = regression([2, 2, 1], unequal=True, seed=1)
    method = algorithm("edge-mixing", team_steps=2, **FULL)
    simulation = simulate(method, population, 2, links={0: quiet}, stop=1)
    before = kept(simulation, "share", 1)
    assert (before < 1).any()
    simulation.step()
    assert (kept(simulation, "share", 1) == before).all()


@pytest.mark.parametrize("teams", ["pass 2", 0.5])
def test_every_team_that_took_part_mixes(teams: Any) -> None:
    method, link = EdgeMixing(team_steps=1, mixing="ratio", **FULL), Link(Participation.parse(teams))
    simulation = simulate(method, regression("4x2"), 4, links={1: link}, stop=0)
    turns = []
    for _ in range(4):
        before = kept(simulation, "share", 1)
        simulation.step()
        now = simulation.stores[1].last == simulation.round - 1
        assert (kept(simulation, "share", 1) != before)[:, 0].tolist() == now.tolist()
        turns.append(now.nonzero()[:, 0].tolist())
    assert [len(who) for who in turns] == [2] * 4
    if teams == "pass 2":
        assert sorted(turns[0] + turns[1]) == sorted(turns[2] + turns[3]) == [0, 1, 2, 3]


def test_edge_mixing_sends_a_model_up_and_one_down_to_a_team_and_two_to_be_judged_to_a_device() -> None:
    simulation = simulate(EdgeMixing(team_steps=3), regression("2x4"), 2, dtype=torch.float32)
    size = 3 * 4
    assert [bytes_of(simulation, t, 2) for t in range(2)] == [(2 * size, 2 * size)] * 2
    assert bytes_of(simulation, 1, 1) == (8 * (3 + 2) * size, 8 * (3 * size + 11 * 4))


def test_edge_mixing_refuses_a_tree_without_teams() -> None:
    with pytest.raises(BadInput, match="edge-mixing is defined on trees of 3 tiers"):
        simulate(EdgeMixing(), regression("4"), 1)
