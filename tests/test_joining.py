"""A tree to which a device is added while everybody else stays who they are."""

from __future__ import annotations

import numpy as np
import pytest

from palmette.errors import BadInput
from palmette.tree import Tree
from palmette.tree.joining import joined, places

NAMED = {"north": {"a": ["d1", "d2"], "b": ["d3"]}, "south": {"c": ["d4", "d5", "d6"]}}


@pytest.mark.parametrize(("what", "parent"), [("4x2", 2), ("2x3x4", 0), ("2x3x4", 5), ("6", 0), (NAMED, 1)], ids=str)
def test_a_new_device_is_the_last_child_of_its_parent_and_nobody_else_changes(what: object, parent: int) -> None:
    before = Tree.parse(what)
    after = joined(before, parent, "newcomer")
    assert after.size(0) == before.size(0) + 1
    assert after.name(0, after.children(1, parent).stop - 1) == "newcomer"
    for tier, now in enumerate(places(before, after)):
        assert before.names(tier) == [after.name(tier, node) for node in now]
        assert np.array_equal(before.addresses[tier], after.addresses[tier][now])
        if tier < before.top:
            parents = [after.name(tier + 1, int(after.parents[tier][node])) for node in now]
            assert parents == [before.name(tier + 1, int(node)) for node in before.parents[tier]]


def test_a_device_that_joins_is_the_same_as_one_that_was_there_from_the_beginning() -> None:
    grown = joined(Tree.parse({"a": ["d1", "d2"], "b": ["d3"]}), 0, "d9")
    planted = Tree.parse({"a": ["d1", "d2", "d9"], "b": ["d3"]})
    assert [grown.names(tier) for tier in range(3)] == [planted.names(tier) for tier in range(3)]
    assert all(np.array_equal(*pair) for pair in zip(grown.parents, planted.parents, strict=True))
    assert all(np.array_equal(*pair) for pair in zip(grown.addresses, planted.addresses, strict=True))


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(BadInput, match="there is a device 'd3' already"):
        joined(Tree.parse(NAMED), 0, "d3")
