"""One node of a federation at work: it answers its parent, asks its children and keeps what it is."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import torch

from palmette.deploy.below import Below
from palmette.deploy.certificates import REVOKED, read_revoked
from palmette.deploy.journal import Journal
from palmette.deploy.keeping import Disk, packed, unpack
from palmette.deploy.kit import STATE, Kit, Place
from palmette.deploy.newcomers import Newcomers
from palmette.deploy.wires import Wires
from palmette.engines.channel import Queues
from palmette.engines.desk import Desk
from palmette.engines.machine import Machine
from palmette.engines.setup import Setup
from palmette.errors import PalmetteError
from palmette.links.wire import Envelope

_RETURN = 5.0  # seconds for which a node that was started again waits for all of its children
_FIRST = 1 << 40  # where numbers of states begin at most, so that a disk that was lost is not taken for the one before


class Node:
    """What all nodes of a federation have in common: the machine, its disk, and the ends of its links.

    Args:
        kit: The node's kit.
        journal: Where it tells what happens.
    """

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.node, self.journal = kit, kit.node, journal
        setup = kit.setup()
        self.children = list(self.node.children)
        self.newcomers = Newcomers(self)
        for note in kit.notes:
            journal.line(note)
        self.disk = Disk(kit.folder / STATE)
        self.samples = dict[int, int]()  # training samples below each child that has said so
        self.ready, self.out = set[int](), set[int]()  # children that are ready, and those that were revoked
        self.began = time.monotonic()
        self.phase = "waiting for children" if self.node.children else "waiting for its parent"
        self.scores: dict[str, Any] = {}
        self.over = False  # whether everybody was told that the training has ended
        self.below = self._open_below() if self.node.children else None
        self._wires = None if self.below is None else Wires(self.below, self.children)
        children = self._wires or Queues()
        desk = Desk(
            children,
            patience=self.node.patience,
            limit=self.node.limit,
            forms=self.node.below,
            event=self._on_child,
            hello=self._on_hello,
        )
        self.machine = Machine(setup, children, desk, deadline=self.node.deadline, limit=self.node.limit)
        self._go_on()

    @property
    def setup(self) -> Setup:
        """What its machine was told, and what it learnt since."""
        return self.machine.setup

    def add(self, child: Place, samples: int) -> None:
        """Number one more child, the last one, and count its samples."""
        assert self._wires is not None
        self.samples[len(self.children)] = samples
        self.children.append(child)
        self._wires.add(child.id)

    # -- what is kept --------------------------------------------------------------------------------------------------

    def resume(self, told: dict[str, Any]) -> None:
        """Take what was kept beside the machine."""

    def _go_on(self) -> None:
        """Go on from what the disk has, or begin; how often the node was started is on the disk before it says a word."""
        machine, data = self.machine, self.disk.read()
        told: dict[str, Any] = {"starts": 0, "samples": {}} if data is None else unpack(machine, data)
        machine.starts = told["starts"] + 1
        self.newcomers.count(int(told.get("grown", 0)))
        self.samples = {int(child): count for child, count in told["samples"].items()}
        self.resume(told)
        if data is None:
            machine.version = int.from_bytes(os.urandom(4), "little") % _FIRST
        self._count_samples()
        self.keep()
        machine.on_kept, machine.on_added = self.keep, self.newcomers.count

    def keep(self) -> None:
        """Put what the node is on the disk."""
        self.disk.write(packed(self.machine, self.also_kept()))

    def also_kept(self) -> dict[str, Any]:
        """Return what is kept beside the machine."""
        return {"starts": self.machine.starts, "samples": self.samples, "grown": self.machine.grown}

    # -- children ------------------------------------------------------------------------------------------------------

    def _may_connect(self) -> dict[str, str]:
        """Return the names of all children by their ids, also of those that are not counted yet."""
        own = {one.id: one.name for one in self.newcomers.own}
        return {child.id: child.name for child in self.children} | own

    def _open_below(self) -> Below:
        node = self.node
        assert node.listen is not None
        return Below(
            node.listen,
            self.kit.identity,
            self._may_connect(),
            limit=2 * node.limit,
            on_event=self._on_link,
            on_call=lambda child, data: None,
            operator=node.operator,
            on_operate=self.operate if node.operator else None,
            revoked=self._revoked(),
        )

    def _revoked(self, listed: str | None = None) -> frozenset[int]:
        """Return the serial numbers of revoked certificates: from a list that just came, which is kept, or the one that is."""
        path = self.kit.folder / REVOKED
        if listed is not None:
            assert self.kit.identity is not None
            # It refuses what this authority did not sign.
            found = read_revoked(listed.encode(), self.kit.identity.authority)
            path.write_text(listed, encoding="ascii")
            return found
        if not path.exists() or self.kit.identity is None:
            return frozenset()
        return read_revoked(path.read_bytes(), self.kit.identity.authority)

    def revoke(self, told: dict[str, Any]) -> int:
        """Shut a node out wherever it is below this one; return how many nodes heard of it."""
        if self.below is None or self.kit.identity is None:
            return 0
        serials = self._revoked(str(told["crl"]))
        numbers = {child.id: number for number, child in enumerate(self.children)}
        if (number := numbers.get(str(told["id"]))) is not None:
            self.below.expel(str(told["id"]), serials)
            self.out.add(number)
            self.journal.line(f"{self.children[number].name} is revoked")
        reached = 1
        for child in self.children if self.node.tier > 1 else ():
            answer = self.below.call(child.id, json.dumps(told).encode(), 5.0)
            reached += int(json.loads(answer).get("reached", 0)) if answer else 0
        return reached

    def operate(self, data: bytes) -> bytes:
        """Answer the operator."""
        raise PalmetteError("this node has no operator")

    def _name_of(self, id_: str) -> str:
        known = self._may_connect()
        if self.node.parent is not None:
            known[self.node.parent.id] = self.node.parent.name
        return known.get(id_, id_ or "a stranger")

    def _on_link(self, kind: str, who: str, detail: str) -> None:
        if kind == "lost" and self.over:
            return  # they go home
        self.journal.event(kind, self._name_of(who), detail)

    def _on_child(self, kind: str, child: int, detail: str) -> None:
        if kind != "lost":  # the link says so itself
            self.journal.event(kind, self.children[child].name, detail)

    def _on_hello(self, child: int, word: Envelope) -> None:
        """Take note of what a child says of itself."""
        told = word.body if isinstance(word.body, dict) else {}
        samples, ready = told.get("samples"), told.get("ready")
        if not isinstance(samples, int) or samples < 0 or not isinstance(ready, bool):
            self.journal.event("damaged", self.children[child].name, "its first word makes no sense")
            return
        if ready:
            self.ready.add(child)
        before = self.samples.get(child)
        counted = (
            word.grown >= self.machine.added[child]
        )  # what it says of itself holds the devices that we count below it
        if before != samples and counted and not self.node.dealt:
            self.samples[child] = samples
            self._count_samples()
            if before:
                self.journal.line(f"{self.children[child].name} has {samples} training samples now; it had {before}")

    def _count_samples(self) -> None:
        """Write the samples of the children, and their sum, where programs look."""
        if self.node.dealt or not self.node.children:
            return
        tier, counts = self.node.tier, self.setup.samples
        counts[tier - 1][:] = torch.tensor([self.samples.get(child, 0) for child in range(len(self.children))])
        counts[tier][:] = counts[tier - 1].sum()

    def gather(self) -> bool:
        """Listen until all children are ready, or those that never came are waited for no more; return whether they are."""
        if self.below is None:
            return True
        everybody = set(range(len(self.children))) - self.out
        if everybody <= self.ready:
            return True
        self.machine.desk.listen(0.1)
        limit = _RETURN if self.machine.now.round >= 0 else self.node.begin_after
        return limit is not None and time.monotonic() - self.began > limit and bool(self.ready)

    def close(self) -> None:
        """Close the ends of all links."""
        if self.below is not None:
            self.below.close()

    # -- telling -------------------------------------------------------------------------------------------------------

    def status(self, seconds: float = 2.0) -> dict[str, Any]:
        """Return what this node and all below it are doing."""
        machine, below = self.machine, self.below
        there = frozenset() if below is None else below.connected()
        told: dict[str, Any] = {
            "name": self.node.name,
            "tier": self.node.tier,
            "phase": self.phase,
            "round": machine.now.round + 1,
            "starts": machine.starts,
            "steps": machine.device_steps,
            "scores": self.scores,
            **self.journal.told(),
        }
        if below is None:
            return told
        totals = machine.ledger.totals().values()
        told["link"] = {
            "exchanges": sum(one.exchanges for one in totals),
            "bytes_down": sum(one.bytes_down for one in totals),
            "bytes_up": sum(one.bytes_up for one in totals),
            "no_answer": sum(one.no_answer for one in totals),
        }
        told["children"] = self._of_children(there, seconds)
        return told

    def _of_children(self, there: frozenset[str], seconds: float) -> list[dict[str, Any]]:
        """Ask all children at once how they are."""
        found: dict[str, dict[str, Any]] = {}
        ask = json.dumps({"do": "status", "seconds": 0.7 * seconds}).encode()

        def one(id_: str) -> None:
            assert self.below is not None
            answer = self.below.call(id_, ask, seconds)
            try:
                told = None if answer is None else json.loads(answer)
            except ValueError:
                told = None
            found[id_] = told if isinstance(told, dict) else {"phase": "does not answer"}

        threads = [
            threading.Thread(target=one, args=(child.id,), daemon=True) for child in self.children if child.id in there
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 1)
        away = {"phase": "not connected"}
        waiting = {"phase": "waits to be counted: it has said nothing of its samples yet"}
        known = {child.id for child in self.children}
        return [
            {**found.get(child.id, away), "name": child.name, "connected": child.id in there} for child in self.children
        ] + [
            {**(waiting if one.id in there else away), "name": one.name, "connected": one.id in there}
            for one in self.newcomers.own
            if one.id not in known
        ]
