"""Means of children's rows: the bits depend on the rows and their order among siblings, on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palmette.tree.segments import SegmentMean, segment_mean

SEGMENT = torch.tensor([0, 0, 0, 1, 3, 3, 3, 3, 3, 4])  # parent 2 has no children
DTYPES = [torch.float32, torch.float64]


def rows(count: int = 10, width: int = 37, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    made = torch.randn(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (made * torch.logspace(-3, 3, width, dtype=torch.float64)).to(dtype)


def in_pieces(pieces: list[list[int]], values: Tensor, weights: Tensor | None = None) -> SegmentMean:
    mean = SegmentMean(SEGMENT, 5, weights)
    for piece in pieces:
        mean.add(torch.tensor(piece, dtype=torch.int64), {"rows": values[piece]})
    return mean


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, 9)))
def test_how_the_children_are_cut_into_chunks_changes_no_bit(
    dtype: torch.dtype, weighted: bool, cuts: set[int]
) -> None:
    values, weights = rows(dtype=dtype), torch.arange(3, 13) if weighted else None
    pieces = [piece.tolist() for piece in torch.arange(10).tensor_split(sorted(cuts))]
    found = in_pieces(pieces, values, weights)
    whole = in_pieces([list(range(10))], values, weights)
    assert torch.equal(found.result()["rows"], whole.result()["rows"])
    assert torch.equal(found.total, whole.total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=25, deadline=None)
@given(parents=st.permutations(range(5)), interleave=st.booleans())
def test_the_order_in_which_parents_are_served_changes_no_bit(
    dtype: torch.dtype, weighted: bool, parents: list[int], interleave: bool
) -> None:
    values, weights = rows(dtype=dtype), torch.arange(3, 13) if weighted else None
    groups = [(parent == SEGMENT).nonzero().squeeze(1).tolist() for parent in parents]
    order = (
        [group[i] for i in range(5) for group in groups if i < len(group)]
        if interleave
        else [i for group in groups for i in group]
    )
    found = in_pieces([order[:4], order[4:]], values, weights).result()["rows"]
    assert torch.equal(found, in_pieces([list(range(10))], values, weights).result()["rows"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_mean_is_the_sum_in_the_order_of_the_children_divided_once(dtype: torch.dtype, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = rows(300, 5000, dtype)
        segment = torch.arange(300) // 100
        found = segment_mean(values, segment, 3).numpy()
    finally:
        torch.set_num_threads(before)
    for parent in range(3):
        total = np.zeros(5000, dtype=values.numpy().dtype)
        for row in values.numpy()[segment == parent]:
            total += row
        assert np.array_equal(found[parent], total / total.dtype.type(100))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", [1, 3, 600, 0.1, 1 / 3, 0.7, 1e-9, 12345.678])
def test_equal_weights_give_the_very_bits_of_the_plain_mean(dtype: torch.dtype, weight: float) -> None:
    for count in range(1, 30):
        values, segment = rows(count, dtype=dtype), torch.zeros(count, dtype=torch.int64)
        weights = torch.full((count,), weight, dtype=torch.float64)
        assert torch.equal(segment_mean(values, segment, 1, weights), segment_mean(values, segment, 1)), count


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=100, deadline=None)
@given(weight=st.floats(1e-6, 1e9))
def test_one_child_comes_out_unchanged_bit_for_bit_whatever_its_weight(dtype: torch.dtype, weight: float) -> None:
    values, segment = rows(3, dtype=dtype), torch.arange(3)
    weights = torch.tensor([weight, 1.0, 7.0], dtype=torch.float64)
    assert torch.equal(segment_mean(values, segment, 3, weights), values)
    assert torch.equal(segment_mean(values, segment, 3), values)


def test_a_parent_without_children_or_without_present_children_gets_zeros() -> None:
    for weights in (None, torch.arange(3, 13)):
        mean = in_pieces([[0, 1, 4]], rows(), weights)
        result = mean.result()["rows"]
        assert mean.present.tolist() == [2, 0, 0, 1, 0]
        assert not result[[1, 2, 4]].any()
        assert bool((result[[0, 3]] != 0).all())


def test_a_parent_whose_children_all_weigh_nothing_gets_zeros_and_harms_no_other() -> None:
    weights = torch.tensor([0.0, 0, 0, 2, 1, 1, 1, 1, 1, 5])
    mean = in_pieces([list(range(10))], rows(), weights)
    assert not mean.result()["rows"][0].any()
    assert torch.equal(mean.result()["rows"][1], rows()[3])
    assert float(mean.total[0]) == 0


def test_a_child_of_weight_zero_does_not_count() -> None:
    segment = torch.tensor([0, 0, 0])
    values = rows(3, dtype=torch.float64)
    found = segment_mean(values, segment, 1, torch.tensor([0.0, 1.0, 1.0]))
    torch.testing.assert_close(found[0], values[1:].mean(0), rtol=1e-14, atol=0)


def test_total_counts_the_average_weight_as_one() -> None:
    weights = torch.tensor([10, 20, 30, 7, 1, 1, 1, 1, 6, 9])
    mean = in_pieces([list(range(10))], rows(), weights)
    torch.testing.assert_close(mean.total, torch.tensor([3.0, 1, 0, 5, 1], dtype=torch.float64))
    part = in_pieces([[0, 2, 8]], rows(), weights)
    torch.testing.assert_close(part.total, torch.tensor([2.0, 0, 0, 3, 0], dtype=torch.float64))
    assert in_pieces([[0, 2, 8]], rows()).total.tolist() == [2, 0, 0, 1, 0]


def test_the_mean_of_those_present_is_weighted_among_them_alone() -> None:
    values, weights = rows(dtype=torch.float64), torch.arange(3, 13)
    found = in_pieces([[0, 2, 5, 6]], values, weights).result()["rows"]
    for parent, there in ((0, [0, 2]), (3, [5, 6])):
        expected = np.average(values[there].numpy(), axis=0, weights=weights[there].numpy())
        np.testing.assert_allclose(found[parent].numpy(), expected, rtol=1e-13)


def test_several_names_of_different_widths_are_averaged_side_by_side() -> None:
    mean = SegmentMean(torch.tensor([0, 0, 1]), 2, torch.tensor([1.0, 3.0, 2.0]))
    mean.add(
        torch.arange(3),
        {"row": torch.tensor([[0.0, 4.0], [8.0, 0.0], [5.0, 6.0]]), "number": torch.tensor([4.0, 8.0, 1.0])},
    )
    assert mean.result()["row"].tolist() == [[6.0, 1.0], [5.0, 6.0]]
    assert mean.result()["number"].tolist() == [7.0, 1.0]


@pytest.mark.parametrize("weights", [None, torch.tensor([1, 3])])
def test_whole_numbers_and_flags_are_averaged_as_numbers(weights: Tensor | None) -> None:
    mean = SegmentMean(torch.tensor([0, 0]), 1, weights)
    mean.add(torch.arange(2), {"steps": torch.tensor([0, 4]), "flag": torch.tensor([True, True])})
    assert mean.result()["steps"].tolist() == [2.0 if weights is None else 3.0]
    assert mean.result()["flag"].tolist() == [1.0]


def test_inputs_are_not_written_into() -> None:
    values, weights = rows(), torch.arange(3, 13).double()
    kept = values.clone(), weights.clone()
    segment_mean(values, SEGMENT, 5, weights)
    assert torch.equal(values, kept[0])
    assert torch.equal(weights, kept[1])
