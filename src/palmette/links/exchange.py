"""One exchange: whom a program's ask reaches, which replies enter, and what is counted.

Everything about communication that an algorithm does not know happens here. How messages travel is the transport's
business: the simulator computes the replies at once, a real node sends bytes and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from palmette import address
from palmette.links.clock import SECOND, check_end, whole
from palmette.links.ledger import Traffic, total_payload
from palmette.links.office import Counters as Counters
from palmette.links.office import Office as Office
from palmette.links.parcel import Arrival, Parcel
from palmette.links.record import REASONS
from palmette.links.reduction import Reduction, check, weights_of
from palmette.links.sparse import Sparse
from palmette.protocol import Ask, Message, Node, PerChild, Replies
from palmette.tree.segments import Positions

Transport = Callable[[Parcel], Iterable[tuple[Positions, Arrival]]]
"""Delivers a parcel; yields ``(positions in the parcel, what arrived)`` in ascending order, each child once."""


def drive(program: Generator[Any, Replies, Any], exchange: Callable[[Ask], Replies]) -> Any:
    """Run a program to its end, answering every ask, and return what it returns."""
    try:
        asked = next(program)
        while True:
            asked = program.send(exchange(asked if isinstance(asked, Ask) else Ask(asked)))
    except StopIteration as end:
        return end.value


def exchange(node: Node, ask: Ask, office: Office, traffic: Traffic, transport: Transport) -> Replies:
    """Carry out one ask of the nodes of a stack and reduce what comes back."""
    link, children, parents = office.link, node.child_ids, node.child_parents
    check(node, ask, children.shape[0])
    weights = weights_of(node, ask)
    asking = None if ask.to is None else ask.to.cpu()
    number, turn = office.mine.next(node.ids, asking, again=ask.again or ask.first is not None)
    asked = there = node.child_places
    narrowed = asking is not None or ask.only is not None or link.barred is not None
    if link.participation.kind != "all" or narrowed or ask.apart:
        asked = there = _asked(node, ask, office, asking, number, turn)
    reason = None
    if not link.certain:
        above = parents[asked]
        reason = link.absent(node, number[above], asked, office.mine.time[node.ids][above])
        if bool(reason.any()):
            there = asked[reason == 0]
    everybody = there is node.child_places
    here, ids = (parents, children) if everybody else (parents[there], children[there])
    exchanges = torch.from_numpy(number.numpy()[here.numpy()])
    reduction = Reduction(node, ask, weights, asked, there, link.aggregate)
    parcel = Parcel(ids, exchanges, ask.message, here, there, node, office, ask.wait, reduction)
    tally = _Tally(parcel, timed=office.clocked or ask.apart)
    if ids.shape[0]:
        for positions, arrival in transport(parcel):
            reduction.add(positions, arrival.body, arrival.entered)
            tally.add(positions, arrival)
    if ask.message is not None or tally.bytes_up:
        begun = len(node) if asking is None else int(asking.sum())
        down = tally.bytes_down + _sent_in_vain(parcel, asked, there, number) if link.encodes else None
        traffic.add(begun, _sent(ask.message, parents, asked) if down is None else down, tally.bytes_up)
    if reason is not None or tally.missing:
        _write_down(parcel, tally, traffic, number, asked, reason)
    if office.clocked or ask.apart:
        _pass_time(parcel, ask, tally, traffic, asking, asked)
        check_end(traffic.time)
    open_ = node.child_count if link.barred is None else _members(node, link.barred)
    return reduction.result(asking, open_)


class _Tally:
    """What came back in an exchange: bytes and, child by child, why a reply did not enter and when one came."""

    def __init__(self, parcel: Parcel, *, timed: bool) -> None:
        self.bytes_up = self.bytes_down = 0
        self.missing = False
        self._count, self._timed = parcel.ids.shape[0], timed
        if timed:
            self.ended, self.at = parcel.begin.clone(), parcel.begin.clone()

    @cached_property
    def reason(self) -> Tensor:
        """For each child a place in `REASONS`."""
        return torch.zeros(self._count, dtype=torch.int8)

    def add(self, positions: Positions, arrival: Arrival) -> None:
        """Count what came back from the children at ``positions``."""
        self.bytes_up += arrival.bytes_up
        self.bytes_down += arrival.bytes_down or 0
        if arrival.reason is not None:
            self.reason[positions] = arrival.reason
            self.missing = True
        if self._timed and arrival.ended is not None and arrival.at is not None:
            self.ended[positions], self.at[positions] = arrival.ended, arrival.at


def _write_down(
    parcel: Parcel, tally: _Tally, traffic: Traffic, number: Tensor, asked: Tensor, absent: Tensor | None
) -> None:
    """Count those whose replies did not enter, and write down who they are."""
    node, office = parcel.node, parcel.office
    reason = tally.reason
    if absent is not None:
        reason = absent.clone()
        reason[absent == 0] = tally.reason
    if bool(reason.any()):
        traffic.miss(torch.bincount(reason.to(torch.int64), minlength=len(REASONS)).tolist())
        gone = reason > 0
        exchanges = number[node.child_parents[asked[gone]]]
        office.record.add(node.round, node.tier, exchanges, node.child_ids[asked[gone]], reason[gone])
    if office.link.faults.repeated:
        twice = office.link.repeats(node, parcel.exchange, parcel.places)
        traffic.repeated += int((twice & (tally.reason == 0)).sum())


def _pass_time(parcel: Parcel, ask: Ask, tally: _Tally, traffic: Traffic, asking: Tensor | None, asked: Tensor) -> None:
    """Let the asking nodes wait for the replies they wanted, up to the deadline; note until when the others work."""
    node, office = parcel.node, parcel.office
    entered = tally.reason == 0
    office.theirs.due[parcel.ids[entered]] = 0 if ask.wait else tally.ended[entered] + 1
    begin = _until_back(parcel, asked)
    if not ask.wait:
        office.mine.time[node.ids] = begin
        return
    finish = begin.scatter_reduce(0, parcel.parents[entered], tally.at[entered], "amax")
    if (deadline := office.link.faults.deadline) is not None:
        wanted = torch.bincount(node.child_parents[asked], minlength=len(node))
        came = torch.bincount(parcel.parents[entered], minlength=len(node))
        finish = torch.where(came < wanted, torch.maximum(finish, begin + round(deadline * SECOND)), finish)
    office.mine.time[node.ids] = finish if asking is None else torch.where(asking, finish, begin)
    traffic.time = max(traffic.time, int(office.mine.time[node.ids].max()))


def _until_back(parcel: Parcel, asked: Tensor) -> Tensor:
    """Return the asking nodes' times; those whose children are all away by the clock wait until the first is back."""
    node, office, away = parcel.node, parcel.office, parcel.office.link.faults.away
    begin: Tensor = office.mine.time[node.ids]
    if away is None or away.unit != "seconds" or not office.clocked:
        return begin
    busy = (office.theirs.due[node.child_ids] > 0).nonzero().squeeze(1)
    alone = torch.ones(len(node), dtype=torch.bool)
    alone[parcel.parents] = alone[node.child_parents[busy]] = False
    gone = asked[alone[node.child_parents[asked]]]
    above = node.child_parents[gone]
    seconds = begin[above].to(torch.float64) / SECOND
    back = away.back(node.tree, node.tier - 1, node.child_ids[gone], node.seed, seconds)
    return begin.scatter_reduce(0, above, whole(back) + (back > seconds), "amin", include_self=False)


def _members(node: Node, barred: Tensor) -> Tensor:
    """Return how many children of each node are not kept out."""
    return torch.bincount(node.child_parents[~barred[node.child_ids]], minlength=len(node))


def _asked(node: Node, ask: Ask, office: Office, asking: Tensor | None, number: Tensor, turn: Tensor) -> Tensor:
    """Return which children are asked: drawn by the link, narrowed by the program."""
    link = office.link
    open_ = node.child_places if link.barred is None else (~link.barred[node.child_ids]).nonzero().squeeze(1)
    if not ask.wait:
        open_ = open_[office.theirs.due[node.child_ids[open_]] == 0]  # those at work are not asked again
    chosen = torch.zeros(len(node.child_ids), dtype=torch.bool)
    chosen[open_] = (
        ask.again
        or (ask.first is not None)
        or link.participation.draw(
            node.child_addresses[open_],
            node.child_parents[open_],
            seed=node.seed,
            tier=node.tier,
            round_=node.round,
            exchange=number,
            turn=turn,
        )
    )
    if asking is not None:
        chosen &= asking[node.child_parents]
    if ask.only is not None:
        chosen &= ask.only.cpu()
    if ask.first is not None:
        chosen &= _first(node, ask.first, office.theirs.due[node.child_ids], chosen, number)
    return chosen.nonzero().squeeze(1)


def _first(node: Node, most: int, due: Tensor, chosen: Tensor, number: Tensor) -> Tensor:
    """Return which of the children at work end first, so many for each node (bool); chance decides between equals."""
    working = (chosen & (due > 0)).nonzero().squeeze(1)
    parents = node.child_parents[working]
    base = address.mix(address.key(node.seed, "first", node.round, node.tier), number)
    order = working[torch.argsort(address.mix(base[parents], node.child_addresses[working]), stable=True)]
    order = order[torch.argsort(due[order], stable=True)]
    order = order[torch.argsort(node.child_parents[order], stable=True)]
    above = node.child_parents[order]
    count = torch.bincount(above, minlength=len(node))
    rank = torch.arange(len(order)) - (torch.cumsum(count, 0) - count)[above]
    found = torch.zeros_like(chosen)
    found[order[rank < most]] = True
    return found


def _sent(message: Message, parents: Tensor, places: Tensor) -> int:
    """Return the bytes that go down to the children at ``places``; ``parents`` are those of all children."""
    if isinstance(message, Mapping):
        return sum(_sent(value, parents, places) for value in message.values())
    if isinstance(message, PerChild):
        return total_payload(message.rows, places, places.shape[0])
    return total_payload(message, parents[places] if isinstance(message, Sparse) else None, places.shape[0])


def _sent_in_vain(parcel: Parcel, asked: Tensor, there: Tensor, number: Tensor) -> int:
    """Return the bytes that went down to children that were not reached, encoded for each as the link does."""
    if len(asked) == len(there):
        return 0
    node, office = parcel.node, parcel.office
    out = asked[~torch.isin(asked, there)]

    def length(some: Tensor) -> int:
        places = out[some]
        ids, here = node.child_ids[places], node.child_parents[places]
        lost = Parcel(ids, number[here], parcel.message, here, places, node, office)
        return int(lost.post.send("down", lost.take(slice(None), wrapped=True), ids).lengths.sum())

    return office.counted(node.child_ids[out], length)
