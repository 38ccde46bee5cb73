"""Participation: who is asked, drawn from the exchange's address alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palmette.errors import BadInput
from palmette.links import Participation

SIZES = [6, 1, 4, 10]


def family(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Number the children of parents of these sizes."""
    return torch.arange(sum(sizes)), torch.repeat_interleave(
        torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64)
    )


def draw(
    what: str | int | float,
    sizes: list[int] = SIZES,
    *,
    seed: int = 0,
    tier: int = 1,
    round_: int = 0,
    exchange: int | list[int] = 0,
    turn: int | list[int] = 0,
) -> Tensor:
    children, parents = family(sizes)
    per_parent = [torch.as_tensor(v).expand(len(sizes)).to(torch.int64) for v in (exchange, turn)]
    return Participation.parse(what).draw(
        children, parents, seed=seed, tier=tier, round_=round_, exchange=per_parent[0], turn=per_parent[1]
    )


def counts(chosen: Tensor, sizes: list[int] = SIZES) -> list[int]:
    return torch.bincount(family(sizes)[1][chosen], minlength=len(sizes)).tolist()


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "kind", "amount"),
    [
        ("all", "all", 1.0),
        (" all ", "all", 1.0),
        (0.5, "fraction", 0.5),
        (1.0, "fraction", 1.0),
        ("0.5", "fraction", 0.5),
        (".25", "fraction", 0.25),
        ("1.", "fraction", 1.0),
        ("50%", "fraction", 0.5),
        ("12.5 %", "fraction", 0.125),
        ("100%", "fraction", 1.0),
        (5, "count", 5),
        ("5", "count", 5),
        ("pass 5", "pass", 5),
        ("pass:5", "pass", 5),
        (" pass  12 ", "pass", 12),
        (Participation("pass", 3), "pass", 3),
    ],
)
def test_every_way_to_write_a_participation(what: Any, kind: str, amount: float) -> None:
    read = Participation.parse(what)
    assert (read.kind, read.amount) == (kind, amount)


@pytest.mark.parametrize(
    ("what", "culprit"),
    [
        ("", "cannot read participation ''"),
        ("half", "cannot read participation 'half'"),
        ("-1", "cannot read participation '-1'"),
        ("pass", "cannot read participation 'pass'"),
        ("pass 2.5", "cannot read participation 'pass 2.5'"),
        ("pass5", "cannot read participation 'pass5'"),
        ("5 of 10", "cannot read participation '5 of 10'"),
        (True, "must be 'all', a fraction, a count"),
        (0, "at least 1, not 0"),
        ("0", "at least 1, not 0"),
        (-2, "at least 1, not -2"),
        ("pass 0", "at least 1, not 0"),
        (0.0, "above 0 and at most 1, not 0.0"),
        ("0%", "above 0 and at most 1, not 0.0"),
        (1.5, "above 0 and at most 1, not 1.5"),
        ("150%", "above 0 and at most 1, not 1.5"),
        (-0.5, "above 0 and at most 1, not -0.5"),
        (float("nan"), "above 0 and at most 1, not nan"),
        (float("inf"), "above 0 and at most 1, not inf"),
        (None, "None"),
    ],
)
def test_what_is_no_participation_is_refused_with_the_value(what: Any, culprit: str) -> None:
    with pytest.raises(BadInput, match=culprit):
        Participation.parse(what)


@pytest.mark.parametrize(
    ("kind", "amount"), [("count", 2.5), ("count", float("nan")), ("pass", float("inf")), ("some", 2)]
)
def test_a_participation_made_by_hand_is_validated(kind: Any, amount: float) -> None:
    with pytest.raises(BadInput, match="participation"):
        Participation(kind, amount)


@pytest.mark.parametrize("what", ["all", 0.5, 1 / 3, 1.0, 0.00001, 5, "pass 5"])
def test_a_participation_reads_back_from_its_own_text(what: Any) -> None:
    made = Participation.parse(what)
    assert Participation.parse(str(made)) == made


# -- how many ----------------------------------------------------------------------------------------------------------


def test_all_takes_everybody() -> None:
    assert counts(draw("all")) == SIZES


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.5, [3, 1, 2, 5]), (0.34, [2, 1, 1, 3]), (0.01, [1, 1, 1, 1]), (0.99, [6, 1, 4, 10]), (1.0, SIZES)],
)
def test_a_fraction_is_rounded_in_every_team_and_at_least_one(fraction: float, expected: list[int]) -> None:
    for exchange in range(5):
        assert counts(draw(fraction, exchange=exchange)) == expected


@pytest.mark.parametrize("count", [1, 3, 4, 100])
def test_a_count_takes_that_many_or_everybody_where_there_are_fewer(count: int) -> None:
    for exchange in range(5):
        assert counts(draw(count, exchange=exchange)) == [min(count, size) for size in SIZES]


def test_nobody_is_drawn_from_nobody() -> None:
    assert draw(2, []).shape == (0,)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6), count=st.integers(1, 13), seed=st.integers(0, 99))
def test_every_child_takes_part_exactly_once_per_pass(sizes: list[int], count: int, seed: int) -> None:
    _, parents = family(sizes)
    longest = max(-(-size // count) for size in sizes)
    history = torch.stack([draw(f"pass {count}", sizes, seed=seed, turn=turn) for turn in range(3 * longest)])
    for parent, size in enumerate(sizes):
        mine = history[:, parents == parent]
        turns = -(-size // count)
        assert int(mine.sum(1).max()) == min(count, size)
        for first in range(0, len(mine) - turns + 1, turns):
            assert mine[first : first + turns].sum(0).tolist() == [1] * size
            assert mine[first].sum() == min(count, size)


def test_a_pass_goes_on_over_rounds_and_exchanges_of_a_round() -> None:
    one = [draw("pass 2", [6], round_=0, exchange=turn, turn=turn) for turn in range(3)]
    other = [draw("pass 2", [6], round_=turn, exchange=0, turn=turn) for turn in range(3)]
    assert torch.equal(torch.stack(one), torch.stack(other))


def test_passes_come_in_different_orders() -> None:
    firsts = {tuple(draw("pass 3", [12], turn=4 * number).tolist()) for number in range(20)}
    assert len(firsts) > 15


# -- luck --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [0.5, 3, "pass 3"])
def test_the_same_address_gives_the_same_draw(what: Any) -> None:
    where: dict[str, Any] = {"seed": 4, "round_": 2, "exchange": [0, 1, 2, 3], "turn": [5, 6, 7, 8]}
    assert torch.equal(draw(what, **where), draw(what, **where))


@pytest.mark.parametrize("what", [0.5, 10])
@pytest.mark.parametrize("part", ["seed", "round_", "exchange", "tier"])
def test_draws_depend_on_seed_round_exchange_and_tier(what: Any, part: str) -> None:
    draws = {tuple(draw(what, [20], **{part: value}).tolist()) for value in range(1, 13)}
    assert len(draws) == 12


@pytest.mark.parametrize("part", ["seed", "tier"])
def test_passes_depend_on_seed_and_tier(part: str) -> None:
    assert len({tuple(draw("pass 10", [20], **{part: value}).tolist()) for value in range(1, 13)}) == 12


def test_parents_of_one_size_draw_different_children() -> None:
    chosen = draw(5, [10] * 8).reshape(8, 10)
    assert len({tuple(row.tolist()) for row in chosen}) > 5


@pytest.mark.parametrize("what", ["all", 0.5, 2, "pass 3"])
@pytest.mark.parametrize("asking", [[0], [1], [3], [0, 2], [1, 3], [0, 1, 2, 3]])
def test_a_parents_draw_does_not_depend_on_which_other_parents_ask(what: Any, asking: list[int]) -> None:
    exchange, turn = torch.tensor([0, 3, 1, 5]), torch.tensor([4, 9, 2, 7])
    where: dict[str, Any] = {"seed": 3, "tier": 1, "round_": 2}
    children, parents = family(SIZES)
    participation = Participation.parse(what)
    together = participation.draw(children, parents, exchange=exchange, turn=turn, **where)
    mine = torch.isin(parents, torch.tensor(asking))
    places = torch.searchsorted(torch.tensor(asking), parents[mine])
    alone = participation.draw(children[mine], places, exchange=exchange[asking], turn=turn[asking], **where)
    assert torch.equal(alone, together[mine])


@pytest.mark.parametrize("what", [0.3, 3, "pass 3"])
def test_every_child_has_the_same_chance(what: Any) -> None:
    times = torch.stack([draw(what, [10], exchange=turn, turn=turn) for turn in range(600)]).sum(0)
    expected = 150 if what == "pass 3" else 180  # a pass of 10 by threes takes four turns
    assert bool(((times - expected).abs() < 50).all())


def test_draws_are_pinned_because_all_algorithms_must_meet_the_same_luck() -> None:
    where: dict[str, Any] = {"round_": 2, "exchange": [0, 3], "turn": [4, 9]}
    found = {what: draw(what, [6, 4], **where).nonzero().squeeze(1).tolist() for what in ("0.5", "2", "pass 3")}
    assert found == {"0.5": [1, 2, 3, 6, 7], "2": [1, 3, 6, 7], "pass 3": [0, 2, 3, 8]}
