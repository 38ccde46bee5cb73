"""Partitions, team formations and shifts."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.errors import BadInput
from palmette.population import Dirichlet, Few, Iid, Labels, PerClass, Pool, Population, TwoLevel, make_population
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


# Another partition is another experiment: what a seed deals out must never change.
PINNED = {
    Labels(2): "968c24425537fdbc",
    Labels(3): "a3e386e65e8857b8",
    Labels(2, "equal"): "d2382843f31fbc2a",
    Labels(2, "lognormal"): "a76297af70afdf46",
    Labels(2, "power-law", 0.5): "1ae0ac21fe962db8",
    Dirichlet(): "088d3e70d3b0c45c",
    Dirichlet(0.1, "team"): "ebc416a7d0b88883",
    TwoLevel(): "4683c99efe1e5202",
    TwoLevel(0.3, "alike"): "bf50d92ece4a9ef0",
    TwoLevel("alike", 0.3, "power-law"): "94d27c3425faac23",
    TwoLevel(0.01, 0.01, "lognormal", 2.0): "d4f15ef48f0e32e6",
    Iid(): "f2d967f1bcde2d16",
    Iid("lognormal"): "c085930f6c921c53",
    Iid("power-law", 1.5): "f62b7b8ddbba6368",
    PerClass(2, 20, 30): "789f5614bb70614c",
    PerClass(5, 30, 60, "test"): "834718d8ac81662a",
    PerClass(5, 60, 30, "all"): "f80cd2012a67376a",
    Few(3, Iid()): "f2d967f1bcde2d16",
}


@pytest.mark.parametrize("partition", PINNED, ids=str)
def test_what_a_seed_deals_out_never_changes(partition: Partition) -> None:
    parts = partition.assign(labels_of(), TREE, 10, 3)
    found = parts.index.astype("<i8").tobytes() + parts.start.astype("<i8").tobytes()
    found += b"" if parts.test is None else parts.test.tobytes()
    assert hashlib.sha256(found).hexdigest()[:16] == PINNED[partition]


@pytest.mark.parametrize(
    "partition",
    [Labels(2), Labels(2, "power-law"), Dirichlet(), Dirichlet(0.1, "team"), TwoLevel(), Iid(), Iid("lognormal"),
     PerClass(2, 20, 30), Few(3, Iid())],
)  # fmt: skip
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


@pytest.mark.parametrize(
    "partition",
    [Dirichlet(), Dirichlet(0.05), Dirichlet(0.05, "team"), Iid(), Iid("power-law", 3.0), TwoLevel(0.01, 0.01),
     TwoLevel("alike", "alike", "power-law", 3.0)],
)  # fmt: skip
def test_these_partitions_use_every_sample_exactly_once(partition: Partition) -> None:
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
        (lambda: make_partition("iid", {"alpha": 1}), "the partition iid has no option 'alpha'"),
        (lambda: Iid("large"), "sizes = 'large' must be one of equal, lognormal, power-law"),
        (lambda: Iid("equal", 2.0), "size_spread = 2.0 is for sizes = lognormal or power-law"),
        (lambda: Labels(2, "power-law", 11.0), "size_spread = 11.0 must be from 0 to 10"),
        (lambda: TwoLevel(0.0), "between_teams = 0.0 must be a number above 0, or alike"),
        (lambda: TwoLevel(1.0, "same"), "within_teams = 'same' must be a number above 0, or alike"),
        (lambda: PerClass(shared="train"), "shared = 'train' must be one of none, test, all"),
        (lambda: Few(3, PerClass()), "'per-class' says itself how many samples"),
    ],
)
def test_bad_partition_settings_are_refused_by_name(make: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()  # type: ignore[operator]


# -- two levels --------------------------------------------------------------------------------------------------------


def apart(parts: Parts, y: np.ndarray, tree: Tree) -> tuple[float, float]:
    """Return the mean total variation distance of teams from all samples, and of devices from their team."""
    owner = np.repeat(np.arange(tree.devices), np.diff(parts.start))
    devices = np.zeros((tree.devices, 10))
    np.add.at(devices, (owner, y[parts.index]), 1)
    teams = np.zeros((tree.size(1), 10))
    np.add.at(teams, tree.parents[0], devices)
    share = [counts / counts.sum(-1, keepdims=True) for counts in (devices, teams, teams.sum(0))]
    return (
        float(np.abs(share[1] - share[2]).sum(1).mean() / 2),
        float(np.abs(share[0] - share[1][tree.parents[0]]).sum(1).mean() / 2),
    )


def measured(between: float | str, within: float | str, sizes: str = "equal") -> np.ndarray:
    """Return both distances, a mean over three seeds."""
    y, tree = labels_of(16000), Tree.parse("8x10")
    made = TwoLevel(between, within, sizes)  # type: ignore[arg-type]
    return np.mean([apart(made.assign(y, tree, 10, seed), y, tree) for seed in range(3)], axis=0)


def test_two_level_knobs_act_apart() -> None:
    values = ("alike", 10.0, 1.0, 0.3)
    table = np.array([[measured(between, within) for within in values] for between in values])
    teams, devices = table[..., 0], table[..., 1]
    assert (np.diff(teams, axis=0) > 0.08).all()  # each step of the one knob moves its own distance
    assert (np.diff(devices, axis=1) > 0.08).all()
    assert np.ptp(teams, axis=1).max() == 0  # and the other's not at all
    assert np.ptp(devices, axis=0).max() < 0.05  # or nearly not
    assert teams[0].max() < 0.01
    assert devices[:, 0].max() < 0.02


def test_two_level_sizes_are_a_third_knob() -> None:
    even, skewed = measured(1.0, 1.0), measured(1.0, 1.0, "power-law")
    assert np.abs(even - skewed).max() < 0.07
    y, tree = labels_of(16000), Tree.parse("8x10")
    sizes = np.diff(TwoLevel(1.0, 1.0, "power-law").assign(y, tree, 10, 0).start)
    assert sizes.min() < 50
    assert sizes.max() > 1000
    assert np.ptp(np.diff(TwoLevel(0.1, 0.1).assign(y, tree, 10, 0).start)) == 0


def test_two_level_goes_down_trees_of_any_depth() -> None:
    y, tree = labels_of(6000), Tree.parse("2x3x5")
    parts = TwoLevel(0.3, "alike").assign(y, tree, 10, 0)
    assert np.array_equal(np.sort(parts.index), np.arange(6000))
    teams, devices = apart(parts, y, tree)
    assert teams > 0.4
    assert devices < 0.03


def test_two_level_refuses_a_tree_without_teams_and_too_few_samples() -> None:
    with pytest.raises(BadInput, match="needs teams, and tree = 20 has none; use the partition dirichlet"):
        TwoLevel().assign(labels_of(), Tree.parse(20), 10, 0)
    with pytest.raises(BadInput, match="79 samples are too few for 20 devices of at least 4"):
        TwoLevel().assign(labels_of(79), TREE, 10, 0)


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_size_spread_makes_sizes_more_unequal() -> None:
    for kind in ("lognormal", "power-law"):
        largest = [
            np.diff(Iid(kind, spread).assign(labels_of(), TREE, 10, 0).start).max()  # type: ignore[arg-type]
            for spread in (0.0, 0.5, 1.0, 2.0)
        ]
        assert largest[0] == 200
        assert (np.diff(largest) > 0).all()
        assert np.diff(Iid(kind, 2.0, least=30).assign(labels_of(), TREE, 10, 0).start).min() >= 30  # type: ignore[arg-type]


def test_labels_with_a_power_law_uses_classes_up_and_keeps_the_labels() -> None:
    y = labels_of()
    parts = Labels(2, "power-law").assign(y, TREE, 10, 0)
    assert len(parts.index) > 3950
    sizes = np.diff(parts.start)
    assert sizes.max() > 5 * np.median(sizes)
    assert set(y[parts.index[: parts.start[1]]].tolist()) == {0, 1}


# -- the same number of every label ------------------------------------------------------------------------------------


def mnist_like() -> np.ndarray:
    return np.repeat(np.arange(10), 7000)


@pytest.mark.parametrize(("train", "test"), [(200, 800), (900, 300)])
def test_settings_of_sfedhp_fit_ten_devices_and_not_twenty(train: int, test: int) -> None:
    y, settings = mnist_like(), PerClass(5, train, test)
    parts = settings.assign(y, Tree.parse("2x5"), 10, 0)
    assert np.diff(parts.start).tolist() == [5 * (train + test)] * 10
    assert len(np.unique(parts.index)) == len(parts.index)
    need = 10 * (train + test)
    with pytest.raises(
        BadInput, match=f"class 0 has 7000 samples, but 10 devices own it and need {need}.*set data.shared="
    ):
        settings.assign(y, Tree.parse("4x5"), 10, 0)


def test_setting_1_fits_twenty_devices_that_share_test_samples_and_setting_2_those_that_share_all() -> None:
    y, tree = mnist_like(), Tree.parse("4x5")
    first = PerClass(5, 200, 800, "test").assign(y, tree, 10, 0)
    assert first.test is not None
    assert len(np.unique(first.index[~first.test])) == 20 * 5 * 200
    assert not np.isin(first.index[first.test], first.index[~first.test]).any()
    with pytest.raises(BadInput, match=r"need 9300.*set data.shared=all"):
        PerClass(5, 900, 300, "test").assign(y, tree, 10, 0)
    second = PerClass(5, 900, 300, "all").assign(y, tree, 10, 0)
    assert second.test is not None
    assert not np.isin(second.index[second.test], second.index[~second.test]).any()
    for unit in range(20):  # nobody has a sample twice
        own = second.index[second.start[unit] : second.start[unit + 1]]
        assert len(np.unique(own)) == len(own) == 6000


def test_per_class_decides_the_split_and_goes_with_team_formations() -> None:
    made = make_population(
        numbered_pool(), tree="2x5", teams="worst", partition="per-class",
        classes_per_device=3, train_per_class=20, test_per_class=30,
    )  # fmt: skip
    assert made.train.tolist() == [60] * 10
    assert made.tests.tolist() == [90] * 10
    assert set.union(*device_labels(made)[:5]) == {0, 1, 2, 3, 4}
    assert "test" not in made.recipe.values  # type: ignore[union-attr]
    with pytest.raises(BadInput, match=r"says which samples are for testing; leave test = 0\.5 out"):
        make_population(numbered_pool(), tree="2x5", partition=PerClass(2, 20, 30), test=0.5)
    with pytest.raises(BadInput, match=r"need 500 .*; lower train_per_class or test_per_class"):
        PerClass(1, 200, 300, "all").assign(labels_of(), Tree.parse(10), 10, 0)


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


def test_sizes_of_a_shift_act_apart_on_teams_and_devices() -> None:
    plain = make_population("crowd", tree="4x10")
    for kind in ("offset", "scale"):
        by_team, by_device = (
            make_population("crowd", tree="4x10", shift=kind, shift_teams=one, shift_devices=other)
            for one, other in ((1.0, 0.0), (0.0, 1.0))
        )
        for made, same in ((by_team, 4), (by_device, 40)):
            moved = made.x - plain.x if kind == "offset" else made.x / plain.x
            assert len(moved.reshape(40, 20, -1).mean((1, 2)).mul(1e4).round().unique()) == same
        assert by_team.x.dtype == torch.float32


def test_what_a_device_multiplies_by_is_its_own_whoever_else_is_there() -> None:
    pool = Pool(np.ones((8, 5), dtype=np.float32), np.arange(8) % 2, 2, start=np.array([0, 3, 5, 8]))
    less = Pool(pool.x[3:], pool.y[3:], 2, start=np.array([0, 2, 5]))
    how = {"teams": "given", "shift": "scale", "shift_teams": 0.5, "shift_devices": 0.5}
    more = make_population(pool, tree={"north": ["a", "b"], "south": ["c"]}, **how)  # type: ignore[arg-type]
    fewer = make_population(less, tree={"north": ["b"], "south": ["c"]}, **how)  # type: ignore[arg-type]
    assert torch.equal(more.x[3:], fewer.x)
    assert len(more.x.unique()) == 3


def test_bytes_stay_bytes_within_their_range_when_shifted() -> None:
    plain = make_population(images(), tree="2x3")
    for kind in ("offset", "scale", "noise"):
        made = make_population(images(), tree="2x3", shift=kind, shift_devices=0.3)
        assert made.x.dtype == torch.uint8
        assert made.x.max() <= plain.x.max()
        assert not torch.equal(made.x, plain.x)
        assert torch.equal(made.y, plain.y)


def test_bad_shifts_are_refused_by_name() -> None:
    tokens = Pool(np.zeros((600, 4), dtype=np.int64), labels_of(600), 10)
    for given, message in (
        ({"shift_teams": 1.0}, "shift_teams = 1.0 is the size of a shift; set shift to one of offset, scale, noise"),
        ({"shift": "rotate", "shift_devices": 1.0}, "shift_devices = 1.0 is the size of a shift"),
        ({"shift": "scale", "shift_devices": -1}, "shift_devices = -1 must be from 0 to 5"),
        ({"shift": "scale", "shift_teams": 0}, "both 0, so nothing is shifted"),
        ({"shift": "noise", "tree": "10"}, "differs by team, and tree = 10 has no teams"),
    ):
        with pytest.raises(BadInput, match=message):
            make_population(images(), **{"tree": "2x3", **given})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="these samples are tokens"):
        make_population(tokens, tree="2x3", shift="offset")
    assert make_population(images(), tree="10", shift="noise", shift_teams=0, shift_devices=1.0).devices == 10
