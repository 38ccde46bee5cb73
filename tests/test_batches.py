"""Batches: which samples a device takes at each step, from its address alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palmette import address
from palmette.learner import batches

MASK = (1 << 64) - 1


def where(devices: int, seed: int = 0) -> batches.Address:
    return address.mix(address.key(seed, "batches"), torch.arange(devices)).numpy().view(np.uint64)


def shuffled(at: batches.Address, counts: batches.Counts, first: int, steps: int, size: int) -> batches.Counts:
    """Return the positions ``(n, steps, size)`` within each device's samples."""
    plan = batches.Plan(at, counts, np.zeros_like(counts), size, same=False)
    return plan.block(first, steps).view(steps, len(counts), size).transpose(0, 1).numpy()


def drawn(counts: list[int], steps: int, size: int, *, first: int = 0, seed: int = 0) -> batches.Counts:
    return shuffled(where(len(counts), seed), np.array(counts), first, steps, size)


def weights(counts: list[int], size: int, dtype: torch.dtype, *, epochs: bool = False) -> torch.Tensor | None:
    """The weights of the first batch of devices with so many samples."""
    count = np.array(counts)
    return batches.Plan(where(len(counts)), count, np.zeros_like(count), size, False, epochs=epochs).weights(
        0, 1, dtype
    )


def by_hand(at: int, count: int, number: int) -> int:
    """Return the position of the sample that is drawn as the given number in all, in plain whole numbers."""
    passed, within = divmod(number, count)

    def hashed(base: int, counter: int) -> int:
        return int(address.mix(base, torch.tensor([counter]))[0]) & MASK

    bits = hashed(at, passed)
    stride = int(batches.primes()[(bits & ((1 << 62) - 1)) % batches._PRIMES])
    offset = (hashed(bits, 0) & ((1 << 62) - 1)) % count
    return (stride * within + offset) % count


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=5), size=st.integers(1, 25), seed=st.integers(0, 99))
def test_every_sample_comes_exactly_once_per_pass(counts: list[int], size: int, seed: int) -> None:
    steps = -(-3 * max(counts) // size)
    found = drawn(counts, steps, size, seed=seed)
    assert found.shape == (len(counts), steps, size)
    for count, positions in zip(counts, found.reshape(len(counts), -1), strict=True):
        if count < size:
            continue
        for start in range(0, len(positions) - count + 1, count):
            assert sorted(positions[start : start + count].tolist()) == list(range(count))


def test_a_batch_that_reaches_the_end_of_a_pass_goes_on_into_the_next() -> None:
    found = drawn([7], 4, 4)[0]
    assert sorted(found.flatten()[:7].tolist()) == list(range(7))
    assert sorted(found.flatten()[7:14].tolist()) == list(range(7))
    assert found.shape == (4, 4)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 1 << 26), min_size=1, max_size=3),
    first=st.integers(0, 10**7),
    size=st.integers(1, 40),
)
@example(counts=[(1 << 24) - 1, 1 << 24], first=10**7, size=40)
@example(counts=[(1 << 24) - 1], first=0, size=40)
@example(counts=[(1 << 30) - 35], first=10**8, size=40)
def test_positions_are_those_of_plain_whole_numbers_for_any_count_and_late_steps(
    counts: list[int], first: int, size: int
) -> None:
    found, at = drawn(counts, 2, size, first=first), where(len(counts))
    for device, count in enumerate(counts):
        if count < size:
            continue
        numbers = range(first * size, (first + 2) * size, 7)
        expected = [by_hand(int(at[device]), count, number) for number in numbers]
        assert found[device].flatten()[::7].tolist() == expected


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 19), first=st.integers(0, 50))
def test_a_device_with_fewer_samples_than_a_batch_takes_all_of_them_at_every_step(count: int, first: int) -> None:
    found = drawn([count, 40], 3, 20, first=first)[0]
    weight = weights([count, 40], 20, torch.float64)
    assert weight is not None
    for step in found:
        taken = step[weight[0, 0].numpy() > 0]
        assert sorted(taken.tolist()) == list(range(count))
        assert step.max() < count


def test_a_device_with_exactly_a_batch_takes_all_of_it_at_every_step() -> None:
    for step in drawn([20], 5, 20)[0]:
        assert sorted(step.tolist()) == list(range(20))


def test_a_device_with_one_sample_takes_it_always() -> None:
    assert not drawn([1], 3, 1).any()
    assert not drawn([1], 3, 5).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_make_a_mean_over_the_real_samples(dtype: torch.dtype) -> None:
    weight = weights([1, 3, 5, 9], 5, dtype)
    assert weight is not None
    assert weight.dtype == dtype
    third = torch.tensor(1.0, dtype=dtype).div(3).item()
    fifth = torch.tensor(1.0, dtype=dtype).div(5).item()
    assert weight.tolist() == [[[1, 0, 0, 0, 0], [third, third, third, 0, 0], [fifth] * 5, [fifth] * 5]]


def test_full_batches_need_no_weights() -> None:
    assert weights([5, 9], 5, torch.float32) is None
    assert weights([5, 10], 5, torch.float32, epochs=True) is None


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=4), size=st.integers(1, 20), seed=st.integers(0, 99))
def test_an_epoch_visits_every_sample_once_and_ends_with_what_is_left(counts: list[int], size: int, seed: int) -> None:
    count = np.array(counts)
    made = batches.Plan(where(len(counts), seed), count, np.zeros_like(count), size, same=False, epochs=True)
    for device, n in enumerate(counts):
        each = -(-n // size)
        for epoch in range(3):
            block = made.block(epoch * each, each).view(each, len(counts), size)[:, device]
            weight = made.weights(epoch * each, each, torch.float64)
            share = torch.full((each, size), 1 / size) if weight is None else weight.expand(each, -1, -1)[:, device]
            assert sorted(block[share > 0].tolist()) == list(range(n))
            torch.testing.assert_close(share.sum(1), torch.ones(each), check_dtype=False)
            assert (share > 0).sum(1).tolist() == [min(size, n - k * size) for k in range(each)]


def test_batches_depend_on_the_address() -> None:
    assert np.array_equal(drawn([50], 3, 8, seed=1), drawn([50], 3, 8, seed=1))
    assert not np.array_equal(drawn([50], 3, 8, seed=1), drawn([50], 3, 8, seed=2))
    twins = drawn([50] * 20, 3, 8)
    assert len({tuple(twin.flatten().tolist()) for twin in twins}) == 20


def test_passes_come_in_different_orders() -> None:
    passes = drawn([50], 50, 10)[0].reshape(10, 50)
    assert len({tuple(order.tolist()) for order in passes}) == 10


def test_first_samples_are_spread_over_the_device() -> None:
    first = drawn([10] * 2000, 1, 1).flatten()
    assert (np.abs(np.bincount(first, minlength=10) - 200) < 60).all()


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    size=st.integers(1, 25),
    cuts=st.sets(st.integers(1, 19)),
)
def test_blocks_of_steps_agree_with_one_big_block(counts: list[int], size: int, cuts: set[int]) -> None:
    whole = drawn(counts, 20, size)
    edges = [0, *sorted(cuts), 20]
    parts = [drawn(counts, hi - lo, size, first=lo) for lo, hi in pairwise(edges)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("largest", [200, 1 << 25])
def test_a_devices_batches_do_not_depend_on_its_neighbours_in_the_chunk(largest: int) -> None:
    counts = np.array([50, 3, 17, largest])
    together = shuffled(where(4), counts, 5, 30, 8)
    for device in range(4):
        alone = shuffled(where(4)[device : device + 1], counts[device : device + 1], 5, 30, 8)
        assert np.array_equal(alone[0], together[device])


def test_inputs_are_not_written_into() -> None:
    at, counts = where(2), np.array([7, 3])
    shuffled(at, counts, 0, 3, 4)
    assert np.array_equal(at, where(2))
    assert counts.tolist() == [7, 3]


def test_strides_are_primes_above_any_number_of_samples() -> None:
    primes = batches.primes().tolist()
    assert len(set(primes)) == batches._PRIMES
    assert all((1 << 30) < prime < (1 << 31) for prime in primes)
    for prime in primes[:: len(primes) // 4]:
        assert all(prime % divisor for divisor in range(2, int(prime**0.5) + 1))


@pytest.mark.parametrize("number", [25, 561, 1373653, 25326001, (1 << 30) + 1, 46337 * 46349])
def test_composite_numbers_are_told_even_where_some_bases_are_fooled(number: int) -> None:
    assert not batches._is_prime(number)


@settings(max_examples=100, deadline=None)
@given(base=st.integers(0, MASK), counters=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_the_hash_of_numpy_arrays_is_that_of_addresses_bit_for_bit(base: int, counters: list[int]) -> None:
    found = batches.mix(np.array([base], np.uint64), np.array(counters, np.int64))
    assert np.array_equal(found.view(np.int64), address.mix(base, torch.tensor(counters)).numpy())


def test_batches_are_pinned_because_changing_them_would_change_every_run() -> None:
    assert drawn([7, 3], 3, 4).tolist() == [
        [[1, 6, 4, 2], [0, 5, 3, 0], [1, 2, 3, 4]],
        [[0, 1, 2, 0], [0, 1, 2, 0], [0, 1, 2, 0]],
    ]


# -- plans -------------------------------------------------------------------------------------------------------------


def plan(**other: Any) -> batches.Plan:
    made: dict[str, Any] = {"address": where(3), "count": np.array([50, 3, 17]), "first": np.array([0, 50, 53])}
    return batches.Plan(**{**made, "size": 8, "same": False, **other})


def test_a_plan_gives_each_step_the_samples_of_all_devices_within_their_own() -> None:
    block = plan().block(4, 6)
    positions = shuffled(where(3), plan().count, 4, 6, 8)
    assert block.shape == (6, 24)
    for step in range(6):
        for device in range(3):
            mine = block[step, device * 8 : device * 8 + 8].numpy()
            assert np.array_equal(mine, positions[device, step] + plan().first[device])


def test_a_plan_of_the_same_batch_gives_the_first_steps_batch_whatever_is_asked() -> None:
    same = plan(same=True)
    assert torch.equal(same.block(5, 4), plan().block(0, 1))


@pytest.mark.parametrize("rows", [[2, 0], slice(1, 3), np.array([True, False, True])])
def test_part_of_a_plan_gives_those_devices_the_same_samples(rows: Any) -> None:
    chosen = np.arange(3)[rows]
    part = plan().take(rows).block(2, 5).reshape(5, len(chosen), 8)
    assert torch.equal(part, plan().block(2, 5).reshape(5, 3, 8)[:, chosen])
