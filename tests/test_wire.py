"""Messages as bytes: what arrives is what was sent, and what cannot be a message is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from palmette.links.wire import Envelope, decode, encode


def there_and_back(body: Any) -> Any:
    return decode(encode(Envelope(round=3, rounds=10, path=(2,), sender=7, body=body))).body


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


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
    found = decode(encode(Envelope(round=3, rounds=10, path=(2,), sender=7)))
    assert (found.round, found.rounds, found.exchange, found.sender) == (3, 10, 2, 7)


def test_a_row_cut_out_of_a_stack_travels_alone() -> None:
    stack = torch.randn(1000, 50)
    data = encode(Envelope(rounds=1, body=stack[3:4]))
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
    assert encode(Envelope(rounds=1, body=body)) == encode(Envelope(rounds=1, body=dict(body)))


def test_what_was_decoded_may_be_written_into() -> None:
    found = there_and_back(torch.zeros(1, 3))
    found += 1
    assert found.tolist() == [[1, 1, 1]]
