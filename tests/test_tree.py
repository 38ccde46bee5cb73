"""Trees: every way to make one, what they answer, and what they refuse."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.errors import BadInput
from palmette.tree import Tree

NESTED = {
    "north": {"oslo": ["o1", "o2"], "bergen": ["b1"]},
    "south": {"rome": ["r1", "r2", "r3"]},
}


def parents_of(tree: Tree) -> list[list[int]]:
    return [parent.tolist() for parent in tree.parents]


def nested_names(tree: Tree, tier: int, node: int) -> Any:
    """Write the subtree of a node the way a user would."""
    children = tree.children(tier, node)
    if tier == 1:
        return [tree.name(0, child) for child in children]
    return {tree.name(tier - 1, child): nested_names(tree, tier - 1, child) for child in children}


def links_by_name(tree: Tree) -> dict[tuple[int, str], str]:
    """Return each node's parent by names, whatever the numbering."""
    return {
        (tier, tree.name(tier, node)): tree.name(tier + 1, int(parent))
        for tier, parents in enumerate(tree.parents)
        for node, parent in enumerate(parents)
        if tier + 1 < tree.top
    }


# -- from text and sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["4x10", " 4 x 10 ", "4×10"])
def test_4x10_is_four_teams_of_ten_devices_under_a_server(text: str) -> None:
    tree = Tree.parse(text)
    assert parents_of(tree) == [[i // 10 for i in range(40)], [0, 0, 0, 0]]
    assert (tree.tiers, tree.top, tree.devices) == (3, 2, 40)
    assert [tree.size(tier) for tier in range(3)] == [40, 4, 1]


def test_2x5x10_is_two_regions_of_five_teams_of_ten() -> None:
    tree = Tree.parse("2x5x10")
    assert [tree.size(tier) for tier in range(4)] == [100, 10, 2, 1]
    assert parents_of(tree)[0] == [i // 10 for i in range(100)]
    assert parents_of(tree)[1:] == [[i // 5 for i in range(10)], [0, 0]]


@pytest.mark.parametrize("what", ["40", 40])
def test_one_number_is_devices_directly_under_the_server(what: str | int) -> None:
    tree = Tree.parse(what)
    assert parents_of(tree) == [[0] * 40]
    assert tree.tiers == 2


@pytest.mark.parametrize("sizes", [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2]), [3.0, 1.0, 2.0]])
def test_sizes_are_teams_of_those_many_devices(sizes: Any) -> None:
    assert parents_of(Tree.parse(sizes)) == [[0, 0, 0, 1, 2, 2], [0, 0, 0]]


def test_the_smallest_tree_is_a_server_with_one_device() -> None:
    assert parents_of(Tree.parse(1)) == [[0]]


def test_a_tree_is_its_own_reading() -> None:
    tree = Tree.parse("2x3")
    assert Tree.parse(tree) is tree


@pytest.mark.parametrize("text", ["", "4x", "x10", "4y10", "four", "4x-1", "4.5", "4x10x", "4 10"])
def test_text_that_is_no_tree_is_quoted_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="cannot read the tree") as caught:
        Tree.parse(text)
    assert repr(text) in str(caught.value)
    assert "2x5x10" in str(caught.value)


@pytest.mark.parametrize(("what", "shown"), [("4x0", "4x0"), ("0", "0"), (0, "0"), (-3, "-3"), ("0x5", "0x5")])
def test_a_zero_in_a_tree_is_named(what: str | int, shown: str) -> None:
    with pytest.raises(BadInput, match=rf"at least 1, not {shown}$"):
        Tree.parse(what)


@pytest.mark.parametrize("sizes", [[], [3, 0], [3, -1], [2.5], [float("nan")], ["a", 1], [[2, 3], [4]]])
def test_sizes_that_are_no_counts_are_shown(sizes: list[Any]) -> None:
    with pytest.raises(BadInput, match="whole numbers of at least 1") as caught:
        Tree.parse(sizes)
    assert str(sizes) in str(caught.value)


@pytest.mark.parametrize("what", [4.5, None])
def test_what_is_neither_text_nor_sizes_nor_names_is_refused(what: Any) -> None:
    with pytest.raises(BadInput, match=str(what)):
        Tree.parse(what)


# -- from nested names -------------------------------------------------------------------------------------------------


def test_a_nested_mapping_keeps_the_users_names_and_order() -> None:
    tree = Tree.parse(NESTED)
    assert tree.names(0) == ["o1", "o2", "b1", "r1", "r2", "r3"]
    assert tree.names(1) == ["oslo", "bergen", "rome"]
    assert tree.names(2) == ["north", "south"]
    assert tree.names(3) == ["server"]
    assert parents_of(tree) == [[0, 0, 1, 2, 2, 2], [0, 0, 1], [0, 0]]


def test_a_count_in_a_mapping_numbers_devices_after_their_team() -> None:
    tree = Tree.parse({"a": 2, "b": ["x"], "c": 3})
    assert tree.names(0) == ["a/0", "a/1", "x", "c/0", "c/1", "c/2"]
    assert parents_of(tree)[0] == [0, 0, 1, 2, 2, 2]


def test_names_that_are_not_text_become_text() -> None:
    assert Tree.parse({1: [10, 11], 2: [12]}).names(0) == ["10", "11", "12"]  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("nested", "culprit"),
    [
        ({}, "'the tree' has no children"),
        ({"a": ["x"], "b": []}, "'b' has no children"),
        ({"a": ["x"], "b": 0}, "devices of 'b' = 0 must be .* at least 1"),
        ({"a": {"b": {}}}, "'b' has no children"),
        ({"a": "x"}, "'a' must hold .* not 'x'"),
        ({"a": ["x"], "b": None}, "'b' lies 1 below the server and 'x' lies 2"),
        ({"a": ["x", "x"]}, "'x' stands twice under 'a'"),
        ({"a": ["x"], "b": ["x"]}, "'x' is used by two nodes of tier 0"),
        ({"a": {"t": ["x"]}, "b": {"t": ["y"]}}, "'t' is used by two nodes of tier 1"),
        ({"a": ["x"], "b": {"c": ["y"]}}, "'x' lies 2 below the server and 'y' lies 3"),
    ],
)
def test_a_mapping_that_is_no_tree_names_the_culprit(nested: Mapping[str, Any], culprit: str) -> None:
    with pytest.raises(BadInput, match=culprit):
        Tree.parse(nested)


# -- from a table ------------------------------------------------------------------------------------------------------


def test_a_table_of_one_column_is_named_devices_under_the_server() -> None:
    tree = Tree.from_table(["x", "y"])
    assert (tree.tiers, tree.names(0)) == (2, ["x", "y"])


def test_a_table_of_two_columns_in_scrambled_order_gathers_teams() -> None:
    tree = Tree.from_table(["d1", "d2", "d3", "d4", "d5"], ["b", "a", "b", "c", "a"])
    assert tree.names(1) == ["b", "a", "c"]
    assert tree.names(0) == ["d1", "d3", "d2", "d5", "d4"]
    assert parents_of(tree) == [[0, 0, 1, 1, 2], [0, 0, 0]]


def test_a_table_of_three_columns_in_scrambled_order_gathers_regions() -> None:
    tree = Tree.from_table(
        ["d1", "d2", "d3", "d4", "d5"], ["t1", "t2", "t3", "t1", "t2"], ["south", "north", "south", "south", "north"]
    )
    assert tree.names(2) == ["south", "north"]
    assert tree.names(1) == ["t1", "t3", "t2"]
    assert tree.names(0) == ["d1", "d4", "d3", "d2", "d5"]
    assert parents_of(tree) == [[0, 0, 1, 2, 2], [0, 0, 1], [0, 0]]


def test_table_cells_may_be_numbers() -> None:
    assert Tree.from_table(np.array([7, 8]), np.array([1, 1])).names(0) == ["7", "8"]


def test_one_name_may_stand_in_two_tiers() -> None:
    tree = Tree.from_table(["a", "b"], ["a", "a"])
    assert (tree.names(0), tree.names(1)) == (["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("columns", "culprit"),
    [
        ((), "columns of one length"),
        (([], []), "columns of one length"),
        ((["x", "y"], ["a"]), "columns of one length"),
        ((["x", "x"], ["a", "b"]), "'x' is under both 'a' and 'b'"),
        ((["x", "x"], ["a", "a"]), "the device 'x' stands in two rows"),
        ((["x", "y"], ["a", "a"], ["n", "s"]), "'a' is under both 'n' and 's'"),
        ((["x", "y"], ["a", None]), "'y'"),
        ((["x", "y"], ["a", float("nan")]), "'y'"),
        ((["x", "y"], ["a", ""]), "'y'"),
    ],
)
def test_a_table_that_is_no_tree_names_the_culprit(columns: tuple[list[Any], ...], culprit: str) -> None:
    with pytest.raises(BadInput, match=culprit):
        Tree.from_table(*columns)


# -- from parents ------------------------------------------------------------------------------------------------------


def test_a_parent_mapping_in_any_order_keeps_the_servers_own_name() -> None:
    tree = Tree.from_parents({"d3": "b", "d1": "a", "a": "hub", "d2": "a", "b": "hub", "hub": None})
    assert tree.names(2) == ["hub"]
    assert tree.names(1) == ["a", "b"]
    assert tree.names(0) == ["d1", "d2", "d3"]
    assert parents_of(tree) == [[0, 0, 1], [0, 0]]


def test_a_parent_mapping_may_have_two_tiers_only() -> None:
    assert Tree.from_parents({"hub": None, "x": "hub", "y": "hub"}).names(0) == ["x", "y"]


@pytest.mark.parametrize(
    ("parents", "culprit"),
    [
        ({}, "exactly one node may have no parent"),
        ({"hub": None}, "a server and one device"),
        ({"hub": None, "hub2": None, "x": "hub"}, r"2: \['hub', 'hub2'\]"),
        ({"hub": None, "x": "nowhere"}, "'x' has the parent 'nowhere', which is not in the tree"),
        ({"hub": None, "x": "x"}, "x > x is a cycle"),
        ({"hub": None, "d": "hub", "x": "y", "y": "z", "z": "y"}, "y > z > y is a cycle"),
        ({"x": "y", "y": "x"}, "x > y > x is a cycle"),
        ({"hub": None, "a": "hub", "b": "hub", "x": "a"}, "'b' has no children but lies 1 .* others lie 2"),
        ({"hub": None, "a": "hub", "x": "a", "y": "x", "z": "a"}, "'z' has no children but lies 2 .* others lie 3"),
    ],
)
def test_parents_that_are_no_tree_name_the_culprit(parents: Mapping[str, str | None], culprit: str) -> None:
    with pytest.raises(BadInput, match=culprit):
        Tree.from_parents(parents)


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parents", "culprit"),
    [
        ([], "at least a server and one device"),
        ([[]], "tier 0: parents must ascend"),
        ([[0, 1]], "tier 0: parents must ascend within 0..0"),
        ([[0, -1]], "tier 0: parents must ascend"),
        ([[1, 0], [0, 0]], "tier 0: parents must ascend within 0..1"),
        ([[0, 2], [0, 0, 0]], "'team-1' in tier 1 has no children"),
        ([[0, 1], [0, 2], [0, 0, 0]], "'tier2-1' in tier 2 has no children"),
    ],
)
def test_a_parent_array_made_by_hand_is_validated(parents: list[list[int]], culprit: str) -> None:
    with pytest.raises(BadInput, match=culprit):
        Tree(tuple(np.array(parent, dtype=np.int64) for parent in parents))


def test_names_made_by_hand_must_differ_within_their_tier() -> None:
    with pytest.raises(BadInput, match="'x' is used by two nodes of tier 0"):
        Tree((np.zeros(2, dtype=np.int64),), (("x", "x"), None))


@pytest.mark.parametrize("labels", [(("x",), None), (("x", "y"),), (None, ("hub", "hub2"))])
def test_names_made_by_hand_must_fit_the_tiers(labels: Any) -> None:
    with pytest.raises(BadInput, match="name"):
        Tree((np.zeros(2, dtype=np.int64),), labels)


# -- what a tree answers -----------------------------------------------------------------------------------------------


def test_nodes_without_names_are_called_by_kind_and_number() -> None:
    tree = Tree.parse("2x2x3")
    assert (tree.name(0, 11), tree.name(1, 3), tree.name(2, 1), tree.name(3, 0)) == (
        "device-11",
        "team-3",
        "tier2-1",
        "server",
    )
    assert Tree.parse(3).names(1) == ["server"]


def test_offsets_and_children_of_unequal_teams() -> None:
    tree = Tree.parse([3, 1, 2])
    assert tree.offsets[0].tolist() == [0, 3, 4, 6]
    assert [list(tree.children(1, team)) for team in range(3)] == [[0, 1, 2], [3], [4, 5]]
    assert list(tree.children(2, 0)) == [0, 1, 2]


def test_a_device_has_no_children() -> None:
    assert len(Tree.parse([3, 1, 2]).children(0, 1)) == 0


def test_ancestors_of_any_tier_in_any_tier_above() -> None:
    tree = Tree.parse(NESTED)
    assert tree.ancestors(0).tolist() == [0, 1, 2, 3, 4, 5]
    assert tree.ancestors(1).tolist() == [0, 0, 1, 2, 2, 2]
    assert tree.ancestors(2).tolist() == [0, 0, 0, 1, 1, 1]
    assert tree.ancestors(2, of=1).tolist() == [0, 0, 1]
    assert tree.ancestors(3, of=2).tolist() == [0, 0]


def test_flat_keeps_devices_in_order_and_the_names_of_both_ends() -> None:
    flat = Tree.from_parents({"hub": None, "a": "hub", "b": "hub", "x": "b", "y": "a", "z": "b"}).flat()
    assert parents_of(flat) == [[0, 0, 0]]
    assert (flat.names(0), flat.names(1)) == (["y", "x", "z"], ["hub"])


@pytest.mark.parametrize("text", ["4x10", "2x5x10", "40", "1x1", "1x1x1x7"])
def test_a_regular_tree_prints_as_it_was_written(text: str) -> None:
    assert str(Tree.parse(text)) == text


def test_an_irregular_tree_prints_the_sizes_of_its_tiers_from_the_top() -> None:
    assert str(Tree.parse([3, 1, 2])) == "1 > 3 > 6"
    assert str(Tree.parse(NESTED)) == "1 > 2 > 3 > 6"


def test_find_is_the_inverse_of_name_in_every_tier() -> None:
    for tree in (Tree.parse(NESTED), Tree.parse([3, 1, 2])):
        for tier in range(tree.tiers):
            assert [tree.find(tier, name) for name in tree.names(tier)] == list(range(tree.size(tier)))


def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"no node 'olso' in tier 1; did you mean 'oslo'\?"):
        Tree.parse(NESTED).find(1, "olso")


def test_a_name_unlike_any_other_is_answered_with_a_message_one_can_read() -> None:
    with pytest.raises(BadInput, match="no node 'qqq' in tier 0") as caught:
        Tree.parse(1000).find(0, "qqq")
    assert len(str(caught.value)) < 1000


# -- any tree ----------------------------------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> Any:
    """A nested list whose innermost values are numbers of devices, all at one depth from 2 to 4."""
    strategy: st.SearchStrategy[Any] = st.integers(1, 4)
    for _ in range(draw(st.integers(1, 3))):
        strategy = st.lists(strategy, min_size=1, max_size=3)
    return draw(strategy)


def with_names(shape: Any, prefix: str, shuffle: Callable[[list[str]], None]) -> Any:
    size = shape if isinstance(shape, int) else len(shape)
    names = [f"{prefix}{number}" for number in range(size)]
    shuffle(names)
    if isinstance(shape, int):
        return names
    return {name: with_names(part, name + ".", shuffle) for name, part in zip(names, shape, strict=True)}


def paths(nested: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """One tuple per device: its name, its team's, its region's and so on."""
    if isinstance(nested, list):
        return [(name, *above) for name in nested]
    return [path for name, part in nested.items() for path in paths(part, (name, *above))]


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_any_nested_mapping_comes_back_from_its_tree(shape: Any, seed: int) -> None:
    nested = with_names(shape, "n", random.Random(seed).shuffle)
    tree = Tree.parse(nested)
    assert nested_names(tree, tree.top, 0) == nested
    assert list(nested_names(tree, tree.top, 0)) == list(nested)


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_a_scrambled_table_and_a_scrambled_parent_mapping_give_the_same_links(shape: Any, seed: int) -> None:
    chance = random.Random(seed)
    nested = with_names(shape, "n", chance.shuffle)
    expected = links_by_name(Tree.parse(nested))
    rows = paths(nested)
    chance.shuffle(rows)
    table = Tree.from_table(*zip(*rows, strict=True))
    links: dict[str, str | None] = {row[-1]: "hub" for row in rows} | {"hub": None}
    links |= {child: parent for row in rows for child, parent in pairwise(row)}
    order = list(links)
    chance.shuffle(order)
    by_parent = Tree.from_parents({name: links[name] for name in order})
    assert links_by_name(table) == links_by_name(by_parent) == expected
    assert by_parent.names(by_parent.top) == ["hub"]


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_children_of_one_parent_are_neighbours_and_parents_come_in_order(shape: Any, seed: int) -> None:
    chance = random.Random(seed)
    rows = paths(with_names(shape, "n", chance.shuffle))
    chance.shuffle(rows)
    tree = Tree.from_table(*zip(*rows, strict=True))
    for tier in range(1, tree.tiers):
        found = [list(tree.children(tier, node)) for node in range(tree.size(tier))]
        assert sum(found, []) == list(range(tree.size(tier - 1)))  # noqa: RUF017 - small
        for node, children in enumerate(found):
            assert children
            assert all(tree.parents[tier - 1][child] == node for child in children)


# -- means over links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("what", ["4x10", "2x5x3", "7", [3, 1, 5], NESTED])
def test_means_over_every_link_agree_with_numpy(what: Any, weighted: bool) -> None:
    tree = Tree.parse(what)
    chance = np.random.default_rng(0)
    for tier in range(1, tree.tiers):
        rows = chance.normal(size=(tree.size(tier - 1), 5))
        weights = chance.integers(1, 50, len(rows)).astype(np.float64)
        expected = [
            np.average(rows[list(kids)], axis=0, weights=weights[list(kids)] if weighted else None)
            for kids in (tree.children(tier, node) for node in range(tree.size(tier)))
        ]
        found = tree.mean(tier, torch.from_numpy(rows), torch.from_numpy(weights) if weighted else None)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    "what",
    ["4x10", "2x3x4", "5", [3, 1, 2], {"north": {"a": ["d1"], "b": ["d2", "d3"]}}, {"a": ["x"], "b": ["y", "z"]}],
)
def test_a_tree_written_down_is_read_back_the_same(what: Any) -> None:
    tree = Tree.parse(what)
    again = Tree.parse(tree.spec())
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(tree.parents, again.parents, strict=True))
    assert [again.names(tier) for tier in range(tree.tiers)] == [tree.names(tier) for tier in range(tree.tiers)]
    named = Tree.from_table(["p", "q"])
    assert Tree.parse(named.spec()).names(0) == ["p", "q"]


@pytest.mark.parametrize(
    "what", [{"": ["a", "b"]}, {"north": ["a", ""]}, {"north": {" ": ["a"]}}, ["a", ""], {"": 3}], ids=str
)
def test_a_node_without_a_name_is_refused(what: Any) -> None:
    with pytest.raises(BadInput, match="empty"):
        Tree.parse(what)


def test_names_of_a_setting_must_be_those_of_the_tier_and_all_of_them() -> None:
    tree = Tree.parse({"north": ["a", "b"], "south": ["c"]})
    tree.check_names(0, {"a": 1, "b": 2, "c": 3}, "alpha")
    with pytest.raises(BadInput, match="alpha: there is no node 'nort' in tier 1; did you mean 'north'"):
        tree.check_names(1, {"nort": 1, "south": 1}, "alpha")
    with pytest.raises(BadInput, match="alpha leaves out 'c' of tier 0"):
        tree.check_names(0, {"a": 1, "b": 2}, "alpha")
