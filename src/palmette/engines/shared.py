"""One exchange with the devices, shared out among the processes of a run.

Every process goes through it in the same steps. Guests come: rows of devices that are computed away from their home. Each
process computes its blocks and adds their replies up, going on with the sum of the process before it where a parent has
children in both. All meet, and tell what a parent has to know: bytes, steps, whose reply did not enter, what went wrong. The
sums are given to all (or all replies, where a program wants them one by one), and guests' new rows go home.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.engines.failures import described, made_again
from palmette.engines.peers import EXCHANGE, like, looks
from palmette.engines.sharing import Block, Shares
from palmette.learner import Halted
from palmette.links.parcel import Arrival, Parcel

if TYPE_CHECKING:
    from palmette.engines.distributed import Distributed

Sums = tuple[slice, dict[str, Tensor], Tensor | None]
"""Replies to be added up: places, rows by name, and whose entered (bool)."""

_TOLD = 3  # numbers of a participant besides the counts of its node: reason, when it ended, when its reply was there


class SharedExchange:
    """An exchange under way in this process.

    Args:
        simulation: This process's.
        parcel: What the devices are sent.
        shares: Who computes what.
    """

    def __init__(self, simulation: Distributed, parcel: Parcel, shares: Shares) -> None:
        self._simulation, self._parcel, self._shares = simulation, parcel, shares
        self._peers, self._rank = simulation.peers, simulation.peers.rank
        self._device = simulation.learner.device
        assert parcel.reduction is not None
        self._reduction = parcel.reduction
        self._done: dict[
            int, list[Arrival]
        ] = {}  # by the first chunk of a block; without the replies that were added up
        self._error: tuple[int, Exception] | None = None
        self._looks: dict[str, list[Any]] = {}  # what replies look like here

    def run(self) -> Iterator[tuple[slice, Arrival]]:
        """Do this process's part; yield what came of all parts, in order."""
        simulation, before = self._simulation, self._simulation.device_steps
        try:
            self._welcome()
            for block in self._shares.of(self._rank):
                self._work(block)
            told = self._peers.meet(EXCHANGE, self._told(simulation.device_steps - before))
            self._peers.sent()
            self._refuse_failed(told)
            simulation.device_steps = before + sum(one["steps"] for one in told)
            arrivals = self._arrivals(told)
            self._settle(arrivals, {name: look for one in told for name, look in one["kept"].items()})
        finally:
            for store in simulation.device_stores.values():
                store.farewell()
        seen = {name: look for one in told for name, look in one["looks"].items()}
        if self._reduction.chains:
            self._share_sums(seen)
        for block, of_block in zip(self._shares.blocks, arrivals, strict=True):
            bodies = (
                [None] * len(of_block) if self._reduction.chains else self._bodies(block, told[block.rank]["looks"])
            )
            for positions, arrival, body in zip(block.chunks, of_block, bodies, strict=True):
                yield positions, _with_body(arrival, body)

    # -- this process's work -------------------------------------------------------------------------------------------

    def _work(self, block: Block) -> None:
        """Compute a block, and add its replies to the sum that comes from the block before it."""
        shares, number, done = self._shares, self._shares.number(block), self._done.setdefault(block.first, [])
        chains, first = self._reduction.chains, int(shares.parents[block.all.start])
        goes_on, waiting = chains and shares.continues(number), list[Sums]()
        try:
            for positions, arrival in self._simulation.worked(self._parcel, block.chunks) if not self._error else ():
                if not chains or arrival.entered is None or bool(arrival.entered.any()):
                    self._look(arrival.body)
                done.append(_with_body(arrival, None) if chains else arrival)
                if not chains:
                    continue
                # Only the children of the parent that is in both blocks have to wait for its sum.
                early = int((shares.parents[positions] == first).sum()) if goes_on else 0
                if early:
                    waiting.append(_cut(positions, arrival, 0, early))
                if early < positions.stop - positions.start:
                    self._reduction.sum(*_cut(positions, arrival, early))
        except Halted:
            raise
        except Exception as error:  # the others must not wait for this process: they are told
            self._error = self._error or (block.first + len(done), error)
        if goes_on:
            for name, row in self._peers.take(shares.blocks[number - 1].rank, self._device).items():
                self._reduction.total_of(name, row)[first] = row[0]
            for part in waiting:
                self._reduction.sum(*part)
        if chains and shares.continues(number + 1):
            last = int(shares.parents[block.all.stop - 1])
            sums = {name: total[last : last + 1] for name, total in self._reduction.sums.items()}
            self._peers.give(shares.blocks[number + 1].rank, sums)

    def _look(self, body: Any) -> None:
        if not self._looks:
            self._looks = {name: looks(rows, 0) for name, rows in _named(body).items()}

    def _told(self, steps: int) -> dict[str, Any]:
        """Return what this process has to tell of its part."""
        mine = [arrival for block in self._shares.of(self._rank) for arrival in self._done.get(block.first, [])]
        kept = {
            name: {kind: looks(row[None], 0) for kind, row in store.initial.items()}
            for name, store in self._simulation.device_stores.items()
            if store.used
        }
        error = None if self._error is None else [self._error[0], *described(self._error[1])]
        return {
            "steps": steps,
            "error": error,
            "looks": self._looks,
            "kept": kept,
            "up": [one.bytes_up for one in mine],
            "down": [one.bytes_down for one in mine],
            "judged": [one.reason is not None for one in mine],
            "timed": [one.ended is not None for one in mine],
        }

    def _refuse_failed(self, told: list[dict[str, Any]]) -> None:
        """End the round in all processes where one failed, with the error that one process would have met first."""
        failed = [(one["error"][0], rank) for rank, one in enumerate(told) if one["error"] is not None]
        if not failed:
            return
        _, rank = min(failed)
        if rank == self._rank and self._error is not None:
            error: Exception = self._error[1]
        else:
            error = made_again(rank, *told[rank]["error"][1:])
        self._simulation.agreed = error
        raise error

    # -- what came of all parts ----------------------------------------------------------------------------------------

    def _arrivals(self, told: list[dict[str, Any]]) -> list[list[Arrival]]:
        """Return by block what arrived from the chunks of all processes, without the replies."""
        shares, made, used = self._shares, list[list[Arrival]](), dict.fromkeys(range(self._peers.size), 0)
        numbers = self._numbers()
        for block in shares.blocks:
            one, of_block = told[block.rank], list[Arrival]()
            for positions in block.chunks:
                at = used[block.rank]
                used[block.rank] += 1
                reason, ended, there = numbers[positions, :_TOLD].T if numbers is not None else (None, None, None)
                judged, timed = one["judged"][at], one["timed"][at]
                of_block.append(
                    Arrival(
                        None,
                        one["up"][at],
                        one["down"][at],
                        reason == 0 if judged and reason is not None else None,
                        reason.to(torch.int8) if judged and reason is not None else None,
                        ended if timed else None,
                        there if timed else None,
                    )
                )
            made.append(of_block)
        return made

    def _numbers(self) -> Tensor | None:
        """Share what is to be known of single participants, and what is counted of them; ``None`` where that is nothing."""
        simulation, ids = self._simulation, self._shares.ids
        if not simulation.counts_devices:
            return None
        table = simulation.counters[0].table
        numbers = torch.zeros((len(ids), _TOLD + len(table)), dtype=torch.int64)
        for block in self._shares.blocks:
            part = numbers[block.all]
            if block.rank == self._rank:
                for positions, arrival in zip(block.chunks, self._done[block.first], strict=True):
                    for column, value in enumerate((arrival.reason, arrival.ended, arrival.at)):
                        if value is not None:
                            numbers[positions, column] = value.to(torch.int64)
                part[:, _TOLD:] = table[:, ids[block.all]].T
            self._peers.share(part, block.rank)
            if block.rank != self._rank:
                table[:, ids[block.all]] = part[:, _TOLD:].T
        return numbers

    def _share_sums(self, seen: Mapping[str, list[Any]]) -> None:
        """Give all processes the sums, each from the process that came to its end."""
        for name, look in seen.items():
            rows = like(look, self._device)
            total = self._reduction.total_of(name, rows if rows.is_floating_point() else rows.to(torch.float64))
            for block in self._shares.blocks:
                self._peers.share(total[self._shares.finished(block)], block.rank)

    def _bodies(self, block: Block, looked: Mapping[str, list[Any]]) -> list[Any]:
        """Give all processes the replies of a block, and return them chunk by chunk."""
        if not looked:
            return [None] * len(block.chunks)
        made: list[dict[str, Tensor]] = [{} for _ in block.chunks]
        mine = self._done.get(block.first, [])
        for name, (kind, where, shape) in looked.items():
            for at, positions in enumerate(block.chunks):
                if block.rank == self._rank:
                    rows = _named(mine[at].body)[name]
                else:
                    rows = like([kind, where, [positions.stop - positions.start, *shape[1:]]], self._device)
                self._peers.share(rows, block.rank)
                made[at][name] = rows
        return made

    # -- rows of devices that are computed away from home ----------------------------------------------------------------

    def _welcome(self) -> None:
        """Send and receive what guests keep."""
        stores, pairs = self._simulation.device_stores, sorted(self._shares.guests.items())
        for (home, rank), ids in pairs:
            if home == self._rank:
                kept: dict[str, Tensor] = {}
                for name, store in stores.items():
                    seen = ids[store.last[ids] >= 0]
                    kept |= {f"{name} {kind}": store.rows_of(kind, seen) for kind in store.initial}
                self._peers.give(rank, kept)
        come = [(ids, self._peers.take(home, self._device)) for (home, rank), ids in pairs if rank == self._rank]
        for name, store in stores.items() if come else ():
            known = [ids[store.last[ids] >= 0] for ids, _ in come]
            order, rows = torch.cat(known).argsort(), {}
            for kind in store.initial if len(order) else ():
                parts = [found[f"{name} {kind}"] for (_, found), some in zip(come, known, strict=True) if len(some)]
                rows[kind] = torch.cat(parts)[order]
            store.welcome(torch.cat(known)[order], rows)

    def _settle(self, arrivals: list[list[Arrival]], kept: Mapping[str, Any]) -> None:
        """Send guests' new rows home, and note everywhere who took part."""
        simulation, shares = self._simulation, self._shares
        parts = [
            (positions, arrival.entered)
            for block, of_block in zip(shares.blocks, arrivals, strict=True)
            for positions, arrival in zip(block.chunks, of_block, strict=True)
        ]
        took = torch.cat([shares.ids[at] if some is None else shares.ids[at][some] for at, some in parts])
        pairs = sorted(shares.guests.items())
        stores = {name: simulation.device_store(name, looked) for name, looked in sorted(kept.items())}
        made = {name: store.farewell() for name, store in stores.items()}
        for (home, rank), ids in pairs:
            if rank == self._rank:
                self._peers.give(home, _of(ids, made))
        for (home, rank), ids in pairs:
            if home == self._rank:
                found, some = self._peers.take(rank, self._device), ids[torch.isin(ids, took)]
                for name, store in stores.items() if len(some) else ():
                    store.write(some, {kind: found[f"{name} {kind}"] for kind in store.initial}, simulation.round)
        for store in stores.values():
            store.mark(took, simulation.round)
        self._peers.sent()


def _of(ids: Tensor, made: Mapping[str, list[tuple[Tensor, dict[str, Tensor]]]]) -> dict[str, Tensor]:
    """Return what some devices keep now, of all that became of guests."""
    found: dict[str, list[Tensor]] = {}
    for name, parts in made.items():
        for there, rows in parts:
            mine = torch.isin(there, ids)
            for kind, value in rows.items():
                found.setdefault(f"{name} {kind}", []).append(value[mine])
    return {name: torch.cat(values) for name, values in found.items()}


def _named(body: Any) -> dict[str, Tensor]:
    return dict(body) if isinstance(body, Mapping) else {} if body is None else {"": body}


def _with_body(arrival: Arrival, body: Any) -> Arrival:
    return replace(arrival, body=body)


def _cut(positions: slice, arrival: Arrival, low: int, high: int | None = None) -> Sums:
    """Return some lines of what arrived from a chunk: places, replies, and whose entered."""
    high = positions.stop - positions.start if high is None else high
    body = {name: rows[low:high] for name, rows in _named(arrival.body).items()}
    entered = None if arrival.entered is None else arrival.entered[low:high]
    return slice(positions.start + low, positions.start + high), body, entered
