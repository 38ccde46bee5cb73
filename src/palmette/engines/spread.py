"""What devices keep, spread over the processes of a run: each device's rows live in one process, its home."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from palmette.engines.store import Before, Pieces, Store
from palmette.protocol import State

Elsewhere = Callable[[str, str, Tensor], Tensor]
"""``(store, kind of rows, devices) -> rows``: asks the homes of some devices for rows."""
Homewards = Callable[[str, str, Tensor, Tensor, Tensor], None]
"""``(store, kind of rows, devices, rounds they last took part in, rows)``: brings rows to their homes."""


class Spread(Store):
    """A store that has the rows of the devices at home here, and knows of all others when they last took part.

    For an exchange it also takes in guests: rows of others, which a chunk that is computed here begins with; what becomes of
    them goes home afterwards.

    Args:
        name: What the store is called in a checkpoint.
        size: Number of devices.
        initial: Initial row of every kind.
        folder: Where the files of a store on disk lie.
        prefix: How the files' names begin.
        away: Which devices have their home in another process (bool).
        elsewhere: Asks others for rows.
        homewards: Brings rows to others.
    """

    def __init__(
        self,
        name: str,
        size: int,
        initial: Mapping[str, Tensor],
        folder: Path | None,
        prefix: str,
        away: Tensor,
        elsewhere: Elsewhere,
        homewards: Homewards,
    ) -> None:
        super().__init__(size, initial, folder, prefix=prefix)
        self.name, self._away = name, away
        self._ask, self._bring = elsewhere, homewards
        self._guests: tuple[Tensor, dict[str, Tensor]] | None = None
        self.used = False
        """Whether rows were written in the exchange under way."""
        self._made: list[tuple[Tensor, dict[str, Tensor]]] = []

    # -- guests --------------------------------------------------------------------------------------------------------

    def welcome(self, ids: Tensor, rows: dict[str, Tensor]) -> None:
        """Take in the rows of some devices, ascending, that took part before."""
        self._guests = ids, rows

    def farewell(self) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """Return what became of guests, and forget them: an exchange is over."""
        made, self._made, self._guests, self.used = self._made, [], None, False
        return made

    def mark(self, ids: Tensor, round_: int) -> None:
        """Note that some devices took part; of those at home here the new rows say so already."""
        ids = ids[self._away[ids]]
        for notes, noted in self._watching:
            fresh = ids[~noted[ids]]
            noted[fresh] = True
            notes.append(Before(fresh, self.last[fresh], {}))
        self.last[ids] = round_

    # -- as a store ----------------------------------------------------------------------------------------------------

    def rows_of(self, name: str, ids: Tensor) -> Tensor:
        """Return one kind of rows of some devices, wherever they live."""
        away = self._away[ids]
        if not bool(away.any()):
            return super().rows_of(name, ids)
        row = self.initial[name]
        rows = row.expand(len(ids), *row.shape).clone()
        if not bool(away.all()):
            rows[~away] = super().rows_of(name, ids[~away])
        seen = away & (self.last[ids] >= 0)
        if bool(seen.any()):
            rows[seen] = self._brought(name, ids[seen]).to(row.device)
        return rows

    def _brought(self, name: str, ids: Tensor) -> Tensor:
        if self._guests is None:
            return self._ask(self.name, name, ids)
        known, rows = self._guests
        return rows[name][torch.searchsorted(known, ids)]

    def write(self, ids: Tensor, state: State, round_: int) -> None:
        """Keep new rows of some devices; those of guests until they go home."""
        away, self.used = self._away[ids], True
        if not bool(away.any()):
            super().write(ids, state, round_)
            return
        if not bool(away.all()):
            super().write(ids[~away], {name: rows[~away.to(rows.device)] for name, rows in state.items()}, round_)
        self._made.append((ids[away], {name: rows[away.to(rows.device)].cpu() for name, rows in state.items()}))

    def restore(self, ids: Tensor, last: Tensor, written: Mapping[str, Tensor | Pieces]) -> None:
        """Take over rows of a checkpoint, those of others block by block on to their homes."""
        away = self._away[ids]
        self._take_room(ids[~away].numpy())
        for name, given in written.items():
            done = 0
            for part in given.split(self._block(name)) if isinstance(given, Tensor) else given:
                place = slice(done, done + len(part))
                self._settle(name, ids[place], last[place], part)
                done += len(part)
        self.last[ids] = last

    def settle(self, name: str, ids: Tensor, last: Tensor, rows: Tensor) -> None:
        """Take over one kind of rows of devices that are at home here."""
        super().restore(ids, last, {name: rows})

    def _settle(self, name: str, ids: Tensor, last: Tensor, rows: Tensor) -> None:
        away = self._away[ids]
        if not bool(away.all()):
            held = self.rows[name]
            held.index_copy_(0, ids[~away].to(held.device), rows[~away].to(held.device))
        if bool(away.any()):
            self._bring(self.name, name, ids[away], last[away], rows[away])

    def _written(self, name: str, ids: Tensor) -> Iterator[Tensor]:
        for some in ids.split(self._block(name)):
            yield self.rows_of(name, some)

    def _forget(self, ids: Tensor) -> None:
        super()._forget(ids[~self._away[ids]])
        self.last[ids] = -1
