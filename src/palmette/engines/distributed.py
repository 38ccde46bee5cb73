"""The simulator on several processes: the programs of inner nodes run in all of them, the devices are shared out.

Rank 0 leads: it holds the run, and says what is to be done between rounds. In a round all processes do the same, and give the
programs of inner nodes the same replies: each process computes its share of the chunks of an exchange, the sums go on from one
process to the next in the order of the devices, and what came of it is told to all. So every bit is that of one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.engines.memory import LinkMemory
from palmette.engines.peers import COMMAND, EXCHANGE, Lost, Peers, like, looks
from palmette.engines.shared import SharedExchange
from palmette.engines.sharing import Shares, blocks_of, homes_of
from palmette.engines.simulate import Simulation
from palmette.engines.spread import Spread
from palmette.links.office import Office
from palmette.links.parcel import Arrival, Parcel


class Distributed(Simulation):
    """A simulation that is one of several, in as many processes.

    Args:
        *given: As for `Simulation`.
        peers: This process and the others.
        **named: As for `Simulation`.

    Attributes:
        agreed: The error that ended a round in all processes; ``None`` where there was none.
    """

    def __init__(self, *given: Any, peers: Peers, **named: Any) -> None:
        here = peers.here
        if named.get("threads") is None:
            named["threads"] = max(1, (os.cpu_count() or 1) // here.local_size)
        if str(named.get("device")) == "cuda":  # one for each process
            named["device"] = f"cuda:{here.local_rank % max(1, torch.cuda.device_count())}"
        super().__init__(*given, **named)
        self.peers, self.processes = peers, peers.size
        self.agreed: Exception | None = None
        trained = torch.ones(self.tree.devices, dtype=torch.bool)
        if self.population.unseen is not None:
            trained = ~self.population.unseen
        everybody = self._chunks(max(1, int(trained.sum())))
        self._homes = homes_of(blocks_of(everybody, peers.size, 0), trained)
        plain = self.stores[0]
        self._devices = self._spread("0", plain.size, plain.initial, plain.folder, "store-0")
        self.stores[0] = self._devices
        self._of_link: dict[str, Spread] = {}
        self.memories[0] = LinkMemory(plain.size, plain.folder, 0, self._link_store)

    def _spread(self, name: str, size: int, initial: Mapping[str, Tensor], folder: Path | None, prefix: str) -> Spread:
        rank = self.peers.rank
        prefix = f"{prefix}-of-{rank}" if rank else prefix  # files of several processes may lie in one folder
        return Spread(name, size, initial, folder, prefix, self._homes != rank, self._elsewhere, self._homewards)

    def _link_store(
        self, key: str, size: int, initial: Mapping[str, Tensor], folder: Path | None, prefix: str
    ) -> Spread:
        name = f"link/0/{key}"
        self._of_link[name] = self._spread(name, size, initial, folder, prefix)
        return self._of_link[name]

    @property
    def device_stores(self) -> dict[str, Spread]:
        """All that is kept of devices, by name and in the same order in all processes."""
        return {"0": self._devices, **dict(sorted(self._of_link.items()))}

    def device_store(self, name: str, looked: Mapping[str, list[Any]]) -> Spread:
        """Return something that is kept of devices, which is made where it is not there yet.

        Args:
            name: Its name.
            looked: What its rows look like.
        """
        if name not in self.device_stores:
            self._add(name, looked)
        return self.device_stores[name]

    # -- a round -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one round, with all processes."""
        if self.peers.rank == 0:
            self.command("round")
        self.agreed = None
        try:
            super().step()
        except Lost:
            raise
        except Exception as error:
            if error is not self.agreed and not self.peers.all_fail():
                self.peers.broken = True
            raise
        except BaseException:  # Ctrl-C in the middle: the others do not know, and cannot be told
            self.peers.broken = True
            raise

    def _to_devices(self, parcel: Parcel) -> Iterator[tuple[slice, Arrival]]:
        chunks = self._chunks(len(parcel.ids))
        blocks = blocks_of(chunks, self.processes, self.learner.width * self.learner.dtype.itemsize)
        return SharedExchange(self, parcel, Shares(blocks, parcel.ids, parcel.parents, self._homes)).run()

    @cached_property
    def _offices(self) -> list[Office]:
        devices, *others = super()._offices
        return [replace(devices, counted=self._counted), *others]

    def _counted(self, ids: Tensor, count: Callable[[Tensor], int]) -> int:
        """Return the sum of what all processes count, each of the devices that are at home in it."""
        mine = (self._homes[ids] == self.peers.rank).nonzero().squeeze(1)
        told = self.peers.meet(EXCHANGE, {"count": count(mine) if len(mine) else 0})
        return sum(one["count"] for one in told)

    @property
    def counts_devices(self) -> bool:
        """Whether single devices are judged and counted: replies may not enter, or there is a clock."""
        return self._drops or self.pace is not None

    # -- between rounds: rank 0 asks, the others do as it says -----------------------------------------------------------

    def command(self, what: str, **more: Any) -> None:
        """Tell the other processes what to do, as rank 0."""
        self.peers.meet(COMMAND, {"do": what, **more})

    def follow(self) -> None:
        """Do what rank 0 says until the run ends, as another process."""
        work = {"rows": self._hand_over, "settle": self._take_in, "alike": self._become_alike}
        while True:
            told = self.peers.meet(COMMAND)[0]
            if told["do"] == "end":
                return
            if told["do"] == "round":
                self._follow_round()
            elif told["do"] == "forget":
                for store in self.kept.values():
                    store.forget()
            else:
                work[told["do"]](told)

    def _follow_round(self) -> None:
        try:
            self.step()
        except Lost:
            raise
        except Exception:
            if self.peers.broken:
                raise

    def _elsewhere(self, store: str, kind: str, ids: Tensor) -> Tensor:
        """Return rows of devices from their homes, as rank 0."""
        self.command("rows", store=store, kind=kind, count=len(ids))
        self.peers.share(ids, 0)
        homes, row = self._homes[ids], self.device_stores[store].initial[kind]
        rows = row.new_empty((len(ids), *row.shape))
        for home in homes.unique().tolist():
            rows[homes == home] = self.peers.take(home, self.learner.device)["rows"].to(row.device)
        return rows

    def _hand_over(self, told: Mapping[str, Any]) -> None:
        mine = self._mine(told)
        if len(mine):
            self.peers.give(0, {"rows": self.device_stores[told["store"]].rows_of(told["kind"], mine)})
            self.peers.sent()

    def _homewards(self, store: str, kind: str, ids: Tensor, last: Tensor, rows: Tensor) -> None:
        """Bring rows of devices to their homes, as rank 0."""
        looked = {name: looks(row[None], 0) for name, row in self.device_stores[store].initial.items()}
        self.command("settle", store=store, kind=kind, count=len(ids), looks=looked)
        self.peers.share(ids, 0)
        for home in self._homes[ids].unique().tolist():
            mine = self._homes[ids] == home
            self.peers.give(home, {"last": last[mine], "rows": rows[mine.to(rows.device)]})
        self.peers.sent()

    def _take_in(self, told: Mapping[str, Any]) -> None:
        mine, store = self._mine(told), self.device_store(told["store"], told["looks"])
        if len(mine):
            found = self.peers.take(0, self.learner.device)
            store.settle(told["kind"], mine, found["last"], found["rows"])

    def _mine(self, told: Mapping[str, Any]) -> Tensor:
        ids = torch.zeros(told["count"], dtype=torch.int64)
        self.peers.share(ids, 0)
        return ids[self._homes[ids] == self.peers.rank]

    # -- going on from a checkpoint ------------------------------------------------------------------------------------

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Go on from a state, with all processes; rank 0 has it."""
        if tensors["progress"].tolist()[2] == 0:
            self.command("forget")
        super().restore(tensors)
        stores = {
            name: {kind: looks(row[None], 0) for kind, row in store.initial.items()}
            for name, store in self.kept.items()
        }
        self.command("alike", round=self.round, stores=stores, record=len(self.record.table()))
        self._share_all(list(stores))

    def _become_alike(self, told: Mapping[str, Any]) -> None:
        """Take over from rank 0 what all processes have of inner nodes, and who took part when."""
        self.round = told["round"]
        for name, looked in told["stores"].items():
            if name not in self.kept:
                self._add(name, looked)
        for store in self.kept.values():
            if not isinstance(store, Spread):
                store.forget()
        self._share_all(list(told["stores"]), told["record"])

    def _add(self, name: str, looked: Mapping[str, list[Any]]) -> None:
        """Make room for something that codecs of a link remember."""
        _, tier, key = name.split("/", 2)
        zeros = {kind: like([*look[:2], look[2][1:]], self.learner.device).zero_() for kind, look in looked.items()}
        self.memories[int(tier)].add(key, zeros)

    def _share_all(self, names: list[str], absences: int | None = None) -> None:
        """Give rank 0's rows of inner nodes, counts and record to all."""
        for name in names:
            store, last = self.kept[name], self.kept[name].last.clone()
            self.peers.share(last, 0)
            if not isinstance(store, Spread):
                _share_rows(self.peers, store, last)
            store.last.copy_(last)
        for counter in self.counters:
            self.peers.share(counter.table, 0)
        table = self.record.table() if absences is None else torch.zeros((absences, 5), dtype=torch.int64)
        self.peers.share(table, 0)
        if absences is not None:
            self.record.restore(table)


def _share_rows(peers: Peers, store: Any, last: Tensor) -> None:
    """Give rank 0's rows of a store to all, block by block."""
    ids = (last >= 0).nonzero().squeeze(1)
    for kind, row in store.initial.items():
        for some in ids.split(max(1, _BLOCK // max(1, row.nbytes))):
            rows = store.rows_of(kind, some) if peers.rank == 0 else row.new_empty((len(some), *row.shape))
            peers.share(rows, 0)
            if peers.rank:
                store.restore(some, last[some], {kind: rows})


_BLOCK = 1 << 22  # bytes of rows that are given to all at once
