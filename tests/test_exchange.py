"""One exchange: whom an ask reaches, what each child is sent, how replies become rows, what is counted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.engines.memory import LinkMemory
from palmette.errors import BadInput, ProtocolError
from palmette.links import Link, Participation
from palmette.links.exchange import drive, exchange
from palmette.links.ledger import Traffic
from palmette.links.office import Counters, Office
from palmette.links.parcel import Arrival, Parcel
from palmette.links.record import Record
from palmette.protocol import Ask, Node, PerChild, Replies
from palmette.task import make_task
from palmette.tree import Tree

TREE = Tree.parse([2, 3, 1])  # the teams' devices are 0-1, 2-4 and 5
SAMPLES = [torch.tensor([10, 30, 5, 5, 20, 8]), torch.tensor([40, 30, 8]), torch.tensor([78])]
WIDTH = 3
LAYOUT = make_task("linear", (WIDTH,), None).layout
MODELS = torch.arange(6 * WIDTH, dtype=torch.float64).reshape(6, WIDTH) ** 2
"""What each device replies unless a test says otherwise."""
MESSAGE = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


NAN = float("nan")


def weighing(weight: float) -> Tensor:
    """Return weights of the six devices, one of them as told."""
    return torch.tensor([1.0, 1.0, 1.0, 1.0, weight, 1.0])


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def team_node(
    ids: list[int] | None = None, *, round_: int = 0, seed: int = 0, tree: Tree = TREE, tier: int = 1
) -> Node:
    chosen = torch.arange(tree.size(tier)) if ids is None else torch.tensor(ids)
    samples = SAMPLES if tree is TREE else [torch.ones(tree.size(t), dtype=torch.int64) for t in range(tree.tiers)]
    return Node(tree, tier, chosen, seed=seed, round_=round_, rounds=5, stage=0, samples=samples, layout=LAYOUT)


class Wire:
    """A transport that keeps what it carried and lets each device reply, in chunks of a given size."""

    def __init__(self, reply: Callable[[Tensor], Any] = lambda ids: MODELS[ids], chunk: int = 6) -> None:
        self.reply, self.chunk = reply, chunk
        self.parcels: list[Parcel] = []

    def __call__(self, parcel: Parcel) -> Iterator[tuple[Tensor, Arrival]]:
        self.parcels.append(parcel)
        for positions in torch.arange(len(parcel.ids)).split(self.chunk):
            yield positions, parcel.open(positions).accept(self.reply(parcel.ids[positions]))

    @property
    def asked(self) -> list[list[int]]:
        return [parcel.ids.tolist() for parcel in self.parcels]

    @property
    def sent(self) -> Any:
        """What each child of the last parcel was sent."""
        return self.parcels[-1].take(slice(None))


class Stand:
    """A stack of teams with its link, counters, ledger entry and transport."""

    def __init__(self, wire: Wire | None = None, *, link: Link | None = None, node: Node | None = None) -> None:
        self.wire, self.link, self.node = wire or Wire(), link or Link(), node or team_node()
        tree, tier = self.node.tree, self.node.tier
        self.counters, self.traffic, self.record = Counters(tree.size(tier)), Traffic(), Record()
        below = tree.size(tier - 1)
        self.office = Office(self.link, self.counters, Counters(below), LinkMemory(below), self.record, "a method")

    def ask(self, message: Any = MESSAGE, **how: Any) -> Replies:
        return exchange(self.node, Ask(message, **how), self.office, self.traffic, self.wire)


# -- reductions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 6])
def test_mean_is_the_plain_mean_of_each_nodes_children(chunk: int) -> None:
    replies = Stand(Wire(chunk=chunk)).ask()
    expected = [MODELS[0:2].mean(0), MODELS[2:5].mean(0), MODELS[5]]
    torch.testing.assert_close(replies.rows, torch.stack(expected))
    assert replies.count.tolist() == [2, 3, 1]
    assert replies.weight.tolist() == [2, 3, 1]
    assert replies.present.tolist() == [True, True, True]


@pytest.mark.parametrize("how", ["samples", "weights"])
@pytest.mark.parametrize("chunk", [1, 2, 6])
def test_samples_and_weights_make_a_weighted_mean(how: str, chunk: int) -> None:
    weights = SAMPLES[0] if how == "samples" else torch.tensor([1.0, 0.0, 2.0, 2.0, 4.0, 0.5])
    stand = Stand(Wire(chunk=chunk))
    replies = stand.ask(reduce="mean" if how == "weights" else how, weights=None if how == "samples" else weights)
    for team, children in enumerate((slice(0, 2), slice(2, 5), slice(5, 6))):
        expected = np.average(MODELS[children], axis=0, weights=weights[children])
        np.testing.assert_allclose(replies.rows[team], expected, rtol=1e-14)
    torch.testing.assert_close(replies.weight, torch.tensor([2.0, 3.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("chunk", [1, 4, 6])
def test_stack_keeps_every_reply_with_its_child_and_parent(chunk: int) -> None:
    stand = Stand(Wire(chunk=chunk), node=team_node([2, 1]))
    replies = stand.ask(MESSAGE[:2], reduce="stack", only=flags(1, 1, 0, 1))
    assert torch.equal(replies.rows, MODELS[[5, 2, 4]])
    assert replies.positions.tolist() == [0, 1, 3]
    assert replies.parents.tolist() == [0, 1, 1]
    assert replies.count.tolist() == [1, 2]
    assert stand.node.child_ids[replies.positions].tolist() == [5, 2, 4]


def test_stack_reduces_nothing_when_nobody_answers() -> None:
    replies = Stand().ask(reduce="stack", only=flags(0, 0, 0, 0, 0, 0))
    assert replies.positions.shape == (0,)
    assert not replies.present.any()


def test_equal_samples_give_the_very_bits_of_the_plain_mean() -> None:
    tree = Tree.parse("2x3")
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    stand = Stand(Wire(lambda ids: rows[ids]), node=team_node(tree=tree))
    one, other = stand.ask(MESSAGE[:2], reduce="samples"), stand.ask(MESSAGE[:2], reduce="mean")
    assert torch.equal(one.rows, other.rows)


@pytest.mark.parametrize("how", ["mean", "samples"])
def test_how_replies_are_cut_into_chunks_changes_no_bit(how: str) -> None:
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    found = [Stand(Wire(lambda ids: rows[ids], chunk)).ask(reduce=how).rows for chunk in range(1, 7)]
    assert all(torch.equal(found[0], other) for other in found)


def test_named_replies_are_reduced_name_by_name_and_numbers_row_by_row() -> None:
    wire = Wire(lambda ids: {"x": MODELS[ids], "loss": ids.double()}, chunk=4)
    replies = Stand(wire).ask(reduce="samples")
    np.testing.assert_allclose(replies["loss"], [0.75, (2 * 5 + 3 * 5 + 4 * 20) / 30, 5])
    assert replies["x"].shape == (3, WIDTH)
    with pytest.raises(ProtocolError, match=r"no reply named 'y'; the children replied with \['loss', 'x'\]"):
        _ = replies["y"]
    with pytest.raises(ProtocolError, match="no reply named ''"):
        _ = replies.rows


def test_named_replies_are_stacked_name_by_name() -> None:
    replies = Stand(Wire(lambda ids: {"x": MODELS[ids], "n": ids}, chunk=4)).ask(reduce="stack")
    assert torch.equal(replies["x"], MODELS)
    assert replies["n"].tolist() == [0, 1, 2, 3, 4, 5]


# -- who is asked ------------------------------------------------------------------------------------------------------


def test_only_the_asking_nodes_ask_and_only_their_counters_advance() -> None:
    stand = Stand()
    stand.ask(to=flags(1, 0, 1), otherwise=torch.full((3, WIDTH), -1.0))
    replies = stand.ask(to=flags(0, 1, 1), otherwise=torch.full((3, WIDTH), -1.0))
    assert stand.wire.asked == [[0, 1, 5], [2, 3, 4, 5]]
    assert [parcel.exchange.tolist() for parcel in stand.wire.parcels] == [[0, 0, 0], [0, 0, 0, 1]]
    assert stand.counters.exchange.tolist() == [1, 1, 2]
    assert stand.counters.turn.tolist() == [1, 1, 2]
    assert stand.traffic.exchanges == 4
    assert replies.rows[0].tolist() == [-1] * WIDTH
    assert replies.count.tolist() == [0, 3, 1]


def test_a_node_that_waits_needs_no_otherwise() -> None:
    replies = Stand().ask(to=flags(0, 1, 1))
    torch.testing.assert_close(replies.rows[1:], torch.stack([MODELS[2:5].mean(0), MODELS[5]]))


def test_nobody_asking_costs_nothing_and_changes_nothing() -> None:
    stand = Stand()
    given = torch.randn(3, WIDTH)
    replies = stand.ask(to=flags(0, 0, 0), otherwise=given)
    assert torch.equal(replies.rows, given)
    assert stand.traffic == Traffic()
    assert stand.wire.parcels == []
    assert stand.counters.turn.tolist() == [0, 0, 0]


def test_counters_belong_to_nodes_of_the_tier_not_to_places_in_a_stack() -> None:
    stand = Stand(node=team_node([2, 0]))
    stand.ask(MESSAGE[:2], to=flags(1, 0))
    assert stand.counters.turn.tolist() == [0, 0, 1]


def test_only_narrows_to_some_children() -> None:
    stand = Stand()
    replies = stand.ask(only=flags(0, 1, 1, 0, 1, 1), reduce="samples")
    assert stand.wire.asked == [[1, 2, 4, 5]]
    np.testing.assert_allclose(replies.rows[1], np.average(MODELS[[2, 4]], axis=0, weights=[5, 20]), rtol=1e-14)
    assert torch.equal(replies.rows[0], MODELS[1])
    assert replies.count.tolist() == [1, 2, 1]


def test_only_narrows_participation_and_never_widens_it() -> None:
    link = Link(Participation("count", 1))
    free = Stand(link=link)
    free.ask()
    (drawn,) = free.wire.asked
    narrowed = Stand(link=link)
    allowed = torch.ones(6, dtype=torch.bool)
    allowed[drawn[1]] = False
    narrowed.ask(only=allowed, otherwise=torch.zeros(3, WIDTH))
    assert narrowed.wire.asked == [[drawn[0], drawn[2]]]


def test_participation_is_drawn_anew_in_every_exchange_and_round() -> None:
    tree = Tree.parse([20])
    link = Link(Participation("fraction", 0.5))
    stand = Stand(Wire(lambda ids: ids.double()), link=link, node=team_node(tree=tree))
    for _ in range(4):
        stand.ask(MESSAGE[:1])
    later = Stand(Wire(lambda ids: ids.double()), link=link, node=team_node(tree=tree, round_=1))
    later.ask(MESSAGE[:1])
    draws = stand.wire.asked + later.wire.asked
    assert all(len(ids) == 10 for ids in draws)
    assert len({tuple(ids) for ids in draws}) == 5


def test_a_pass_goes_on_when_the_round_ends_and_exchanges_begin_again() -> None:
    stand = Stand(link=Link(Participation("pass", 1)), node=team_node([1]))
    for round_ in range(3):
        stand.node = team_node([1], round_=round_)
        stand.counters.exchange.zero_()
        stand.ask(MESSAGE[:1])
    assert sorted(sum(stand.wire.asked, [])) == [2, 3, 4]  # noqa: RUF017 - small


@pytest.mark.parametrize("participation", ["all", 0.5, 2, "pass 2"])
@pytest.mark.parametrize("loss", [0.0, 0.4])
def test_separate_nodes_meet_the_same_children_and_rows_as_the_stack(participation: Any, loss: float) -> None:
    link = Link(Participation.parse(participation), loss=loss)
    stand = Stand(link=link)
    alone = [Stand(link=link, node=team_node([team])) for team in range(3)]
    for turn in range(4):
        to = flags(turn != 1, 1, turn != 2)
        given = MODELS[:3] + 7
        together = stand.ask(to=to, reduce="samples", otherwise=given)
        for team, single in enumerate(alone):
            if to[team]:
                own = single.ask(MESSAGE[team : team + 1], reduce="samples", otherwise=given[team : team + 1])
                assert torch.equal(own.rows[0], together.rows[team])
                assert int(own.count) == int(together.count[team])
    total = Traffic()
    for single in alone:
        total.join(single.traffic)
    assert total == stand.traffic


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_a_row_per_parent_reaches_all_its_children() -> None:
    stand = Stand()
    stand.ask()
    assert torch.equal(stand.wire.sent, MESSAGE[[0, 0, 1, 1, 1, 2]])
    assert torch.equal(stand.wire.parcels[0].take(torch.tensor([4, 1])), MESSAGE[[1, 0]])


def test_per_child_rows_reach_their_own_child() -> None:
    own = torch.arange(12.0).reshape(6, 2)
    stand = Stand()
    stand.ask(PerChild(own), only=flags(1, 0, 0, 1, 1, 1))
    assert torch.equal(stand.wire.sent, own[[0, 3, 4, 5]])
    assert stand.traffic.bytes_down == 4 * 8


def test_per_child_rows_follow_the_order_of_child_ids_in_a_stack_of_any_order() -> None:
    stand = Stand(node=team_node([2, 0]))
    assert stand.node.child_ids.tolist() == [5, 0, 1]
    assert stand.node.child_parents.tolist() == [0, 1, 1]
    assert stand.node.child_samples.tolist() == [8, 10, 30]
    stand.ask({"own": PerChild(torch.tensor([50.0, 0.0, 10.0])), "team": torch.tensor([2, 0])})
    assert stand.wire.sent["own"].tolist() == [50, 0, 10]
    assert stand.wire.sent["team"].tolist() == [2, 0, 0]
    assert stand.wire.parcels[0].ids.tolist() == [5, 0, 1]


def test_a_mapping_may_mix_rows_per_child_rows_numbers_per_row_and_plain_numbers() -> None:
    stand = Stand()
    stand.ask(
        {"x": MESSAGE, "own": PerChild(torch.arange(6.0)), "steps": torch.tensor([7, 8, 9]), "rate": 0.5},
        only=flags(0, 1, 0, 1, 0, 1),
    )
    sent = stand.wire.sent
    assert torch.equal(sent["x"], MESSAGE)
    assert sent["own"].tolist() == [1, 3, 5]
    assert sent["steps"].tolist() == [7, 8, 9]
    assert sent["rate"] == 0.5
    assert stand.traffic.bytes_down == 3 * (8 + 4 + 8 + 8)


def test_messages_are_not_written_into() -> None:
    message, given = MESSAGE.clone(), torch.zeros(3, WIDTH)
    Stand().ask(message, to=flags(1, 0, 1), otherwise=given)
    assert torch.equal(message, MESSAGE)
    assert not given.any()


def test_replies_are_not_written_into() -> None:
    rows = MODELS.clone()
    link = Link(absences=lambda *where: where[3] == 5)
    Stand(Wire(lambda ids: rows[ids]), link=link).ask(otherwise=torch.zeros(3, WIDTH, dtype=torch.float64))
    assert torch.equal(rows, MODELS)


# -- absences ----------------------------------------------------------------------------------------------------------


def lose(*children: int) -> Link:
    return Link(absences=lambda round_, tier, exchange, ids: torch.isin(ids, torch.tensor(children)))


def test_lost_children_were_sent_their_message_but_sent_nothing_back() -> None:
    stand = Stand(link=lose(1, 2))
    replies = stand.ask(reduce="samples")
    assert stand.wire.asked == [[0, 3, 4, 5]]
    assert stand.traffic == Traffic(3, 6 * 2 * 4, 4 * WIDTH * 8, no_answer=2)
    np.testing.assert_allclose(replies.rows[1], np.average(MODELS[[3, 4]], axis=0, weights=[5, 20]), rtol=1e-14)
    assert replies.count.tolist() == [1, 2, 1]
    np.testing.assert_allclose(replies.weight, [10 / 20, 25 / 10, 1])


def test_absences_are_told_round_tier_exchange_and_children() -> None:
    seen: list[tuple[int, int, list[int], list[int]]] = []

    def absences(round_: int, tier: int, exchange: Tensor, children: Tensor) -> Tensor:
        seen.append((round_, tier, exchange.tolist(), children.tolist()))
        return torch.zeros(len(children), dtype=torch.bool)

    stand = Stand(link=Link(absences=absences), node=team_node(round_=3))
    stand.ask(to=flags(1, 0, 0))
    stand.ask(to=flags(1, 0, 1))
    assert seen == [(3, 1, [0, 0], [0, 1]), (3, 1, [1, 1, 0], [0, 1, 5])]


def test_a_parent_nobody_answered_gets_what_it_said_otherwise() -> None:
    given = torch.arange(9.0).reshape(3, 3)
    replies = Stand(link=lose(2, 3, 4)).ask(otherwise=given)
    assert torch.equal(replies.rows[1], given[1].double())
    assert torch.equal(replies.rows[2], MODELS[5])
    assert replies.present.tolist() == [True, False, True]


def test_otherwise_by_name() -> None:
    wire = Wire(lambda ids: {"x": MODELS[ids], "n": ids.double()})
    replies = Stand(wire, link=lose(5)).ask(otherwise={"x": -MESSAGE[:, :1].expand(3, WIDTH), "n": torch.ones(3)})
    assert replies["x"][2].tolist() == [-5] * WIDTH
    assert replies["n"].tolist() == [0.5, 3, 1]


def test_when_nobody_at_all_answers_everyone_gets_otherwise() -> None:
    given = torch.arange(9.0).reshape(3, 3)
    stand = Stand(link=lose(*range(6)))
    assert torch.equal(stand.ask(otherwise=given).rows, given)
    assert stand.wire.parcels == []
    assert stand.traffic == Traffic(3, 6 * 8, 0, no_answer=6)


@pytest.mark.parametrize("lost", [(5,), tuple(range(6))])
def test_nobody_answering_without_otherwise_breaks_the_protocol_and_names_the_node(lost: tuple[int, ...]) -> None:
    name = "team-2" if lost == (5,) else "team-0"
    stand = Stand(link=lose(*lost), node=team_node(round_=4))
    with pytest.raises(ProtocolError, match=rf"nobody answered '{name}' in round 5, .*otherwise"):
        stand.ask()


def test_otherwise_must_name_every_reply() -> None:
    wire = Wire(lambda ids: {"x": MODELS[ids], "n": ids.double()})
    for given in ({"x": MODELS[:3]}, MODELS[:3]):
        with pytest.raises(ProtocolError, match=r"'n'|'x'"):
            Stand(wire, link=lose(5)).ask(otherwise=given)


def test_a_node_without_answers_to_no_message_is_not_given_zeros_for_a_reply() -> None:
    with pytest.raises(ProtocolError, match="nobody answered 'team-2'"):
        Stand(link=lose(5)).ask(None)


def test_replies_of_children_that_all_weigh_nothing_are_no_answer() -> None:
    given = torch.arange(9.0).reshape(3, 3)
    weights = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    replies = Stand().ask(weights=weights, otherwise=given)
    assert torch.equal(replies.rows[0], given[0].double())
    torch.testing.assert_close(replies.rows[1], MODELS[2:5].mean(0))


def test_weights_that_are_all_nothing_are_named_where_nobody_says_otherwise() -> None:
    weights = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 1.0])
    with pytest.raises(ProtocolError, match=r"all children that answered 'team-1' .* weight 0 in Ask\(weights=...\)"):
        Stand().ask(weights=weights)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_otherwise_of_another_width_is_refused(width: int) -> None:
    with pytest.raises(ProtocolError, match=rf"Ask\(otherwise=...\) has shape \(3, {width}\) for .* has \(3, 3\)"):
        Stand(link=lose(5)).ask(otherwise=torch.zeros(3, width))


@pytest.mark.parametrize("loss", [-0.1, 1.0, float("nan")])
def test_a_loss_that_is_no_chance_is_refused(loss: float) -> None:
    with pytest.raises(BadInput, match=f"loss must be at least 0 and below 1, not {loss}"):
        Link(loss=loss)


def test_loss_is_addressed_and_has_its_rate() -> None:
    link, tree = Link(loss=0.3), Tree.parse("1x4000")

    def lost(exchange_: int = 0, **where: int) -> Tensor:
        tier = where.pop("tier", 1)
        given: dict[str, Any] = {
            "seed": 0,
            "round_": 0,
            "rounds": 1,
            "stage": 0,
            "samples": [],
            "layout": LAYOUT,
            **where,
        }
        node = Node(tree if tier == 1 else Tree.parse([1] * 4000), tier, torch.zeros(1, dtype=torch.int64), **given)
        return link.absent(node, torch.full((4000,), exchange_), torch.arange(4000), torch.zeros(4000)) > 0

    first = lost()
    assert torch.equal(first, lost())
    assert abs(float(first.float().mean()) - 0.3) < 0.03
    others = [lost(seed=1), lost(round_=1), lost(tier=2), lost(exchange_=1)]
    assert not any(torch.equal(first, other) for other in others)


def test_without_loss_nobody_is_lost() -> None:
    none = torch.zeros(6, dtype=torch.int64)
    assert not Link().absent(team_node([0, 1, 2]), none, torch.arange(6), none).any()


# -- what is counted ---------------------------------------------------------------------------------------------------


def test_bytes_are_each_childs_copy_down_and_each_childs_reply_up() -> None:
    stand = Stand(Wire(lambda ids: {"x": MODELS[ids].float(), "loss": ids.double()}, chunk=4))
    stand.ask({"x": MESSAGE, "steps": 5})
    assert stand.traffic == Traffic(3, 6 * (2 * 4 + 8), 6 * (WIDTH * 4 + 8))
    stand.ask(to=flags(0, 1, 0))
    assert stand.traffic == Traffic(4, 6 * 16 + 3 * 8, 6 * 20 + 3 * 20)


def test_work_without_message_and_reply_is_no_exchange_on_the_link() -> None:
    stand = Stand(Wire(lambda ids: None))
    replies = stand.ask(None)
    assert stand.wire.sent is None
    assert stand.traffic == Traffic()
    assert replies.count.tolist() == [2, 3, 1]
    assert stand.counters.exchange.tolist() == [1, 1, 1]  # batches of the next ask still differ


def test_work_without_message_but_with_a_reply_is_counted() -> None:
    stand = Stand()
    stand.ask(None)
    assert stand.traffic == Traffic(3, 0, 6 * WIDTH * 8)


def test_work_without_message_asks_nothing_of_nobody() -> None:
    replies = Stand(Wire(lambda ids: None), link=lose(*range(6))).ask(None)
    assert not replies.present.any()


# -- programs that break the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "how", "culprit"),
    [
        (MESSAGE[:2], {}, r"message '' must have 3 rows, not shape \(2, 2\)"),
        (torch.tensor(1.0), {}, r"message '' must have 3 rows, not shape \(\)"),
        (PerChild(MESSAGE), {}, r"message '' must have 6 rows, not shape \(3, 2\)"),
        ({"x": MESSAGE, "c": MESSAGE[:1]}, {}, r"message 'c' must have 3 rows, not shape \(1, 2\)"),
        ({"c": PerChild(MESSAGE)}, {}, r"message 'c' must have 6 rows"),
        (
            MESSAGE,
            {"to": flags(1, 0)},
            r"Ask\(to=...\) must have shape \(3,\), one value per asking node; it has \(2,\)",
        ),
        (
            MESSAGE,
            {"only": flags(1, 0, 1)},
            r"Ask\(only=...\) must have shape \(6,\), one value per child.*it has \(3,\)",
        ),
        (MESSAGE, {"weights": torch.ones(3)}, r"Ask\(weights=...\) must have shape \(6,\), .*it has \(3,\)"),
        (MESSAGE, {"weights": torch.ones(6, 1)}, r"Ask\(weights=...\) must have shape \(6,\), .*it has \(6, 1\)"),
        (MESSAGE, {"to": torch.tensor([1, 0, 1])}, r"Ask\(to=...\) must be bool"),
        (MESSAGE, {"only": torch.ones(6)}, r"Ask\(only=...\) must be bool"),
        (MESSAGE, {"to": [True] * 3}, r"Ask\(to=...\) must be a tensor of 3 bool, not list: write torch.tensor"),
        (MESSAGE, {"only": np.ones(6, bool)}, r"Ask\(only=...\) must be a tensor of 6 bool, not ndarray"),
        (MESSAGE, {"weights": [1.0] * 6}, r"Ask\(weights=...\) must be a tensor of 6 numbers, not list"),
        (MESSAGE, {"weights": weighing(NAN)}, r"Ask\(weights=...\) has nan for 'device-4': weights must be finite"),
        (MESSAGE, {"weights": weighing(-1.0)}, r"Ask\(weights=...\) has -1.0 for 'device-4': .*at least 0"),
        (MESSAGE, {"weights": weighing(float("inf"))}, r"Ask\(weights=...\) has inf for 'device-4'"),
        (MESSAGE, {"weights": torch.ones(6) * 1j}, r"Ask\(weights=...\) has complex numbers"),
        (MESSAGE, {"otherwise": MODELS}, r"Ask\(otherwise=...\) must be rows, one per asking node \(3\).* \(6, 3\)"),
        (MESSAGE, {"otherwise": torch.tensor(0.0)}, r"Ask\(otherwise=...\) must be rows.*it is shape \(\)"),
        (MESSAGE, {"otherwise": "x"}, r"Ask\(otherwise=...\) must be rows.*it is str"),
        (MESSAGE, {"otherwise": {"x": 0.0}}, r"Ask\(otherwise=...\) must be rows.*its 'x' is float"),
        (MESSAGE, {"otherwise": {1: MESSAGE}}, r"Ask\(otherwise=...\) .*mapping of names.*its 1 is"),
        ({1: MESSAGE}, {}, r'the message has the key 1; names are text, as in \{"model": rows\}'),
        ({"x": [1.0, 2.0, 3.0]}, {}, "message 'x'"),
        ({"x": {"y": MESSAGE}}, {}, "message 'x'"),
        ("go", {}, "message ''"),
    ],
)
def test_an_ask_that_does_not_fit_is_refused_before_anything_is_sent(
    message: Any, how: dict[str, Any], culprit: str
) -> None:
    stand = Stand()
    with pytest.raises(ProtocolError, match=culprit):
        stand.ask(message, **how)
    assert stand.wire.parcels == []
    assert stand.traffic == Traffic()
    assert stand.counters.turn.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("reply", "culprit"),
    [
        (lambda ids: MODELS[:1], "reply '' must be a tensor with 6 rows"),
        (lambda ids: 5.0, "reply '' must be a tensor with 6 rows"),
        (lambda ids: torch.tensor(5.0), "reply '' must be a tensor with 6 rows"),
        (lambda ids: {"x": MODELS[ids], "loss": 0.5}, "reply 'loss' must be a tensor with 6 rows"),
        (lambda ids: {"x": MODELS[:2]}, "reply 'x' must be a tensor with 6 rows"),
    ],
    ids=["too few rows", "a number", "a tensor without rows", "a number by name", "too few rows by name"],
)
@pytest.mark.parametrize("how", ["mean", "stack"])
def test_a_reply_without_one_row_per_child_is_refused(reply: Callable[[Tensor], Any], culprit: str, how: str) -> None:
    with pytest.raises(ProtocolError, match=culprit):
        Stand(Wire(reply)).ask(reduce=how)


# -- programs and nodes ------------------------------------------------------------------------------------------------


def test_drive_answers_every_ask_and_returns_what_the_program_returns() -> None:
    asked: list[Ask] = []

    def program() -> Generator[Any, Any, str]:
        first = yield MESSAGE
        second = yield Ask(None, reduce="stack")
        return f"{first} {second}"

    def answer(ask: Ask) -> Any:
        asked.append(ask)
        return len(asked)

    assert drive(program(), answer) == "1 2"
    assert asked[0].message is MESSAGE
    assert (asked[0].reduce, asked[1].reduce) == ("mean", "stack")


def test_drive_runs_a_program_that_never_asks() -> None:
    def program() -> Generator[Any, Any, int]:
        return 3
        yield

    assert drive(program(), lambda ask: pytest.fail("nothing was asked")) == 3  # type: ignore[arg-type, return-value]


def test_an_upper_link_reaches_teams() -> None:
    node = team_node(tier=2)
    stand = Stand(Wire(lambda ids: ids.double()[:, None]), node=node)
    replies = stand.ask(MESSAGE[:1], reduce="samples")
    assert stand.wire.asked == [[0, 1, 2]]
    np.testing.assert_allclose(replies.rows, [[(30 + 16) / 78]])
    assert (len(node), node.samples.tolist()) == (1, [78])


def test_a_coin_falls_alike_on_a_stack_and_on_a_node_alone() -> None:
    together = team_node(round_=2).uniform("coin", 7)
    alone = torch.cat([team_node([team], round_=2).uniform("coin", 7) for team in range(3)])
    assert torch.equal(together, alone)
    assert len(set(together.tolist())) == 3
    for other in (team_node(round_=3).uniform("coin", 7), team_node(round_=2).uniform("coin", 8)):
        assert not torch.equal(together, other)


def test_a_setting_by_name_becomes_a_column_for_the_stack_and_for_its_children() -> None:
    node = team_node([2, 0])
    assert node.own(0.5, MESSAGE) == 0.5
    assert torch.equal(node.own({"team-0": 1.0, "team-1": 2.0, "team-2": 3.0}, MESSAGE), torch.tensor([[3.0], [1.0]]))
    theirs = node.theirs({f"device-{i}": float(i) for i in range(6)}, MESSAGE)
    assert torch.equal(theirs, torch.tensor([[5.0], [0.0], [1.0]]))


def test_a_setting_by_name_must_name_every_node_and_no_other() -> None:
    with pytest.raises(BadInput, match="leaves out 'team-2' of tier 1"):
        team_node().own({"team-0": 1.0, "team-1": 2.0}, MESSAGE)
    with pytest.raises(BadInput, match="no node 'team-9' in tier 1"):
        team_node().own({"team-9": 1.0}, MESSAGE)


@pytest.mark.parametrize("reduce", ["median", "Mean", "", 42, None])
def test_an_unknown_reduction_is_refused_at_once_with_the_words_there_are(reduce: Any) -> None:
    with pytest.raises(ProtocolError, match=r"Ask\(reduce=.*'mean', 'samples', 'stack'"):
        Ask(MESSAGE, reduce=reduce)


def test_weights_that_a_stack_would_ignore_are_refused() -> None:
    with pytest.raises(ProtocolError, match="a stack of replies has no weights"):
        Ask(MESSAGE, reduce="stack", weights=torch.ones(6))


def test_weights_that_would_take_the_place_of_samples_are_refused() -> None:
    with pytest.raises(ProtocolError, match="weighted by one of the two"):
        Ask(MESSAGE, reduce="samples", weights=torch.ones(6))


def test_otherwise_that_a_stack_would_ignore_is_refused() -> None:
    with pytest.raises(ProtocolError, match="none to fill"):
        Ask(MESSAGE, reduce="stack", otherwise=MESSAGE)
