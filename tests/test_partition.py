"""Partitions, team formations and shifts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.errors import BadInput
from palmette.population import Dirichlet, Few, Iid, Labels, Pool, Population, make_population
from palmette.population.partition import Partition, Parts, make_partition
from palmette.tree import Tree

TREE = Tree.parse("4x5")


def labels_of(samples: int = 4000, classes: int = 10, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, samples)


def numbered_pool(samples: int = 4000) -> Pool:
    """A pool whose single feature is the sample's own position."""
    return Pool(np.arange(samples, dtype=np.float64)[:, None], labels_of(samples), 10)


def device_labels(made: Population) -> list[set[int]]:
    return [set(made.y[made.start[i] : made.start[i + 1]].tolist()) for i in range(made.devices)]


def same(one: Parts, other: Parts) -> bool:
    return np.array_equal(one.index, other.index) and np.array_equal(one.start, other.start)


@pytest.mark.parametrize("partition", [Labels(2), Dirichlet(), Dirichlet(0.1, "team"), Iid(), Few(3, Iid())])
class TestEveryPartition:
    def test_the_seed_alone_decides(self, partition: Partition) -> None:
        y = labels_of()
        one = partition.assign(y, TREE, 10, 3)
        assert same(one, partition.assign(y, TREE, 10, 3))
        assert not same(one, partition.assign(y, TREE, 10, 4))

    def test_no_sample_is_used_twice(self, partition: Partition) -> None:
        parts = partition.assign(labels_of(), TREE, 10, 0)
        assert len(np.unique(parts.index)) == len(parts.index) == parts.start[-1]
        assert len(parts.start) == TREE.devices + 1
        assert (np.diff(parts.start) > 0).all()


@pytest.mark.parametrize("partition", [Dirichlet(), Dirichlet(0.05), Dirichlet(0.05, "team"), Iid()])
def test_dirichlet_and_iid_use_every_sample_exactly_once(partition: Partition) -> None:
    parts = partition.assign(labels_of(), TREE, 10, 0)
    assert np.array_equal(np.sort(parts.index), np.arange(4000))


def test_labels_gives_device_u_the_labels_u_and_the_next_in_a_circle() -> None:
    y = labels_of()
    parts = Labels(3).assign(y, TREE, 10, 0)
    for unit in range(TREE.devices):
        own = y[parts.index[parts.start[unit] : parts.start[unit + 1]]]
        assert set(own.tolist()) == {unit % 10, (unit + 1) % 10, (unit + 2) % 10}


def test_labels_takes_each_class_in_the_order_of_the_data_set() -> None:
    y = labels_of()
    parts = Labels(1).assign(y, TREE, 10, 0)
    for label in range(10):
        taken = parts.index[y[parts.index] == label]
        assert np.array_equal(taken, np.flatnonzero(y == label)[: len(taken)])


def test_labels_sizes_differ_and_stay_above_a_third_of_the_slot() -> None:
    sizes = np.diff(Labels(2).assign(np.repeat(np.arange(10), 7000), Tree.parse("4x10"), 10, 0).start)
    assert len(set(sizes.tolist())) > 20
    assert sizes.min() >= 2 * int(0.343 * 875)


@pytest.mark.parametrize("seed", range(20))
def test_labels_starves_nobody_where_demands_exceed_the_class(seed: int) -> None:
    y = np.repeat(np.arange(10), 40)  # 4 owners per class: 10 samples each take the whole class
    sizes = np.diff(Labels(2).assign(y, TREE, 10, seed).start)
    assert (sizes == 20).all()
    y = np.repeat(np.arange(10), 100)
    parts = Labels(2).assign(y, TREE, 10, seed)
    assert np.diff(parts.start).min() >= 20
    assert np.bincount(y[parts.index], minlength=10).max() <= 100


def test_labels_refuses_a_class_with_fewer_samples_than_owners() -> None:
    with pytest.raises(BadInput, match="class 0 has 3 samples for 4 devices"):
        Labels(2).assign(np.repeat(np.arange(10), 3), TREE, 10, 0)


def test_labels_refuses_more_classes_per_device_than_there_are() -> None:
    with pytest.raises(BadInput, match="classes_per_device = 11 is more than the 10"):
        Labels(11).assign(labels_of(), TREE, 10, 0)


@pytest.mark.parametrize("within", ["all", "team"])
def test_dirichlet_fills_every_device_up_to_the_least(within: str) -> None:
    for seed in range(10):
        parts = Dirichlet(0.01, within, least=15).assign(labels_of(400), TREE, 10, seed)  # type: ignore[arg-type]
        assert np.diff(parts.start).min() == 15
        assert np.array_equal(np.sort(parts.index), np.arange(400))


def test_dirichlet_gives_equal_sizes_when_the_least_is_the_mean() -> None:
    assert (np.diff(Dirichlet(0.01, least=20).assign(labels_of(400), TREE, 10, 0).start) == 20).all()


def test_dirichlet_takes_from_the_largest_only() -> None:
    before = np.diff(Dirichlet(0.05, least=1).assign(labels_of(), TREE, 10, 0).start)
    after = np.diff(Dirichlet(0.05, least=60).assign(labels_of(), TREE, 10, 0).start)
    gave = before > after
    assert gave.any()
    assert before[gave].min() >= before[~gave].max()
    assert after[gave].max() - after[gave].min() <= 1


def test_dirichlet_refuses_more_devices_than_samples_can_fill() -> None:
    with pytest.raises(BadInput, match="79 samples are too few for 20 devices of at least 4"):
        Dirichlet().assign(labels_of(79), TREE, 10, 0)


def test_dirichlet_within_team_gives_teams_alike_and_devices_apart() -> None:
    y = labels_of(8000)
    parts = Dirichlet(0.1, "team").assign(y, TREE, 10, 0)
    team_starts = parts.start[::5]
    assert np.diff(team_starts).tolist() == [2000] * 4
    teams = [np.bincount(y[parts.index[a:b]], minlength=10) for a, b in pairwise(team_starts)]
    assert all(150 < count < 250 for team in teams for count in team)
    first = np.bincount(y[parts.index[: parts.start[1]]], minlength=10)
    assert first.max() > 0.3 * first.sum()


def test_dirichlet_within_team_deals_in_proportion_to_the_devices() -> None:
    parts = Dirichlet(1.0, "team").assign(labels_of(600), Tree.parse([1, 2, 3]), 10, 0)
    assert parts.start[[0, 1, 3, 6]].tolist() == [0, 100, 300, 600]


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = np.diff(Iid().assign(labels_of(1003), TREE, 10, 0).start)
    assert set(sizes.tolist()) == {50, 51}


def test_iid_refuses_more_devices_than_samples() -> None:
    with pytest.raises(BadInput, match="19 samples are too few for 20 devices"):
        Iid().assign(labels_of(19), TREE, 10, 0)


def test_few_cuts_the_training_part_and_leaves_the_test_part_whole() -> None:
    pool = numbered_pool()
    whole = make_population(pool, tree=TREE, partition="labels")
    few = make_population(pool, tree=TREE, partition="few", samples=7)
    assert few.train.tolist() == [7] * 20
    assert torch.equal(few.tests, whole.tests)
    for i in range(20):
        a, b = int(whole.start[i]), int(few.start[i])
        assert torch.equal(few.x[b : b + 7], whole.x[a : a + 7])
        assert torch.equal(few.x[b + 7 : few.start[i + 1]], whole.x[a + whole.train[i] : whole.start[i + 1]])


def test_few_names_the_device_that_has_fewer() -> None:
    with pytest.raises(BadInput, match=r"device 'device-\d+' has \d+ training samples, fewer than samples = 300"):
        make_population(numbered_pool(), tree=TREE, partition=Few(300))


def test_few_hands_other_options_to_the_partition_it_cuts() -> None:
    assert make_partition("few", {"samples": 5, "classes_per_device": 3}) == Few(5, Labels(3))
    assert make_partition("few", {"of": "dirichlet", "alpha": 0.3}) == Few(10, Dirichlet(0.3))
    assert make_partition("few", {"of": Iid()}) == Few(10, Iid())
    with pytest.raises(BadInput, match="few of iid has no option 'alpha'"):
        make_partition("few", {"of": "iid", "alpha": 1.0})
    with pytest.raises(BadInput, match="cannot be applied to itself"):
        Few(3, Few(4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Labels(0), "classes_per_device = 0"),
        (lambda: Labels(1.5), "classes_per_device = 1.5"),
        (lambda: Dirichlet(0.0), "alpha = 0.0"),
        (lambda: Dirichlet(float("nan")), "alpha = nan"),
        (lambda: Dirichlet(1.0, "region"), "within = 'region'"),
        (lambda: Dirichlet(least=0), "least = 0"),
        (lambda: Few(0), "samples = 0"),
        (lambda: make_partition("label"), "did you mean 'labels'"),
        (lambda: make_partition("dirichlet", {"alfa": 1}), "no option 'alfa'; did you mean 'alpha'"),
        (lambda: make_partition("iid", {"alpha": 1}), "it has none"),
    ],
)
def test_bad_partition_settings_are_refused_by_name(make: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()  # type: ignore[operator]


# -- teams -------------------------------------------------------------------------------------------------------------


def test_worst_formation_gives_teams_disjoint_blocks() -> None:
    made = make_population(numbered_pool(), tree="2x6", teams="worst", partition="labels")
    owned = device_labels(made)
    assert set.union(*owned[:6]) == {0, 1, 2, 3, 4}
    assert set.union(*owned[6:]) == {5, 6, 7, 8, 9}
    assert owned[4] == {4, 0}
    assert owned[11] == {5, 6}


def test_average_formation_lets_teams_share_labels() -> None:
    owned = device_labels(make_population(numbered_pool(), tree="2x7", teams="average", partition="labels"))
    assert set.union(*owned[:7]) == set(range(7))
    assert set.union(*owned[7:]) == {5, 6, 7, 8, 9, 0, 1}
    assert owned[13] == {1, 5}


def test_average_formation_of_one_team_owns_every_label_once() -> None:
    owned = device_labels(make_population(numbered_pool(), tree="1x10", teams="average", partition="labels"))
    assert owned[9] == {9, 0}


def test_label_formations_go_with_few_labels_too() -> None:
    made = make_population(numbered_pool(), tree="2x6", teams="worst", partition=Few(5, Labels(2)))
    assert set.union(*device_labels(made)[:6]) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("formation", ["worst", "average"])
def test_label_formations_refuse_other_partitions(formation: str) -> None:
    with pytest.raises(BadInput, match="needs the partition 'labels'"):
        make_population(numbered_pool(), tree="2x6", teams=formation, partition="iid")
    with pytest.raises(BadInput, match="needs the partition 'labels'"):
        make_population("synthetic", tree="2x2", teams=formation)


def test_worst_formation_refuses_blocks_smaller_than_classes_per_device() -> None:
    with pytest.raises(BadInput, match=r"'team-0' has only the labels \[0, 1\], fewer than classes_per_device = 3"):
        make_population(numbered_pool(), tree="5x2", teams="worst", partition="labels", classes_per_device=3)


@pytest.mark.parametrize("tree", ["12", "11x1"])
def test_worst_formation_refuses_trees_without_teams_or_with_more_than_classes(tree: str) -> None:
    with pytest.raises(BadInput, match="needs 1 to 10 teams"):
        make_population(numbered_pool(), tree=tree, teams="worst", partition="labels")


def test_unknown_formation_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="'wurst'; did you mean 'worst'"):
        make_population(numbered_pool(), teams="wurst")


def test_given_formation_puts_unit_u_on_leaf_u_and_random_permutes() -> None:
    pool = numbered_pool()
    given = device_labels(make_population(pool, tree=TREE, teams="given", partition="labels"))
    assert given == [{u % 10, (u + 1) % 10} for u in range(20)]
    shuffled = device_labels(make_population(pool, tree=TREE, teams="random", partition="labels"))
    assert shuffled != given
    assert sorted(map(sorted, shuffled)) == sorted(map(sorted, given))
    assert shuffled == device_labels(make_population(pool, tree=TREE, partition="labels"))


def test_random_formation_leaves_a_partition_within_teams_alone() -> None:
    pool = numbered_pool()
    one, other = (make_population(pool, tree=TREE, teams=how, within="team") for how in ("random", "given"))
    assert torch.equal(one.x, other.x)


# -- shift -------------------------------------------------------------------------------------------------------------


def images(samples: int = 600) -> Pool:
    random = np.random.default_rng(0)
    return Pool(random.integers(0, 256, (samples, 1, 4, 4), dtype=np.uint8), labels_of(samples), 10)


def part(x: Tensor, made: Population, team: int) -> np.ndarray:
    children = made.tree.children(1, team)
    return x[made.start[children.start] : made.start[children.stop]].numpy()


def test_rotate_turns_the_images_of_team_i_by_i_quarters() -> None:
    plain, turned = (make_population(images(), tree="6x3", shift=shift) for shift in (None, "rotate"))
    assert torch.equal(plain.y, turned.y)
    assert torch.equal(plain.start, turned.start)
    for team in range(6):
        expected = np.rot90(part(plain.x, plain, team), team, (-2, -1))
        assert np.array_equal(part(turned.x, turned, team), expected)
    assert not torch.equal(plain.x, turned.x)


def test_rotate_goes_by_the_finest_tier_of_teams() -> None:
    plain, turned = (make_population(images(), tree="2x2x3", shift=shift) for shift in (None, "rotate"))
    assert np.array_equal(part(turned.x, turned, 3), np.rot90(part(plain.x, plain, 3), 3, (-2, -1)))


def test_rotate_refuses_samples_that_are_not_square_images() -> None:
    with pytest.raises(BadInput, match=r"turns square images; these samples have the shape \(1,\)"):
        make_population(numbered_pool(), shift="rotate")
    with pytest.raises(BadInput, match=r"shape \(3, 4\)"):
        make_population(Pool(np.zeros((400, 3, 4), dtype=np.float32), labels_of(400), 10), shift="rotate")


def test_rotate_refuses_a_tree_without_teams_and_unknown_shifts() -> None:
    with pytest.raises(BadInput, match="has no teams"):
        make_population(images(), tree="10", shift="rotate")
    with pytest.raises(BadInput, match="'rotat'; did you mean 'rotate'"):
        make_population(images(), shift="rotat")
