"""Addressed randomness: a number depends on its address alone, and the addresses' hash never changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from palmette import address

MASK = (1 << 64) - 1
INT64 = st.integers(-(2**63), 2**63 - 1)


def patterns(bits: Tensor) -> list[int]:
    return [value & MASK for value in bits.tolist()]


def many(count: int = 1 << 16) -> Tensor:
    return address.mix(address.key(3, "test"), torch.arange(count))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(-(2**70), 2**70), last=INT64, parts=st.lists(INT64, max_size=3))
def test_mix_agrees_with_key_as_bit_patterns_also_for_negative_and_large_parts(
    seed: int, last: int, parts: list[int]
) -> None:
    base = address.key(seed, "any", *parts)
    assert patterns(address.mix(base, torch.tensor([last]))) == [address.key(seed, "any", *parts, last)]


def test_mix_of_tensors_chains_like_parts_of_an_address() -> None:
    first, second = torch.tensor([0, 5, -2, 2**62]), torch.tensor([9, 0, 2**63 - 1, -(2**63)])
    chained = address.mix(address.mix(address.key(1, "p"), first), second)
    assert patterns(chained) == [
        address.key(1, "p", a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]


def test_mix_broadcasts_bases_against_counters() -> None:
    bases = address.mix(address.key(1, "p"), torch.arange(3))
    table = address.mix(bases[:, None], torch.arange(4))
    assert table.shape == (3, 4)
    assert patterns(table[2]) == [address.key(1, "p", 2, step) for step in range(4)]


def test_the_hash_is_pinned_because_changing_it_would_change_every_run() -> None:
    assert address.key(0, "batches") == 0x9001F30EF3FCD793
    assert address.key(7, "participation", 3, 1) == 0x81E0DF6204897191
    assert address.key(-1, "x", -1) == 0x4CB184953F7FA254
    assert address.key(2**63, "loss", 2**40) == 0x41CD87AE6A90C2C0
    bits = address.mix(address.key(0, "batches"), torch.tensor([0, 1, 2, -1, 2**62]))
    assert patterns(bits) == [
        0x668BDA753675F782,
        0xC8AB593580200C1F,
        0x6BC5B80DE12ECAB8,
        0x9A4E7196579ACA84,
        0xB0995FD1D6CDA268,
    ]
    assert [value.hex() for value in address.uniform(bits).tolist()] == [
        "0x1.9a2f69d4d9d7cp-2",
        "0x1.9156b26b00401p-1",
        "0x1.af16e03784bb2p-2",
        "0x1.349ce32caf359p-1",
        "0x1.6132bfa3ad9b4p-1",
    ]
    assert address.below(bits, 1000).tolist() == [290, 319, 264, 772, 560]
    assert address.torch_generator(5, "initial weights").initial_seed() == 10318715923291775914
    assert address.numpy_generator(5, "split", 1).integers(0, 2**32, 3).tolist() == [2888454532, 2117129694, 1522255413]


def test_the_hash_is_splitmix64() -> None:
    # The published first outputs of splitmix64 from the state 1234567 (Vigna's reference implementation).
    found = patterns(address.mix(1234567, torch.arange(5)))
    assert found == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_seeds_purposes_and_parts_lead_to_different_keys() -> None:
    keys = {address.key(seed, purpose) for seed in range(-5, 50) for purpose in ("batches", "dropout", "")}
    keys |= {address.key(0, "batches", a, b) for a in range(-1, 30) for b in range(-1, 30)}
    keys |= {address.key(0, "batches", a) for a in range(-1, 30)}
    assert len(keys) == 55 * 3 + 31 * 31 + 31


def test_the_order_of_parts_matters() -> None:
    assert address.key(0, "p", 1, 2) != address.key(0, "p", 2, 1)


def test_neighbouring_counters_share_no_hash() -> None:
    assert len(many().unique()) == 1 << 16


def test_hashes_of_neighbouring_seeds_are_unrelated() -> None:
    bits = [address.uniform(address.mix(address.key(seed, "p"), torch.arange(1 << 14))).numpy() for seed in (0, 1)]
    assert abs(np.corrcoef(bits)[0, 1]) < 0.03


def test_uniform_lies_in_zero_to_one_even_at_extreme_bits() -> None:
    bits = torch.tensor([0, -1, 2**63 - 1, -(2**63), 1])
    values = address.uniform(bits)
    assert values.dtype == torch.float64
    assert values.tolist() == [0.0, 1 - 2.0**-53, 0.5 - 2.0**-53, 0.5, 0.0]
    assert float(address.uniform(many()).max()) < 1


@pytest.mark.parametrize("counters", ["neighbours", "strided", "chained"])
def test_uniform_fills_all_bins_alike(counters: str) -> None:
    steps = torch.arange(1 << 16)
    bits = {
        "neighbours": many(),
        "strided": address.mix(address.key(3, "test"), steps * 1024),
        "chained": address.mix(address.mix(address.key(3, "test"), steps // 256), steps % 256),
    }[counters]
    for bins in (64, 100):
        counts = np.histogram(address.uniform(bits).numpy(), bins, (0, 1))[0]
        assert 1e-4 < chisquare(counts).pvalue < 1 - 1e-4


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 1000])
def test_below_is_in_range_and_reaches_every_value_alike(limit: int) -> None:
    values = address.below(many(), limit)
    counts = torch.bincount(values, minlength=limit)
    assert int(values.min()) >= 0
    assert len(counts) == limit
    if limit > 1:
        assert 1e-4 < chisquare(counts.numpy()).pvalue < 1 - 1e-4


def test_below_takes_a_limit_per_number_and_never_gives_a_negative() -> None:
    limits = torch.tensor([1, 5, 2**40, 7, 3])
    values = address.below(torch.tensor([-1, -(2**63), 2**63 - 1, -2, 0]), limits)
    assert bool(((values >= 0) & (values < limits)).all())


def test_generators_repeat_at_their_address_and_differ_elsewhere() -> None:
    for make in (
        lambda *where: address.numpy_generator(*where).normal(size=4).tolist(),
        lambda *where: torch.randn(4, generator=address.torch_generator(*where)).tolist(),
    ):
        assert make(0, "split", 1) == make(0, "split", 1)
        others = [make(0, "split", 2), make(1, "split", 1), make(0, "teams", 1), make(0, "split")]
        assert make(0, "split", 1) not in others


def test_generators_leave_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=address.torch_generator(0, "p"))
    many(10)
    assert torch.equal(torch.get_rng_state(), before)
