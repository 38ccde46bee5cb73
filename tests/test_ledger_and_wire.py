"""What is counted on a link, and messages as bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from palmette.links.ledger import Ledger, Traffic, payload
from palmette.links.wire import Envelope, decode, encode


def there_and_back(body: Any) -> Any:
    return decode(encode(Envelope(3, 10, 2, 7, body))).body


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


# -- payload -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (None, 0),
        (torch.zeros(4, 7), 28),
        (torch.zeros(1, 7), 28),
        (torch.zeros(4, 7, dtype=torch.float64), 56),
        (torch.zeros(4, 2, 3), 24),
        (torch.zeros(4), 4),
        (torch.zeros(4, dtype=torch.int64), 8),
        (torch.zeros(0, 7), 0),
        ({}, 0),
        ({"steps": 5, "rate": 0.5, "last": True}, 24),
        ({"x": torch.zeros(4, 7), "c": torch.zeros(4, 3, dtype=torch.float64), "n": torch.zeros(4), "k": 1}, 64),
    ],
)
def test_payload_is_one_childs_row_of_every_tensor_and_eight_bytes_per_number(message: Any, expected: int) -> None:
    assert payload(message) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool])
def test_payload_of_a_row_is_the_bytes_of_its_storage(dtype: torch.dtype) -> None:
    row = torch.ones(1, 13).to(dtype)
    assert payload(row) == len(row.numpy().tobytes())


# -- ledger ------------------------------------------------------------------------------------------------------------


def test_traffic_adds_up() -> None:
    traffic = Traffic()
    traffic.add(1, 10, 20)
    traffic.add(2, 3, 4)
    assert traffic == Traffic(3, 13, 24)


def test_the_ledger_keeps_rounds_and_tiers_apart_and_totals_by_tier() -> None:
    ledger = Ledger()
    ledger.at(1, 1).add(4, 40, 400)
    ledger.at(0, 2).add(1, 1, 2)
    ledger.at(0, 1).add(4, 10, 100)
    ledger.at(0, 1).add(4, 10, 100)
    assert ledger.totals() == {1: Traffic(12, 60, 600), 2: Traffic(1, 1, 2)}
    assert list(ledger.rows()) == [
        {"round": 0, "tier": 1, "exchanges": 8, "bytes_up": 200, "bytes_down": 20},
        {"round": 0, "tier": 2, "exchanges": 1, "bytes_up": 2, "bytes_down": 1},
        {"round": 1, "tier": 1, "exchanges": 4, "bytes_up": 400, "bytes_down": 40},
    ]


def test_totals_are_no_part_of_the_ledger() -> None:
    ledger = Ledger()
    ledger.at(0, 1).add(1, 1, 1)
    ledger.totals()[1].add(5, 5, 5)
    assert ledger.totals() == {1: Traffic(1, 1, 1)}


# -- wire --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        None,
        torch.randn(1, 7),
        torch.randn(1, 7, dtype=torch.float64),
        torch.tensor([[float("inf"), -float("inf"), 1e-45, 3e38]]),
        torch.randn(1),
        torch.tensor([5]),
        torch.tensor([True]),
        torch.randn(1, 2, 3),
    ],
    ids=["none", "row", "float64", "extreme", "one number per row", "whole number", "flag", "matrix"],
)
def test_a_bare_body_comes_back_bit_for_bit(body: Tensor | None) -> None:
    assert same(there_and_back(body), body)


def test_a_mapping_comes_back_in_order_with_its_rows_and_numbers() -> None:
    body = {
        "x": torch.randn(1, 7),
        "steps": 12,
        "c": torch.randn(1, 3, dtype=torch.float64),
        "rate": 0.1,
        "coin": torch.tensor([0.25]),
        "last": True,
        "": torch.randn(1, 2),
    }
    found = there_and_back(body)
    assert list(found) == list(body)
    assert all(same(found[name], value) for name, value in body.items())


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-300, 2**62, -5, float("inf"), True])
def test_numbers_keep_their_type_and_every_bit(number: float) -> None:
    assert same(there_and_back({"n": number})["n"], number)


@pytest.mark.parametrize("body", [{}, {"n": 1}])
def test_a_mapping_without_rows_stays_a_mapping(body: dict[str, Any]) -> None:
    assert there_and_back(body) == body


def test_the_address_of_an_envelope_comes_back() -> None:
    found = decode(encode(Envelope(3, 10, 2, 7, None)))
    assert (found.round, found.rounds, found.exchange, found.sender) == (3, 10, 2, 7)


def test_a_row_cut_out_of_a_stack_travels_alone() -> None:
    stack = torch.randn(1000, 50)
    data = encode(Envelope(0, 1, 0, 0, stack[3:4]))
    assert len(data) < 1000
    assert torch.equal(decode(data).body, stack[3:4])


def test_rows_that_are_not_contiguous_travel_as_they_are_seen() -> None:
    body = torch.randn(7, 1).T
    strided = torch.randn(1, 14)[:, ::2]
    assert torch.equal(there_and_back(body), body)
    assert torch.equal(there_and_back(strided), strided)


def test_one_tensor_may_be_sent_under_two_names() -> None:
    row = torch.randn(1, 7)
    found = there_and_back({"model": row, "anchor": row, "part": row[:, :3]})
    assert torch.equal(found["model"], row)
    assert torch.equal(found["anchor"], row)
    assert torch.equal(found["part"], row[:, :3])


def test_neighbouring_views_of_one_stack_may_be_sent_together() -> None:
    stack = torch.randn(2, 5)
    found = there_and_back({"a": stack[:1], "b": stack[1:]})
    assert torch.equal(torch.cat([found["a"], found["b"]]), stack)


def test_equal_envelopes_are_equal_bytes() -> None:
    body = {"b": torch.ones(1, 3), "a": torch.zeros(1, 2), "n": 1}
    assert encode(Envelope(0, 1, 0, 0, body)) == encode(Envelope(0, 1, 0, 0, dict(body)))


def test_what_was_decoded_may_be_written_into() -> None:
    found = there_and_back(torch.zeros(1, 3))
    found += 1
    assert found.tolist() == [[1, 1, 1]]
