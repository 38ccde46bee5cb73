"""What is counted on a link."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palmette.links.ledger import COLUMNS, Ledger, Traffic, payload

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
    assert [{name: row[name] for name in COLUMNS[:5]} for row in ledger.rows()] == [
        {"round": 0, "tier": 1, "exchanges": 8, "bytes_up": 200, "bytes_down": 20},
        {"round": 0, "tier": 2, "exchanges": 1, "bytes_up": 2, "bytes_down": 1},
        {"round": 1, "tier": 1, "exchanges": 4, "bytes_up": 400, "bytes_down": 40},
    ]


def test_totals_are_no_part_of_the_ledger() -> None:
    ledger = Ledger()
    ledger.at(0, 1).add(1, 1, 1)
    ledger.totals()[1].add(5, 5, 5)
    assert ledger.totals() == {1: Traffic(1, 1, 1)}


def test_a_ledger_is_made_again_of_its_rows() -> None:
    ledger = Ledger()
    ledger.at(2, 1).add(4, 40, 400)
    ledger.at(2, 1).miss([0, 1, 2, 3, 4, 5, 6])
    ledger.at(2, 1).time = 7
    assert Ledger.of(ledger.rows()) == ledger
    assert ledger.totals()[1].missing == {
        **{"no answer": 1, "away": 2, "lost": 3},
        **{"late": 4, "corrupt": 5, "not finite": 6},
    }
    assert list(next(ledger.rows())) == list(COLUMNS)
